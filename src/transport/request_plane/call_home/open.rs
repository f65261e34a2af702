//! The answers of one worker that are under way, for whoever asks why one takes so long.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::sink::{Phase, SocketSink};
use crate::transport::request_plane::endpoint::Call;
use crate::types::RequestId;

/// One answer under way.
#[derive(Debug)]
pub struct OpenAnswer {
    /// Handle in this process.
    pub id: RequestId,
    /// Id that the router gave it.
    pub request: String,
    /// Where the answer goes.
    pub address: std::net::SocketAddr,
    /// Its caller gets no ack, because of a fault.
    pub is_unacked: bool,
    accepted: Instant,
    sink: OnceLock<Arc<SocketSink>>,
}

/// Where an answer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The response socket is not open yet.
    Dialling,
    /// The engine has not admitted it yet.
    Waiting,
    /// Tokens come.
    Running,
    /// The last frame has been said; bytes of it may wait for the reader.
    Ending,
    /// Complete: the router has not closed the socket yet.
    Closing,
    /// It broke off.
    Broken,
}

impl OpenAnswer {
    pub(super) fn has_socket(&self, sink: &Arc<SocketSink>) {
        // Set once per answer.
        let _ = self.sink.set(Arc::clone(sink));
    }

    /// Since the call was accepted.
    pub fn age(&self) -> Duration {
        self.accepted.elapsed()
    }

    /// Tokens said so far.
    pub fn tokens(&self) -> u32 {
        self.sink.get().map_or(0, |sink| sink.tokens())
    }

    /// Bytes that wait for the reader.
    pub fn pending_bytes(&self) -> usize {
        self.sink.get().map_or(0, |sink| sink.pending_bytes())
    }

    /// Where it stands.
    pub fn stage(&self) -> Stage {
        let Some(sink) = self.sink.get() else {
            return Stage::Dialling;
        };
        match sink.phase() {
            Phase::Open if sink.is_admitted() => Stage::Running,
            Phase::Open => Stage::Waiting,
            Phase::Ended { flushed: false } => Stage::Ending,
            Phase::Ended { flushed: true } => Stage::Closing,
            Phase::Broken | Phase::GivenUp => Stage::Broken,
        }
    }
}

/// The answers of one worker that are under way.
#[derive(Debug, Default)]
pub struct OpenAnswers(Mutex<FxHashMap<RequestId, Arc<OpenAnswer>>>);

impl OpenAnswers {
    pub(super) fn begin(&self, id: RequestId, call: &Call) -> Arc<OpenAnswer> {
        let answer = Arc::new(OpenAnswer {
            id,
            request: call.control.id.clone(),
            address: call.control.address,
            is_unacked: call.is_unacked,
            accepted: Instant::now(),
            sink: OnceLock::new(),
        });
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(id, Arc::clone(&answer));
        answer
    }

    pub(super) fn end(&self, id: RequestId) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&id);
        // A burst must not keep its memory for ever.
        if open.is_empty() && open.capacity() > 1024 {
            open.shrink_to_fit();
        }
    }

    /// All of them, oldest first.
    pub fn list(&self) -> Vec<Arc<OpenAnswer>> {
        let mut answers: Vec<_> = {
            let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            open.values().cloned().collect()
        };
        answers.sort_by_key(|answer| answer.id);
        answers
    }

    /// Those with this id; a router may send one again.
    pub fn find(&self, request: &str) -> Vec<Arc<OpenAnswer>> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.values()
            .filter(|answer| answer.request == request)
            .cloned()
            .collect()
    }
}
