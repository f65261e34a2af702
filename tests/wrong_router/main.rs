//! Routers that get it wrong, each in one way, are caught by the drill that is for it, and one that gets everything right
//! passes all of them. The router is a small one of our own, in this process: no server, no Python.

#![allow(clippy::unwrap_used)]

mod drills;
mod http;
mod index;
mod plane;
mod router;
mod sources;
mod wrong;
