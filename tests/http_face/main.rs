//! A worker's HTTP face, asked over real sockets, with a worker behind it that the test plays.

#![allow(missing_docs, clippy::unwrap_used)]

mod client;
mod worker;

mod completions;
mod connections;
mod fields;
mod refusals;
mod small;
mod streams;

use std::time::Duration;

/// Limit of every wait: a failing test ends instead of hanging.
const PATIENCE: Duration = Duration::from_secs(20);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}
