//! Fleets behind real Dynamo frontends. Every test here starts servers and is left to `scripts/test`.

mod ask;
mod broker;
#[path = "../certificates/mod.rs"]
mod certificates;
mod client;
mod etcd;
mod fleet;
mod frontend;
mod nats;
mod plane_report;
mod prefixes;
mod process;
mod release;
mod stack;
mod wait;

mod answers;
mod busy;
mod codec;
mod disaggregation;
mod disaggregation_phases;
mod discovery;
mod drift;
mod drills;
mod durable;
mod faults;
mod index_drills;
mod mockers;
mod planes;
mod quic;
mod quickstart;
mod requests;
mod routing;
mod tiers;
mod tls;
