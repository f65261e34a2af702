//! `Rank`: owns one engine; the only place where modelled time passes.
//!
//! Started by its worker, ends with it or by a fault. A pass is computed at once and takes effect at its end: the rank
//! sleeps to the pass's *absolute* end, so late timers never add up, then hands tokens to the sinks, cache events to
//! the [`KvPublisher`] and load to the [`MetricsReporter`]. Passes without a modelled duration run in short slices
//! between which the thread's other actors get their turn.
//!
//! Whatever ends it, each stream that is not complete breaks off as with a dead process ([`OpenStream`]'s drop).

mod faults;
mod handoff;
mod listening;
mod look;

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use rustc_hash::FxHashMap;

use self::faults::RankFaults;
pub(super) use self::faults::{DropCache, slower_start};
use self::handoff::Handoffs;
pub(super) use self::handoff::{ConnectRendezvous, HandoffParts, SourceFailed, SourceMet, SourceReleased};
pub(super) use self::look::Holds;
use super::clock::Clock;
use super::common_memory::{CommonMemoryOfRank, Rung};
use super::engine_metrics::{EngineMetrics, Timeline};
use super::fault_post::FaultPost;
use super::gauge::RankGauge;
use super::kv_publisher::{KvPublisher, Publish};
use super::kv_trace::KvTrace;
use super::liveness::Liveness;
use super::metrics_reporter::{LoadChanged, MetricsReporter, PassRan};
use super::native_feed::NativeFeed;
use super::native_stream::NativeStream;
use crate::engine::{Engine, Forward, Lengths, Output, Pass, StoredContent};
use crate::transport::event_plane::forward_pass::{self, Detail, ForwardPass};
use crate::transport::intake::{Failure, Submission, TokenSink};
use crate::types::{DpRank, KvEvent, Load, RequestId, SequenceHash, SimTime, StoredBlock, TierEvent};

/// Requests that may wait in the mailbox before a worker counts as overloaded.
pub(super) const MAILBOX: usize = 16 * 1024;

/// Passes without a modelled duration that run before the other actors of the thread get a turn.
const SLICE: u32 = 16;

/// Lateness up to which passes are chained without a gap; what is beyond is slipped time, counted and reported.
const MAX_CATCH_UP: Duration = Duration::from_millis(100);

/// With [`Detail::Heartbeat`] a pass is told this often at most.
const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

/// Everything a rank needs to start.
pub(super) struct RankParts {
    pub(super) rank: DpRank,
    pub(super) engine: Box<dyn Engine>,
    pub(super) clock: Clock,
    /// Requests wait until then (`--startup-time`).
    pub(super) starts_at: SimTime,
    pub(super) gauge: Arc<RankGauge>,
    /// Logs every change of the cache.
    pub(super) trace: Option<KvTrace>,
    pub(super) metrics: Arc<EngineMetrics>,
    /// Whether a native event stream is wanted; the engine then records what blocks contain.
    pub(super) native: bool,
    /// Its part in disaggregated requests.
    pub(super) handoffs: HandoffParts,
    /// How much is told of forward passes.
    pub(super) forward_passes: Detail,
    /// Memory that other ranks use, too; `None`: it has its own.
    pub(super) common_memory: Option<CommonMemoryOfRank>,
    pub(super) faults: Arc<FaultPost>,
    pub(super) liveness: Liveness,
}

/// One data-parallel rank.
pub struct Rank {
    index: DpRank,
    engine: Box<dyn Engine>,
    /// Goes after the engine, so that the others hear of that.
    common_memory: Option<CommonMemoryOfRank>,
    clock: Clock,
    starts_at: SimTime,
    started: bool,
    gauge: Arc<RankGauge>,
    trace: Option<KvTrace>,
    metrics: Arc<EngineMetrics>,
    publisher: Option<Addr<KvPublisher>>,
    reporter: Option<Addr<MetricsReporter>>,
    streams: FxHashMap<RequestId, OpenStream>,
    /// Streams with something to flush.
    dirty: Vec<RequestId>,
    activity: Activity,
    /// The running pass, or the buffers of the last one.
    pass: Pass,
    /// The publisher missed events and has to take over the whole cache with the next ones.
    resync: bool,
    /// A timer runs for the end of a transfer below the GPU.
    wakes_at: Option<SimTime>,
    /// What the reporter has heard last.
    reported: Option<Load>,
    native: Option<NativeFeed>,
    handoffs: Handoffs,
    forward_passes: Detail,
    /// With [`Detail::Heartbeat`]: when the next pass is told.
    next_forward: SimTime,
    faults: RankFaults,
    _liveness: Liveness,
}

