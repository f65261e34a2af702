//! What faults do to a native event stream.
//!
//! The same kinds as on the event plane ([`super::super::kv_publisher`]), with the stream's own means: what the plane does
//! to event ids is done to the numbers of batches, and the ring of the replay socket stays true, but for gaps and silence.
//! Batches name no publisher, so `stale_epoch` has nothing to change: it is not asked for.

use actix::prelude::*;
use bytes::Bytes;

use super::NativeStream;
use crate::actors::clock::Clock;
use crate::actors::event_ways::{Sent, Ways, corrupt, dropping};
use crate::actors::fault_post::FaultsChanged;
use crate::actors::gust::{self, Gust};
use crate::actors::kv_spoiler::{parts_of, wrong};
use crate::faults::draw::Dice;
use crate::faults::kind::{AtSource, EventFault, InContent, StormFault};
use crate::faults::table::{Due, InForce};
use crate::transport::event_plane::native::{BatchEncoder, NativeEvent};
use crate::types::{DpRank, HashSalt, SequenceHash, Token};

/// Salts of the dice: other than those of the event plane, so that the two streams do not fail alike.
const SPOILED: u64 = 0x6e61;
const STORMED: u64 = 0x6e73;

/// One batch on its way: its number on the wire, and itself.
type Batch = (u64, Bytes);

/// One stream under faults.
#[derive(Debug, Default)]
pub(super) struct NativeFaults {
    ways: Ways<Batch>,
    /// From true numbers to those on the wire.
    offset: Option<u64>,
    storm: Option<SpawnHandle>,
    stormed: u64,
    /// Block of a storm that has come and not gone.
    blown: Option<SequenceHash>,
}

impl NativeFaults {
    /// Batches that are held back.
    pub(super) fn held(&self) -> usize {
        self.ways.held()
    }
}

impl NativeStream {
    pub(super) fn is_disturbed(&self) -> bool {
        !self.parts.faults.table().is_quiet::<EventFault>() || self.faults.held() > 0
    }

    /// As [`NativeStream::publish`], through the faults.
    pub(super) fn publish_disturbed(&mut self, events: &[NativeEvent], ctx: &mut Context<Self>) {
        let here = |fault: &EventFault| !matches!(fault, EventFault::StaleEpoch {});
        let faults = self.parts.faults.table().draw_of(here);
        for fault in &faults {
            match fault.at_source() {
                Some(AtSource::Silent) => return fault.happened(),
                Some(AtSource::Gap(ids)) => {
                    fault.happened();
                    let numbers = &self.parts.next_sequence;
                    numbers.fetch_add(ids, std::sync::atomic::Ordering::Relaxed);
                }
                None => {}
            }
        }
        let sequence = self.next_sequence();
        if !self.is_wanted() {
            return;
        }
        let seconds = Clock::unix_seconds();
        let truth = self.parts.encoder.batch(seconds, events);
        self.keep(sequence, &truth);
        let dice = self.faults.ways.next_dice(self.parts.faults.table().dice(SPOILED));
        let mut batch = match spoil(self.parts.encoder, events, &faults, dice) {
            Some((encoder, events)) => encoder.batch(seconds, &events),
            None => truth,
        };
        let mut number = sequence;
        let arrives = dropping(&faults).is_none();
        for fault in &faults {
            let changed = match fault.in_content() {
                Some(InContent::Renumber(first)) => {
                    let offset = *self.faults.offset.get_or_insert(first.wrapping_sub(sequence));
                    number = sequence.wrapping_add(offset);
                    number != sequence
                }
                Some(InContent::Corrupt) => {
                    batch = corrupt(&batch, dice);
                    true
                }
                Some(
                    InContent::WrongHash
                    | InContent::WrongParent
                    | InContent::WrongRank(_)
                    | InContent::WrongBlockSize(_)
                    | InContent::DuplicateHash,
                )
                | None => false,
            };
            if changed && arrives {
                fault.happened();
            }
        }
        for sent in self.faults.ways.pass((number, batch), &faults, dice) {
            match sent {
                Sent::Now((number, batch)) | Sent::Stale((number, batch)) => self.send(number, batch),
                Sent::Later((number, batch), wait) => {
                    ctx.run_later(wait, move |stream, _| stream.send(number, batch));
                }
                Sent::Lost => {}
            }
        }
    }

