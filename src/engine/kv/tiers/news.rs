//! What a rank has not told yet of changes in a tier.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::super::logical::BlockIdentity;
use super::link::ClientId;
use super::store::{Presence, Store};
use crate::types::{KvEvent, LowerTier, SequenceHash, TierEvent};

/// Blocks in untold events before those that cancel each other out are dropped, beside those that the tier holds.
const SLACK: usize = 4096;

/// Who is told of changes in a tier.
#[derive(Debug)]
pub(super) struct Audience {
    tier: LowerTier,
    of: BTreeMap<ClientId, News>,
}

impl Audience {
    pub(super) fn new(tier: LowerTier) -> Self {
        Self {
            tier,
            of: BTreeMap::new(),
        }
    }

    /// A rank wants to be told from now on, and at once of what is in `store`.
    pub(super) fn admit(&mut self, client: ClientId, store: &Store) {
        let mut news = News::new(self.tier);
        news.tell_of(store);
        self.of.insert(client, news);
    }

    /// A rank does not want to be told any more.
    pub(super) fn dismiss(&mut self, client: ClientId) {
        self.of.remove(&client);
    }

    /// Whether there is anything to tell a rank.
    pub(super) fn waits_for(&self, client: ClientId) -> bool {
        self.of.get(&client).is_some_and(|news| !news.events.is_empty())
    }

    /// Moves what there is to tell a rank to the end of `events`.
    pub(super) fn take(&mut self, client: ClientId, events: &mut Vec<TierEvent>) {
        if let Some(news) = self.of.get_mut(&client) {
            news.take(events);
        }
    }

    /// Blocks have come to `store`. Those that follow each other are one event.
    pub(super) fn stored(&mut self, blocks: &[BlockIdentity], store: &Store) {
        for news in self.of.values_mut() {
            news.push_stored(blocks);
            news.bound(store);
        }
    }

    /// Blocks have left `store`.
    pub(super) fn removed(&mut self, block_hashes: &[SequenceHash], store: &Store) {
        for news in self.of.values_mut() {
            news.push_removed(block_hashes.to_vec());
            news.bound(store);
        }
    }
}

/// Changes in order, without end in time but not in number: a rank that does not ask keeps no more than what has changed
/// since it asked last.
#[derive(Debug)]
struct News {
    tier: LowerTier,
    events: Vec<TierEvent>,
    /// Blocks in them.
    blocks: usize,
}

impl News {
    fn new(tier: LowerTier) -> Self {
        Self {
            tier,
            events: Vec::new(),
            blocks: 0,
        }
    }

    /// Moves everything to the end of `events`.
    fn take(&mut self, events: &mut Vec<TierEvent>) {
        self.blocks = 0;
        events.append(&mut self.events);
    }

    /// Everything that is in `store`, parents first.
    fn tell_of(&mut self, store: &Store) {
        let mut here: Vec<BlockIdentity> = store.contents().collect();
        in_order(&mut here);
        self.push_stored(&here);
    }

    fn push_stored(&mut self, blocks: &[BlockIdentity]) {
        self.blocks += blocks.len();
        for chain in blocks.chunk_by(|a, b| b.parent == Some(a.block.block_hash)) {
            self.events.push(TierEvent {
                tier: self.tier,
                event: KvEvent::Stored {
                    parent: chain[0].parent,
                    blocks: chain.iter().map(|identity| identity.block).collect(),
                },
            });
        }
    }

    fn push_removed(&mut self, block_hashes: Vec<SequenceHash>) {
        if !block_hashes.is_empty() {
            self.blocks += block_hashes.len();
            let event = KvEvent::Removed { block_hashes };
            self.events.push(TierEvent { tier: self.tier, event });
        }
    }

    fn bound(&mut self, store: &Store) {
        if self.blocks > SLACK + 4 * store.capacity() {
            self.condense(store);
        }
    }

    /// Keeps the difference between what was told and what is there: the first event about a block says what was told.
    fn condense(&mut self, store: &Store) {
        let mut told: HashMap<SequenceHash, bool, FxBuildHasher> = HashMap::default();
        for TierEvent { event, .. } in self.events.drain(..) {
            match event {
                KvEvent::Stored { blocks, .. } => blocks.iter().for_each(|block| {
                    told.entry(block.block_hash).or_insert(false);
                }),
                KvEvent::Removed { block_hashes } => block_hashes.iter().for_each(|&hash| {
                    told.entry(hash).or_insert(true);
                }),
                KvEvent::Cleared => {}
            }
        }
        self.blocks = 0;
        let here = |hash: SequenceHash| store.presence(hash) == Presence::Here;
        let gone = told.iter().filter(|&(&hash, &was)| was && !here(hash));
        let mut gone: Vec<SequenceHash> = gone.map(|(&hash, _)| hash).collect();
        gone.sort_unstable();
        self.push_removed(gone);
        let come = told.iter().filter(|&(_, &was)| !was);
        let mut come: Vec<BlockIdentity> = come.filter_map(|(&hash, _)| store.get(hash)).collect();
        in_order(&mut come);
        self.push_stored(&come);
    }
}

/// Parents before children.
fn in_order(blocks: &mut [BlockIdentity]) {
    blocks.sort_unstable_by_key(|identity| (identity.position, identity.block.block_hash));
}

#[cfg(test)]
mod tests {
    use super::super::tests::chain;
    use super::*;

    /// What somebody knows who has heard `events`.
    fn heard(known: &mut Vec<SequenceHash>, events: Vec<TierEvent>) {
        for TierEvent { event, .. } in events {
            match event {
                KvEvent::Stored { blocks, .. } => known.extend(blocks.iter().map(|block| block.block_hash)),
                KvEvent::Removed { block_hashes } => known.retain(|hash| !block_hashes.contains(hash)),
                KvEvent::Cleared => panic!("a tier is not cleared in one event"),
            }
        }
        known.sort_unstable();
    }

    #[test]
    fn a_rank_that_does_not_ask_keeps_the_difference_only() {
        let mut store = Store::new(4);
        let (mut audience, mut known, mut events) = (Audience::new(LowerTier::Host), Vec::new(), Vec::new());
        audience.admit(0, &store);
        for family in 0..10_000 {
            let blocks = chain(family, 2);
            let gone = store.expect(&blocks, &[]).expect("older ones go");
            audience.removed(&gone, &store);
            store.arrive(&blocks);
            audience.stored(&blocks, &store);
            let kept = audience.of[&0].blocks;
            assert!(kept <= SLACK + 16, "{kept}");
            if family == 1 {
                audience.take(0, &mut events);
                heard(&mut known, std::mem::take(&mut events));
                assert_eq!(known.len(), 4);
            }
        }
        audience.take(0, &mut events);
        heard(&mut known, events);
        let mut here: Vec<SequenceHash> = store.contents().map(|identity| identity.block.block_hash).collect();
        here.sort_unstable();
        assert_eq!(known, here);
    }
}
