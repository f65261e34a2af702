//! Drills straight at the workers: no server, no router. What a person writes in a scenario, and what comes out.

#![allow(clippy::unwrap_used)]

mod command;
mod gallery;
mod programs;
mod runs;
mod scene;
mod unfinished;
