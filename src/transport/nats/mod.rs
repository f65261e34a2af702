//! NATS connections, shared by the request plane and the event plane.
//!
//! A [`NatsLink`] is one connection that comes back by itself; a [`NatsConnector`] makes them, one for the whole fleet
//! or one per worker. What is published while the server is away waits in a bounded [`NatsOutbox`].
//!
//! Source: NATS client protocol as `async-nats` speaks it; variables as Dynamo 1.6.1 reads them.

mod attempts;
mod jetstream;
mod link;
mod options;
mod outbox;
mod tally;

pub use jetstream::JetStreamError;
pub use link::{NatsConnector, NatsError, NatsLink};
pub use options::{NatsAuth, NatsAuthError, NatsOptions, NatsOptionsError};
pub use outbox::{NatsOutbox, OutboxLimits, OutboxStats};
pub use tally::Tally;
