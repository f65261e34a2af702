//! The catalogue: what can go wrong.
//!
//! One enum per *gate*, the place in the code that asks for it; several gates may belong to one layer, and each layer has
//! a file. A new kind is one variant there and what its gate does with it: names, parameters, documentation and checks
//! follow from the variant. A new gate is one enum and one line below.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::select::Candidate;

/// Part of a worker that a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The worker as a process.
    Life,
    /// Scheduler and KV cache.
    Engine,
    /// What comes in.
    Request,
    /// What goes out to clients.
    Response,
    /// KV events and their recovery.
    Events,
    /// Lease and records.
    Discovery,
    /// Load figures.
    Metrics,
    /// Handoff between prefill and decode workers.
    Rendezvous,
}

impl Layer {
    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::Engine => "engine",
            Self::Request => "request",
            Self::Response => "response",
            Self::Events => "events",
            Self::Discovery => "discovery",
            Self::Metrics => "metrics",
            Self::Rendezvous => "rendezvous",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One line of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KindInfo {
    /// Its layer.
    pub layer: Layer,
    /// Its name.
    pub kind: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Names of its parameters.
    pub params: &'static [&'static str],
}

/// A kind that is not in the catalogue, or parameters that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KindError {
    /// No such kind.
    #[error("there is no fault kind `{kind}`{}{hint}", layer.map_or_else(String::new, |layer| format!(" in layer {layer}")))]
    Unknown {
        /// As asked for.
        layer: Option<Layer>,
        /// As asked for.
        kind: String,
        /// Where to go from here.
        hint: String,
    },
    /// Several layers have it.
    #[error("fault kind `{kind}` is in several layers; say {choices}")]
    Ambiguous {
        /// As asked for.
        kind: String,
        /// All of them.
        choices: String,
    },
    /// A parameter that the kind does not have.
    #[error("fault kind {kind} has no parameter `{param}`; it has {known}")]
    Param {
        /// With its layer.
        kind: String,
        /// As given.
        param: String,
        /// Those that it has.
        known: String,
    },
    /// A value that the parameter cannot have.
    #[error("fault kind {kind}: {why}")]
    Value {
        /// With its layer.
        kind: String,
        /// What is wrong.
        why: String,
    },
}

/// The faults of one gate.
pub trait GateFault: Clone + Into<Kind> {
    /// The gate's bit in a worker's table.
    const BIT: u32;
    /// They are drawn once per worker, when their window opens, and not each time the gate asks.
    const DRAWN_ONCE: bool;
    /// Their lines of the catalogue.
    const KINDS: &'static [KindInfo];

    /// The fault in `kind`, if it is one of this gate.
    fn of(kind: &Kind) -> Option<&Self>;

    /// Its name within the gate.
    fn word(&self) -> &'static str;
}

