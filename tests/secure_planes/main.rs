//! TLS and sign-in on every plane that has them. What needs a real etcd or NATS server is left to `scripts/test`.

#![allow(clippy::unwrap_used)]

#[path = "../certificates/mod.rs"]
mod certificates;
mod etcd;
mod fleet;
mod frontend;
mod nats;
mod refusals;
mod server;
mod tcp;
