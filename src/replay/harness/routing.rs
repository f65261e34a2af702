//! The router of one pool, whichever kind it is.

use std::collections::VecDeque;

use crate::block_hash::{BlockHasher, chain, salted_seed};
use crate::engine::Semantics;
use crate::router::{self, KvRouter, Placement, RoundRobin, RouterError, Routing, Target};
use crate::types::{HashSalt, KvEvent, SequenceHash, SimTime, TierEvent, Token};

use super::super::source::Turn;
use super::PoolSpec;
use super::spec::RouterSpec;

/// Routes the requests of one pool.
pub(in crate::replay) enum PoolRouter {
    RoundRobin(RoundRobin),
    Kv(Box<Kv>),
}

/// A request and where it goes.
#[derive(Debug, Clone, Copy)]
pub(in crate::replay) struct Route {
    pub(in crate::replay) id: u64,
    pub(in crate::replay) target: Target,
    /// Cached blocks at the target, and most at any target.
    pub(in crate::replay) overlap: Option<(u32, u32)>,
    /// Router that decided, where there are several.
    pub(in crate::replay) replica: Option<u32>,
}

/// What a router does with a request.
pub(in crate::replay) enum Routed {
    Now(Route),
    Queued,
    /// There is no place and no queue.
    Nobody,
}

/// Part of a fleet that a KV router serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::replay) enum Side {
    Aggregated,
    Prefill,
    Decode,
}

/// KV routers in front of one pool.
pub(in crate::replay) struct Kv {
    side: Side,
    routers: Vec<KvRouter>,
    /// Whose turn it is.
    next: usize,
    sync: bool,
    /// How late cache changes arrive, ms.
    lag_ms: f64,
    /// Cache changes on their way: due, from, what.
    pending: VecDeque<(SimTime, Target, Change)>,
    /// It is told of the memory below the GPU, too.
    hears_lower: bool,
    block_size: u32,
    hasher: BlockHasher,
}

/// What a router hears of a cache.
enum Change {
    Device(KvEvent),
    Lower(TierEvent),
}

impl PoolRouter {
    /// A router without targets for a pool.
    pub(in crate::replay) fn new(spec: &RouterSpec, pool: &PoolSpec, side: Side) -> Self {
        let RouterSpec::Kv {
            config,
            policy,
            seed,
            event_lag_ms,
            replicas,
            prefill_times,
        } = spec
        else {
            return Self::RoundRobin(RoundRobin::default());
        };
        let mut config = config.as_ref().clone();
        match side {
            Side::Aggregated => {}
            Side::Prefill => config.router_track_active_blocks = false,
            Side::Decode => {
                config.overlap_score_credit = 0.0;
                config.router_assume_kv_reuse = false;
                config.router_track_prefill_tokens = false;
            }
        }
        let engine = &pool.engine;
        let router = |replica: u32| {
            // Pools and replicas draw apart from one another.
            let seed = seed ^ (u64::from(replica) << 32) ^ (u64::from(side == Side::Decode) << 63);
            KvRouter::new(
                config.clone(),
                policy,
                engine.block_size,
                engine.max_num_batched_tokens,
                seed,
            )
            .with_prefill_times(prefill_times.clone().filter(|_| side != Side::Decode))
        };
        Self::Kv(Box::new(Kv {
            side,
            routers: (0..(*replicas).max(1)).map(router).collect(),
            next: 0,
            sync: config.router_replica_sync,
            lag_ms: *event_lag_ms,
            pending: VecDeque::new(),
            hears_lower: engine.tiers.is_some() && engine.semantics == Semantics::V1_6_1 && side != Side::Decode,
            block_size: engine.block_size.max(1),
            hasher: BlockHasher::with_seed(salted_seed(&HashSalt::default())),
        }))
    }

    /// Whether prompts are needed to route.
    pub(in crate::replay) fn reads_prompts(&self) -> bool {
        match self {
            Self::RoundRobin(_) => false,
            Self::Kv(kv) => kv.side != Side::Decode,
        }
    }

    /// Makes a worker routable.
    pub(in crate::replay) fn add(&mut self, worker: u32, ranks: u32) {
        if let Self::Kv(kv) = self {
            for router in &mut kv.routers {
                (0..ranks).for_each(|rank| router.add(Target { worker, rank }));
            }
        }
    }

