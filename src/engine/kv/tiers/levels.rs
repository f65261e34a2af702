//! What is below the host: which blocks go down to it, and which are brought up from it.

use super::super::logical::BlockIdentity;
use super::link::{Direction, Shared, Speed, TransferId};
use super::store::{Presence, Store};
use super::{Tiers, Transfer, Way, hashes};
use crate::types::{LowerTier, SequenceHash, SimTime};

/// A tier below the host and the connection to it, which its transfers share.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) tier: LowerTier,
    pub(super) store: Store,
    link: Shared,
    /// What is done as far as this level is concerned, in the order of the ends.
    ended: Vec<(SimTime, TransferId)>,
}

impl Level {
    pub(super) fn new(tier: LowerTier, blocks: u32, speed: Speed) -> Self {
        Self {
            tier,
            store: Store::new(blocks),
            link: Shared::new(speed),
            ended: Vec::new(),
        }
    }

    /// When something happens to a transfer next.
    pub(super) fn next(&self) -> Option<SimTime> {
        let ended = self.ended.first().map(|&(at, _)| at);
        ended.or_else(|| self.link.next())
    }
}

impl Tiers {
    /// Sends for all blocks of `prompt` that only a level below the host has, block by block, up to the first that is
    /// nowhere or that the host has no room for. `None`: there is nothing to wait for; else whether something was sent for.
    pub(super) fn promote(&mut self, reader: u32, prompt: &[BlockIdentity], now: SimTime) -> Option<bool> {
        if self.levels.is_empty() {
            return None;
        }
        if now > self.attempted_at {
            self.attempted_at = now;
            self.attempted.clear();
        }
        let keys = hashes(prompt);
        let mut coming = false;
        let mut wanted: Vec<Vec<BlockIdentity>> = vec![Vec::new(); self.levels.len()];
        for identity in prompt {
            let hash = identity.block.block_hash;
            match self.host.presence(hash) {
                Presence::Here => continue,
                Presence::Coming => {
                    coming = true;
                    continue;
                }
                Presence::Missing => {}
            }
            let below = |presence| {
                self.levels
                    .iter()
                    .position(|level| level.store.presence(hash) == presence)
            };
            let Some(index) = below(Presence::Here) else {
                if below(Presence::Coming).is_none() {
                    break;
                }
                coming = true;
                continue;
            };
            self.levels[index].store.touch(hash);
            // What takes no time may be evicted by the next look at the same instant.
            if self.attempted.contains(&(reader, hash)) && !self.could_hold(&keys) {
                break;
            }
            let Some(gone) = self.host.expect(&[*identity], &[hash]) else {
                break;
            };
            self.tell_removed(LowerTier::Host, gone);
            wanted[index].push(*identity);
        }
        let mut any = false;
        for (index, blocks) in wanted.into_iter().enumerate() {
            let read = hashes(&blocks);
            any |= self.send_up(index, blocks, now);
            self.attempted.extend(read.into_iter().map(|hash| (reader, hash)));
        }
        (any || coming).then_some(any)
    }

    /// Copies blocks from a level into the host, which expects them; `false`: there are none.
    fn send_up(&mut self, index: usize, blocks: Vec<BlockIdentity>, now: SimTime) -> bool {
        if blocks.is_empty() {
            return false;
        }
        self.version += 1;
        let bytes = self.bytes(blocks.len());
        let read = hashes(&blocks);
        let id = self.open(Way::Stage(index), blocks, 0);
        self.advance(index, now);
        let level = &mut self.levels[index];
        level.store.read(&read);
        level.link.send(id, Direction::Up, now, bytes);
        true
    }

