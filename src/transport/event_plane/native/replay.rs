//! The newest batches of one rank, for readers that missed some.
//!
//! | Replay, as a DEALER receives it | Message | End |
//! |---|---|---|
//! | with topic (vLLM 0.32; five frames with the identity that a ROUTER sees) | empty, topic, sequence, batch | empty, empty, ff x 8, empty |
//! | without (older vLLM, SGLang; four) | empty, sequence, batch | empty, ff x 8, empty |
//!
//! A start before the oldest kept batch begins with that one; a start after the newest gets the end marker alone.
//! Batches published while an answer is on its way are not part of it: they reach the reader by its subscription.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use bytes::Bytes;

use super::super::zmq::{Answer, Service};

/// Most batches kept. Source: vLLM `buffer_steps`.
pub const KEPT_BATCHES: usize = 10_000;

/// Most bytes kept: vLLM has no such bound, but a fleet has hundreds of ranks in one process.
pub const KEPT_BYTES: usize = 16 << 20;

const END: [u8; 8] = [0xff; 8];

/// Kept batches of one rank, shared by whoever publishes and the replay socket.
#[derive(Debug)]
pub struct ReplayRing {
    /// `None`: messages have no topic frame.
    topic: Option<Bytes>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Sequence number of the first batch.
    first: u64,
    batches: VecDeque<Bytes>,
    bytes: usize,
}