    /// Begins, changes or ends a storm.
    pub(super) fn storm(&mut self, ctx: &mut Context<Self>) {
        if let Some(storm) = self.faults.storm.take() {
            ctx.cancel_future(storm);
        }
        let Some(storm) = self.parts.faults.table().in_force::<StormFault>().pop() else {
            return;
        };
        let StormFault::Storm { per_s } = *storm;
        let mut gust = Gust::new(per_s);
        self.faults.storm = Some(ctx.run_interval(gust::EVERY, move |stream, ctx| {
            for _ in 0..gust.due() {
                storm.happened();
                stream.blow(ctx);
            }
        }));
    }

    /// One batch of a storm: a block comes or goes.
    fn blow(&mut self, ctx: &mut Context<Self>) {
        let faults = &mut self.faults;
        faults.stormed += 1;
        let dice = Dice::new(self.parts.faults.table().dice(STORMED).bits(faults.stormed), 0);
        let event = if let Some(hash) = faults.blown.take() {
            NativeEvent::Removed { hashes: vec![hash] }
        } else {
            let hash = SequenceHash(dice.bits(0));
            faults.blown = Some(hash);
            #[allow(clippy::cast_possible_truncation)]
            let token = |n: u32| (dice.bits(u64::from(n) + 1) % 1000) as Token;
            NativeEvent::Stored {
                parent: None,
                hashes: vec![hash],
                tokens: (0..self.parts.encoder.block_size).map(token).collect(),
                salt: HashSalt::default(),
            }
        };
        self.publish(&[event], ctx);
    }
}

/// Changes what a batch says; `None`: these faults change nothing.
fn spoil(
    mut encoder: BatchEncoder,
    events: &[NativeEvent],
    faults: &[Due<EventFault>],
    dice: Dice,
) -> Option<(BatchEncoder, Vec<NativeEvent>)> {
    let arrives = dropping(faults).is_none();
    let mut spoiled = None;
    for fault in faults {
        let Some(content) = fault.in_content() else { continue };
        let events = || events.to_vec();
        let said = |encoder: &BatchEncoder, spoiled: &Option<Vec<NativeEvent>>| {
            let events = spoiled.clone().unwrap_or_else(events);
            (encoder.rank, encoder.block_size, events)
        };
        let before = said(&encoder, &spoiled);
        match content {
            InContent::WrongRank(rank) => {
                encoder.rank = DpRank(rank);
                spoiled.get_or_insert_with(events);
            }
            InContent::WrongHash => {
                let other = |hash: &SequenceHash| vec![SequenceHash(wrong(hash.0))];
                each_hash(spoiled.get_or_insert_with(events), other);
            }
            InContent::WrongBlockSize(factor) => {
                let factor = factor.clamp(1, encoder.block_size.max(1));
                let others = |hash: &SequenceHash| parts_of(hash.0, factor).into_iter().map(SequenceHash).collect();
                let events = spoiled.get_or_insert_with(events);
                each_hash(events, others);
                encoder.block_size /= factor;
                fit_tokens(events, encoder.block_size);
            }
            InContent::WrongParent => {
                for event in spoiled.get_or_insert_with(events) {
                    if let NativeEvent::Stored { parent, .. } = event {
                        *parent = Some(SequenceHash(dice.bits(2)));
                    }
                }
            }
            InContent::DuplicateHash => list_twice(spoiled.get_or_insert_with(events), encoder.block_size),
            // Of the batch, not of what it says.
            InContent::Renumber(_) | InContent::Corrupt => {}
        }
        if arrives && said(&encoder, &spoiled) != before {
            fault.happened();
        }
    }
    spoiled.map(|events| (encoder, events))
}

/// Puts other identities in the place of each block's, the same for what is stored and what is removed.
fn each_hash(events: &mut [NativeEvent], others: impl Fn(&SequenceHash) -> Vec<SequenceHash>) {
    for event in events {
        if let NativeEvent::Stored { hashes, .. } | NativeEvent::Removed { hashes } = event {
            *hashes = hashes.iter().flat_map(&others).collect();
        }
    }
}

/// Lists each stored block twice, with its tokens.
fn list_twice(events: &mut [NativeEvent], block_size: u32) {
    for event in events {
        if let NativeEvent::Stored { hashes, tokens, .. } = event {
            let blocks = tokens.chunks((block_size as usize).max(1));
            *tokens = blocks.flat_map(|block| [block, block]).flatten().copied().collect();
            *hashes = hashes.iter().flat_map(|hash| [*hash, *hash]).collect();
        }
    }
}

