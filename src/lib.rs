//! ghostfleet: a live fleet of emulated LLM-inference workers in one process.
//!
//! `ARCHITECTURE.md` has the map; in short, decisions are made in pure code ([`engine`]) and acted out by [`actors`];
//! [`transport`] knows bytes and sockets and nothing else; [`cluster`] puts a fleet together from a [`config`].

pub mod actors;
pub mod admin;
pub mod aic;
pub mod block_hash;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod convert;
pub mod ctl;
mod distinct_files;
pub mod drill;
pub mod engine;
pub mod export;
pub mod faults;
pub mod model;
pub mod online;
mod patient_io;
mod plain_words;
pub mod predict;
pub mod profile;
pub mod recommend;
pub mod replay;
pub mod replay_run;
pub mod router;
pub mod serve;
pub mod traces;
pub mod transport;
pub mod truth;
pub mod types;
mod whole_body;
pub mod witness;