/// What the rank is waiting for.
enum Activity {
    /// A request.
    Idle,
    /// The end of a pass.
    Pass {
        ends_at: SimTime,
        began: SimTime,
        timer: SpawnHandle,
    },
    /// Its next turn on the thread.
    Turn,
}

struct OpenStream {
    sink: Arc<dyn TokenSink>,
    timeline: Timeline,
    dirty: bool,
    over: bool,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if !self.over {
            self.sink.broken();
        }
    }
}

/// A request for this rank.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Submit(pub(super) Submission);

/// A request's client is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Cancel(pub(super) RequestId);

/// The children that the rank talks to; sent at start and after each restart of one of them.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Connect {
    pub(super) publisher: Option<Addr<KvPublisher>>,
    pub(super) reporter: Option<Addr<MetricsReporter>>,
}

/// A (new) native event stream to tell.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct ConnectNative(pub(super) Addr<NativeStream>);

/// Drop every cached block that no request uses. The answer is how many were dropped.
#[derive(Message)]
#[rtype(result = "u64")]
pub struct ClearCache;

/// Asks for the true content of the prefix cache, parents first.
#[derive(Message)]
#[rtype(result = "Vec<(Option<SequenceHash>, StoredBlock)>")]
pub struct CachedBlocks;

impl Rank {
    pub(super) fn new(mut parts: RankParts) -> Self {
        parts.engine.record_pages(parts.trace.is_some());
        let faults = RankFaults::new(parts.faults);
        parts.gauge.set_starts_at(parts.starts_at);
        Self {
            index: parts.rank,
            engine: parts.engine,
            common_memory: parts.common_memory,
            clock: parts.clock,
            starts_at: parts.starts_at,
            started: false,
            gauge: parts.gauge,
            trace: parts.trace,
            metrics: parts.metrics,
            publisher: None,
            reporter: None,
            streams: FxHashMap::default(),
            dirty: Vec::new(),
            activity: Activity::Idle,
            pass: Pass::default(),
            resync: false,
            wakes_at: None,
            reported: None,
            native: parts.native.then(NativeFeed::default),
            handoffs: Handoffs::new(parts.handoffs),
            forward_passes: parts.forward_passes,
            next_forward: SimTime::ZERO,
            faults,
            _liveness: parts.liveness,
        }
    }

    /// Runs passes from `start` until one has to be waited for, nothing is left to do, or the slice is used up.
    fn pump(&mut self, mut start: SimTime, ctx: &mut Context<Self>) {
        if !self.started || self.faults.hangs || !matches!(self.activity, Activity::Idle) {
            return;
        }
        for _ in 0..SLICE {
            self.lose_capacity();
            if !self.engine.step_into(start, &mut self.pass) {
                self.wake_later(ctx);
                return;
            }
            self.pass.ends_at = self.faults.stretch(start, self.pass.ends_at);
            let (now, ends_at) = (self.clock.now(), self.pass.ends_at);
            if ends_at > now {
                // The timer counts from now; the pass ends where the model says, whenever the timer is set.
                let timer = ctx.run_later(ends_at.since(now), Self::wake);
                self.gauge.set_due(ends_at);
                self.activity = Activity::Pass {
                    ends_at,
                    began: start,
                    timer,
                };
                return;
            }
            if ends_at > start {
                self.gauge.count_lateness(now.since(ends_at));
            }
            self.complete(start, now);
            self.between_passes(ends_at, ctx);
            start = self.next_start(ends_at, now);
        }
        self.activity = Activity::Turn;
        ctx.spawn(tokio::task::yield_now().into_actor(self).map(move |(), rank, ctx| {
            rank.activity = Activity::Idle;
            rank.pump(start, ctx);
            rank.settle();
        }));
    }

