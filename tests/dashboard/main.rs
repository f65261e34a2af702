//! The dashboard in a real browser: what it shows of a fleet, and what its buttons do.

#![allow(clippy::unwrap_used)]

#[path = "../faults/admin.rs"]
#[allow(dead_code)]
mod admin;
mod browser;
#[path = "../fleet_life/caller.rs"]
#[allow(dead_code)]
mod caller;
mod page;
#[path = "../fleet_life/scene.rs"]
#[allow(dead_code)]
mod scene;
