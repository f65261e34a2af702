//! What one rank has announced: event ids, the newest events as sent, and the blocks that routers should believe in.
//!
//! One owner per rank records and publishes in the same step, so that a recovery query sees exactly what was sent. A new
//! incarnation of a publisher is a new journal: ids start at 1 again, and the blocks that survived are its seed.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::block_tree::{BlockTree, Removal};
use super::former::{Former, KEPT_BLOCKS, Placed};
use super::kv_event::{coalesce, encode_batch_marked, messages};
use super::lower_blocks::LowerBlocks;
use super::msgpack::put_array_len;
use super::recovery::{Query, Response};
use crate::types::{DpRank, InstanceId, KvEvent, LowerTier, SequenceHash, StoredBlock, TierEvent};

/// Events kept for routers that missed some.
pub const KEPT_EVENTS: usize = 1024;

/// Publishing state of one rank. An idle one owns no memory beside itself.
pub struct Journal {
    worker: InstanceId,
    rank: DpRank,
    last_event_id: u64,
    /// The newest events, encoded: parts of the payloads they were sent in.
    kept: VecDeque<Bytes>,
    tree: BlockTree,
    lower: LowerBlocks,
    /// Both as an encoded array, until it changes. A starting router asks every rank at once, and several routers
    /// may start together.
    dump: Option<Bytes>,
    dumps_built: u64,
    /// Where blocks go that are no longer announced.
    former: Option<Arc<Former>>,
}

impl Journal {
    /// Journal of a rank with an empty cache.
    pub fn new(worker: InstanceId, rank: DpRank) -> Self {
        Self {
            worker,
            rank,
            last_event_id: 0,
            kept: VecDeque::new(),
            tree: BlockTree::default(),
            lower: LowerBlocks::default(),
            dump: None,
            dumps_built: 0,
            former: None,
        }
    }

    /// The same, which remembers blocks that it no longer announces, those included that it announces at its end.
    #[must_use]
    pub fn remembering(mut self, former: Arc<Former>) -> Self {
        self.former = Some(former);
        self
    }

    /// Journal of a rank whose cache holds `blocks` (parents first), as after a restart of the publisher alone. Routers
    /// learn of them from the dump that they ask for.
    pub fn seeded(worker: InstanceId, rank: DpRank, blocks: &[(Option<SequenceHash>, StoredBlock)]) -> Self {
        let mut journal = Self::new(worker, rank);
        for &(parent, block) in blocks {
            journal.tree.store(parent, block);
        }
        journal
    }

    /// Id of the newest event, 0 before the first.
    pub fn last_event_id(&self) -> u64 {
        self.last_event_id
    }

    /// How often the whole tree was encoded.
    pub fn dumps_built(&self) -> u64 {
        self.dumps_built
    }

    /// Leaves out so many ids, as if their events had been lost. Routers that ask for them get the whole tree.
    pub fn skip(&mut self, ids: u64) {
        self.last_event_id = self.last_event_id.saturating_add(ids);
        self.kept.clear();
    }

    /// The newest event as it was sent, in a payload of its own, for routers that may have missed it: who has it knows its
    /// id, and who has not asks for all that it missed. `None`: there is none, or it is kept no longer.
    pub fn newest(&self) -> Option<Bytes> {
        let event = self.kept.back()?;
        let mut payload = Vec::with_capacity(event.len() + 1);
        put_array_len(&mut payload, 1);
        payload.extend_from_slice(event);
        Some(payload.into())
    }

    /// Blocks announced and not withdrawn.
    pub fn announced_blocks(&self) -> usize {
        self.tree.len()
    }

    /// Records the cache changes of one pass and returns the payloads to publish, in order: mostly one; none when there
    /// is nothing to say. Of a block that was stored several times only the last removal is announced.
    pub fn record(&mut self, events: Vec<KvEvent>) -> Vec<Bytes> {
        let mut announced = events;
        announced.retain_mut(|event| self.apply(event));
        let announced = coalesce(announced);
        messages(&announced).map(|message| self.keep(None, message)).collect()
    }

    /// Like [`Self::record`] for changes below the GPU.
    pub fn record_lower(&mut self, events: &[TierEvent]) -> Vec<Bytes> {
        let mut payloads = Vec::new();
        for of_tier in events.chunk_by(|a, b| a.tier == b.tier) {
            self.dump = None;
            for event in of_tier {
                self.lower.apply(event);
            }
            let announced = coalesce(of_tier.iter().map(|event| event.event.clone()).collect());
            payloads.extend(messages(&announced).map(|message| self.keep(Some(of_tier[0].tier), message)));
        }
        payloads
    }

    /// Everything that is announced below the GPU, to be withdrawn.
    pub fn lower_withdrawals(&self) -> Vec<TierEvent> {
        self.lower.withdrawals()
    }