/// The faults of one gate from their variants: gate, type, layer, bit, and `once` if they are drawn once.
macro_rules! gate {
    (
        $(#[doc = $gate_doc:literal])+
        $gate:ident($fault:ident, $layer:ident, $bit:literal $(, $once:ident)?) {
            $(
                $(#[doc = $about:literal])+
                $variant:ident = $word:literal {
                    $( $(#[doc = $field_doc:literal])+ $(#[serde($($serde:tt)+)])? $field:ident : $ty:ty ),* $(,)?
                }
            )+
        }
    ) => {
        $(#[doc = $gate_doc])+
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "kind", deny_unknown_fields)]
        pub enum $fault {
            $(
                $(#[doc = $about])+
                #[serde(rename = $word)]
                $variant { $( $(#[doc = $field_doc])+ $(#[serde($($serde)+)])? $field: $ty ),* },
            )+
        }

        impl GateFault for $fault {
            const BIT: u32 = 1 << $bit;
            const DRAWN_ONCE: bool = gate!(@drawn $($once)?);
            const KINDS: &'static [KindInfo] = &[$(
                KindInfo {
                    layer: Layer::$layer,
                    kind: $word,
                    about: concat!($($about),+),
                    params: &[$(stringify!($field)),*],
                },
            )+];

            fn of(kind: &Kind) -> Option<&Self> {
                if let Kind::$gate(fault) = kind { Some(fault) } else { None }
            }

            fn word(&self) -> &'static str {
                match self { $( Self::$variant { .. } => $word, )+ }
            }
        }

        impl From<$fault> for Kind {
            fn from(fault: $fault) -> Self {
                Self::$gate(fault)
            }
        }
    };
    (@drawn once) => { true };
    (@drawn) => { false };
}

mod discovery;
mod engine;
mod events;
mod life;
mod metrics;
mod rendezvous;
mod request;
mod response;

pub use discovery::DiscoveryFault;
pub use engine::{AdmissionFault, CapacityFault, DoorFault, PassFault, PurgeFault, Told};
pub use events::{AtSource, EventFault, InContent, OnTheWay, RecoveryFault, StormFault};
pub use life::{ConditionFault, LifeFault};
pub use metrics::{MetricsFault, Wave};
pub use rendezvous::RendezvousFault;
pub use request::RequestFault;
pub use response::{AnswerFault, ResponseFault};

macro_rules! gates {
    ($($(#[doc = $doc:literal])+ $gate:ident($fault:ident)),+ $(,)?) => {
        /// A kind with its parameters, by gate.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Kind {
            $( $(#[doc = $doc])+ $gate($fault), )+
        }

        impl Kind {
            /// The bit of its gate.
            pub fn bit(&self) -> u32 {
                match self { $( Self::$gate(_) => $fault::BIT, )+ }
            }

            /// Whether it is drawn once per worker, when its window opens, and not each time its gate asks.
            pub fn is_drawn_once(&self) -> bool {
                match self { $( Self::$gate(_) => $fault::DRAWN_ONCE, )+ }
            }

            /// Its line of the catalogue.
            pub fn info(&self) -> &'static KindInfo {
                match self { $( Self::$gate(fault) => line_of(fault), )+ }
            }

            fn object(&self) -> Value {
                match self { $( Self::$gate(fault) => serde_json::to_value(fault).unwrap_or_default(), )+ }
            }

            /// From `{"kind": .., <parameters>}`.
            fn from_object(info: &KindInfo, object: Value) -> Result<Self, serde_json::Error> {
                $(
                    if $fault::KINDS.contains(info) {
                        return serde_json::from_value(object).map(Self::$gate);
                    }
                )+
                Err(serde::de::Error::custom(format!("no kind {}", info.kind)))
            }
        }

        const GATES: &[&[KindInfo]] = &[$($fault::KINDS),+];
    };
}

gates! {
    /// What happens to a worker as a process, once, at the start of its window.
    Life(LifeFault),
    /// How the worker lives, asked by its ranks and at its starts.
    Condition(ConditionFault),
    /// Duration of forward passes, asked before each one.
    Pass(PassFault),
    /// The door of a worker, asked before a request is looked at.
    Door(DoorFault),
    /// Requests on their way to a rank, asked for each one.
    Admission(AdmissionFault),
    /// Size of the KV cache, asked when faults change.
    Capacity(CapacityFault),
    /// Content of the KV cache, once, at the start of the window.
    Purge(PurgeFault),
    /// Calls as they come in, asked for each one.
    Request(RequestFault),
    /// What a rank says, on every plane, asked for each request.
    Answer(AnswerFault),
    /// Response sockets, asked for each one at its start.
    Response(ResponseFault),
    /// KV events, asked for each message.
    Event(EventFault),
    /// Publishing out of turn, asked when faults change.
    Storm(StormFault),
    /// Recovery queries, asked for each one.
    Recovery(RecoveryFault),
    /// Lease and records, asked when faults change.
    Discovery(DiscoveryFault),
    /// Load figures, asked for each report.
    Metrics(MetricsFault),
    /// Handoffs between prefill and decode workers, asked for each one.
    Rendezvous(RendezvousFault),
}

/// Every kind.
pub fn catalogue() -> impl Iterator<Item = &'static KindInfo> {
    GATES.iter().copied().flatten()
}

fn line_of<F: GateFault>(fault: &F) -> &'static KindInfo {
    let line = F::KINDS.iter().find(|info| info.kind == fault.word());
    line.expect("both are made from the variant")
}

fn injected() -> String {
    "injected fault".to_owned()
}

fn one() -> u32 {
    1
}

// serde asks with a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none_left(value: &u32) -> bool {
    *value == 0
}

/// Longest time of a parameter in milliseconds: a day.
const MAX_MS: f64 = 86_400_000.0;

/// Shortest beat of a worker that flaps: a worker needs about so long to be built and listed.
const MIN_BEAT_MS: f64 = 50.0;

/// Most messages per second out of turn.
const MAX_PER_S: f64 = 100_000.0;

/// Most messages that a fault may hold back or multiply.
const MAX_COUNT: f64 = 4096.0;

impl Kind {
    /// Its layer.
    pub fn layer(&self) -> Layer {
        self.info().layer
    }

    /// Why it does nothing to a worker, if the worker has nothing that it strikes.
    pub fn spares(&self, worker: &Candidate) -> Option<&'static str> {
        let is_prefill = || {
            worker
                .labels
                .iter()
                .any(|(key, value)| key == "role" && value == "prefill")
        };
        match self {
            Self::Rendezvous(_) if !is_prefill() => Some("only prefill workers have handoffs to disturb"),
            Self::Event(EventFault::StaleEpoch {}) if worker.durable_events => {
                Some("messages in JetStream name no publisher, so that none can be another")
            }
            Self::Recovery(_) if worker.durable_events => {
                Some("routers that read JetStream replay the stream, and there is no recovery endpoint")
            }
            Self::Discovery(DiscoveryFault::DuplicateSource {}) if worker.durable_events => {
                Some("events in JetStream have no sources in discovery")
            }
            Self::Life(_)
            | Self::Condition(_)
            | Self::Pass(_)
            | Self::Door(_)
            | Self::Admission(_)
            | Self::Capacity(_)
            | Self::Purge(_)
            | Self::Request(_)
            | Self::Answer(_)
            | Self::Response(_)
            | Self::Event(_)
            | Self::Storm(_)
            | Self::Recovery(_)
            | Self::Discovery(_)
            | Self::Metrics(_)
            | Self::Rendezvous(_) => None,
        }
    }

    /// Its name within the layer.
    pub fn word(&self) -> &'static str {
        self.info().kind
    }

    /// Its parameters, those at their default left out where the kind says so.
    pub fn params(&self) -> Map<String, Value> {
        let Value::Object(mut object) = self.object() else {
            return Map::new();
        };
        object.remove("kind");
        object
    }

    /// Looks a kind up and checks its parameters. Without a layer the name has to be one that only one layer has.
    ///
    /// # Errors
    /// [`KindError`] names the kind, the parameter, and what there is instead.
    pub fn read(layer: Option<Layer>, word: &str, mut params: Map<String, Value>) -> Result<Self, KindError> {
        let info = find(layer, word)?;
        let name = || format!("{}.{}", info.layer, info.kind);
        if let Some(param) = params.keys().find(|key| !info.params.contains(&key.as_str())) {
            return Err(KindError::Param {
                kind: name(),
                param: param.clone(),
                known: match info.params {
                    [] => "none".to_owned(),
                    params => params.join(", "),
                },
            });
        }
        for (param, value) in &params {
            check(param, value).map_err(|why| KindError::Value { kind: name(), why })?;
        }
        params.insert("kind".to_owned(), info.kind.into());
        let value = |why: String| KindError::Value { kind: name(), why };
        let kind =
            Self::from_object(info, Value::Object(params)).map_err(|error| value(explained(&error.to_string())))?;
        if let Self::Capacity(fault) = &kind {
            fault.check().map_err(|why| value(why.to_owned()))?;
        }
        Ok(kind)
    }
}

/// What the reader says; of a parameter that is missing, how it is written.
fn explained(error: &str) -> String {
    let param = error
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split_once('`'));
    let Some((param, _)) = param else {
        return error.to_owned();
    };
    let example = match param {
        "factor" => "factor=4",
        "share" => "share=0.5 (from 0 to 1)",
        "per_s" => "per_s=100 (per second)",
        "bytes_per_s" => "bytes_per_s=1000 (bytes per second)",
        "ms" => "ms=20 (milliseconds)",
        _ if param.ends_with("_ms") => return format!("it needs {param}, as in {param}=500 (milliseconds)"),
        _ => return format!("it needs {param}, as in {param}=8"),
    };
    format!("it needs {param}, as in {example}")
}

