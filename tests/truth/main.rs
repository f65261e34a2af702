//! What routers believe, held against what the ranks of a live fleet really have: drift and leaks, by the command that
//! people use. File discovery; the tests with a real index say so.

#![allow(clippy::unwrap_used)]

#[path = "../faults/admin.rs"]
#[allow(dead_code)]
mod admin;
#[path = "../fleet_life/caller.rs"]
#[allow(dead_code)]
mod caller;
#[path = "../fleet_life/ports.rs"]
mod ports;
#[path = "../fleet_life/scene.rs"]
#[allow(dead_code)]
mod scene;
#[path = "../fleet_life/standalone.rs"]
mod standalone;

mod command;
mod index;
mod leaks;
