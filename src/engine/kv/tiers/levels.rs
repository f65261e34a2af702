//! A tier below the host: disk (G3) or object storage (G4), of one rank or one that many ranks share.
//!
//! The level sees its transfers end at once, whoever looks; the rank that they belong to hears of it at its next look.
//! Source: Dynamo 1.6.1 engine core (`g3_offload`, both scopes), Dynamo 1.4.2 (G3, G4).

use std::collections::BTreeMap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::super::logical::BlockIdentity;
use super::link::{ClientId, Direction, Job, Shared, Speed, TransferId};
use super::news::Audience;
use super::sharing::Changes;
use super::store::{Presence, Store};
use super::{bytes_of, hashes};
use crate::engine::tier_use::{DiskUse, TransferUse};
use crate::types::{LowerTier, SequenceHash, SimTime};

/// A transfer between the host and a level.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) client: ClientId,
    /// `Up` brings blocks to the host.
    pub(super) direction: Direction,
    pub(super) blocks: Vec<BlockIdentity>,
    sent: SimTime,
}

/// A rank with access to the level.
#[derive(Debug)]
struct Client {
    speed: Speed,
    /// What is done as far as the level is concerned, in the order of the ends.
    ended: Vec<(SimTime, Transfer)>,
    /// The level's age when it last looked.
    seen: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) tier: LowerTier,
    block_bytes: u64,
    store: Store,
    link: Shared,
    clients: BTreeMap<ClientId, Client>,
    /// Who is told of what comes and goes.
    pub(super) audience: Audience,
    transfers: HashMap<TransferId, Transfer, FxBuildHasher>,
    next_id: u64,
    now: SimTime,
    /// Transfers that are over.
    age: u64,
    version: u64,
    changes: Option<Changes>,
    /// Who wrote what, where it may be somebody else who reads it.
    writers: HashMap<SequenceHash, ClientId, FxBuildHasher>,
    used: DiskUse,
}

impl Level {
    /// A level of `blocks` blocks that all ranks together load no more than `cap`; of many ranks if there are `changes` to
    /// be told to them.
    pub(super) fn new(tier: LowerTier, blocks: u32, block_bytes: u64, cap: Speed, changes: Option<Changes>) -> Self {
        Self {
            tier,
            block_bytes,
            store: Store::new(blocks),
            link: Shared::new(cap),
            clients: BTreeMap::new(),
            audience: Audience::new(tier),
            transfers: HashMap::default(),
            next_id: 0,
            now: SimTime::ZERO,
            age: 0,
            version: 0,
            changes,
            writers: HashMap::default(),
            used: DiskUse::default(),
        }
    }

    /// Lets a rank in; it is told at once of what is there.
    pub(super) fn admit(&mut self, client: ClientId, speed: Speed) {
        self.audience.admit(client, &self.store);
        let state = Client {
            speed,
            ended: Vec::new(),
            seen: self.age,
        };
        self.clients.insert(client, state);
    }

    pub(super) fn is_shared(&self) -> bool {
        self.changes.is_some()
    }

