//! NATS request plane: a queue subscription per endpoint, acks as replies. The answer travels as on the TCP plane.
//!
//! | Thing | Form |
//! |---|---|
//! | subject | `<namespace>_<component>.<endpoint>-<instance hex>`, queue group `q` |
//! | request | headers (not used here), body: a two-part frame |
//! | reply | empty: accepted; else the refusal, in the words of the TCP plane |
//!
//! Source: Dynamo 1.6.1 and 1.4.2, observed on the wire.

mod server;
pub mod service;

pub use server::NatsServer;

/// Queue group of every endpoint: the default of NATS services.
pub const QUEUE_GROUP: &str = "q";
