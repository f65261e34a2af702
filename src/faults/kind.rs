//! The catalogue: what can go wrong.
//!
//! One enum per *gate*, the place in the code that asks for it; several gates may belong to one layer. A new kind is one
//! variant here and what its gate does with it: names, parameters, documentation and checks follow from the variant.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
    /// A kind whose gate does not ask for it yet.
    #[error("fault kind {0} is in the catalogue, but this build cannot carry it out")]
    NotBuiltIn(String),
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

    /// The fault in `kind`, if it is one of this gate.
    fn of(kind: &Kind) -> Option<&Self>;
}

macro_rules! gates {
    ($(
        $(#[doc = $gate_doc:literal])+
        $gate:ident($fault:ident, $layer:ident, $bit:literal) {
            $(
                $(#[doc = $about:literal])+
                $variant:ident = $word:literal {
                    $( $(#[doc = $field_doc:literal])+ $(#[serde($($serde:tt)+)])? $field:ident : $ty:ty ),* $(,)?
                }
            )+
        }
    )+) => {
        $(
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

                fn of(kind: &Kind) -> Option<&Self> {
                    if let Kind::$gate(fault) = kind { Some(fault) } else { None }
                }
            }

            impl From<$fault> for Kind {
                fn from(fault: $fault) -> Self {
                    Self::$gate(fault)
                }
            }
        )+

        /// A kind with its parameters, by gate.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Kind {
            $( $(#[doc = $gate_doc])+ $gate($fault), )+
        }

        impl Kind {
            /// Its line of the catalogue.
            pub fn info(&self) -> &'static KindInfo {
                match self {
                    $( $( Self::$gate($fault::$variant { .. }) => &KindInfo {
                        layer: Layer::$layer,
                        kind: $word,
                        about: concat!($($about),+),
                        params: &[$(stringify!($field)),*],
                    }, )+ )+
                }
            }

            /// The bit of its gate.
            pub fn bit(&self) -> u32 {
                match self { $( Self::$gate(_) => $fault::BIT, )+ }
            }

            fn object(&self) -> Value {
                match self { $( Self::$gate(fault) => serde_json::to_value(fault).unwrap_or_default(), )+ }
            }

            /// From `{"kind": .., <parameters>}`.
            fn from_object(info: &KindInfo, object: Value) -> Result<Self, serde_json::Error> {
                match (info.layer, info.kind) {
                    $( $( (Layer::$layer, $word) => serde_json::from_value(object).map(Self::$gate), )+ )+
                    (_, kind) => Err(serde::de::Error::custom(format!("no kind {kind}"))),
                }
            }
        }

        /// Every kind.
        pub const CATALOGUE: &[KindInfo] = &[$($(
            KindInfo {
                layer: Layer::$layer,
                kind: $word,
                about: concat!($($about),+),
                params: &[$(stringify!($field)),*],
            },
        )+)+];
    };
}

/// Whether and how a cleared cache is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// At once, as it should be.
    #[default]
    With,
    /// Never.
    Without,
    /// Later.
    Late,
}

/// Shape of a lie over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wave {
    /// Always `high`.
    #[default]
    Constant,
    /// From `low` to `high` once per period, then again.
    Ramp,
    /// `low` for half a period, `high` for the other half.
    Square,
}

gates! {
    /// What happens to a worker as a process, once, at the start of its window.
    Life(LifeFault, Life, 0) {
        /// The worker dies without a word: sockets are reset, the lease runs out.
        Crash = "crash" {
            /// Child that dies instead of the worker: `r0`, `kv`, `r1/kv`, `metrics`, `lease`, `rendezvous`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            actor: Option<String>,
            /// Start it again after so long, ms; stays dead without.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            restart_after_ms: Option<f64>,
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool,
        }
        /// An actor panics; its supervisor replaces it.
        Panic = "panic" {
            /// Child that panics instead of the worker, as for `crash`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            actor: Option<String>,
        }
        /// The worker unlists itself, finishes its streams and leaves.
        Drain = "drain" {
            /// Start it again so long after it has been told to drain, ms.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            restart_after_ms: Option<f64>,
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool,
        }
        /// The worker crashes and is started again at once.
        Restart = "restart" {
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool,
        }
        /// The worker crashes and comes back, again and again.
        Flap = "flap" {
            /// Time alive, ms.
            up_ms: f64,
            /// Time dead, ms.
            down_ms: f64,
            /// Under its former instance id.
            #[serde(default, skip_serializing_if = "is_false")]
            same_id: bool,
        }
    }

    /// How the worker lives, asked by its ranks and at its starts.
    Condition(ConditionFault, Life, 1) {
        /// The worker takes requests and never answers; it renews its lease all the while.
        Hang = "hang" {}
        /// Starts take longer: requests wait so much longer for the first pass, ms.
        SlowStart = "slow_start" {
            /// Extra time, ms.
            ms: f64,
        }
    }

    /// Duration of forward passes, asked before each one.
    Pass(PassFault, Engine, 2) {
        /// Passes take a multiple of their time.
        Slow = "slow" {
            /// Multiple; below 1 is faster.
            factor: f64,
        }
        /// A pass takes so much longer, ms.
        Stall = "stall" {
            /// Extra time, ms.
            ms: f64,
        }
        /// Each pass takes longer by a random time, uniform up to so much, ms.
        Jitter = "jitter" {
            /// Most extra time, ms.
            ms: f64,
        }
    }

    /// The door of a worker, asked before a request is looked at.
    Door(DoorFault, Engine, 15) {
        /// The worker says that it is overloaded.
        Refuse = "refuse" {}
    }

    /// Requests on their way to a rank, asked for each one.
    Admission(AdmissionFault, Engine, 3) {
        /// The request fails with an error.
        Reject = "reject" {
            /// Text of the error.
            #[serde(default = "injected")]
            message: String,
            /// Blame the request (400) instead of the worker.
            #[serde(default, skip_serializing_if = "is_false")]
            invalid: bool,
        }
    }

    /// Size of the KV cache, asked when faults change.
    Capacity(CapacityFault, Engine, 4) {
        /// So large a share of each rank's KV blocks cannot be used.
        LoseCapacity = "lose_capacity" {
            /// Share, from 0 to 1.
            share: f64,
        }
    }

    /// Content of the KV cache, once, at the start of the window.
    Purge(PurgeFault, Engine, 13) {
        /// Every unreferenced block is dropped.
        ClearCache = "clear_cache" {
            /// Whether routers are told: `with`, `without` or `late`.
            #[serde(default)]
            event: Told,
            /// How late, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            late_ms: f64,
        }
    }

    /// Calls as they come in, asked for each one.
    Request(RequestFault, Request, 5) {
        /// The call is looked at later.
        Latency = "latency" {
            /// Delay, ms.
            ms: f64,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64,
        }
        /// The connection that brought the call is reset.
        ResetPeer = "reset_peer" {}
        /// The call disappears: no ack, no answer.
        BlackHole = "black_hole" {}
        /// The call is served, but its ack is withheld, and so are all later acks on that connection.
        AckWithheld = "ack_withheld" {}
        /// The call is acked and nobody ever dials back.
        NoCallHome = "no_call_home" {}
    }

    /// What a rank says, on every plane, asked for each request.
    Answer(AnswerFault, Response, 14) {
        /// The stream breaks off after so many tokens, as with a dead process.
        Cut = "cut" {
            /// Tokens that still go out.
            #[serde(default, skip_serializing_if = "is_none_left")]
            tokens: u32,
        }
        /// Nothing goes out any more after so many tokens, and the connection stays open.
        BlackHole = "black_hole" {
            /// Tokens that still go out.
            #[serde(default, skip_serializing_if = "is_none_left")]
            after_tokens: u32,
        }
        /// After so many tokens the answer ends with an error.
        ErrorItem = "error_item" {
            /// Tokens before it.
            #[serde(default, skip_serializing_if = "is_none_left")]
            after_tokens: u32,
            /// Text of the error.
            #[serde(default = "injected")]
            message: String,
        }
    }

    /// Response sockets, asked for each one at its start.
    Response(ResponseFault, Response, 6) {
        /// Every write is late.
        Latency = "latency" {
            /// Delay, ms.
            ms: f64,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64,
        }
        /// So many bytes per second at most.
        Bandwidth = "bandwidth" {
            /// Rate, bytes per second.
            bytes_per_s: f64,
        }
        /// The connection is reset so long after it was opened.
        ResetPeer = "reset_peer" {
            /// Delay, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            after_ms: f64,
        }
        /// The last bytes are on the wire, and the end of the stream comes so much later.
        SlowClose = "slow_close" {
            /// Delay, ms.
            ms: f64,
        }
        /// The connection is closed after so many bytes.
        LimitData = "limit_data" {
            /// Bytes that still go out.
            bytes: u64,
        }
        /// Writes are cut into small pieces with pauses between them.
        Slicer = "slicer" {
            /// Bytes of a piece.
            bytes: u64,
            /// Pause after each, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            delay_ms: f64,
        }
        /// The stream begins without its prologue.
        NoPrologue = "no_prologue" {}
        /// The last item is sent twice.
        DuplicateFinal = "duplicate_final" {}
        /// The stream ends without its last item.
        MissingFinal = "missing_final" {}
        /// After so many tokens comes a frame that is no frame.
        MalformedFrame = "malformed_frame" {
            /// Tokens before it.
            #[serde(default, skip_serializing_if = "is_none_left")]
            after_tokens: u32,
        }
    }

    /// KV events, asked for each message.
    Event(EventFault, Events, 7) {
        /// The message is lost.
        Drop = "drop" {}
        /// The message is sent again.
        Duplicate = "duplicate" {
            /// Extra copies.
            #[serde(default = "one")]
            copies: u32,
        }
        /// Messages are sent in windows of so many, each window in random order.
        Reorder = "reorder" {
            /// Messages in a window.
            window: u32,
        }
        /// The message is late; those after it may overtake it.
        Delay = "delay" {
            /// Delay, ms.
            ms: f64,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64,
        }
        /// Messages are held, and released in order when the fault ends.
        Hold = "hold" {}
        /// Bytes of the payload are flipped.
        Corrupt = "corrupt" {}
        /// Blocks have other identities than the cache.
        WrongHash = "wrong_hash" {}
        /// Blocks hang below a parent that does not exist.
        WrongParent = "wrong_parent" {}
        /// Events name another rank.
        WrongRank = "wrong_rank" {
            /// That rank.
            #[serde(default = "one")]
            rank: u32,
        }
        /// Blocks are announced as if they were smaller: each as so many.
        WrongBlockSize = "wrong_block_size" {
            /// Blocks per block.
            #[serde(default = "two")]
            factor: u32,
        }
        /// Each stored block is listed twice.
        DuplicateHash = "duplicate_hash" {}
        /// Event ids start over on the wire.
        Renumber = "renumber" {
            /// Id of the first event from now on.
            #[serde(default)]
            first: u64,
        }
        /// Event ids skip before the message, as if events had been lost.
        Gap = "gap" {
            /// Ids that are skipped.
            #[serde(default = "one_id")]
            ids: u64,
        }
        /// Messages come from another publisher than the one in discovery, as after a restart nobody heard of.
        StaleEpoch = "stale_epoch" {}
        /// Nothing is published, and nothing is recorded: the publisher never says a word.
        Silent = "silent" {}
    }

    /// Publishing out of turn, asked when faults change.
    Storm(StormFault, Events, 8) {
        /// Extra events, true to form but of blocks that come and go without a request.
        Storm = "storm" {
            /// Messages per second.
            per_s: f64,
        }
    }

    /// Recovery queries, asked for each one.
    Recovery(RecoveryFault, Events, 9) {
        /// The recovery endpoint is not there.
        Missing = "recovery_missing" {}
        /// Queries are taken and never answered.
        Hanging = "recovery_hanging" {}
        /// Answers are for another worker, with event ids from the future.
        Wrong = "recovery_wrong" {}
    }

    /// Lease and records, asked when faults change.
    Discovery(DiscoveryFault, Discovery, 10) {
        /// The lease is gone while the worker lives and serves.
        LeaseLost = "lease_lost" {}
        /// Lease and records are kept up although the worker is dead.
        KeyKept = "key_kept" {}
        /// The record names an address at which nobody listens.
        WrongAddress = "wrong_address" {}
        /// The model card disappears and comes back, again and again.
        CardChurn = "card_churn" {
            /// Time between two changes, ms.
            period_ms: f64,
        }
        /// A second source claims the KV events of each rank.
        DuplicateSource = "duplicate_source" {}
        /// The worker signs off and registers again, again and again.
        RegistrationStorm = "registration_storm" {
            /// Time between two registrations, ms.
            period_ms: f64,
        }
    }

    /// Load figures, asked for each report.
    Metrics(MetricsFault, Metrics, 11) {
        /// Figures are told so much later, ms.
        Stale = "stale" {
            /// Delay, ms.
            ms: f64,
        }
        /// Nothing is told any more.
        Frozen = "frozen" {}
        /// The used blocks are made up.
        Lying = "lying" {
            /// Shape over time: `constant`, `ramp` or `square`.
            #[serde(default)]
            wave: Wave,
            /// Lowest figure, blocks.
            #[serde(default)]
            low: u64,
            /// Highest figure, blocks.
            high: u64,
            /// Length of a period, ms.
            #[serde(default = "second")]
            period_ms: f64,
        }
    }

    /// Handoffs between prefill and decode workers, asked for each one.
    Rendezvous(RendezvousFault, Rendezvous, 12) {
        /// The prefill side never says that the KV is ready.
        NeverReady = "never_ready" {}
        /// It says so later, ms.
        Late = "late" {
            /// Delay, ms.
            ms: f64,
        }
        /// It answers for another room.
        WrongRoom = "wrong_room" {}
        /// It breaks the handoff off.
        Abort = "abort" {}
        /// It forgets the handoff and keeps the blocks.
        Orphan = "orphan" {}
        /// The transfer takes a multiple of its time.
        SlowLink = "slow_link" {
            /// Multiple.
            factor: f64,
        }
        /// The transfer stops half-way.
        LostLink = "lost_link" {}
    }
}

fn injected() -> String {
    "injected fault".to_owned()
}

fn one() -> u32 {
    1
}

fn one_id() -> u64 {
    1
}

fn two() -> u32 {
    2
}

fn second() -> f64 {
    1000.0
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

/// Most messages that a fault may hold back or multiply.
const MAX_COUNT: f64 = 4096.0;

impl Kind {
    /// Its layer.
    pub fn layer(&self) -> Layer {
        self.info().layer
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

    /// Whether it is drawn once per worker, when its window opens, and not each time its gate asks.
    pub fn is_drawn_once(&self) -> bool {
        const ONCE: u32 = LifeFault::BIT
            | ConditionFault::BIT
            | CapacityFault::BIT
            | PurgeFault::BIT
            | StormFault::BIT
            | DiscoveryFault::BIT;
        self.bit() & ONCE != 0
    }

    /// Whether the code that it disturbs asks for it.
    pub fn is_built_in(&self) -> bool {
        const MISSING: u32 = CapacityFault::BIT | RendezvousFault::BIT;
        self.bit() & MISSING == 0
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
        Self::from_object(info, Value::Object(params)).map_err(|error| KindError::Value {
            kind: name(),
            why: error.to_string(),
        })
    }
}

/// What holds for a parameter whatever the kind: its name says its unit.
fn check(param: &str, value: &Value) -> Result<(), String> {
    let Some(number) = value.as_f64() else { return Ok(()) };
    let most = match param {
        "share" => 1.0,
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
    Ok(())
}

fn find(layer: Option<Layer>, word: &str) -> Result<&'static KindInfo, KindError> {
    let found: Vec<&KindInfo> = CATALOGUE
        .iter()
        .filter(|info| info.kind == word && layer.is_none_or(|layer| info.layer == layer))
        .collect();
    match found[..] {
        [info] => Ok(info),
        [] => {
            let nearest = CATALOGUE
                .iter()
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
        let names: BTreeSet<_> = CATALOGUE.iter().map(|info| (info.layer, info.kind)).collect();
        assert_eq!(names.len(), CATALOGUE.len());
    }

    #[test]
    fn every_kind_reads_back_what_it_writes() {
        for info in CATALOGUE {
            let mut params = Map::new();
            for &param in info.params {
                let value = match param {
                    "actor" => "kv".into(),
                    "message" => "no".into(),
                    "event" => "late".into(),
                    "wave" => "ramp".into(),
                    "same_id" | "invalid" => true.into(),
                    "share" => 0.5.into(),
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