/// What holds for a parameter whatever the kind: its name says its unit.
fn check(param: &str, value: &Value) -> Result<(), String> {
    let Some(number) = value.as_f64() else { return Ok(()) };
    let most = match param {
        "share" => 1.0,
        "per_s" => MAX_PER_S,
        "window" | "copies" | "factor" => MAX_COUNT,
        _ if param.ends_with("ms") => MAX_MS,
        _ => f64::MAX,
    };
    if !(0.0..=most).contains(&number) {
        let upper = if most > 1e300 {
            String::new()
        } else {
            format!(", at most {most}")
        };
        return Err(format!("{param} {number} must be 0 or greater{upper}"));
    }
    let positive = matches!(
        param,
        "per_s" | "bytes_per_s" | "bytes" | "period_ms" | "up_ms" | "down_ms" | "window"
    );
    if positive && number <= 0.0 {
        return Err(format!("{param} must be greater than 0"));
    }
    if matches!(param, "up_ms" | "down_ms") && number < MIN_BEAT_MS {
        return Err(format!("{param} {number} must be at least {MIN_BEAT_MS}"));
    }
    Ok(())
}

fn find(layer: Option<Layer>, word: &str) -> Result<&'static KindInfo, KindError> {
    let found: Vec<&KindInfo> = catalogue()
        .filter(|info| info.kind == word && layer.is_none_or(|layer| info.layer == layer))
        .collect();
    match found[..] {
        [info] => Ok(info),
        [] => {
            let nearest = catalogue()
                .filter(|info| layer.is_none_or(|layer| info.layer == layer))
                .map(|info| (strsim::jaro_winkler(word, info.kind), info))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .filter(|(score, _)| *score > 0.7);
            Err(KindError::Unknown {
                layer,
                kind: word.chars().take(40).collect(),
                hint: match nearest {
                    Some((_, info)) => format!("; did you mean `{}`?", info.kind),
                    None => "; `ghostfleet ctl faults kinds` lists all".to_owned(),
                },
            })
        }
        _ => Err(KindError::Ambiguous {
            kind: word.to_owned(),
            choices: found
                .iter()
                .map(|info| format!("{}.{}", info.layer, info.kind))
                .collect::<Vec<_>>()
                .join(" or "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_unique_within_its_layer() {
        let names: BTreeSet<_> = catalogue().map(|info| (info.layer, info.kind)).collect();
        assert_eq!(names.len(), catalogue().count());
    }

    #[test]
    fn every_kind_reads_back_what_it_writes() {
        for info in catalogue() {
            let mut params = Map::new();
            // Of parameters that exclude each other the last.
            let either = |param: &str| info.kind == "lose_capacity" && param == "share";
            for &param in info.params.iter().filter(|param| !either(param)) {
                let value = match param {
                    "actor" => "kv".into(),
                    "message" => "no".into(),
                    "event" => "late".into(),
                    "wave" => "ramp".into(),
                    "same_id" | "invalid" => true.into(),
                    "share" => 0.5.into(),
                    "up_ms" | "down_ms" => 60.into(),
                    _ => 3.into(),
                };
                params.insert(param.to_owned(), value);
            }
            let kind = Kind::read(Some(info.layer), info.kind, params).unwrap();
            assert_eq!(kind.info(), info);
            let again = Kind::read(Some(kind.layer()), kind.word(), kind.params());
            assert_eq!(again, Ok(kind));
        }
    }
}