    /// Says everything anew, for routers that cannot ask: payloads that forget the rank's blocks and store those that are
    /// announced.
    pub fn restate(&mut self) -> Vec<Bytes> {
        let mut events = vec![KvEvent::Cleared];
        self.tree.each_chain(|parent, blocks| {
            let blocks = blocks.to_vec();
            events.push(KvEvent::Stored { parent, blocks });
        });
        let events = coalesce(events);
        messages(&events).map(|message| self.keep(None, message)).collect()
    }

    /// Applies one event to the tree and takes out what routers need not hear; whether anything is left.
    fn apply(&mut self, event: &mut KvEvent) -> bool {
        self.dump = None;
        match event {
            KvEvent::Stored { parent, blocks } => {
                let mut parent = *parent;
                for &block in &*blocks {
                    self.tree.store(parent, block);
                    parent = Some(block.block_hash);
                }
                !blocks.is_empty()
            }
            KvEvent::Removed { block_hashes } => {
                let mut gone = Vec::new();
                block_hashes.retain(|&hash| match self.tree.remove(hash) {
                    Removal::Stays => false,
                    Removal::Gone(block) => {
                        gone.push(block);
                        true
                    }
                    Removal::Unknown => true,
                });
                self.remember(gone);
                !block_hashes.is_empty()
            }
            KvEvent::Cleared => {
                self.remember_all();
                self.tree.clear();
                true
            }
        }
    }

    /// Takes note of changes that nobody is told of: what was announced stays so.
    pub fn keep_quiet_about(&self, events: &[KvEvent]) {
        for event in events {
            match event {
                KvEvent::Stored { .. } => {}
                KvEvent::Removed { block_hashes } => {
                    self.remember(block_hashes.iter().filter_map(|hash| self.tree.get(*hash)));
                }
                KvEvent::Cleared => self.remember_all(),
            }
        }
    }

    fn remember(&self, gone: impl IntoIterator<Item = Placed>) {
        if let Some(former) = &self.former {
            former.note(gone);
        }
    }

    fn remember_all(&self) {
        if let Some(former) = &self.former {
            let blocks = self.tree.beginning(KEPT_BLOCKS);
            former.count_dropped((self.tree.len() - blocks.len()) as u64);
            former.note(blocks.into_iter().rev());
        }
    }

    fn keep(&mut self, tier: Option<LowerTier>, message: &[KvEvent]) -> Bytes {
        let mut payload = Vec::with_capacity(256 * message.len());
        let mut ends = Vec::with_capacity(message.len() + 1);
        let first_event_id = self.last_event_id + 1;
        let (worker, rank) = (self.worker, self.rank);
        let next = encode_batch_marked(&mut payload, worker, rank, tier, first_event_id, message, |end| {
            ends.push(end);
        });
        self.last_event_id = next - 1;
        payload.shrink_to_fit();
        let payload = Bytes::from(payload);
        for span in ends.windows(2) {
            if self.kept.len() == KEPT_EVENTS {
                self.kept.pop_front();
            }
            self.kept.push_back(payload.slice(span[0]..span[1]));
        }
        payload
    }

    /// Answers a router.
    pub fn answer(&mut self, query: &Query) -> Response {
        if (query.worker, query.rank) != (self.worker, self.rank) {
            return Response::Error(format!(
                "query for worker {} rank {}, but this is worker {} rank {}",
                query.worker.0, query.rank.0, self.worker.0, self.rank.0
            ));
        }
        if let (Some(start_id), Some(end_id)) = (query.start_event_id, query.end_event_id)
            && end_id < start_id
        {
            return Response::InvalidRange { start_id, end_id };
        }
        let oldest = self.last_event_id + 1 - self.kept.len() as u64;
        match query.start_event_id {
            Some(start) if !self.kept.is_empty() && start > self.last_event_id => Response::TooNew {
                requested_start: start,
                requested_end: query.end_event_id,
                newest_available: self.last_event_id,
            },
            Some(start) if !self.kept.is_empty() && start >= oldest => {
                let skip = usize::try_from(start - oldest).unwrap_or(usize::MAX);
                Response::Events {
                    events: self.kept.iter().skip(skip).cloned().collect(),
                    last_event_id: self.last_event_id,
                }
            }
            Some(_) | None => Response::TreeDump {
                events: self.dump(),
                last_event_id: self.last_event_id,
            },
        }
    }

    fn dump(&mut self) -> Bytes {
        let Self {
            tree,
            lower,
            worker,
            rank,
            dumps_built,
            ..
        } = self;
        let build = || {
            *dumps_built += 1;
            let mut body = Vec::new();
            let on_gpu = tree.dump(&mut body, *worker, *rank);
            let below = lower.dump(&mut body, *worker, *rank, on_gpu);
            let mut dump = Vec::with_capacity(body.len() + 5);
            put_array_len(&mut dump, on_gpu + below);
            dump.extend_from_slice(&body);
            Bytes::from(dump)
        };
        self.dump.get_or_insert_with(build).clone()
    }
}

impl Drop for Journal {
    /// Whoever heard of these blocks may believe in them for as long as nobody says otherwise.
    fn drop(&mut self) {
        self.remember_all();
    }
}

#[cfg(test)]
mod tests;
