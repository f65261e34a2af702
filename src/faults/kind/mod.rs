//! The catalogue: what can go wrong.
//!
//! One enum per *gate*, the place in the code that asks for it; several gates may belong to one layer, and each layer has
//! a file. A new kind is one variant there and what its gate does with it: names, parameters, documentation and checks
//! follow from the variant. A new gate is one enum and one line below.

use serde::Serialize;
use serde_json::{Map, Value};

use self::param::Param;
use super::select::{Candidate, KvEvents};

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
mod layer;
mod life;
mod metrics;
pub mod param;
mod read;
mod rendezvous;
mod request;
mod response;

pub use discovery::DiscoveryFault;
pub use engine::{AdmissionFault, CapacityFault, DoorFault, PassFault, PurgeFault, Told};
pub use events::{AtSource, EventFault, InContent, OnTheWay, RecoveryFault, StormFault};
pub use layer::Layer;
pub use life::{ConditionFault, LifeFault};
pub use metrics::{MetricsFault, Wave};
pub use read::KindError;
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
        let is_durable = worker.events == KvEvents::Durable;
        match self {
            Self::Rendezvous(_) if !is_prefill() => Some("only prefill workers have handoffs to disturb"),
            Self::Event(_)
            | Self::Storm(_)
            | Self::Recovery(_)
            | Self::Discovery(DiscoveryFault::DuplicateSource {})
                if worker.events == KvEvents::None =>
            {
                Some(
                    "one without a prefix cache, or a decode worker that leaves prefill to others, announces no KV blocks",
                )
            }
            Self::Event(EventFault::StaleEpoch {}) if is_durable => {
                Some("messages in JetStream name no publisher, so that none can be another")
            }
            Self::Recovery(_) if is_durable => {
                Some("routers that read JetStream replay the stream, and there is no recovery endpoint")
            }
            Self::Discovery(DiscoveryFault::DuplicateSource {}) if is_durable => {
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
}