    /// A worker gets nothing more.
    pub(in crate::replay) fn drain(&mut self, worker: u32) {
        if let Self::Kv(kv) = self {
            kv.routers.iter_mut().for_each(|router| router.drain(worker));
        }
    }

    /// A worker is gone, with its cache and what it had to say.
    pub(in crate::replay) fn remove(&mut self, worker: u32) {
        if let Self::Kv(kv) = self {
            kv.pending.retain(|(_, target, _)| target.worker != worker);
            kv.routers.iter_mut().for_each(|router| router.remove(worker));
        }
    }

    /// Takes over cache changes of a rank, at once or after the lag.
    pub(in crate::replay) fn apply(&mut self, target: Target, events: &mut Vec<KvEvent>, now: SimTime) {
        let Self::Kv(kv) = self else {
            events.clear();
            return;
        };
        kv.hear(target, events.drain(..).map(Change::Device), now);
    }

    /// Whether it hears of changes below the GPU, which may also come while a worker does nothing.
    pub(in crate::replay) fn hears_lower(&self) -> bool {
        matches!(self, Self::Kv(kv) if kv.hears_lower)
    }

    /// Takes over changes of what a rank holds below its GPU, at once or after the lag.
    pub(in crate::replay) fn apply_lower(&mut self, target: Target, changes: &mut Vec<TierEvent>, now: SimTime) {
        match self {
            Self::Kv(kv) if kv.hears_lower => kv.hear(target, changes.drain(..).map(Change::Lower), now),
            Self::Kv(_) | Self::RoundRobin(_) => changes.clear(),
        }
    }

    /// Decides about a request; `prompt` is read where [`Self::reads_prompts`] says so.
    pub(in crate::replay) fn arrive(
        &mut self,
        id: u64,
        turn: &Turn,
        prompt: &[Token],
        (workers, ranks): (&[u32], u32),
        now: SimTime,
    ) -> Result<Routed, RouterError> {
        let kv = match self {
            Self::RoundRobin(cursor) => {
                return Ok(cursor.pick(workers, ranks).map_or(Routed::Nobody, |target| {
                    Routed::Now(Route {
                        id,
                        target,
                        overlap: None,
                        replica: None,
                    })
                }));
            }
            Self::Kv(kv) => kv,
        };
        kv.catch_up(now);
        let blocks = match kv.side {
            Side::Aggregated | Side::Prefill => kv.hashes(prompt),
            // Only their number matters: nothing is indexed there and every block is the request's own.
            Side::Decode => vec![SequenceHash(0); (turn.input_tokens / kv.block_size) as usize].into(),
        };
        let replica = kv.next;
        kv.next = (replica + 1) % kv.routers.len();
        let arrival = router::Arrival {
            id,
            isl: u64::from(turn.input_tokens),
            blocks,
            strict_priority: turn.strict_priority,
            priority: turn.priority,
            policy_class: turn.policy_class.clone(),
        };
        Ok(match kv.routers[replica].arrive(arrival, now)? {
            Routing::Now(placement) => Routed::Now(kv.placed(placement, replica, now)),
            Routing::Queued => Routed::Queued,
            Routing::Nobody => Routed::Nobody,
        })
    }

    /// The first token of a request is there and more will come.
    pub(in crate::replay) fn prefill_completed(&mut self, id: u64, now: SimTime) {
        if let Self::Kv(kv) = self {
            kv.catch_up(now);
            kv.routers
                .iter_mut()
                .for_each(|router| router.prefill_completed(id, now));
        }
    }

    /// A request ended.
    pub(in crate::replay) fn free(&mut self, id: u64, now: SimTime) {
        if let Self::Kv(kv) = self {
            kv.catch_up(now);
            kv.routers.iter_mut().for_each(|router| router.free(id, now));
        }
    }

    /// The next request that waited and can go.
    pub(in crate::replay) fn release(&mut self, now: SimTime) -> Option<Route> {
        let Self::Kv(kv) = self else { return None };
        for replica in 0..kv.routers.len() {
            if let Some(placement) = kv.routers[replica].release(now) {
                return Some(kv.placed(placement, replica, now));
            }
        }
        None
    }
}

