//! Prefill and decode workers of one fleet, step by step, with this test as the router. File discovery, no server needed.

#![allow(clippy::unwrap_used)]

#[path = "../fleet_life/caller.rs"]
#[allow(dead_code)]
mod caller;
#[path = "../fleet_life/scene.rs"]
#[allow(dead_code)]
mod scene;

mod legs;
mod peers;

mod abandoned;
mod answers;
mod cache;
mod crowd;
mod deaths;
mod disagreements;
mod logs;
mod roles;
mod strangers;
mod troubles;
