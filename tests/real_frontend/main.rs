//! Fleets behind real Dynamo frontends. Every test here starts servers and is left to `scripts/test`.

mod ask;
mod client;
mod etcd;
mod fleet;
mod frontend;
mod prefixes;
mod process;
mod release;
mod stack;
mod wait;

mod answers;
mod discovery;
mod faults;
mod quickstart;
mod routing;