    /// Whether the host could hold the start of a prompt that it or a level below has.
    fn could_hold(&self, keys: &[SequenceHash]) -> bool {
        let missing = |hash: &SequenceHash| self.host.presence(*hash) == Presence::Missing;
        let below = |hash: SequenceHash| {
            let mut levels = self.levels.iter();
            levels.any(|level| level.store.presence(hash) != Presence::Missing)
        };
        let start = keys.iter().copied().take_while(|hash| !missing(hash) || below(*hash));
        let start: Vec<SequenceHash> = start.collect();
        start.iter().filter(|hash| missing(hash)).count() <= self.host.room(&start)
    }

    /// Sends for blocks of `prompt` that only a level below the host has, up to the first that nobody has or the host has no
    /// room for. Returns whether any were sent for.
    pub(super) fn stage(&mut self, prompt: &[BlockIdentity], now: SimTime) -> bool {
        if self.levels.is_empty() {
            return false;
        }
        let hashes = hashes(prompt);
        let mut room = self.host.room(&hashes);
        let mut wanted: Vec<Vec<BlockIdentity>> = vec![Vec::new(); self.levels.len()];
        for &hash in &hashes {
            if self.host.presence(hash) != Presence::Missing {
                continue;
            }
            let found = self
                .levels
                .iter()
                .enumerate()
                .find_map(|(index, level)| Some((index, level.store.get(hash)?)));
            let Some((index, identity)) = found.filter(|_| room > 0) else {
                break;
            };
            room -= 1;
            wanted[index].push(identity);
        }
        let mut any = false;
        for (index, blocks) in wanted.into_iter().enumerate() {
            if blocks.is_empty() {
                continue;
            }
            let Some(gone) = self.host.expect(&blocks, &hashes) else {
                continue;
            };
            self.tell_removed(LowerTier::Host, gone);
            any |= self.send_up(index, blocks, now);
        }
        any
    }

    /// What has arrived in the host goes on to every level that lacks it and has room.
    pub(super) fn sink(&mut self, blocks: &[BlockIdentity], at: SimTime) {
        // What a level has of them stays there.
        let kept = if self.writes_through() {
            hashes(blocks)
        } else {
            Vec::new()
        };
        for index in 0..self.levels.len() {
            self.advance(index, at);
            let level = &mut self.levels[index];
            let mut blocks: Vec<BlockIdentity> = blocks.to_vec();
            blocks.retain(|identity| level.store.presence(identity.block.block_hash) == Presence::Missing);
            blocks.truncate(level.store.room(&kept));
            let gone = level.store.expect(&blocks, &kept).filter(|_| !blocks.is_empty());
            let Some(gone) = gone else { continue };
            let bytes = self.bytes(blocks.len());
            self.host.read(&hashes(&blocks));
            let id = self.open(Way::Sink(index), blocks, 0);
            let level = &mut self.levels[index];
            level.link.send(id, Direction::Down, at, bytes);
            let tier = level.tier;
            self.tell_removed(tier, gone);
        }
    }

    /// Lets the transfers of a level move on to `now`. The level sees the ends of its own at once, the host later.
    fn advance(&mut self, index: usize, now: SimTime) {
        for (at, id) in self.levels[index].link.settle(now) {
            let Some(Transfer { way, blocks, .. }) = self.transfers.get(&id) else {
                continue;
            };
            let (way, blocks) = (*way, blocks.clone());
            let level = &mut self.levels[index];
            level.ended.push((at, id));
            if way == Way::Sink(index) {
                level.store.arrive(&blocks);
                let tier = level.tier;
                self.tell_stored(tier, &blocks);
            } else {
                level.store.done(&hashes(&blocks));
            }
        }
    }

    /// Takes the transfers below the host that are done by `now`, in the order of their ends.
    pub(super) fn settle_levels(&mut self, now: SimTime, ended: &mut Vec<Transfer>) {
        let mut done = Vec::new();
        for index in 0..self.levels.len() {
            self.advance(index, now);
            done.append(&mut self.levels[index].ended);
        }
        done.sort_by_key(|&(at, _)| at);
        ended.extend(done.into_iter().filter_map(|(_, id)| self.take(id)));
    }
}
