//! The KV-aware router: cost of each target, choice, queue.

use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::active::ActiveBlocks;
use super::choice::choose;
use super::classes::Classes;
use super::draws::Draws;
use super::overlap::{Holdings, Overlap};
use super::policy::{BusyThreshold, PolicyProfile};
use super::prefill::{PrefillLoad, PrefillTimes};
use super::queue::Urgency;
use super::{RouterConfig, Target};
use crate::types::{KvEvent, SequenceHash, SimTime, TierEvent};

/// A request on its way to a target.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Caller's name for it, unique among those known to the router.
    pub id: u64,
    /// Prompt tokens.
    pub isl: u64,
    /// Sequence hashes of the prompt's complete blocks.
    pub blocks: Box<[SequenceHash]>,
    /// Served before lower ones in the queue.
    pub strict_priority: u32,
    /// Seconds of advantage, or weight, in the queue.
    pub priority: i32,
    /// Class or family of the queue that the request asks for.
    pub policy_class: Option<Arc<str>>,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Request.
    pub id: u64,
    /// Place.
    pub target: Target,
    /// Leading blocks of the prompt that the place has cached, as far as the router knows; those in host memory by their
    /// weight.
    pub overlap_blocks: u32,
    /// Most such blocks at any place.
    pub best_overlap_blocks: u32,
}

/// Answer to an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Go.
    Now(Placement),
    /// Wait for [`KvRouter::release`].
    Queued,
    /// There is no target and no queue to wait in.
    Nobody,
}

/// A request that the router turns away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// A queue is full.
    #[error("router policy class {class:?} queue {what} limit reached (current={current}, limit={limit})")]
    QueueLimit {
        /// Class.
        class: String,
        /// What is counted.
        what: &'static str,
        /// What waits.
        current: u64,
        /// What may wait.
        limit: u64,
    },
}

/// What a router books for a request that it placed; other replicas of the router may book the same.
#[derive(Debug, Clone)]
pub struct Booking {
    id: u64,
    target: Target,
    prefill_tokens: u64,
    prefill_ms: Option<f64>,
    blocks: Box<[SequenceHash]>,
}

#[derive(Debug)]
struct Seat {
    target: Target,
    prefill: PrefillLoad,
    requests: u32,
}

#[derive(Debug)]
struct Waiting {
    arrival: Arrival,
    overlaps: Box<[Overlap]>,
}

#[derive(Debug)]
struct Running {
    seat: usize,
    prefill_tokens: u64,
    prefill_ms: Option<f64>,
    blocks: Box<[SequenceHash]>,
}

/// See the module's text.
#[derive(Debug)]
pub struct KvRouter {
    config: RouterConfig,
    block_size: u64,
    /// Token budget of a pass, which busy thresholds may be shares of.
    budget: f64,
    holdings: Holdings,
    active: ActiveBlocks,
    /// Numbers are never reused.
    seats: Vec<Seat>,
    /// Seats that take requests, in the order of their targets.
    routable: Vec<usize>,
    numbers: HashMap<Target, usize, FxBuildHasher>,
    queue: Classes<Waiting>,
    running: HashMap<u64, Running, FxBuildHasher>,
    draws: Draws,
    overlaps: Vec<Overlap>,
    in_use: Vec<u32>,
    costs: Vec<(f64, usize)>,
    /// Model of prefill times.
    prefill_times: Option<Arc<dyn PrefillTimes>>,
}

impl KvRouter {
    /// A router without targets. `max_num_batched_tokens` is what thresholds of the queue are shares of (`None`: no limit,
    /// and nothing is ever busy by its share); `seed` decides ties.
    pub fn new(
        config: RouterConfig,
        policy: &PolicyProfile,
        block_size: u32,
        max_num_batched_tokens: Option<u32>,
        seed: u64,
    ) -> Self {
        Self {
            block_size: u64::from(block_size.max(1)),
            budget: max_num_batched_tokens.map_or(f64::INFINITY, f64::from),
            holdings: Holdings::new(),
            active: ActiveBlocks::default(),
            seats: Vec::new(),
            routable: Vec::new(),
            numbers: HashMap::default(),
            queue: Classes::new(policy),
            running: HashMap::default(),
            draws: Draws::new(seed),
            overlaps: Vec::new(),
            in_use: Vec::new(),
            costs: Vec::new(),
            prefill_times: None,
            config,
        }
    }