impl ReplayRing {
    /// An empty ring; `topic`: the topic frame of replayed messages, if they have one.
    pub fn new(topic: Option<Bytes>) -> Self {
        Self {
            topic,
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a batch. One that does not follow the newest is the first of what is kept from then on.
    pub fn push(&self, sequence: u64, batch: Bytes) {
        let mut kept = self.kept();
        if sequence != kept.first + kept.batches.len() as u64 {
            *kept = Kept {
                first: sequence,
                ..Kept::default()
            };
        }
        kept.bytes += batch.len();
        kept.batches.push_back(batch);
        let mut early = 0;
        while kept.batches.len() > KEPT_BATCHES || (kept.bytes > KEPT_BYTES && kept.batches.len() > 1) {
            early += u64::from(kept.batches.len() <= KEPT_BATCHES);
            if let Some(oldest) = kept.batches.pop_front() {
                kept.bytes -= oldest.len();
                kept.first += 1;
            }
        }
        let left = kept.batches.len();
        drop(kept);
        if early > 0 {
            tell_early(early, left);
        }
    }

    /// Sequence numbers from the oldest kept batch to the one after the newest.
    pub fn range(&self) -> std::ops::Range<u64> {
        let kept = self.kept();
        kept.first..kept.first + kept.batches.len() as u64
    }

    fn frames(&self, sequence: [u8; 8], batch: Bytes, topic: &Bytes) -> Vec<Bytes> {
        let sequence = Bytes::copy_from_slice(&sequence);
        match &self.topic {
            Some(_) => vec![Bytes::new(), topic.clone(), sequence, batch],
            None => vec![Bytes::new(), sequence, batch],
        }
    }
}

/// Batches went for their bytes, which does not happen to an engine: counted, and said once in a process.
fn tell_early(batches: u64, left: usize) {
    static TOLD: Once = Once::new();
    metrics::counter!("ghostfleet_native_replay_batches_dropped_total").increment(batches);
    TOLD.call_once(|| {
        tracing::info!(
            "a replay of native events has its newest {} MiB, {left} batches, where vLLM has {KEPT_BATCHES}; older ones \
             are dropped and counted",
            KEPT_BYTES >> 20
        );
    });
}

/// What a replay socket serves.
pub struct Replay(pub Arc<ReplayRing>);

impl Service for Replay {
    fn open(&self, request: &[Vec<u8>]) -> Option<Box<dyn Answer>> {
        let [empty, start] = request else { return None };
        let start: [u8; 8] = start.as_slice().try_into().ok()?;
        if !empty.is_empty() {
            return None;
        }
        metrics::counter!("ghostfleet_native_replays_total").increment(1);
        Some(Box::new(ReplayAnswer {
            ring: Arc::clone(&self.0),
            next: u64::from_be_bytes(start),
            end: self.0.range().end,
            over: false,
        }))
    }
}

struct ReplayAnswer {
    ring: Arc<ReplayRing>,
    next: u64,
    end: u64,
    over: bool,
}

impl ReplayAnswer {
    fn next_batch(&mut self) -> Option<(u64, Bytes)> {
        let kept = self.ring.kept();
        let sequence = self.next.max(kept.first);
        if sequence >= self.end {
            return None;
        }
        let batch = kept.batches.get(usize::try_from(sequence - kept.first).ok()?)?.clone();
        drop(kept);
        self.next = sequence + 1;
        Some((sequence, batch))
    }
}

impl Answer for ReplayAnswer {
    fn next_message(&mut self) -> Option<Vec<Bytes>> {
        if self.over {
            return None;
        }
        if let Some((sequence, batch)) = self.next_batch() {
            let topic = self.ring.topic.clone().unwrap_or_default();
            return Some(self.ring.frames(sequence.to_be_bytes(), batch, &topic));
        }
        self.over = true;
        Some(self.ring.frames(END, Bytes::new(), &Bytes::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(batches: u64, topic: Option<&'static str>) -> Arc<ReplayRing> {
        let ring = Arc::new(ReplayRing::new(topic.map(|topic| Bytes::from_static(topic.as_bytes()))));
        for number in 0..batches {
            ring.push(number, Bytes::copy_from_slice(&number.to_le_bytes()));
        }
        ring
    }

    fn ask(ring: &Arc<ReplayRing>, start: u64) -> Vec<Vec<Bytes>> {
        let request = [Vec::new(), start.to_be_bytes().to_vec()];
        let mut answer = Replay(Arc::clone(ring)).open(&request).expect("a request");
        std::iter::from_fn(move || answer.next_message()).collect()
    }

    fn sequences(messages: &[Vec<Bytes>]) -> Vec<u64> {
        let sequence = |frames: &Vec<Bytes>| frames[frames.len() - 2][..].try_into().map(u64::from_be_bytes);
        messages
            .iter()
            .map(|frames| sequence(frames).expect("8 bytes"))
            .collect()
    }

    #[test]
    fn a_start_before_the_oldest_batch_begins_with_it_and_one_after_the_newest_gets_the_end() {
        let kept = KEPT_BATCHES as u64;
        let ring = ring(kept + 5, Some("t"));
        assert_eq!(ring.range(), 5..kept + 5);
        let all = sequences(&ask(&ring, 0));
        assert_eq!(
            (all[0], all[all.len() - 2], all[all.len() - 1]),
            (5, kept + 4, u64::MAX)
        );
        assert_eq!(all.len() as u64, kept + 1);
        assert_eq!(sequences(&ask(&ring, kept + 4)), [kept + 4, u64::MAX]);
        assert_eq!(sequences(&ask(&ring, kept + 5)), [u64::MAX]);
        assert_eq!(sequences(&ask(&ring, u64::MAX)), [u64::MAX]);
    }

    #[test]
    fn frames_are_those_of_the_two_releases() {
        let with = ask(&ring(1, Some("kv")), 0);
        let batch = Bytes::copy_from_slice(&0_u64.to_le_bytes());
        assert_eq!(with[0], [&b""[..], b"kv", &[0; 8], &batch]);
        assert_eq!(with[1], [&b""[..], b"", &END, b""]);
        let without = ask(&ring(1, None), 0);
        assert_eq!(without[0], [&b""[..], &[0; 8], &batch]);
        assert_eq!(without[1], [&b""[..], &END, b""]);
    }

    #[test]
    fn the_ring_is_bounded_by_bytes_too() {
        let ring = ReplayRing::new(None);
        for number in 0..5 {
            ring.push(number, Bytes::from(vec![0; KEPT_BYTES / 2]));
        }
        assert_eq!(ring.range(), 3..5);
    }

    #[test]
    fn batches_that_go_for_their_bytes_are_counted_and_those_that_go_by_number_are_not() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let ring = ring(KEPT_BATCHES as u64 + 5, None);
            assert_eq!(ring.range().start, 5);
            let counted = || recorder.handle().render();
            assert!(!counted().contains("dropped_total"), "{}", counted());
            let next = ring.range().end;
            ring.push(next, Bytes::from(vec![0; KEPT_BYTES]));
            // The first of them goes by number.
            let line = format!("ghostfleet_native_replay_batches_dropped_total {}", KEPT_BATCHES - 1);
            assert!(counted().contains(&line), "{}", counted());
        });
    }

    #[test]
    fn a_batch_behind_a_hole_is_the_first_one_kept() {
        let ring = ring(3, None);
        ring.push(7, Bytes::from_static(b"later"));
        assert_eq!(ring.range(), 7..8);
        assert_eq!(sequences(&ask(&ring, 0)), [7, u64::MAX]);
    }

    #[test]
    fn other_requests_are_not_understood() {
        let replay = Replay(ring(1, None));
        let eight = vec![0; 8];
        for request in [
            vec![],
            vec![eight.clone()],
            vec![vec![1], eight.clone()],
            vec![vec![], vec![0; 7]],
        ] {
            assert!(replay.open(&request).is_none(), "{request:?}");
        }
        assert!(replay.open(&[Vec::new(), eight.clone(), Vec::new()]).is_none());
    }
}
