//! Life and death of a fleet's actors, seen from outside: discovery records, sockets and answers. File discovery, no
//! server needed.

#![allow(clippy::unwrap_used)]

mod cable;
mod caller;
mod scene;

mod answers;
mod deaths;
mod departures;
mod forward;
mod in_process;
mod indexer;
mod memory;
mod native;
mod ports;
mod recovery;
mod requests;
mod slow_subscriber;
mod standalone;
mod status;
mod vllm_router;