    /// The same with a model of prefill times: prefill load runs down while a prompt is computed.
    #[must_use]
    pub fn with_prefill_times(mut self, times: Option<Arc<dyn PrefillTimes>>) -> Self {
        self.prefill_times = times;
        self
    }

    /// Makes a target routable. Follow with [`Self::release`].
    pub fn add(&mut self, target: Target) {
        self.numbers.insert(target, self.seats.len());
        let before = self.routable.partition_point(|&seat| self.seats[seat].target < target);
        self.routable.insert(before, self.seats.len());
        self.seats.push(Seat {
            target,
            prefill: PrefillLoad::default(),
            requests: 0,
        });
        self.holdings.grow(self.seats.len());
        self.active.grow(self.seats.len());
        self.in_use.resize(self.seats.len(), 0);
    }

    /// A worker gets no further requests; those it has go on.
    pub fn drain(&mut self, worker: u32) {
        let seats = &self.seats;
        self.routable.retain(|&seat| seats[seat].target.worker != worker);
    }

    /// A worker is gone with its cache.
    pub fn remove(&mut self, worker: u32) {
        self.drain(worker);
        for (number, seat) in self.seats.iter().enumerate() {
            if seat.target.worker == worker {
                self.holdings.forget(number);
            }
        }
    }

    /// Takes over a cache change of a target.
    pub fn apply(&mut self, target: Target, event: &KvEvent) {
        if let Some(&number) = self.numbers.get(&target) {
            self.holdings.apply(number, event);
        }
    }