    /// Passes are chained end to start, so that a late timer costs nothing; too late to catch up is said, not hidden.
    fn next_start(&self, ends_at: SimTime, now: SimTime) -> SimTime {
        let late = now.since(ends_at);
        if late <= MAX_CATCH_UP {
            return ends_at;
        }
        self.gauge.count_slip(late.saturating_sub(MAX_CATCH_UP));
        now - MAX_CATCH_UP
    }

    /// The running pass is over by the clock: make it so.
    fn wake(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        let Activity::Pass { ends_at, began, timer } = self.activity else {
            return;
        };
        if ends_at > now || self.faults.hangs {
            return;
        }
        ctx.cancel_future(timer);
        self.activity = Activity::Idle;
        self.gauge.count_lateness(now.since(ends_at));
        self.complete(began, now);
        self.between_passes(ends_at, ctx);
        let start = self.next_start(ends_at, now);
        self.pump(start, ctx);
        self.settle();
    }

    /// Everything that becomes true at the end of a pass that began at `began`.
    fn complete(&mut self, began: SimTime, now: SimTime) {
        let mut pass = std::mem::take(&mut self.pass);
        let ends_at = pass.ends_at;
        self.engine.end_pass(ends_at, &mut pass);
        if let Some(trace) = &self.trace {
            trace.observe(&pass);
        }
        for admission in &pass.admissions {
            if !admission.again
                && let Some(stream) = self.streams.get_mut(&admission.id)
            {
                stream.sink.admitted(admission.cached_tokens);
                stream.timeline.admitted(admission.cached_tokens, began, &self.metrics);
            }
        }
        for id in &pass.preempted {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.timeline.preempted();
            }
        }
        let metrics = Arc::clone(&self.metrics);
        let mut tokens = 0;
        for output in pass.outputs.drain(..) {
            match output {
                Output::Token { id, token, finish } => {
                    tokens += 1;
                    let finish = self.handoffs.keep_open(id, finish);
                    let say = |stream: &mut OpenStream| {
                        stream.sink.token(token, finish);
                        stream.timeline.token(now, &metrics);
                        if let Some(reason) = finish {
                            stream.timeline.finished(reason, now, &metrics);
                        }
                    };
                    self.say(id, say, finish.is_some());
                }
                Output::Empty { id, finish } => {
                    let say = |stream: &mut OpenStream| {
                        stream.sink.finished(finish);
                        stream.timeline.finished(finish, now, &metrics);
                    };
                    self.say(id, say, true);
                    self.handoffs.forget(id, "nothing was to be generated");
                }
                Output::Rejected { id, reason } => {
                    let say = |stream: &mut OpenStream| {
                        stream.sink.failed(&Failure::InvalidRequest(reason.to_string()));
                        metrics.count_failed();
                    };
                    self.say(id, say, true);
                    self.handoffs.forget(id, &reason.to_string());
                }
            }
        }
        self.gauge.count_pass(tokens, now);
        self.tell_pass(&pass, began, now);
        let stored = std::mem::take(&mut pass.stored);
        let lower = std::mem::take(&mut pass.tier_events);
        self.publish(std::mem::take(&mut pass.kv_events), stored, lower);
        self.pass = pass;
    }

    fn tell_pass(&mut self, pass: &Pass, began: SimTime, now: SimTime) {
        let due = match self.forward_passes {
            Detail::Off => false,
            Detail::Heartbeat => now >= self.next_forward,
            Detail::Full => true,
        };
        let (true, Some(reporter)) = (due, &self.reporter) else {
            return;
        };
        self.next_forward = now + FORWARD_INTERVAL;
        let told = PassRan {
            rank: self.index,
            pass: forward_pass(&pass.forward, pass.ends_at.since(began)),
        };
        if reporter.try_send(told).is_err() {
            metrics::counter!("ghostfleet_forward_passes_untold_total").increment(1);
        }
    }

    fn say(&mut self, id: RequestId, say: impl FnOnce(&mut OpenStream), over: bool) {
        // Cancelled in the middle of the pass: its outputs are void.
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        say(stream);
        stream.over |= over;
        if !stream.dirty {
            stream.dirty = true;
            self.dirty.push(id);
        }
    }

    fn publish(&mut self, events: Vec<KvEvent>, stored: Vec<StoredContent>, lower: Vec<TierEvent>) {
        if let Some(native) = &mut self.native {
            native.publish(&events, stored, || self.engine.cached_blocks());
        }
        let Some(publisher) = &self.publisher else { return };
        if events.is_empty() && lower.is_empty() {
            return;
        }
        if self.resync {
            return self.publish_all();
        }
        // A publisher that hangs must not make the rank hoard events: it is told the whole truth later instead.
        self.resync = publisher.try_send(Publish::Events(events, lower)).is_err();
        if self.resync {
            metrics::counter!("ghostfleet_kv_event_batches_lost_total").increment(1);
            self.gauge.count_lost_event_batch();
        }
    }

    /// Tells the publisher the whole cache instead of changes.
    fn publish_all(&mut self) {
        if let Some(publisher) = &self.publisher {
            self.resync = publisher
                .try_send(Publish::Replace(self.engine.cached_blocks(), self.lower_blocks()))
                .is_err();
        }
    }

    /// What lies below the GPU, as events that tell of it.
    fn lower_blocks(&self) -> Vec<TierEvent> {
        let stored = |(tier, parent, block)| TierEvent {
            tier,
            event: KvEvent::Stored {
                parent,
                blocks: vec![block],
            },
        };
        self.engine.lower_blocks().into_iter().map(stored).collect()
    }

    /// Nothing can run, but transfers below the GPU may end; what they change is told when they do.
    fn wake_later(&mut self, ctx: &mut Context<Self>) {
        let Some(at) = self.engine.wakes_at() else { return };
        if self.wakes_at.is_some_and(|set| set <= at) {
            return;
        }
        self.wakes_at = Some(at);
        ctx.run_later(at.since(self.clock.now()), move |rank, ctx| {
            rank.wakes_at.take_if(|set| *set == at);
            rank.pump(rank.clock.now(), ctx);
            rank.settle();
        });
    }

    /// After a turn: put everything on the wire, let go of what is over, tell the load.
    fn settle(&mut self) {
        if let Some(CommonMemoryOfRank(memory)) = &self.common_memory {
            memory.ring();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.dirty = false;
            let alive = stream.sink.flush();
            if stream.over {
                self.streams.remove(&id);
            } else if !alive {
                self.drop_request(id);
            }
        }
        self.dirty = dirty;
        let load = self.engine.load();
        // Pages tell what requests use: what is copied to shared memory stays in use until it is there, and is nobody's.
        let copied = self.common_memory.as_ref().map_or(0, |_| self.engine.copied_blocks());
        let of_requests = Load {
            active_blocks: load.active_blocks.saturating_sub(copied),
            inactive_blocks: load.inactive_blocks + copied.min(load.active_blocks),
            ..load
        };
        self.gauge.set_load(&of_requests, self.streams.len());
        if self.is_news(&load)
            && let Some(reporter) = &self.reporter
            && reporter.try_send(LoadChanged { rank: self.index, load }).is_ok()
        {
            self.reported = Some(load);
        }
    }

    /// Routers are told of blocks; the rest is for pages that show what is told.
    fn is_news(&self, load: &Load) -> bool {
        self.reported.is_none_or(|reported| {
            reported.active_blocks != load.active_blocks || (self.faults.spin_the_load() && reported != *load)
        })
    }

    fn drop_request(&mut self, id: RequestId) {
        self.engine.cancel(id, self.clock.now());
        self.handoffs.forget(id, "the client is gone");
        if let Some(mut stream) = self.streams.remove(&id) {
            stream.over = true;
            self.metrics.count_aborted();
        }
    }

    /// Gives a due pass its end before anything new is looked at, then goes on.
    fn advance(&mut self, ctx: &mut Context<Self>) {
        self.wake(ctx);
        if matches!(self.activity, Activity::Idle) {
            self.pump(self.clock.now(), ctx);
        }
        self.settle();
    }
}

