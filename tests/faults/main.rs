//! Faults, the admin API and `ctl`, seen from outside: what a caller, a subscriber and an operator notice. File
//! discovery, no server needed.

#![allow(clippy::unwrap_used)]

#[path = "../fleet_life/caller.rs"]
#[allow(dead_code)]
mod caller;
#[path = "../fleet_life/ports.rs"]
mod ports;
#[path = "../fleet_life/scene.rs"]
#[allow(dead_code)]
mod scene;

mod admin;
mod admin_api;
mod counts;
mod ctl;
mod ctl_covers;
mod discovery;
mod document;
mod ear;
mod engine;
mod events;
mod held;
mod json_schema;
mod life;
mod planes;
mod raw;
mod recorder;
mod silence;
mod views;
mod wire;
