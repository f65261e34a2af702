//! One log line per change of a rank's KV cache (`DYN_MOCKER_KV_CACHE_TRACE`), whether or not anybody hears its events.
//!
//! Message and fields are those of the peer: of blocks for the vLLM and TensorRT-LLM style engines, of tokens for SGLang's.
//! Source: Dynamo 1.6.1 and 1.4.2.

use super::clock::Clock;
use crate::engine::{CacheChange, CacheChangeKind, PageChange, PageChangeKind, Pass};
use crate::types::DpRank;

/// Writes the lines of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvTrace {
    pub(super) rank: DpRank,
    pub(super) block_size: u32,
}

impl KvTrace {
    /// Logs what a pass changed.
    pub(super) fn observe(self, pass: &Pass) {
        for change in &pass.cache_changes {
            self.log(*change, pass.load.total_blocks, Clock::unix_ms());
        }
        for change in &pass.page_changes {
            self.log_pages(*change, pass.load.total_blocks, Clock::unix_ms());
        }
    }

    fn log_pages(self, change: PageChange, total_pages: u32, timestamp_ms: u64) {
        let event = match change.kind {
            PageChangeKind::Allocation => "allocation",
            PageChangeKind::Free => "free",
            PageChangeKind::Eviction => "eviction",
            PageChangeKind::ReserveDestination => "reserve_destination",
            PageChangeKind::ActivateDestination => "activate_destination",
            PageChangeKind::ReleaseUnpublished => "release_unpublished",
        };
        let total_tokens = u64::from(total_pages) * u64::from(self.block_size);
        let taken = total_tokens.saturating_sub(change.available_tokens);
        #[allow(clippy::cast_precision_loss)] // counts of tokens
        let utilization = taken as f64 / total_tokens.max(1) as f64;
        tracing::info!(
            engine_type = "sglang",
            event,
            timestamp_ms,
            dp_rank = self.rank.0,
            num_tokens = change.tokens,
            page_size = self.block_size,
            available_tokens = change.available_tokens,
            evictable_tokens = change.evictable_tokens,
            protected_tokens = change.protected_tokens,
            total_tokens,
            utilization,
            "KV cache trace"
        );
    }

    fn log(self, change: CacheChange, total_blocks: u32, timestamp_ms: u64) {
        let CacheChange {
            kind,
            active_blocks,
            inactive_blocks,
        } = change;
        let event = match kind {
            CacheChangeKind::Allocation => "allocation",
            CacheChangeKind::Eviction => "eviction",
        };
        let cached = active_blocks + inactive_blocks;
        tracing::info!(
            engine_type = "vllm",
            event,
            timestamp_ms,
            dp_rank = self.rank.0,
            block_size = self.block_size,
            free_blocks = total_blocks.saturating_sub(cached),
            active_blocks,
            inactive_blocks,
            total_blocks,
            utilization = f64::from(cached) / f64::from(total_blocks.max(1)),
            "KV cache trace"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::types::Load;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_have_the_peers_fields() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_writer(move || writer.clone())
            .finish();
        let change = |kind, active_blocks, inactive_blocks| CacheChange {
            kind,
            active_blocks,
            inactive_blocks,
        };
        let pass = Pass {
            cache_changes: vec![
                change(CacheChangeKind::Allocation, 3, 0),
                change(CacheChangeKind::Eviction, 2, 4),
            ],
            page_changes: vec![PageChange {
                kind: PageChangeKind::ReserveDestination,
                tokens: 32,
                available_tokens: 32,
                evictable_tokens: 16,
                protected_tokens: 48,
            }],
            load: Load {
                total_blocks: 8,
                ..Load::default()
            },
            ..Pass::default()
        };
        let trace = KvTrace {
            rank: DpRank(1),
            block_size: 16,
        };
        tracing::subscriber::with_default(subscriber, || trace.observe(&pass));
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let mut seen = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let mut next = || -> serde_json::Value {
            let mut line: serde_json::Value = seen.next().unwrap();
            assert_eq!(line["level"], "INFO");
            let fields = line["fields"].as_object_mut().unwrap();
            assert!(fields.remove("timestamp_ms").is_some_and(|at| at.is_u64()));
            line["fields"].clone()
        };
        let first = serde_json::json!({
            "message": "KV cache trace", "engine_type": "vllm", "event": "allocation", "dp_rank": 1, "block_size": 16,
            "free_blocks": 5, "active_blocks": 3, "inactive_blocks": 0, "total_blocks": 8, "utilization": 0.375,
        });
        assert_eq!(next(), first);
        let second = next();
        assert_eq!(
            (&second["event"], &second["free_blocks"]),
            (&"eviction".into(), &2.into())
        );
        assert_eq!(second["utilization"], 0.75);
        let third = serde_json::json!({
            "message": "KV cache trace", "engine_type": "sglang", "event": "reserve_destination", "dp_rank": 1,
            "num_tokens": 32, "page_size": 16, "available_tokens": 32, "evictable_tokens": 16, "protected_tokens": 48,
            "total_tokens": 128, "utilization": 0.75,
        });
        assert_eq!(next(), third);
        assert!(seen.next().is_none());
    }
}
