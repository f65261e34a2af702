//! Actors: they own state and wait for real time; what happens and when is decided by the pure engines.
//!
//! ```text
//! Fleet            supervisor: launches, replaces, kills, drains
//!   FaultDesk      all faults: opens and closes their windows, has done what they ask for
//!   Worker x N     the unit of death: sockets, lease, children            w17
//!     Rank x DP    owns one engine; the only place where time passes      w17/r0
//!     KvPublisher x DP   event ids, ring, block tree, recovery answers    w17/r0/kv
//!     NativeStream x DP  the engine's own event stream, on demand         w17/r0/native
//!     MetricsReporter    load figures                                     w17/metrics
//!     Rendezvous   prefill workers: where decode workers meet prompts      w17/rendezvous
//!     Registrar    lease and records in discovery                         w17/lease
//! ```
//!
//! A panic or a crash ends one actor; [`liveness`] tells its parent, [`supervision`] says whether and when the parent
//! builds a new one. Figures are read from the [`registry`] without asking anyone.

mod caches;
pub mod clock;
mod comebacks;
mod common_memory;
mod component_page;
pub mod control;
pub mod death;
mod disagreements;
pub mod door;
pub mod engine_metrics;
mod engine_page;
mod event_ways;
pub mod fault_desk;
pub mod fault_post;
pub mod fleet;
pub mod gate;
mod gate_faults;
pub mod gauge;
mod gust;
mod handoff_faults;
pub mod handoff_gauge;
mod health;
pub mod inspect;
pub mod kv_listener;
pub mod kv_publisher;
mod kv_spoiler;
mod kv_trace;
pub mod latency;
pub mod liveness;
mod metrics_faults;
pub mod metrics_reporter;
mod native_feed;
pub mod native_sockets;
mod native_stream;
pub mod path;
pub mod plan;
pub mod rank;
mod record_faults;
mod records;
pub mod recovery;
pub mod registrar;
pub mod registry;
pub mod rendezvous;
pub mod row;
mod shape;
mod snapshot;
mod sockets;
pub mod store_health;
pub mod strays;
pub mod supervision;
mod told_loads;
pub mod why;
pub mod worker;
