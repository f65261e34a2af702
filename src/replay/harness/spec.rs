//! What a replay is made of, and why it cannot be.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{self, EngineConfig, KvTransfer};
use crate::router::{PolicyProfile, PrefillTimes, RouterConfig, RouterError};
use crate::types::SimTime;

use super::super::planner::PlannerError;

/// Last instant that a replay reaches, 292 years: times behind it may have been cut to what the clock can show.
pub(super) const CLOCK_END: SimTime = SimTime::of_ms(9_223_372_036_854.0);

/// The workers.
#[derive(Debug, Clone)]
pub struct FleetSpec {
    /// Workers that answer: all of them, or the decode side of a disaggregated fleet.
    pub serving: PoolSpec,
    /// Prefill side of a disaggregated fleet.
    pub prefill: Option<PrefillSpec>,
    /// Cache changes reach the router when a pass begins, not when it ends (Dynamo 1.4.2 with vLLM).
    pub events_at_start: bool,
    /// The only worker there is sees what is due when its pass ends, not before (Dynamo 1.4.2).
    pub looks_between_passes: bool,
}

/// Workers of one kind.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// Each rank.
    pub engine: EngineConfig,
    /// Workers at the start, at least 1.
    pub workers: u32,
    /// Data-parallel ranks of each.
    pub dp_size: u32,
    /// For GPU hours.
    pub gpus_per_worker: u32,
    /// How long a worker that is added takes until it is ready.
    pub startup: Duration,
}

/// Prefill side of a disaggregated fleet.
#[derive(Debug, Clone)]
pub struct PrefillSpec {
    /// Its workers.
    pub pool: PoolSpec,
    /// How KV travels from here.
    pub transfer: KvTransfer,
    /// Only what the destination lacks travels, not the whole prompt.
    pub missing_only: bool,
    /// Workers generate the whole answer before they hand a request over, not its first token only: Dynamo 1.4.2 does
    /// with workloads of sessions, whose planned answers outweigh the limit of one token.
    pub whole_answers: bool,
}

/// The router.
#[derive(Debug, Clone)]
pub enum RouterSpec {
    /// One after the other.
    RoundRobin,
    /// By cached prefix and load.
    Kv {
        /// Weights and queue.
        config: Box<RouterConfig>,
        /// Policy classes of the queue.
        policy: Box<PolicyProfile>,
        /// Decides ties.
        seed: u64,
        /// How long a cache change takes to reach the router, ms.
        event_lag_ms: f64,
        /// Routers that share the load, at least 1; each knows what went through it, and the rest with
        /// `router_replica_sync` only.
        replicas: u32,
        /// Model of prefill times, for the side that computes prompts; `None`: prefill load does not run down.
        prefill_times: Option<Arc<dyn PrefillTimes>>,
    },
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Requests that ended.
    pub ended: u64,
    /// Requests in all.
    pub total: u64,
    /// Virtual time.
    pub now: SimTime,
}

/// What the observer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// End here with a partial report.
    Stop,
}

/// Why a replay cannot run or go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// No engine can be built.
    #[error(transparent)]
    Engine(#[from] engine::ConfigError),
    /// Nobody to serve.
    #[error("a replay needs at least 1 worker")]
    NoWorkers,
    /// A KV router with one place has nothing to decide.
    #[error(
        "router mode kv_router needs more than one worker or data-parallel rank to choose from; use round_robin or add workers"
    )]
    OneTarget,
    /// Everybody was scaled away.
    #[error(
        "no active worker to route to at {} ms; keep one at least, or let requests wait with router_queue_threshold",
        .0.as_ms()
    )]
    NoActiveWorker(SimTime),
    /// A full queue of the router.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// The policy that scales.
    #[error(transparent)]
    Planner(#[from] PlannerError),
    /// A scheduler without handoffs in a disaggregated fleet.
    #[error("{0} has no handoff between prefill and decode workers; use vllm, or an aggregated fleet")]
    NoHandoff(&'static str),
    /// The clock would run over.
    #[error(
        "virtual time would pass {} ms, the end of the clock; look for a time stamp, a delay or a pass time that is far too \
         long, or a tiny --arrival-speedup-ratio",
        CLOCK_END.as_ms()
    )]
    ClockEnd,
    /// More requests than memory holds.
    #[error(
        "{in_flight} requests are in flight and {ended} have ended, which takes more than {mebibytes} MiB, what there is to take; \
         let fewer be in flight with --replay-concurrency or a lower rate, serve them with more workers, or leave out records"
    )]
    Memory {
        /// Requests between arrival and end.
        in_flight: usize,
        /// Requests of which latencies, and perhaps records, are kept.
        ended: u64,
        /// The limit.
        mebibytes: u64,
    },
    /// Something waits for what cannot come.
    #[error("replay cannot go on: {0} requests are in flight and no event is due")]
    DeadEnd(usize),
    /// Memory that workers share does not come to rest.
    #[error("replay cannot go on: at {0} ms transfers between shared memories take no time and do not end")]
    EndlessTransfers(f64),
    /// The workload has more to come and does not say when.
    #[error("replay cannot go on: nothing is in flight and the rest of the workload is never due")]
    NeverDue,
}
