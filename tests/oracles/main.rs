//! Recorded runs of the real programs, replayed through ours. One test per folder of `tests/golden`; with
//! `GHOSTFLEET_GOLDEN_DIR` set the folders are looked for there, so that other cases of the same form can be run.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod cases;
mod engine;
mod kvbm_logical;
mod replay;
mod sglang_admission;
mod sglang_keys;
mod sglang_radix;
mod vllm_scheduler;