impl Kv {
    /// Takes over the cache changes that are due.
    fn catch_up(&mut self, now: SimTime) {
        while self.pending.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, target, change)) = self.pending.pop_front()
        {
            self.tell(target, &change);
        }
    }

    fn hear(&mut self, target: Target, changes: impl Iterator<Item = Change>, now: SimTime) {
        if self.lag_ms <= 0.0 {
            changes.for_each(|change| self.tell(target, &change));
        } else {
            let due = now.after_ms(self.lag_ms);
            self.pending.extend(changes.map(|change| (due, target, change)));
        }
    }

    fn tell(&mut self, target: Target, change: &Change) {
        for router in &mut self.routers {
            match change {
                Change::Device(event) => router.apply(target, event),
                Change::Lower(change) => router.apply_lower(target, change),
            }
        }
    }

    fn hashes(&mut self, prompt: &[Token]) -> Box<[SequenceHash]> {
        let mut parent = None;
        let block = |tokens: &[Token]| {
            let hash = chain(parent, self.hasher.local(tokens));
            parent = Some(hash);
            hash
        };
        prompt.chunks_exact(self.block_size as usize).map(block).collect()
    }

    /// Tells the other replicas, if they keep in step, and returns the route.
    fn placed(&mut self, placement: Placement, replica: usize, now: SimTime) -> Route {
        if self.sync && self.routers.len() > 1 {
            let booking = self.routers[replica].booking(placement.id);
            for (_, other) in (0..).zip(&mut self.routers).filter(|(at, _)| *at != replica) {
                if let Some(booking) = &booking {
                    other.book(booking, now);
                }
            }
        }
        Route {
            id: placement.id,
            target: placement.target,
            overlap: Some((placement.overlap_blocks, placement.best_overlap_blocks)),
            replica: u32::try_from(replica).ok().filter(|_| self.routers.len() > 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::EngineConfig;
    use crate::router::{PolicyProfile, RouterConfig};
    use crate::types::StoredBlock;

    use super::*;

    #[test]
    fn cache_changes_arrive_after_their_lag_to_the_last_bit() {
        let config = RouterConfig::default();
        let lag = 2.0 / 3.0;
        let spec = RouterSpec::Kv {
            policy: Box::new(PolicyProfile::of_config(&config)),
            config: Box::new(config),
            seed: 1,
            event_lag_ms: lag,
            replicas: 1,
            prefill_times: None,
        };
        let engine = EngineConfig {
            block_size: 4,
            ..EngineConfig::default()
        };
        let pool = PoolSpec {
            engine,
            workers: 2,
            dp_size: 1,
            gpus_per_worker: 1,
            startup: std::time::Duration::ZERO,
        };
        let mut router = PoolRouter::new(&spec, &pool, Side::Aggregated);
        (0..2).for_each(|worker| router.add(worker, 1));
        let prompt = [7; 4];
        let PoolRouter::Kv(kv) = &mut router else {
            panic!("a KV router was asked for")
        };
        let local = kv.hasher.local(&prompt);
        let stored = KvEvent::Stored {
            parent: None,
            blocks: vec![StoredBlock {
                block_hash: chain(None, local),
                tokens_hash: local,
            }],
        };
        let sent = SimTime::of_ms(1.0);
        router.apply(Target { worker: 1, rank: 0 }, &mut vec![stored], sent);
        let mut overlap = |id: u64, now: SimTime| {
            let turn = Turn {
                tag: 0,
                session: 0,
                turn: 0,
                arrival: now,
                input_tokens: 4,
                output_tokens: 1,
                planned: None,
                priority: 0,
                strict_priority: 0,
                policy_class: None,
            };
            match router.arrive(id, &turn, &prompt, (&[0, 1], 1), now) {
                Ok(Routed::Now(route)) => route.overlap.map(|(_, best)| best),
                _ => None,
            }
        };
        let due = sent.after_ms(lag);
        assert_eq!(overlap(1, SimTime::from_bits(due.to_bits() - 1)), Some(0));
        assert_eq!(overlap(2, due), Some(1));
    }
}
