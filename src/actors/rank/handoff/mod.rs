//! A rank's part in disaggregated requests: prompts that it computes for others, and prompts that others compute for it.
//!
//! A prefill rank keeps the blocks of a prompt until its KV has travelled: to a decode worker that was met at the
//! rendezvous, or, without one, for as long as the model says. The client side sees the token at once and the end of the
//! answer when the blocks are free. A decode rank joins the prefill worker's rendezvous, sets blocks aside when it is told
//! to, and decodes when it is told that the KV is there.
//!
//! Commands that an engine takes between passes only wait for the end of the running one.

mod destination;
mod source;

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::runtime::Handle;

use self::destination::Destination;
use self::source::Source;
pub(in super::super) use self::source::{SourceFailed, SourceMet, SourceReleased};
use super::super::disagreements::Disagreements;
use super::super::handoff_gauge::HandoffGauge;
use super::super::path::ActorPath;
use super::super::rendezvous::{Rendezvous, TransferModel, Withdraw};
use super::{Activity, OpenStream, Rank, Timeline};
use crate::engine::{HandoffFact, HandoffRefused, Rejected, Semantics, WorkerRole};
use crate::transport::intake::{Failure, Leg, Submission};
use crate::transport::rendezvous::RendezvousLimits;
use crate::transport::rendezvous::wire::Order;
use crate::types::{FinishReason, RequestId, SimTime};

/// What a rank needs for its part.
pub(in super::super) struct HandoffParts {
    /// Actor path of the rank.
    pub(in super::super) path: ActorPath,
    pub(in super::super) role: WorkerRole,
    /// Release whose prefill workers these are.
    pub(in super::super) semantics: Semantics,
    /// Whether the engine of a decode rank can compute prompts itself.
    pub(in super::super) local_prefill: bool,
    /// Order of the engine; `None`: it cannot meet anybody.
    pub(in super::super) order: Option<Order>,
    /// Its name on the wire.
    pub(in super::super) engine_type: &'static str,
    pub(in super::super) transfer: TransferModel,
    /// Most handoffs at a time.
    pub(in super::super) limit: u32,
    /// Longest handoff, modelled transfer not included.
    pub(in super::super) session_timeout: Duration,
    /// Waits at a prefill worker's rendezvous.
    pub(in super::super) limits: RendezvousLimits,
    /// Threads for sockets.
    pub(in super::super) pool: Handle,
    pub(in super::super) gauge: Arc<HandoffGauge>,
}

/// Handoffs of one rank.
pub(super) struct Handoffs {
    parts: HandoffParts,
    rendezvous: Option<Addr<Rendezvous>>,
    sources: FxHashMap<RequestId, Source>,
    destinations: FxHashMap<RequestId, Destination>,
    /// Prompts whose KV was there before the request, until blocks are set aside for them.
    prefilled: FxHashSet<RequestId>,
    /// Commands that wait for the end of the running pass.
    between: Vec<Between>,
    /// Sources whose answer is complete and whose blocks the engine does not keep.
    ended: Vec<RequestId>,
    /// Kept for its buffer.
    facts: Vec<HandoffFact>,
    /// Prefill workers that this one cannot take KV from.
    disagreements: Disagreements,
    /// A timer runs for the deadlines of destinations.
    watching: bool,
}

enum Between {
    Release(RequestId),
    Activate { id: RequestId, action: u32 },
}

/// The rendezvous of this rank's worker.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct ConnectRendezvous(pub(in super::super) Addr<Rendezvous>);

const ENDED_EARLY: &str = "destination handoff ended before completion";

impl Handoffs {
    pub(super) fn new(parts: HandoffParts) -> Self {
        Self {
            parts,
            rendezvous: None,
            sources: FxHashMap::default(),
            destinations: FxHashMap::default(),
            prefilled: FxHashSet::default(),
            between: Vec::new(),
            ended: Vec::new(),
            facts: Vec::new(),
            disagreements: Disagreements::default(),
            watching: false,
        }
    }

    /// Whether a token that ends an answer here ends it for the client too. A prefill answer lasts until its KV is away.
    pub(super) fn keep_open(&mut self, id: RequestId, finish: Option<FinishReason>) -> Option<FinishReason> {
        let Some(source) = self.sources.get_mut(&id) else {
            return finish;
        };
        if finish.is_some() {
            source.finish = finish;
            if !source.keeps_blocks {
                self.ended.push(id);
            }
        }
        None
    }

    /// What a request's handoff waits for, in words.
    pub(super) fn waits_for(&self, id: RequestId) -> Option<String> {
        let source = self.sources.get(&id).map(Source::waits_for);
        source.or_else(|| self.destinations.get(&id).and_then(Destination::waits_for))
    }

    /// The request is over for this rank: whoever is at the other end hears of it.
    pub(super) fn forget(&mut self, id: RequestId, why: &str) {
        self.prefilled.remove(&id);
        if let Some(source) = self.sources.remove(&id)
            && source.met
            && let Some(rendezvous) = &self.rendezvous
        {
            rendezvous.do_send(Withdraw {
                id,
                why: why.to_owned(),
            });
        }
        if let Some(destination) = self.destinations.remove(&id) {
            destination.leave(why);
        }
    }
}

