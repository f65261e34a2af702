//! The KV router as a state machine: which worker a prompt goes to, and when.
//!
//! Nothing here reads a clock: the caller passes `now`. Source of the rules: Dynamo 1.6.1 (router crate and its built-in
//! selection policy); where 1.4.2 differs the code says so.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod active;
mod choice;
mod classes;
mod config;
mod draws;
mod index;
mod kv;
mod overlap;
mod policy;
mod prefill;
mod queue;
mod round_robin;
mod targets;

pub use config::{ConfigError, PrefillLoadModel, QueuePolicy, RouterConfig};
pub use index::Index;
pub use kv::{Arrival, Booking, KvRouter, Placement, RouterError, Routing};
pub use policy::{BusyThreshold, PolicyClass, PolicyProfile, QueueLimits};
pub use prefill::PrefillTimes;
pub use round_robin::RoundRobin;
pub use targets::Target;