    /// Takes over a change of what a target holds below its GPU.
    pub fn apply_lower(&mut self, target: Target, change: &TierEvent) {
        if let Some(&number) = self.numbers.get(&target) {
            self.holdings.apply_lower(number, change);
        }
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether every target is busy; without targets that is so too.
    fn all_busy(&self, threshold: BusyThreshold, now: SimTime) -> bool {
        let mut loads = self.routable.iter().map(|&seat| self.seats[seat].prefill.tokens(now));
        loads.all(|tokens| threshold.is_busy(tokens, self.budget))
    }

    /// Routes a request or lets it wait.
    ///
    /// # Errors
    /// [`RouterError`] when the queue is full.
    pub fn arrive(&mut self, arrival: Arrival, now: SimTime) -> Result<Routing, RouterError> {
        let mut overlaps = std::mem::take(&mut self.overlaps);
        self.holdings.of(&arrival.blocks, &mut overlaps);
        let routing = self.decide(arrival, &overlaps, now);
        self.overlaps = overlaps;
        routing
    }

    fn decide(&mut self, arrival: Arrival, overlaps: &[Overlap], now: SimTime) -> Result<Routing, RouterError> {
        let weight = self.config.host_cache_hit_weight;
        let cached = |&seat: &usize| overlap_of(overlaps, seat).tokens(weight, self.block_size);
        let best_cached = self.routable.iter().map(cached).max().unwrap_or(0);
        let wanted = arrival.policy_class.as_deref();
        let class = self.queue.class_of(wanted, arrival.isl.saturating_sub(best_cached));
        let busy = self.queue.rules(class).busy;
        let wait = busy.is_set() && (self.queue.has_backlog(class) || self.all_busy(busy, now));
        if !wait {
            let placement = self.place(arrival, overlaps, now);
            return Ok(placement.map_or(Routing::Nobody, Routing::Now));
        }
        let urgency = Urgency {
            strict_priority: arrival.strict_priority,
            priority: arrival.priority,
            arrival: now,
            isl: arrival.isl,
            best_cached,
        };
        let waiting = Waiting {
            arrival,
            overlaps: overlaps.into(),
        };
        let ranks = self.routable.len() as u64;
        self.queue.push(class, urgency, ranks, waiting)?;
        Ok(Routing::Queued)
    }

    /// The next waiting request that can go now; call until `None` after anything that may make a target less busy.
    pub fn release(&mut self, now: SimTime) -> Option<Placement> {
        if self.queue.len() == 0 {
            return None;
        }
        let loads: Vec<u64> = self
            .routable
            .iter()
            .map(|&seat| self.seats[seat].prefill.tokens(now))
            .collect();
        let budget = self.budget;
        let Waiting { arrival, overlaps } = self
            .queue
            .pop(|class| !loads.iter().all(|&tokens| class.busy.is_busy(tokens, budget)))?;
        self.place(arrival, &overlaps, now)
    }

    /// A request brought its first token and goes on.
    pub fn prefill_completed(&mut self, id: u64, now: SimTime) {
        if let Some(running) = self.running.get(&id) {
            self.seats[running.seat].prefill.remove(id, now);
        }
    }

    /// A request ended.
    pub fn free(&mut self, id: u64, now: SimTime) {
        let Some(running) = self.running.remove(&id) else {
            return;
        };
        let seat = &mut self.seats[running.seat];
        seat.prefill.remove(id, now);
        seat.requests -= 1;
        self.active.remove(running.seat, &running.blocks);
    }

    fn place(&mut self, arrival: Arrival, overlaps: &[Overlap], now: SimTime) -> Option<Placement> {
        self.score(&arrival, overlaps, now);
        let number = choose(&self.costs, self.config.router_temperature, &mut self.draws)?;
        let weight = self.config.host_cache_hit_weight;
        let overlap = overlap_of(overlaps, number);
        let cached = overlap.tokens(weight, self.block_size);
        let best = self
            .routable
            .iter()
            .map(|&seat| overlap_of(overlaps, seat).whole_blocks(weight));
        let best_overlap_blocks = best.max().unwrap_or(0);
        let target = self.seats[number].target;
        let blocks = if self.config.router_track_active_blocks {
            self.tracked_blocks(arrival.id, arrival.blocks)
        } else {
            Box::default()
        };
        let prefill_tokens = if self.config.router_track_prefill_tokens {
            arrival.isl.saturating_sub(cached)
        } else {
            0
        };
        let times = self.prefill_times.as_ref().filter(|_| prefill_tokens > 0);
        let running = Running {
            seat: number,
            prefill_tokens,
            prefill_ms: times.map(|times| times.prefill_ms(prefill_tokens, arrival.isl - prefill_tokens)),
            blocks,
        };
        self.run(arrival.id, running, now);
        Some(Placement {
            id: arrival.id,
            target,
            overlap_blocks: overlap.whole_blocks(weight),
            best_overlap_blocks,
        })
    }

    /// Books a request at its seat.
    fn run(&mut self, id: u64, running: Running, now: SimTime) {
        let seat = &mut self.seats[running.seat];
        seat.requests += 1;
        seat.prefill.add(id, running.prefill_tokens, running.prefill_ms, now);
        self.active.add(running.seat, &running.blocks);
        self.running.insert(id, running);
    }

    /// What is booked for a request.
    pub fn booking(&self, id: u64) -> Option<Booking> {
        let running = self.running.get(&id)?;
        Some(Booking {
            id,
            target: self.seats[running.seat].target,
            prefill_tokens: running.prefill_tokens,
            prefill_ms: running.prefill_ms,
            blocks: running.blocks.clone(),
        })
    }

    /// Books a request that another replica placed.
    pub fn book(&mut self, booking: &Booking, now: SimTime) {
        let Some(&seat) = self.numbers.get(&booking.target) else {
            return;
        };
        let running = Running {
            seat,
            prefill_tokens: booking.prefill_tokens,
            prefill_ms: booking.prefill_ms,
            blocks: booking.blocks.clone(),
        };
        self.run(booking.id, running, now);
    }

    /// What counts as active: the prompt's blocks, or as many blocks that nobody shares.
    fn tracked_blocks(&self, id: u64, blocks: Box<[SequenceHash]>) -> Box<[SequenceHash]> {
        if self.config.router_assume_kv_reuse {
            return blocks;
        }
        let own = |at: usize| SequenceHash(Draws::new(id.rotate_left(32) ^ at as u64).below(u64::MAX));
        (0..blocks.len()).map(own).collect()
    }

    /// Fills `costs` for every routable target, in order.
    #[allow(clippy::cast_precision_loss)]
    fn score(&mut self, arrival: &Arrival, overlaps: &[Overlap], now: SimTime) {
        let config = &self.config;
        let mut in_use = std::mem::take(&mut self.in_use);
        if config.router_track_active_blocks && config.router_assume_kv_reuse {
            self.active.depths(&arrival.blocks, &mut in_use);
        } else {
            in_use.fill(0);
        }
        let block_size = self.block_size as f64;
        let tracked = config.router_track_prefill_tokens;
        let routable = || self.routable.iter().map(|&number| (number, &self.seats[number]));
        let decays = config.overlap_score_credit_decay > 0.0 && tracked;
        let least = if decays {
            routable().map(|(_, seat)| seat.prefill.tokens(now)).min().unwrap_or(0)
        } else {
            0
        };
        let prompt_blocks = arrival.isl.div_ceil(self.block_size).max(1) as f64;
        self.costs.clear();
        for (number, seat) in routable() {
            let overlap = overlap_of(overlaps, number);
            let cached = overlap.tokens(config.host_cache_hit_weight, self.block_size);
            let prefill = if tracked { seat.prefill.tokens(now) } else { 0 };
            let raw = if tracked {
                prefill + arrival.isl.saturating_sub(cached) + cached
            } else {
                0
            };
            let decay = if decays {
                let ahead = (prefill - least) as f64 / block_size;
                1.0 / (1.0 + config.overlap_score_credit_decay * ahead / prompt_blocks)
            } else {
                1.0
            };
            // Without credit for GPU memory no memory counts.
            let credit = if config.overlap_score_credit == 0.0 {
                0.0
            } else {
                config.overlap_score_credit * decay * f64::from(overlap.device)
                    + config.host_cache_hit_weight * f64::from(overlap.host)
            };
            let fresh = if config.router_track_active_blocks {
                arrival.blocks.len() as f64 - f64::from(in_use[number])
            } else {
                0.0
            };
            let cost = config.prefill_load_scale * (raw as f64 / block_size - credit).max(0.0)
                + (f64::from(self.active.count(number)) + fresh)
                + config.decode_active_request_weight * f64::from(seat.requests);
            self.costs.push((cost, number));
        }
        self.in_use = in_use;
    }
}

/// A target that came after its request did holds nothing of it.
fn overlap_of(overlaps: &[Overlap], number: usize) -> Overlap {
    overlaps.get(number).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::overlap::tests::stored;
    use crate::types::LowerTier;

    fn router(config: &RouterConfig, workers: u32) -> KvRouter {
        let mut router = KvRouter::new(config.clone(), &PolicyProfile::of_config(config), 64, Some(4096), 7);
        for worker in 0..workers {
            router.add(Target { worker, rank: 0 });
        }
        router
    }

    fn arrival(id: u64, blocks: std::ops::Range<u64>) -> Arrival {
        let blocks: Box<[_]> = blocks.map(SequenceHash).collect();
        Arrival {
            id,
            isl: blocks.len() as u64 * 64,
            blocks,
            strict_priority: 0,
            priority: 0,
            policy_class: None,
        }
    }

    fn placed(routing: Result<Routing, RouterError>) -> Placement {
        match routing {
            Ok(Routing::Now(placement)) => placement,
            other => panic!("not placed: {other:?}"),
        }
    }

    /// Ten blocks take 10 ms, other prompts a second.
    #[derive(Debug)]
    struct TenBlocksAreFast;

    impl PrefillTimes for TenBlocksAreFast {
        fn prefill_ms(&self, new: u64, prefix: u64) -> f64 {
            assert_eq!(prefix, 0, "nothing is cached");
            if new == 640 { 10.0 } else { 1000.0 }
        }
    }

    #[test]
    fn with_a_model_of_prefill_times_load_runs_down_while_prompts_are_computed() {
        let config = RouterConfig {
            router_track_active_blocks: false,
            ..RouterConfig::default()
        };
        for (times, third) in [
            (None, 1),
            (Some(Arc::new(TenBlocksAreFast) as Arc<dyn PrefillTimes>), 0),
        ] {
            let mut router = router(&config, 2).with_prefill_times(times);
            let first = placed(router.arrive(arrival(1, 0..10), SimTime::ZERO)).target.worker;
            let second = placed(router.arrive(arrival(2, 20..24), SimTime::ZERO)).target.worker;
            assert_ne!(first, second);
            // Of ten blocks one is left, of four almost all.
            let late = placed(router.arrive(arrival(3, 30..31), SimTime::of_ms(9.0)))
                .target
                .worker;
            assert_eq!(late, if third == 0 { first } else { second });
        }
    }

    #[test]
    fn a_cached_prefix_wins_until_its_worker_is_loaded() {
        let mut router = router(&RouterConfig::default(), 2);
        router.apply(Target { worker: 1, rank: 0 }, &stored(0..8));
        let first = placed(router.arrive(arrival(1, 0..8), SimTime::of_nanos(0)));
        assert_eq!((first.target.worker, first.overlap_blocks), (1, 8));
        let second = placed(router.arrive(arrival(2, 100..104), SimTime::of_nanos(0)));
        assert_eq!(second.target.worker, 0);
        router.free(1, SimTime::of_nanos(5));
        router.free(2, SimTime::of_nanos(5));
        assert_eq!(router.active.count(0) + router.active.count(1), 0);
    }

    #[test]
    fn blocks_in_host_memory_draw_by_their_weight() {
        let target = |config: &RouterConfig| {
            let mut router = router(config, 2);
            let change = TierEvent {
                tier: LowerTier::Host,
                event: stored(0..8),
            };
            router.apply_lower(Target { worker: 1, rank: 0 }, &change);
            // The other one is ahead by less than that.
            router.apply(Target { worker: 0, rank: 0 }, &stored(0..5));
            let placement = placed(router.arrive(arrival(1, 0..8), SimTime::ZERO));
            (
                placement.target.worker,
                placement.overlap_blocks,
                placement.best_overlap_blocks,
            )
        };
        assert_eq!(target(&RouterConfig::default()), (1, 6, 6));
        let light = RouterConfig {
            host_cache_hit_weight: 0.5,
            ..RouterConfig::default()
        };
        assert_eq!(target(&light), (0, 5, 5));
    }

    #[test]
    fn a_drained_worker_gets_nothing_and_a_removed_one_is_forgotten() {
        let mut router = router(&RouterConfig::default(), 2);
        router.apply(Target { worker: 1, rank: 0 }, &stored(0..8));
        router.drain(1);
        assert_eq!(
            placed(router.arrive(arrival(1, 0..8), SimTime::of_nanos(0)))
                .target
                .worker,
            0
        );
        router.remove(1);
        assert!(router.holdings.is_empty());
        router.drain(0);
        assert_eq!(
            router.arrive(arrival(2, 0..8), SimTime::of_nanos(0)),
            Ok(Routing::Nobody)
        );
    }

    #[test]
    fn a_busy_fleet_queues_and_the_end_of_a_prefill_releases() {
        let config = RouterConfig {
            router_queue_threshold: Some(0.1),
            ..RouterConfig::default()
        };
        let mut router = router(&config, 1);
        placed(router.arrive(arrival(1, 0..8), SimTime::of_nanos(0)));
        assert_eq!(
            router.arrive(arrival(2, 10..18), SimTime::of_nanos(1)),
            Ok(Routing::Queued)
        );
        assert_eq!((router.release(SimTime::of_nanos(1)), router.queued()), (None, 1));
        router.prefill_completed(1, SimTime::of_nanos(2));
        assert_eq!(
            router.release(SimTime::of_nanos(2)).map(|placement| placement.id),
            Some(2)
        );
        assert_eq!(router.release(SimTime::of_nanos(2)), None);
    }

    #[test]
    fn a_replica_that_is_told_of_a_request_counts_it_until_it_ends() {
        let mut told = router(&RouterConfig::default(), 2);
        let mut teller = router(&RouterConfig::default(), 2);
        let first = placed(teller.arrive(arrival(1, 0..8), SimTime::of_nanos(0)));
        told.book(&teller.booking(1).unwrap(), SimTime::of_nanos(0));
        let second = placed(told.arrive(arrival(2, 100..108), SimTime::of_nanos(0)));
        assert_ne!(first.target, second.target);
        told.free(1, SimTime::of_nanos(1));
        told.free(2, SimTime::of_nanos(1));
        assert_eq!(told.active.count(0) + told.active.count(1), 0);
    }

    #[test]
    fn equal_workers_are_chosen_evenly_and_repeatably() {
        let picks = || {
            let mut router = router(&RouterConfig::default(), 4);
            let pick = |id| {
                let placement = placed(router.arrive(arrival(id, 0..0), SimTime::of_nanos(0)));
                router.free(id, SimTime::of_nanos(0));
                placement.target.worker
            };
            (0..400).map(pick).collect::<Vec<_>>()
        };
        let first = picks();
        assert_eq!(first, picks());
        for worker in 0..4 {
            let share = first.iter().filter(|&&pick| pick == worker).count();
            assert!((60..140).contains(&share), "worker {worker}: {share} of 400");
        }
    }
}
