//! Whoever hears of a rank's cache changes inside the process, as the rank's stream announces them.

use std::sync::Arc;

use actix::prelude::*;

use crate::types::{KvEvent, TierEvent};

/// Is called with changes of one pass, in order, of the GPU's cache and below it, on the rank's thread: it must not wait for
/// anything.
pub type KvListener = Arc<dyn Fn(&[KvEvent], &[TierEvent]) + Send + Sync>;

/// Adds a listener. What the stream announced before is not repeated.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ListenKv(pub(super) KvListener);
