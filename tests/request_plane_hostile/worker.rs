//! A worker without an engine: one task per sequence, which counts itself.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ghostfleet::transport::intake::{Intake, Refusal, Submission};
use ghostfleet::types::{FinishReason, RequestId};

/// Generates `max_tokens` tokens for each request, `tokens_per_pass` at a time; without `max_tokens` none, for ever.
#[derive(Debug, Clone)]
pub(crate) struct TestWorker {
    sequences: Arc<Mutex<BTreeSet<RequestId>>>,
    submitted: Arc<AtomicU64>,
    tokens_per_pass: u32,
}

/// Time of a pass.
const PASS: Duration = Duration::from_millis(1);

impl TestWorker {
    pub(crate) fn new(tokens_per_pass: u32) -> Self {
        Self {
            sequences: Arc::default(),
            submitted: Arc::default(),
            tokens_per_pass,
        }
    }

    /// Sequences that are alive.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences.lock().unwrap().len()
    }

    /// Sequences that ever came.
    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    fn alive(&self, id: RequestId) -> bool {
        self.sequences.lock().unwrap().contains(&id)
    }

    async fn generate(self, Submission { request, sink, .. }: Submission) {
        let mut passes = tokio::time::interval(PASS);
        let mut left = request.stop.max_tokens.unwrap_or(0);
        let endless = left == 0;
        sink.admitted(0);
        while self.alive(request.id) {
            passes.tick().await;
            for _ in 0..self.tokens_per_pass.min(left) {
                left -= 1;
                sink.token(7, (left == 0).then_some(FinishReason::Length));
            }
            if !sink.flush() || (left == 0 && !endless) {
                self.cancel(request.id);
            }
        }
    }
}

impl Intake for TestWorker {
    fn submit(&self, submission: Submission) -> Result<(), Refusal> {
        self.submitted.fetch_add(1, Ordering::Relaxed);
        self.sequences.lock().unwrap().insert(submission.request.id);
        tokio::spawn(self.clone().generate(submission));
        Ok(())
    }

    fn cancel(&self, id: RequestId) {
        self.sequences.lock().unwrap().remove(&id);
    }
}
