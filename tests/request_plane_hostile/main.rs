//! Peers on the request plane that break every rule: each is answered as the protocol says or cut off, alone, counted,
//! and nothing is left of it.

#![allow(clippy::unwrap_used)]

mod call_home;
mod counters;
mod fleet;
mod request_connection;
mod scene;
mod worker;