/// A pass as planners are told of it.
fn forward_pass(forward: &Forward, wall_time: Duration) -> ForwardPass {
    let told = |lengths: &Lengths| forward_pass::Lengths {
        requests: lengths.requests,
        tokens: lengths.tokens,
        variance: lengths.variance(),
    };
    ForwardPass {
        wall_time,
        prefill: forward_pass::Lengths {
            tokens: forward.prefill_tokens,
            ..told(&forward.prefill)
        },
        prefill_kv_tokens: forward.prefill_kv_tokens,
        decode: told(&forward.decode),
        queued_prefill: told(&forward.queued_prefill),
        queued_decode: told(&forward.queued_decode),
    }
}

impl Drop for Rank {
    /// What a dead rank held is free again: the figures of its worker have to say so.
    fn drop(&mut self) {
        let free = Load {
            total_blocks: self.engine.load().total_blocks,
            ..Load::default()
        };
        self.gauge.set_load(&free, 0);
    }
}

impl Actor for Rank {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.faults.post.attach(ctx.address().recipient());
        if let Some(CommonMemoryOfRank(memory)) = &self.common_memory {
            ctx.add_stream(memory.listen());
        }
        self.settle();
        let now = self.clock.now();
        ctx.run_later(self.starts_at.since(now), |rank, ctx| {
            rank.started = true;
            rank.advance(ctx);
        });
    }
}

