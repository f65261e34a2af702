//! Host memory (G2): that of one rank, or one pool that many ranks share.
//!
//! What a transfer does to the pool is done when it is over, whoever looks first; its own rank hears of it at its next
//! look. Source: Dynamo 1.6.1 engine core (`native_host_offload`, both scopes).

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::super::logical::BlockIdentity;
use super::link::{ClientId, Direction, Job, Link, Speed, TransferId};
use super::news::Audience;
use super::sharing::Changes;
use super::store::{Presence, Store};
use super::{bytes_of, hashes};
use crate::types::{LowerTier, SequenceHash, SimTime};

/// What is over, of one rank's transfers.
#[derive(Debug)]
pub(super) enum Done {
    /// Blocks are in the host.
    Stored(TransferId, Vec<BlockIdentity>),
    /// Blocks are in the GPU, for this reader.
    Loaded(TransferId, u32, Vec<BlockIdentity>),
}

#[derive(Debug)]
struct Transfer {
    client: ClientId,
    direction: Direction,
    blocks: Vec<BlockIdentity>,
    /// Of a load: who waits for it.
    reader: u32,
}

/// A rank with access to the pool.
#[derive(Debug)]
struct Client {
    speed: Speed,
    /// Stores that start when its running pass is over.
    prepared: Vec<TransferId>,
    done: VecDeque<(SimTime, Done)>,
    /// The pool's age when it last looked.
    seen: u64,
    /// It has a pass under way.
    runs: bool,
    /// How often all ranks had been idle when it last looked.
    saw_idle: u64,
    /// What it has written stays until it says so ([`Host::unpin`]).
    pins: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Host {
    block_bytes: u64,
    store: Store,
    link: Link,
    clients: BTreeMap<ClientId, Client>,
    /// Who is told of what comes and goes.
    pub(super) audience: Audience,
    transfers: HashMap<TransferId, Transfer, FxBuildHasher>,
    next_id: u64,
    /// Of a shared pool: the latest look at it.
    now: SimTime,
    /// Counts ends of transfers, and what else may let a rank go on.
    age: u64,
    version: u64,
    /// How often the last rank that ran has become idle.
    all_idle: u64,
    /// Of a shared pool.
    changes: Option<Changes>,
}

impl Host {
    /// A pool of `blocks` blocks behind `link`; of many ranks if there are `changes` to be told to them.
    pub(super) fn new(blocks: u32, block_bytes: u64, link: Link, changes: Option<Changes>) -> Self {
        Self {
            block_bytes,
            store: Store::new(blocks),
            link,
            clients: BTreeMap::new(),
            audience: Audience::new(LowerTier::Host),
            transfers: HashMap::default(),
            next_id: 0,
            now: SimTime::ZERO,
            age: 0,
            version: 0,
            all_idle: 0,
            changes,
        }
    }

