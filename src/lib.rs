//! ghostfleet: a live fleet of emulated LLM-inference workers in one process.
//!
//! `ARCHITECTURE.md` has the map; in short, decisions are made in pure code ([`engine`]) and acted out by actors.

pub mod block_hash;
pub mod engine;
pub mod model;
pub mod transport;
pub mod types;