impl StreamHandler<Rung> for Rank {
    fn handle(&mut self, _: Rung, ctx: &mut Self::Context) {
        if self.started && matches!(self.activity, Activity::Idle) {
            self.wake_later(ctx);
        }
    }

    /// The bell is there as long as the rank; its end would not be the rank's.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<Submit> for Rank {
    type Result = ();

    fn handle(&mut self, Submit(submission): Submit, ctx: &mut Self::Context) {
        self.wake(ctx);
        self.submit(submission, ctx);
        self.advance(ctx);
    }
}

impl Handler<Cancel> for Rank {
    type Result = ();

    fn handle(&mut self, Cancel(id): Cancel, ctx: &mut Self::Context) {
        if self.streams.contains_key(&id) {
            self.drop_request(id);
            self.advance(ctx);
        }
    }
}

impl Handler<Connect> for Rank {
    type Result = ();

    fn handle(&mut self, message: Connect, _: &mut Self::Context) {
        if message.publisher.is_some() {
            self.publisher = message.publisher;
            // A new publisher knows nothing of what lies below the GPU.
            if self.resync || !self.engine.lower_blocks().is_empty() {
                // Events were lost on the former publisher; the new one may have been seeded before them.
                self.publish_all();
            }
        }
        if message.reporter.is_some() {
            self.reporter = message.reporter;
            self.reported = None;
        }
        self.settle();
    }
}

impl Handler<ConnectNative> for Rank {
    type Result = ();

    fn handle(&mut self, ConnectNative(stream): ConnectNative, _: &mut Self::Context) {
        if let Some(native) = &mut self.native {
            native.connect(stream, &self.engine.cached_blocks());
        }
    }
}

impl Handler<ClearCache> for Rank {
    type Result = u64;

    fn handle(&mut self, _: ClearCache, ctx: &mut Self::Context) -> Self::Result {
        self.wake(ctx);
        let before = self.engine.load().inactive_blocks;
        let events = self.engine.clear_cache();
        // The engine is ahead of the clock by the running pass, whose changes have to be told first.
        match self.activity {
            Activity::Pass { .. } => self.pass.kv_events.extend(events),
            Activity::Idle | Activity::Turn => self.publish(events, Vec::new(), Vec::new()),
        }
        self.settle();
        self.wake_later(ctx);
        u64::from(before - self.engine.load().inactive_blocks)
    }
}

impl Handler<CachedBlocks> for Rank {
    type Result = MessageResult<CachedBlocks>;

    fn handle(&mut self, _: CachedBlocks, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.engine.cached_blocks())
    }
}
