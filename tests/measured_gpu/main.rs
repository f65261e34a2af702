//! Pass times of measured GPUs, from the evaluator and the real measurements: as numbers, in a fleet, in a replay, and what
//! is said when something lacks. Without the measurements these tests fail; `scripts/setup` unpacks them.

#![allow(clippy::unwrap_used)]

#[path = "../serve_command/process.rs"]
#[allow(dead_code)]
mod process;

mod capacity;
mod data;
mod durations;
mod export;
mod fleet;
mod prediction;
mod refusals;
mod replay;