/// Leaves each stored block as many tokens as it may have: a size that the factor does not divide leaves some over.
fn fit_tokens(events: &mut [NativeEvent], block_size: u32) {
    for event in events {
        if let NativeEvent::Stored { hashes, tokens, .. } = event {
            tokens.truncate(hashes.len() * block_size as usize);
        }
    }
}

impl Handler<FaultsChanged> for NativeStream {
    type Result = ();

    fn handle(&mut self, _: FaultsChanged, ctx: &mut Self::Context) {
        let in_force = self.parts.faults.table().in_force::<EventFault>();
        let in_force: Vec<EventFault> = in_force.into_iter().map(InForce::into_fault).collect();
        let in_content = || in_force.iter().filter_map(EventFault::in_content);
        if !in_content().any(|content| matches!(content, InContent::Renumber(_))) {
            self.faults.offset = None;
        }
        for (number, batch) in self.faults.ways.release(&in_force) {
            self.send(number, batch);
        }
        self.storm(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::event_plane::native::Encoding;

    fn encoder() -> BatchEncoder {
        BatchEncoder {
            encoding: Encoding::Map,
            block_size: 4,
            rank: DpRank(0),
        }
    }

    fn events() -> Vec<NativeEvent> {
        vec![
            NativeEvent::Stored {
                parent: Some(SequenceHash(1)),
                hashes: vec![SequenceHash(2), SequenceHash(3)],
                tokens: (10..18).collect(),
                salt: HashSalt::default(),
            },
            NativeEvent::Removed {
                hashes: vec![SequenceHash(2)],
            },
            NativeEvent::Cleared,
        ]
    }

    fn spoiled(fault: EventFault) -> (BatchEncoder, Vec<NativeEvent>) {
        let fault = Due::alone(fault);
        let spoiled = spoil(encoder(), &events(), std::slice::from_ref(&fault), Dice::new(1, 1)).unwrap();
        assert_eq!(fault.count(), 1);
        spoiled
    }

    #[test]
    fn what_a_batch_says_is_changed_the_same_way_for_stores_and_removals() {
        let lost = [Due::alone(EventFault::Drop {})];
        assert!(spoil(encoder(), &events(), &lost, Dice::new(1, 1)).is_none());
        let own = [Due::alone(EventFault::WrongRank { rank: 0 })];
        assert!(spoil(encoder(), &events(), &own, Dice::new(1, 1)).is_some());
        assert_eq!(own[0].count(), 0, "the rank is the right one");
        let (wrong_rank, same) = spoiled(EventFault::WrongRank { rank: 5 });
        assert_eq!((wrong_rank.rank, same), (DpRank(5), events()));
        let (_, wrong) = spoiled(EventFault::WrongHash {});
        let hashes = |event: &NativeEvent| match event {
            NativeEvent::Stored { hashes, .. } | NativeEvent::Removed { hashes } => hashes.clone(),
            NativeEvent::Cleared => Vec::new(),
        };
        assert_eq!(hashes(&wrong[0])[0], hashes(&wrong[1])[0]);
        assert_ne!(hashes(&wrong[0])[0], SequenceHash(2));
        let (_, wrong) = spoiled(EventFault::WrongParent {});
        assert!(matches!(&wrong[0], NativeEvent::Stored { parent: Some(parent), .. } if *parent != SequenceHash(1)));
    }

    #[test]
    fn a_block_that_is_listed_twice_has_its_tokens_twice() {
        let (_, told) = spoiled(EventFault::DuplicateHash {});
        let NativeEvent::Stored { hashes, tokens, .. } = &told[0] else {
            panic!("{told:?}")
        };
        assert_eq!(*hashes, [2, 2, 3, 3].map(SequenceHash));
        assert_eq!(tokens[..8], [10, 11, 12, 13, 10, 11, 12, 13]);
        assert_eq!(told[1], events()[1], "removals are what they were");
    }

    #[test]
    fn smaller_blocks_have_the_tokens_that_fit_into_them() {
        for (factor, size, blocks) in [(2, 2, 4), (3, 1, 6), (100, 1, 8)] {
            let (smaller, events) = spoiled(EventFault::WrongBlockSize { factor });
            assert_eq!(smaller.block_size, size);
            let NativeEvent::Stored { hashes, tokens, .. } = &events[0] else {
                panic!("{events:?}")
            };
            assert_eq!((hashes.len(), tokens.len()), (blocks, blocks * size as usize));
        }
    }
}
