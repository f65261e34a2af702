//! The catalogue: what can go wrong.
//!
//! One enum per *gate*, the place in the code that asks for it; several gates may belong to one layer, and each layer has
//! a file. A new kind is one variant there and what its gate does with it: names, parameters, documentation and checks
//! follow from the variant. A new gate is one enum and one line below.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::param::Param;
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KindInfo {
    /// Its layer.
    pub layer: Layer,
    /// Its name.
    pub kind: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
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
                    $( $(#[doc = $field_doc:literal])+ $(#[serde($($serde:tt)+)])? $field:ident : $ty:ty as $values:expr ),* $(,)?
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
                    params: &[$(
                        Param {
                            name: stringify!($field),
                            about: concat!($($field_doc),+),
                            required: gate!(@required $($($serde)+)?),
                            values: $values,
                        },
                    )*],
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
    // What can be left out says so to the reader.
    (@required) => { true };
    (@required $($serde:tt)+) => { false };
}

mod discovery;
mod engine;
mod events;
mod life;
mod metrics;
pub mod param;
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
        let names = info.params.iter().map(|param| param.name).collect::<Vec<_>>();
        if let Some(param) = params.keys().find(|key| !names.contains(&key.as_str())) {
            return Err(KindError::Param {
                kind: name(),
                param: param.clone(),
                known: if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                },
            });
        }
        let wrong = |why: String| KindError::Value { kind: name(), why };
        for param in info.params {
            match params.get_mut(param.name) {
                Some(value) => *value = param.values.read(param.name, value).map_err(wrong)?,
                None if param.required => {
                    let example = param.values.example(param.name);
                    return Err(wrong(format!("it needs {}, as in {example}", param.name)));
                }
                None => {}
            }
        }
        params.insert("kind".to_owned(), info.kind.into());
        let kind = Self::from_object(info, Value::Object(params)).map_err(|error| wrong(error.to_string()))?;
        kind.check().map_err(|why| wrong(why.to_owned()))?;
        Ok(kind)
    }

    /// What holds for its parameters together.
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Life(fault) => fault.check(),
            Self::Pass(fault) => fault.check(),
            Self::Capacity(fault) => fault.check(),
            Self::Purge(fault) => fault.check(),
            Self::Metrics(fault) => fault.check(),
            Self::Request(RequestFault::Latency { ms, jitter_ms })
            | Self::Response(ResponseFault::Latency { ms, jitter_ms })
            | Self::Event(EventFault::Delay { ms, jitter_ms })
                if ms + jitter_ms <= 0.0 =>
            {
                Err("ms and jitter_ms cannot both be 0")
            }
            Self::Condition(_)
            | Self::Door(_)
            | Self::Admission(_)
            | Self::Request(_)
            | Self::Answer(_)
            | Self::Response(_)
            | Self::Event(_)
            | Self::Storm(_)
            | Self::Recovery(_)
            | Self::Discovery(_)
            | Self::Rendezvous(_) => Ok(()),
        }
    }
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

    use super::param::Values;
    use super::*;
    use crate::faults::Fault;

    #[test]
    fn a_name_is_unique_within_its_layer() {
        let names: BTreeSet<_> = catalogue().map(|info| (info.layer, info.kind)).collect();
        assert_eq!(names.len(), catalogue().count());
    }

    /// A value that the schema of a parameter allows.
    fn allowed(param: &Param) -> Value {
        match param.values {
            Values::Number(range) => range.example.into(),
            Values::Whole(range) => range.example.into(),
            Values::Flag => true.into(),
            Values::Text => "kv".into(),
            Values::Word(words) => words[words.len() - 1].into(),
        }
    }

    /// Every parameter, or of those that exclude each other the last.
    fn filled(info: &KindInfo) -> Map<String, Value> {
        let either = |param: &Param| info.kind == "lose_capacity" && param.name == "share";
        let params = info.params.iter().filter(|param| !either(param));
        params.map(|param| (param.name.to_owned(), allowed(param))).collect()
    }

    #[test]
    fn every_kind_reads_back_what_it_writes() {
        for info in catalogue() {
            let kind = Kind::read(Some(info.layer), info.kind, filled(info)).unwrap();
            assert_eq!(kind.info(), info);
            let again = Kind::read(Some(kind.layer()), kind.word(), kind.params());
            assert_eq!(again, Ok(kind));
        }
    }

    #[test]
    fn every_parameter_holds_what_its_schema_allows_and_refuses_the_rest() {
        let mut refused = 0;
        for info in catalogue() {
            for param in info.params {
                let read = |value: Value| {
                    let mut params = filled(info);
                    params.remove(if param.name == "share" { "blocks" } else { "" });
                    params.insert(param.name.to_owned(), value);
                    Kind::read(Some(info.layer), info.kind, params)
                };
                let (mut good, mut bad) = (vec![allowed(param)], vec![Value::Null]);
                match param.values {
                    Values::Number(range) => {
                        good.extend(range.most.map(Value::from));
                        bad.extend(range.most.map(|most| (most + 1.0).into()));
                        bad.extend([(-1.0).into(), "much".into()]);
                        if range.above { &mut bad } else { &mut good }.push(range.least.into());
                    }
                    Values::Whole(range) => {
                        good.push(range.least.into());
                        // `low` may not be above `high`, which stays what it was.
                        good.extend(range.most.filter(|_| param.name != "low").map(Value::from));
                        bad.extend(range.most.and_then(|most| most.checked_add(1)).map(Value::from));
                        bad.extend([(-1).into(), 2.5.into(), "many".into()]);
                        bad.extend(range.least.checked_sub(1).map(Value::from));
                    }
                    Values::Flag => bad.extend([1.into(), "yes".into()]),
                    Values::Text => bad.push(5.into()),
                    Values::Word(words) => {
                        good.extend(words.iter().map(|word| Value::from(*word)));
                        bad.push("other".into());
                    }
                }
                for value in good {
                    // Together with the others it may still make no sense.
                    match read(value.clone()) {
                        Ok(_) => {}
                        Err(KindError::Value { why, .. }) if why.contains(" high") || why.contains("late_ms goes") => {}
                        Err(error) => panic!("{}.{} {}: {error}", info.layer, info.kind, param.name),
                    }
                }
                for value in bad {
                    let error = read(value.clone()).unwrap_err().to_string();
                    assert!(
                        error.contains(&format!("{} {value} must be", param.name)),
                        "{value}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn faults_that_would_do_nothing_are_refused() {
        for line in [
            "w0 wrong_block_size factor=0",
            "w0 wrong_block_size factor=1",
            "w0 stall ms=0",
            "w0 jitter ms=0",
            "w0 slow_start ms=0",
            "w0 gap ids=0",
            "w0 duplicate copies=0",
            "w0 reorder window=1",
            "w0 lose_capacity share=0",
            "w0 lose_capacity blocks=0",
            "w0 storm per_s=0",
            "w0 stale ms=0",
            "w0 rendezvous.late ms=0",
            "w0 slow_close ms=0",
            "w0 bandwidth bytes_per_s=0",
            "w0 limit_data bytes=0",
            "w0 slicer bytes=0",
            "w0 card_churn period_ms=0",
            "w0 registration_storm period_ms=0",
            "w0 response.latency ms=0",
            "w0 request.latency ms=0 jitter_ms=0",
            "w0 delay ms=0",
            "w0 lying low=9 high=3",
            "w0 clear_cache event=without late_ms=5",
            "w0 slow factor=1",
            "w0 crash same_id=true",
            "w0 drain same_id=true",
            "w0 hang p=0",
        ] {
            assert!(line.parse::<Fault>().is_err(), "{line}");
        }
        for line in [
            "w0 request.latency ms=0 jitter_ms=5",
            "w0 cut tokens=0",
            "w0 slow factor=0",
            "w0 crash same_id=true restart_after_ms=0",
            "w0 renumber first=0",
        ] {
            assert!(line.parse::<Fault>().is_ok(), "{line}");
        }
    }
}