    /// Changes whenever a lookup may have another outcome or another effect.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn presence(&self, hash: SequenceHash) -> Presence {
        self.store.presence(hash)
    }

    /// Looks a block up that the host lacks, and uses it.
    pub(super) fn probe(&mut self, hash: SequenceHash) -> Presence {
        let presence = self.store.presence(hash);
        self.used.lookup_probes += 1;
        match presence {
            Presence::Missing => {}
            Presence::Coming => self.used.lookup_pending += 1,
            Presence::Here => {
                self.used.lookup_hits += 1;
                self.store.touch(hash);
            }
        }
        presence
    }

    /// A request went on without the blocks that it kept sending for.
    pub(super) fn count_bypass(&mut self) {
        self.used.bypassed_restores += 1;
    }

    /// Writes what it lacks of `blocks` as far as there is room without any of `kept`; returns what is written.
    pub(super) fn write(
        &mut self,
        client: ClientId,
        blocks: &[BlockIdentity],
        kept: &[SequenceHash],
        now: SimTime,
    ) -> Vec<BlockIdentity> {
        self.advance(now);
        let mut blocks = blocks.to_vec();
        blocks.retain(|identity| self.presence(identity.block.block_hash) == Presence::Missing);
        blocks.truncate(self.store.room(kept));
        let gone = self.store.expect(&blocks, kept).filter(|_| !blocks.is_empty());
        let Some(gone) = gone else { return Vec::new() };
        self.used.evictions += gone.len() as u64;
        for hash in &gone {
            self.writers.remove(hash);
        }
        self.audience.removed(&gone, &self.store);
        if self.is_shared() {
            let written = blocks.iter().map(|identity| (identity.block.block_hash, client));
            self.writers.extend(written);
        }
        self.send(client, Direction::Down, blocks.clone());
        blocks
    }

    /// Copies blocks that are here to the host. `false`: there are none, or some are not here.
    pub(super) fn read(&mut self, client: ClientId, blocks: Vec<BlockIdentity>, now: SimTime) -> bool {
        self.advance(now);
        let keys = hashes(&blocks);
        if blocks.is_empty() || keys.iter().any(|&hash| self.presence(hash) != Presence::Here) {
            return false;
        }
        self.store.read(&keys);
        self.send(client, Direction::Up, blocks);
        true
    }

    /// A block that is here.
    pub(super) fn get(&self, hash: SequenceHash) -> Option<BlockIdentity> {
        self.store.get(hash)
    }

    /// Takes the rank's transfers that are done by `now`, and whether anybody's is since its last look.
    pub(super) fn look(&mut self, client: ClientId, now: SimTime) -> (Vec<(SimTime, Transfer)>, bool) {
        self.advance(now);
        let age = self.age;
        let Some(state) = self.clients.get_mut(&client) else {
            return (Vec::new(), false);
        };
        let news = std::mem::replace(&mut state.seen, age) != age;
        let later = state.ended.partition_point(|(at, _)| *at <= now);
        let rest = state.ended.split_off(later);
        (std::mem::replace(&mut state.ended, rest), news)
    }

    /// When there is something for a rank to look at.
    pub(super) fn next(&self, client: ClientId) -> Option<SimTime> {
        let state = self.clients.get(&client)?;
        let own = state.ended.first().map(|&(at, _)| at);
        let news = (self.is_shared() && state.seen != self.age).then_some(self.now);
        [self.link.next(), own, news].into_iter().flatten().min()
    }

    /// Whether a rank has a transfer that is not over, or that it has not looked at since.
    pub(super) fn is_moving(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|state| !state.ended.is_empty())
            || self.transfers.values().any(|transfer| transfer.client == client)
    }

    /// What can be read, in no particular order.
    pub(super) fn contents(&self) -> impl Iterator<Item = BlockIdentity> {
        self.store.contents()
    }

    /// What it has done so far, and what it holds.
    pub(super) fn used(&self) -> DiskUse {
        let (here, coming) = self.store.occupancy();
        DiskUse {
            resident_blocks: here as u64,
            pending_blocks: coming as u64,
            ..self.used
        }
    }

    /// Drops everything that no transfer is about.
    pub(super) fn clear(&mut self) {
        self.touch_version();
        let gone = self.store.clear();
        for hash in &gone {
            self.writers.remove(hash);
        }
        self.audience.removed(&gone, &self.store);
    }

    /// A rank is gone: what it was bringing up stays where it is, what it was writing arrives. Returns both.
    pub(super) fn retire(&mut self, client: ClientId) -> Vec<Transfer> {
        self.audience.dismiss(client);
        let state = self.clients.remove(&client);
        let mut given_up: Vec<Transfer> = state
            .into_iter()
            .flat_map(|state| state.ended)
            .map(|(_, transfer)| transfer)
            .collect();
        let own = self.transfers.iter().filter(|(_, transfer)| transfer.client == client);
        let mut own: Vec<TransferId> = own.map(|(id, _)| *id).collect();
        own.sort_unstable();
        for id in own {
            let Some(transfer) = self.transfers.get_mut(&id) else {
                continue;
            };
            if transfer.direction == Direction::Up {
                self.link.remove(id, self.now);
                self.used.read.cancelled_jobs += 1;
                if let Some(transfer) = self.transfers.remove(&id) {
                    self.store.done(&hashes(&transfer.blocks));
                    given_up.push(transfer);
                }
            } else {
                given_up.push(Transfer {
                    blocks: transfer.blocks.clone(),
                    ..*transfer
                });
            }
        }
        self.touch_version();
        given_up
    }

    /// Lets the transfers move on to `now`.
    pub(super) fn advance(&mut self, now: SimTime) {
        self.now = self.now.max(now);
        for (at, id) in self.link.settle(self.now) {
            if let Some(transfer) = self.transfers.remove(&id) {
                self.finish(transfer, at);
            }
        }
    }

    fn finish(&mut self, transfer: Transfer, at: SimTime) {
        self.age += 1;
        self.touch_version();
        let keys = hashes(&transfer.blocks);
        let used = if transfer.direction == Direction::Down {
            self.store.arrive(&transfer.blocks);
            self.audience.stored(&transfer.blocks, &self.store);
            &mut self.used.write
        } else {
            self.store.done(&keys);
            let of_others = |hash: &&SequenceHash| self.writers.get(*hash).is_some_and(|&by| by != transfer.client);
            self.used.cross_worker_read_blocks += keys.iter().filter(of_others).count() as u64;
            &mut self.used.read
        };
        used.completed_jobs += 1;
        used.completed_bytes = used
            .completed_bytes
            .saturating_add(bytes_of(self.block_bytes, keys.len()));
        used.transfer_ms += at.as_ms() - transfer.sent.as_ms();
        if let Some(state) = self.clients.get_mut(&transfer.client) {
            state.ended.push((at, transfer));
        }
    }

    fn send(&mut self, client: ClientId, direction: Direction, blocks: Vec<BlockIdentity>) {
        let Some(state) = self.clients.get(&client) else {
            return;
        };
        let id = TransferId(self.next_id);
        self.next_id += 1;
        let used: &mut TransferUse = match direction {
            Direction::Down => &mut self.used.write,
            Direction::Up => &mut self.used.read,
        };
        used.submitted_jobs += 1;
        self.link.send(Job {
            id,
            client,
            direction,
            from: self.now,
            bytes: bytes_of(self.block_bytes, blocks.len()),
            speed: state.speed,
        });
        let transfer = Transfer {
            client,
            direction,
            blocks,
            sent: self.now,
        };
        self.transfers.insert(id, transfer);
        self.touch_version();
    }

    fn touch_version(&mut self) {
        self.version += 1;
        if let Some(changes) = &self.changes {
            changes.count();
        }
    }
}
