//! The `serve` command as a user or a CI job meets it: what it prints, how it ends, and what it says when it cannot run.

#![allow(clippy::unwrap_used)]

#[path = "../certificates/mod.rs"]
#[allow(dead_code)]
mod certificates;
mod process;

mod ends;
mod refusals;
mod screen;
