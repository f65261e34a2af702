//! The words that every module shares: ids, time, requests, tokens, KV events and load figures.
//!
//! Everything here is plain data. Numbers carry their unit in the name; ids are newtypes so that a worker can never be
//! taken for a rank.

mod prompt;
mod time;

use std::fmt;
use std::sync::Arc;

pub use prompt::{IdRun, Prompt};
pub use time::{LONGEST_SPAN, SimTime, span_of_ms, span_of_seconds};

/// Most workers of one process: a larger number is a typing error.
pub const MAX_WORKERS: u32 = 65_536;

/// Most data-parallel ranks of a worker, for the same reason.
pub const MAX_RANKS_OF_WORKER: u32 = 1024;

/// Position of a worker in the fleet, from 0; it outlives restarts. Written `w17`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u32);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// Discovery id of one incarnation of a worker; below 2^53 so that JSON tools do not round it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub u64);

impl fmt::LowerHex for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// Data-parallel rank inside a worker, from 0. Written `r0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct DpRank(pub u32);

impl fmt::Display for DpRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Handle of one request inside the process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// One token id.
pub type Token = u32;

/// Token ids that are shared, never copied.
pub type Tokens = Arc<[Token]>;

/// What a request may generate and when it ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StopRule {
    /// Most tokens to generate; `None`: the engine draws a natural length.
    pub max_tokens: Option<u32>,
    /// Before this many tokens neither eos nor a stop id is generated.
    pub min_tokens: u32,
    /// Most tokens of a span of reasoning, markers included; `None`: no limit of its own.
    pub max_thinking_tokens: Option<u32>,
    /// Never end by eos.
    pub ignore_eos: bool,
    /// End-of-sequence ids of the model.
    pub eos_token_ids: Vec<Token>,
    /// Ids that end the answer with reason `stop`.
    pub stop_token_ids: Vec<Token>,
}

impl StopRule {
    /// Exactly one token, whatever it is: the part of a prefill worker.
    pub fn one_token() -> Self {
        Self {
            max_tokens: Some(1),
            ignore_eos: true,
            ..Self::default()
        }
    }
}

/// One request as an engine sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineRequest {
    /// Handle, unique in the process.
    pub id: RequestId,
    /// Seed of the request's generated tokens: a digest of the client-visible request id, so that a migrated request goes
    /// on with the same stream. Token at absolute position `p` depends on engine seed, this key and `p` alone.
    pub key: u64,
    /// Prompt.
    pub prompt: Prompt,
    /// End rule.
    pub stop: StopRule,
    /// Exact ids to generate instead of drawn ones (response replay); their number replaces `max_tokens`.
    pub planned: Option<Tokens>,
    /// Smaller is served first (vLLM `priority` policy only).
    pub priority: i32,
    /// Salt of the block hashes: LoRA name and cache namespace.
    pub salt: HashSalt,
    /// Key by which a router keeps requests together (SGLang `routing-key` order only); never empty.
    pub routing_key: Option<Arc<str>>,
}

/// What makes equal tokens hash differently.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct HashSalt {
    /// LoRA adapter name.
    pub lora_name: Option<Arc<str>>,
    /// Cache namespace (request `cache_salt`).
    pub cache_salt: Option<Arc<str>>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence id was generated.
    Eos,
    /// A stop id was generated.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
}

/// Hash of one block's tokens alone: the router's `tokens_hash`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct LocalHash(pub u64);

/// Rolling hash of a block and all before it: the identity of a cached block, `block_hash` in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct SequenceHash(pub u64);

/// A block that became visible in the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock {
    /// Identity.
    pub block_hash: SequenceHash,
    /// Content.
    pub tokens_hash: LocalHash,
}

/// A change of one rank's prefix cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// A chain of blocks became visible: the first below `parent` (`None`: root), each further one below the one before.
    Stored {
        /// Block before the first one.
        parent: Option<SequenceHash>,
        /// The chain, root side first.
        blocks: Vec<StoredBlock>,
    },
    /// Blocks left the cache, in eviction order.
    Removed {
        /// Their identities.
        block_hashes: Vec<SequenceHash>,
    },
    /// The whole cache of the rank was dropped.
    Cleared,
}

/// Memory for KV below the GPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LowerTier {
    /// Host memory (G2).
    Host,
    /// Disk (G3).
    Disk,
    /// Object storage (G4).
    Storage,
}

impl LowerTier {
    /// All of them, nearest first.
    pub const ALL: [Self; 3] = [Self::Host, Self::Disk, Self::Storage];
}

/// A change of what one rank keeps below the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierEvent {
    /// Where.
    pub tier: LowerTier,
    /// What; a block may be stored without the one before it.
    pub event: KvEvent,
}

/// Load of one rank after a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Load {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait, preempted ones included.
    pub waiting: u32,
    /// Blocks in use by requests (referenced or private).
    pub active_blocks: u32,
    /// Blocks that are cached and unreferenced.
    pub inactive_blocks: u32,
    /// Usable blocks of the rank.
    pub total_blocks: u32,
    /// Preemptions since start.
    pub preemptions: u64,
}
