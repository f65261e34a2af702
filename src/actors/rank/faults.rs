//! What faults do to a rank: longer passes, none at all, fewer blocks, an empty cache.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::super::fault_post::{FaultPost, FaultsChanged};
use super::{Activity, Rank};
use crate::faults::FaultId;
use crate::faults::kind::{CapacityFault, ConditionFault, MetricsFault, PassFault, Told};
use crate::types::{SimTime, span_of_ms, span_of_seconds};

/// A rank's view of its worker's faults.
pub(super) struct RankFaults {
    pub(super) post: Arc<FaultPost>,
    /// No pass starts or ends.
    pub(super) hangs: bool,
    /// Because of this fault.
    hung_by: Option<FaultId>,
    /// Blocks that are lost, as the faults say, and as the engine was told.
    lost: Loss,
    told: Loss,
    /// What has taken blocks away.
    robbed_by: Option<FaultId>,
    /// Passes that had a random extra.
    drawn: u64,
}

impl RankFaults {
    pub(super) fn new(post: Arc<FaultPost>) -> Self {
        let mut faults = Self {
            post,
            hangs: false,
            hung_by: None,
            lost: Loss::default(),
            told: Loss::default(),
            robbed_by: None,
            drawn: 0,
        };
        faults.look_again();
        faults
    }

    fn look_again(&mut self) {
        let hang = self.post.hang();
        self.hangs = hang.is_some();
        if let Some(hang) = hang.as_ref().filter(|hang| self.hung_by != Some(hang.id())) {
            hang.happened();
        }
        self.hung_by = hang.map(|hang| hang.id());
        self.lost = lost(&self.post);
    }

    /// Whether something is made of load figures.
    pub(super) fn spin_the_load(&self) -> bool {
        !self.post.table().is_quiet::<MetricsFault>()
    }

    /// Blocks have been taken away.
    fn note_loss(&mut self) {
        let Some(fault) = self.post.table().in_force::<CapacityFault>().pop() else {
            return;
        };
        if self.robbed_by.replace(fault.id()) != Some(fault.id()) {
            fault.happened();
        }
    }

    /// When a pass ends that began at `began` and would end at `ends_at`.
    #[inline]
    pub(super) fn stretch(&mut self, began: SimTime, ends_at: SimTime) -> SimTime {
        if self.post.table().is_quiet::<PassFault>() {
            return ends_at;
        }
        let (mut span, mut extra) = (ends_at.since(began), Duration::ZERO);
        for fault in self.post.table().ask::<PassFault>() {
            match fault {
                PassFault::Slow { factor } => {
                    span = span_of_seconds(span.as_secs_f64() * factor);
                }
                PassFault::Stall { ms } => extra += span_of_ms(ms),
                PassFault::Jitter { ms } => {
                    self.drawn += 1;
                    extra += span_of_ms(ms * self.post.table().dice(JITTER).unit(self.drawn));
                }
            }
        }
        began + span.saturating_add(extra)
    }
}

/// Salt of the dice for jitter.
const JITTER: u64 = 0x6a69_7474;

/// Blocks of one rank that are lost; with both the larger loss counts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Loss {
    share: f64,
    blocks: u32,
}

impl Loss {
    /// Out of so many.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a share of a u32
    fn of(self, total: u32) -> u32 {
        let share = (f64::from(total) * self.share).round() as u32;
        share.max(self.blocks).min(total)
    }
}

fn lost(post: &FaultPost) -> Loss {
    let standing = post.table().in_force::<CapacityFault>().into_iter();
    standing.fold(Loss::default(), |loss, fault| match *fault {
        CapacityFault::LoseCapacity { share, blocks } => Loss {
            share: loss.share.max(share.unwrap_or(0.0)),
            blocks: loss.blocks.max(blocks.unwrap_or(0)),
        },
    })
}

impl Rank {
    /// Takes away, or gives back, the blocks that faults say; what is in use is taken when it becomes free. Asked before
    /// each pass.
    #[inline]
    pub(super) fn lose_capacity(&mut self) {
        if self.faults.lost != self.faults.told {
            self.lose_blocks();
        }
    }

    #[cold]
    fn lose_blocks(&mut self) {
        let before = self.engine.withheld();
        let total = self.engine.load().total_blocks + before;
        let wanted = self.faults.lost.of(total);
        let events = self.engine.withhold(wanted);
        if self.engine.withheld() > before {
            self.faults.note_loss();
        }
        if self.engine.withheld() == wanted {
            self.faults.told = self.faults.lost;
        }
        self.publish(events, Vec::new(), Vec::new());
    }
}

/// Time that a start of a worker takes longer for: asked once for each.
pub(in super::super) fn slower_start(post: &FaultPost) -> Duration {
    let standing = post.table().in_force::<ConditionFault>().into_iter();
    let extra = standing.map(|fault| match *fault {
        ConditionFault::SlowStart { ms } => {
            fault.happened();
            span_of_ms(ms)
        }
        ConditionFault::Hang {} => Duration::ZERO,
    });
    extra.sum()
}

/// Drop every cached block that no request uses, and tell routers, or not.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct DropCache {
    pub(in super::super) told: Told,
    pub(in super::super) late: Duration,
}

impl Handler<FaultsChanged> for Rank {
    type Result = ();

    fn handle(&mut self, _: FaultsChanged, ctx: &mut Self::Context) {
        self.faults.look_again();
        // One that hung has a pass to end or to begin.
        self.advance(ctx);
    }
}

impl Handler<DropCache> for Rank {
    type Result = ();

    fn handle(&mut self, DropCache { told, late }: DropCache, ctx: &mut Self::Context) {
        self.wake(ctx);
        let before = (told == Told::Without).then(|| self.engine.cached_blocks());
        let events = self.engine.clear_cache();
        match (told, &self.activity) {
            (Told::Without, _) => {
                // Nobody is told, but whoever asks what a router still believes has to know what to ask for.
                self.gauge.former().note(before.into_iter().flatten().rev());
            }
            (Told::Late, _) => {
                ctx.run_later(late, move |rank, _| rank.publish(events, Vec::new(), Vec::new()));
            }
            // The engine is ahead of the clock by the running pass, whose changes have to be told first.
            (Told::With, Activity::Pass { .. }) => self.pass.kv_events.extend(events),
            (Told::With, Activity::Idle | Activity::Turn) => self.publish(events, Vec::new(), Vec::new()),
        }
        self.settle();
    }
}