impl Drop for Handoffs {
    /// A dead rank's rooms are of no use; its own connections close by themselves.
    fn drop(&mut self) {
        let Some(rendezvous) = &self.rendezvous else { return };
        for (&id, _) in self.sources.iter().filter(|(_, source)| source.met) {
            rendezvous.do_send(Withdraw {
                id,
                why: "the source's rank is gone".to_owned(),
            });
        }
    }
}

fn invalid(why: &str) -> Failure {
    Failure::InvalidRequest(why.to_owned())
}

fn rejected(reason: &Rejected) -> Failure {
    let text = reason.to_string();
    if matches!(reason, Rejected::Duplicate(_)) {
        Failure::Internal(text)
    } else {
        Failure::InvalidRequest(text)
    }
}

fn refused(reason: &HandoffRefused) -> Failure {
    match reason {
        HandoffRefused::Rejected(reason) => rejected(reason),
        HandoffRefused::PromptTooLarge => Failure::InvalidRequest(reason.to_string()),
        HandoffRefused::Unsupported(_) => Failure::Internal(reason.to_string()),
    }
}

impl Rank {
    /// Takes a request in; the rank's role decides what becomes of it.
    pub(super) fn submit(&mut self, submission: Submission, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        self.gauge.count_request(now);
        let Submission {
            mut request, sink, leg, ..
        } = submission;
        let id = request.id;
        let role = self.handoffs.parts.role;
        if role == WorkerRole::Prefill {
            source::ask_for_one_token(&mut request, self.handoffs.parts.semantics);
        }
        let timeline = Timeline::new(&request, now);
        let taken = match (role, leg) {
            (WorkerRole::Aggregated, Leg::Met(_)) => Err(invalid(
                "this worker hands nothing over; bootstrap_info is for prefill and decode workers",
            )),
            (WorkerRole::Prefill | WorkerRole::Decode, Leg::Met(_)) if self.handoffs.parts.order.is_none() => {
                Err(invalid(&format!(
                    "the {} engine has no rendezvous; use vllm or sglang on both sides, or prefill workers without \
                     --bootstrap-ports",
                    self.handoffs.parts.engine_type
                )))
            }
            (WorkerRole::Decode, Leg::Prefilled) if self.handoffs.parts.local_prefill => self.resume(request, now, ctx),
            (WorkerRole::Aggregated | WorkerRole::Decode, Leg::Whole | Leg::Prefilled) => {
                self.engine.submit(request, now).map_err(|reason| rejected(&reason))
            }
            (WorkerRole::Prefill, Leg::Whole | Leg::Prefilled) => self.submit_alone(request, now),
            (WorkerRole::Prefill, Leg::Met(meeting)) => self.offer(request, &meeting, ctx),
            (WorkerRole::Decode, Leg::Met(meeting)) => self.join(request, *meeting, ctx),
        };
        if let Err(failure) = taken {
            self.metrics.count_failed();
            sink.failed(&failure);
            sink.flush();
            return;
        }
        self.streams.insert(
            id,
            OpenStream {
                sink,
                timeline,
                dirty: false,
                over: false,
            },
        );
    }

    /// The request fails, and with it the handoff. Followed by a turn of the rank.
    fn fail_handoff(&mut self, id: RequestId, why: &str) {
        self.handoffs.forget(id, why);
        if !self.streams.contains_key(&id) {
            return;
        }
        self.engine.cancel(id, self.clock.now());
        self.metrics.count_failed();
        let failure = Failure::Internal(why.to_owned());
        self.say(id, |stream| stream.sink.failed(&failure), true);
    }

    /// Everything about handoffs that is done or becomes true between two passes, the first of which ended at `now`.
    pub(super) fn between_passes(&mut self, now: SimTime, ctx: &mut Context<Self>) {
        for command in std::mem::take(&mut self.handoffs.between) {
            match command {
                Between::Release(id) => self.release(id),
                Between::Activate { id, action } => self.activate(id, action),
            }
        }
        for id in std::mem::take(&mut self.handoffs.ended) {
            self.held(id, now, ctx);
        }
        let mut facts = std::mem::take(&mut self.handoffs.facts);
        self.engine.take_handoff_facts(now, &mut facts);
        for fact in facts.drain(..) {
            match fact {
                HandoffFact::SourceHeld { id, .. } => self.held(id, now, ctx),
                HandoffFact::DestinationReserved {
                    id,
                    transferable_prompt_tokens,
                } => self.reserved(id, transferable_prompt_tokens),
            }
        }
        self.handoffs.facts = facts;
    }

    /// Does now what can only be done between passes, unless one is running, whose end will do it.
    fn do_between(&mut self, command: Option<Between>, ctx: &mut Context<Self>) {
        self.handoffs.between.extend(command);
        if !matches!(self.activity, Activity::Pass { .. }) {
            self.between_passes(self.clock.now(), ctx);
        }
    }
}

impl Handler<ConnectRendezvous> for Rank {
    type Result = ();

    fn handle(&mut self, ConnectRendezvous(rendezvous): ConnectRendezvous, _: &mut Self::Context) {
        self.handoffs.rendezvous = Some(rendezvous);
    }
}