    /// Lets a rank in; it is told at once of what is there.
    pub(super) fn admit(&mut self, client: ClientId, speed: Speed, pins: bool) {
        self.audience.admit(client, &self.store);
        let state = Client {
            speed,
            prepared: Vec::new(),
            done: VecDeque::new(),
            seen: self.age,
            runs: false,
            saw_idle: self.all_idle,
            pins,
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

    pub(super) fn touch(&mut self, hash: SequenceHash) {
        self.store.touch(hash);
    }

    pub(super) fn room(&self, kept: &[SequenceHash]) -> usize {
        self.store.room(kept)
    }

    /// A store that starts with [`Self::submit`]: `missing`, all of which the pool lacked, if there is room for them without
    /// any of `cohort`.
    pub(super) fn prepare(
        &mut self,
        client: ClientId,
        missing: Vec<BlockIdentity>,
        cohort: &[SequenceHash],
        now: SimTime,
    ) -> Option<TransferId> {
        self.enter(now);
        if !self.expect(&missing, cohort, now) {
            return None;
        }
        let id = self.open(client, Direction::Down, missing, 0);
        self.clients.get_mut(&client)?.prepared.push(id);
        Some(id)
    }

    /// Starts what was prepared: the pass is over.
    pub(super) fn submit(&mut self, client: ClientId, now: SimTime) {
        self.enter(now);
        let Some(state) = self.clients.get_mut(&client) else {
            return;
        };
        for id in std::mem::take(&mut state.prepared) {
            self.send(id, now);
        }
    }

    /// A store that starts now: `blocks` with room for all of them, which nothing else needs.
    pub(super) fn store(&mut self, client: ClientId, blocks: &[BlockIdentity], now: SimTime) -> Option<TransferId> {
        if !self.expect(blocks, &[], now) {
            return None;
        }
        let id = self.open(client, Direction::Down, blocks.to_vec(), 0);
        self.send(id, now);
        Some(id)
    }

    /// Copies blocks to the GPU for `reader`, into memory that is free from `from` on. `None`: some are not here any more.
    pub(super) fn load(
        &mut self,
        client: ClientId,
        reader: u32,
        blocks: Vec<BlockIdentity>,
        now: SimTime,
        from: SimTime,
    ) -> Option<TransferId> {
        self.enter(now);
        let keys = hashes(&blocks);
        if keys.iter().any(|&hash| self.presence(hash) != Presence::Here) {
            return None;
        }
        self.store.read(&keys);
        let id = self.open(client, Direction::Up, blocks, reader);
        self.send(id, now.max(from));
        Some(id)
    }

    /// Nobody waits for this load any more; the blocks that it was about.
    pub(super) fn cancel_load(&mut self, client: ClientId, id: TransferId, now: SimTime) -> Vec<BlockIdentity> {
        self.enter(now);
        if let Some(transfer) = self.transfers.remove(&id) {
            self.touch_version();
            self.link.remove(id, now);
            self.store.done(&hashes(&transfer.blocks));
            return transfer.blocks;
        }
        // It is over, and its rank has not looked yet.
        let Some(state) = self.clients.get_mut(&client) else {
            return Vec::new();
        };
        let own = |(_, done): &(SimTime, Done)| matches!(done, Done::Loaded(of, ..) if *of == id);
        match state.done.iter().position(own).and_then(|at| state.done.remove(at)) {
            Some((_, Done::Loaded(.., blocks))) => blocks,
            Some((_, Done::Stored(..))) | None => Vec::new(),
        }
    }

    /// Makes room for blocks that come from below; `false`: there is none without any of `kept`.
    pub(super) fn expect(&mut self, blocks: &[BlockIdentity], kept: &[SequenceHash], now: SimTime) -> bool {
        self.enter(now);
        let known = |identity: &BlockIdentity| self.presence(identity.block.block_hash) != Presence::Missing;
        if blocks.iter().any(known) {
            return false;
        }
        let Some(gone) = self.store.expect(blocks, kept) else {
            return false;
        };
        self.touch_version();
        self.audience.removed(&gone, &self.store);
        true
    }

    /// Expected blocks have come from below, together or each on its own.
    pub(super) fn arrive_from_below(&mut self, client: ClientId, blocks: &[BlockIdentity], each: bool) {
        let size = if each { 1 } else { blocks.len().max(1) };
        for part in blocks.chunks(size) {
            self.store.arrive(part);
            self.audience.stored(part, &self.store);
            self.notify_others(client);
        }
    }

    /// Expected blocks do not come from below.
    pub(super) fn forget(&mut self, client: ClientId, blocks: &[BlockIdentity]) {
        self.store.forget(&hashes(blocks));
        self.notify_others(client);
    }

    /// Blocks stay until [`Self::unpin`].
    pub(super) fn pin(&mut self, hashes: &[SequenceHash]) {
        self.store.read(hashes);
    }

    pub(super) fn unpin(&mut self, hashes: &[SequenceHash]) {
        self.store.done(hashes);
    }

    /// Whether a transfer is under way or prepared.
    pub(super) fn has(&self, id: TransferId) -> bool {
        self.transfers.contains_key(&id)
    }

    /// Whether something may still happen to the pool by itself: a transfer is under way or prepared, or a rank has a pass.
    pub(super) fn is_in_use(&self) -> bool {
        !self.transfers.is_empty() || self.clients.values().any(|state| state.runs)
    }

    /// A rank starts a pass, or finds nothing to do.
    pub(super) fn note_pass(&mut self, client: ClientId, runs: bool) {
        let Some(state) = self.clients.get_mut(&client) else {
            return;
        };
        let ran = std::mem::replace(&mut state.runs, runs);
        if ran && !runs && !self.is_in_use() {
            self.all_idle += 1;
            self.touch_version();
        }
    }

    /// When a store is done; `None` if it is already, has not started, or may be done at another time.
    pub(super) fn end_of(&self, id: TransferId) -> Option<SimTime> {
        if self.is_shared() { None } else { self.link.end_of(id) }
    }

    /// Ends what is done by `now`; what of it is the rank's, and whether anything has ended since its last look.
    pub(super) fn look(&mut self, client: ClientId, now: SimTime) -> (Vec<Done>, bool) {
        self.now = self.now.max(now);
        self.advance(if self.is_shared() { self.now } else { now });
        let age = self.age;
        let Some(state) = self.clients.get_mut(&client) else {
            return (Vec::new(), false);
        };
        let news = std::mem::replace(&mut state.seen, age) != age;
        state.saw_idle = self.all_idle;
        let mut done = Vec::new();
        while let Some((at, _)) = state.done.front()
            && *at <= now
        {
            done.extend(state.done.pop_front().map(|(_, done)| done));
        }
        (done, news)
    }

    /// When there is something for a rank to look at.
    pub(super) fn next(&self, client: ClientId) -> Option<SimTime> {
        let next = self.link.next();
        if !self.is_shared() {
            return next;
        }
        let state = self.clients.get(&client)?;
        let own = state.done.front().map(|&(at, _)| at);
        let unseen = state.seen != self.age || state.saw_idle != self.all_idle;
        let news = unseen.then_some(self.now);
        [next, own, news].into_iter().flatten().min()
    }

    /// Whether a rank has a transfer that is not over, or that it has not looked at since.
    pub(super) fn is_moving(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|state| !state.done.is_empty())
            || self.transfers.values().any(|transfer| transfer.client == client)
    }

    /// What can be read, in no particular order.
    pub(super) fn contents(&self) -> impl Iterator<Item = BlockIdentity> {
        self.store.contents()
    }

    /// Blocks that can be read, and those that are on their way in.
    pub(super) fn occupancy(&self) -> (usize, usize) {
        self.store.occupancy()
    }

    /// Drops everything that no transfer is about.
    pub(super) fn clear(&mut self) {
        self.touch_version();
        let gone = self.store.clear();
        self.audience.removed(&gone, &self.store);
    }

    /// A rank is gone: what it was about to write or read is forgotten, what is on its way to the pool arrives.
    pub(super) fn retire(&mut self, client: ClientId) {
        self.audience.dismiss(client);
        let Some(state) = self.clients.remove(&client) else {
            return;
        };
        for id in state.prepared {
            if let Some(transfer) = self.transfers.remove(&id) {
                self.store.forget(&hashes(&transfer.blocks));
            }
        }
        let loads = |(id, transfer): (&TransferId, &Transfer)| {
            (transfer.client == client && transfer.direction == Direction::Up).then_some(*id)
        };
        let mut loads: Vec<TransferId> = self.transfers.iter().filter_map(loads).collect();
        loads.sort_unstable();
        for id in loads {
            self.link.remove(id, self.now);
            if let Some(transfer) = self.transfers.remove(&id) {
                self.store.done(&hashes(&transfer.blocks));
            }
        }
        for (_, done) in state.done {
            if let Done::Stored(_, blocks) = done
                && state.pins
            {
                self.store.done(&hashes(&blocks));
            }
        }
        self.notify_others(client);
    }

    /// Of a shared pool: what was done by `now` is done before anything else happens to it.
    fn enter(&mut self, now: SimTime) {
        if self.is_shared() {
            self.now = self.now.max(now);
            self.advance(self.now);
        }
    }

    fn advance(&mut self, now: SimTime) {
        let mut ended = self.link.settle(now);
        if self.is_shared() {
            let transfers = &self.transfers;
            let direction = |id: &TransferId| transfers.get(id).map(|transfer| transfer.direction);
            ended.sort_by_key(|(at, id)| (*at, direction(id), *id));
        }
        for (at, id) in ended {
            self.finish(id, at);
        }
    }

    fn finish(&mut self, id: TransferId, at: SimTime) {
        let Some(transfer) = self.transfers.remove(&id) else {
            return;
        };
        self.age += 1;
        self.touch_version();
        let pins = self.clients.get(&transfer.client).is_some_and(|state| state.pins);
        let done = match transfer.direction {
            Direction::Down => {
                if pins {
                    self.store.land(&transfer.blocks);
                } else {
                    self.store.arrive(&transfer.blocks);
                }
                self.audience.stored(&transfer.blocks, &self.store);
                Done::Stored(id, transfer.blocks)
            }
            Direction::Up => {
                self.store.done(&hashes(&transfer.blocks));
                Done::Loaded(id, transfer.reader, transfer.blocks)
            }
        };
        if let Some(state) = self.clients.get_mut(&transfer.client) {
            state.done.push_back((at, done));
        }
    }

    /// Something that is not the end of a transfer may let ranks other than `client` go on.
    fn notify_others(&mut self, client: ClientId) {
        self.touch_version();
        if !self.is_shared() {
            return;
        }
        let before = self.age;
        self.age += 1;
        if let Some(state) = self.clients.get_mut(&client)
            && state.seen == before
        {
            state.seen = self.age;
        }
    }

    fn open(&mut self, client: ClientId, direction: Direction, blocks: Vec<BlockIdentity>, reader: u32) -> TransferId {
        let id = TransferId(self.next_id);
        self.next_id += 1;
        self.touch_version();
        let transfer = Transfer {
            client,
            direction,
            blocks,
            reader,
        };
        self.transfers.insert(id, transfer);
        id
    }

    fn send(&mut self, id: TransferId, from: SimTime) {
        let Some(transfer) = self.transfers.get(&id) else {
            return;
        };
        let Some(client) = self.clients.get(&transfer.client) else {
            return;
        };
        self.link.send(Job {
            id,
            client: transfer.client,
            direction: transfer.direction,
            from,
            bytes: bytes_of(self.block_bytes, transfer.blocks.len()),
            speed: client.speed,
        });
        self.touch_version();
    }

    fn touch_version(&mut self) {
        self.version += 1;
        if let Some(changes) = &self.changes {
            changes.count();
        }
    }
}
