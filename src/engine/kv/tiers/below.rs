//! Between the host and what is below it: which blocks go down, and which are brought up.

use super::super::logical::BlockIdentity;
use super::levels::Level;
use super::link::Direction;
use super::sharing::{Guard, Held};
use super::store::Presence;
use super::{Tiers, hashes};
use crate::types::{SequenceHash, SimTime};

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
        let mut host = self.host.get();
        let mut levels: Vec<Guard<'_, Level>> = self.levels.iter_mut().map(Held::get).collect();
        for identity in prompt {
            let hash = identity.block.block_hash;
            match host.presence(hash) {
                Presence::Here => continue,
                Presence::Coming => {
                    coming = true;
                    continue;
                }
                Presence::Missing => {}
            }
            let mut found = None;
            let mut on_its_way = false;
            for (index, level) in levels.iter_mut().enumerate() {
                match level.probe(hash) {
                    Presence::Here => {
                        found = Some(index);
                        break;
                    }
                    Presence::Coming => on_its_way = true,
                    Presence::Missing => {}
                }
            }
            let Some(index) = found else {
                if !on_its_way {
                    break;
                }
                coming = true;
                continue;
            };
            // What takes no time may be evicted by the next look at the same instant.
            if self.attempted.contains(&(reader, hash)) {
                let below = |hash: SequenceHash| levels.iter().any(|level| level.presence(hash) != Presence::Missing);
                let missing = |hash: &SequenceHash| host.presence(*hash) == Presence::Missing;
                let start = keys.iter().copied().take_while(|hash| !missing(hash) || below(*hash));
                let start: Vec<SequenceHash> = start.collect();
                if start.iter().filter(|hash| missing(hash)).count() > host.room(&start) {
                    break;
                }
            }
            if !host.expect(&[*identity], &[hash], now) {
                break;
            }
            wanted[index].push(*identity);
        }
        let mut any = false;
        for (index, blocks) in wanted.into_iter().enumerate() {
            let read = hashes(&blocks);
            if levels[index].read(self.client, blocks.clone(), now) {
                any = true;
                self.attempted.extend(read.into_iter().map(|hash| (reader, hash)));
            } else if !blocks.is_empty() {
                host.forget(self.client, &blocks);
            }
        }
        (any || coming).then_some(any)
    }

    /// Sends for blocks of `prompt` that only a level below the host has, up to the first that nobody has or the host has no
    /// room for. Returns whether any were sent for.
    pub(super) fn stage(&mut self, prompt: &[BlockIdentity], now: SimTime) -> bool {
        if self.levels.is_empty() {
            return false;
        }
        let hashes = hashes(prompt);
        let mut host = self.host.get();
        let mut levels: Vec<Guard<'_, Level>> = self.levels.iter_mut().map(Held::get).collect();
        let mut room = host.room(&hashes);
        let mut wanted: Vec<Vec<BlockIdentity>> = vec![Vec::new(); levels.len()];
        for &hash in &hashes {
            if host.presence(hash) != Presence::Missing {
                continue;
            }
            let found = levels
                .iter()
                .enumerate()
                .find_map(|(index, level)| Some((index, level.get(hash)?)));
            let Some((index, identity)) = found.filter(|_| room > 0) else {
                break;
            };
            room -= 1;
            wanted[index].push(identity);
        }
        let mut any = false;
        for (index, blocks) in wanted.into_iter().enumerate() {
            if !blocks.is_empty() && host.expect(&blocks, &hashes, now) {
                any |= levels[index].read(self.client, blocks, now);
            }
        }
        any
    }

    /// What has arrived in the host goes on to every level that lacks it and has room.
    pub(super) fn sink(&mut self, blocks: &[BlockIdentity], at: SimTime) {
        if self.levels.is_empty() {
            return;
        }
        // What a level has of them stays there.
        let kept = if self.writes_through() {
            hashes(blocks)
        } else {
            Vec::new()
        };
        let mut host = self.host.get();
        for level in &mut self.levels {
            let written = level.get().write(self.client, blocks, &kept, at);
            host.pin(&hashes(&written));
        }
        // In the host they were kept for this.
        host.unpin(&kept);
    }

    /// Ends the transfers below the host that are done by `now`, in the order of their ends; returns whether anybody's are.
    pub(super) fn settle_levels(&mut self, now: SimTime) -> bool {
        let mut ended = Vec::new();
        let mut any = false;
        for level in &mut self.levels {
            let (own, news) = level.get().look(self.client, now);
            any |= news;
            ended.extend(own);
        }
        ended.sort_by_key(|&(at, _)| at);
        any |= !ended.is_empty();
        if ended.is_empty() {
            return any;
        }
        let each = self.writes_through();
        let mut host = self.host.get();
        for (_, transfer) in ended {
            match transfer.direction {
                Direction::Down => host.unpin(&hashes(&transfer.blocks)),
                Direction::Up => host.arrive_from_below(self.client, &transfer.blocks, each),
            }
        }
        any
    }
}
