//! A rank's part in disaggregated requests: prompts that it computes for others, and prompts that others compute for it.
//!
//! A prefill rank keeps the blocks of a prompt until its KV has travelled: to a decode worker that was met at the
//! rendezvous, or, without one, for as long as the model says. The client side sees the token at once and the end of the
//! answer when the blocks are free. A decode rank joins the prefill worker's rendezvous, sets blocks aside when it is told
//! to, and decodes when it is told that the KV is there.
//!
//! Commands that an engine takes between passes only wait for the end of the running one.

use std::sync::Arc;

use actix::prelude::*;
use futures::StreamExt;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::super::handoff_gauge::{HandoffGauge, OpenRoom, OpenTransfer};
use super::super::rendezvous::{Held, Offer, Rendezvous, TransferModel, Withdraw};
use super::{Activity, OpenStream, Rank, Timeline};
use crate::engine::{HandoffFact, HandoffRefused, Rejected, WorkerRole};
use crate::transport::intake::{Failure, Leg, Submission};
use crate::transport::rendezvous::link::Link;
use crate::transport::rendezvous::wire::{Action, ActionAck, Command, Fact, Message, Order, Outcome, Register, Role};
use crate::transport::rendezvous::{Meeting, RendezvousLimits, client};
use crate::types::{EngineRequest, FinishReason, RequestId, SimTime, StopRule};

/// What a rank needs for its part.
pub(in super::super) struct HandoffParts {
    pub(in super::super) role: WorkerRole,
    /// Whether the engine of a decode rank can compute prompts itself.
    pub(in super::super) local_prefill: bool,
    /// Order of the engine, and its name on the wire.
    pub(in super::super) order: Order,
    pub(in super::super) engine_type: &'static str,
    pub(in super::super) transfer: TransferModel,
    /// Most handoffs at a time.
    pub(in super::super) limit: u32,
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
}

/// A prompt computed for someone else.
struct Source {
    /// Until it is given to the engine.
    request: Option<EngineRequest>,
    /// Whether someone is met for it at the rendezvous.
    met: bool,
    /// Whether the engine keeps its blocks.
    keeps_blocks: bool,
    prompt_tokens: u32,
    /// Why its answer will have ended.
    finish: Option<FinishReason>,
    /// While its KV travels without a rendezvous.
    travel: Option<(OpenRoom, OpenTransfer)>,
}

/// A prompt computed by someone else.
struct Destination {
    handoff_id: Uuid,
    /// Until it is given to the engine.
    request: Option<EngineRequest>,
    /// To the prefill worker, once joined.
    outbox: Option<mpsc::Sender<Message>>,
    /// The KV is there.
    active: bool,
    room: OpenRoom,
}

enum Between {
    Release(RequestId),
    Activate { id: RequestId, action: u32 },
}

/// The rendezvous of this rank's worker.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct ConnectRendezvous(pub(in super::super) Addr<Rendezvous>);

/// Somebody wants the KV of an offered prompt: compute it.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct SourceMet(pub(in super::super) RequestId);

/// The KV of an offered prompt has arrived.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct SourceReleased(pub(in super::super) RequestId);

/// Nobody will get the KV of an offered prompt.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct SourceFailed {
    pub(in super::super) id: RequestId,
    pub(in super::super) why: String,
}

/// What a prefill worker says about a request; `None`: it has closed the connection.
struct FromSource {
    id: RequestId,
    message: Option<Message>,
}

const ENDED_EARLY: &str = "destination handoff ended before completion";

impl Source {
    fn new(prompt_tokens: u32) -> Self {
        Self {
            request: None,
            met: false,
            keeps_blocks: true,
            prompt_tokens,
            finish: None,
            travel: None,
        }
    }
}

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
        if let Some(destination) = self.destinations.remove(&id)
            && let Some(outbox) = &destination.outbox
        {
            // A peer that does not listen learns it from the closed connection.
            drop(outbox.try_send(Message::Abort {
                message: why.to_owned(),
            }));
        }
    }

    /// Whether what was said has been taken; a request without a connection has nobody to say it to.
    fn tell_source(&self, id: RequestId, message: Message) -> bool {
        let destination = self.destinations.get(&id);
        let outbox = destination.and_then(|destination| destination.outbox.as_ref());
        outbox.is_none_or(|outbox| outbox.try_send(message).is_ok())
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
            request.stop = StopRule::one_token();
        }
        let timeline = Timeline::new(&request, now);
        let taken = match (role, leg) {
            (WorkerRole::Aggregated, Leg::Met(_)) => Err(invalid(
                "this worker hands nothing over; bootstrap_info is for prefill and decode workers",
            )),
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

    /// A prompt whose KV nobody comes for: it travels for as long as the model says.
    fn submit_alone(&mut self, request: EngineRequest, now: SimTime) -> Result<(), Failure> {
        let id = request.id;
        let mut source = Source::new(request.prompt.len());
        match self.engine.submit_source(request.clone(), now) {
            Ok(()) => {}
            Err(HandoffRefused::Unsupported(_)) => {
                self.engine.submit(request, now).map_err(|reason| rejected(&reason))?;
                source.keeps_blocks = false;
            }
            Err(reason) => return Err(refused(&reason)),
        }
        self.handoffs.sources.insert(id, source);
        Ok(())
    }

    /// An answer whose prompt's KV is there: blocks for it, and no prefill.
    fn resume(&mut self, request: EngineRequest, now: SimTime, ctx: &mut Context<Self>) -> Result<(), Failure> {
        let id = request.id;
        let reserved = self.engine.reserve_destination(request, now);
        reserved.map_err(|reason| refused(&reason))?;
        self.handoffs.prefilled.insert(id);
        self.do_between(None, ctx);
        Ok(())
    }

    fn offer(&mut self, request: EngineRequest, meeting: &Meeting, ctx: &mut Context<Self>) -> Result<(), Failure> {
        let Some(rendezvous) = &self.handoffs.rendezvous else {
            return Err(invalid(
                "this worker has no rendezvous; start it with --bootstrap-ports",
            ));
        };
        let id = request.id;
        rendezvous.do_send(Offer {
            id,
            identity: meeting.identity,
            rank: ctx.address(),
            dp_rank: self.index,
        });
        let mut source = Source::new(request.prompt.len());
        source.met = true;
        source.request = Some(request);
        self.handoffs.sources.insert(id, source);
        Ok(())
    }

    fn join(&mut self, request: EngineRequest, meeting: Meeting, ctx: &mut Context<Self>) -> Result<(), Failure> {
        let id = request.id;
        let parts = &self.handoffs.parts;
        if self.handoffs.destinations.len() >= parts.limit as usize {
            let (limit, rank) = (parts.limit, self.index);
            return Err(Failure::Internal(format!(
                "handoff session limit of {limit} reached for {rank}; raise --max-num-seqs"
            )));
        }
        let destination = Destination {
            handoff_id: meeting.identity.handoff_id,
            request: Some(request),
            outbox: None,
            active: false,
            room: parts.gauge.open(),
        };
        let register = Register {
            role: Role::Destination,
            dp_rank: self.index.0,
            order: parts.order,
            engine_type: parts.engine_type.to_owned(),
        };
        let joining = async move { client::join(&meeting, register, RendezvousLimits::default()).await };
        let joining = parts.pool.spawn(joining);
        self.handoffs.destinations.insert(id, destination);
        ctx.spawn(joining.into_actor(self).map(move |joined, rank, ctx| {
            let failed = |error: &dyn std::error::Error| format!("cannot join the prefill worker: {error}");
            match joined {
                Ok(Ok(link)) => return rank.joined(id, link, ctx),
                Ok(Err(error)) => rank.fail_handoff(id, &failed(&error)),
                Err(error) => rank.fail_handoff(id, &failed(&error)),
            }
            rank.advance(ctx);
        }));
        Ok(())
    }

    fn joined(&mut self, id: RequestId, Link { mut inbox, outbox }: Link, ctx: &mut Context<Self>) {
        // Cancelled meanwhile: the connection closes with its channels.
        let Some(destination) = self.handoffs.destinations.get_mut(&id) else {
            return;
        };
        destination.outbox = Some(outbox);
        let said = futures::stream::poll_fn(move |cx| inbox.poll_recv(cx)).map(Some);
        let said = said.chain(futures::stream::once(std::future::ready(None)));
        ctx.add_stream(said.map(move |message| FromSource { id, message }));
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

    /// A prompt is computed.
    fn held(&mut self, id: RequestId, at: SimTime, ctx: &mut Context<Self>) {
        let Some(source) = self.handoffs.sources.get_mut(&id) else {
            return;
        };
        let prompt_tokens = source.prompt_tokens;
        if source.met {
            if let Some(rendezvous) = &self.handoffs.rendezvous {
                rendezvous.do_send(Held { id, at, prompt_tokens });
            }
            return;
        }
        let parts = &self.handoffs.parts;
        let arrives_at = at + parts.transfer.link.duration(prompt_tokens);
        let travel = arrives_at.since(self.clock.now());
        source.travel = Some((parts.gauge.open(), parts.gauge.transfer()));
        if travel.is_zero() {
            return self.release(id);
        }
        ctx.run_later(travel, move |rank, ctx| {
            rank.wake(ctx);
            rank.do_between(Some(Between::Release(id)), ctx);
            rank.advance(ctx);
        });
    }

    fn release(&mut self, id: RequestId) {
        let Some(source) = self.handoffs.sources.remove(&id) else {
            return;
        };
        if source.keeps_blocks {
            self.engine.release_source(id);
        }
        if let Some((room, _)) = source.travel {
            room.completed();
        }
        let finish = source.finish.unwrap_or(FinishReason::Length);
        let (now, metrics) = (self.clock.now(), Arc::clone(&self.metrics));
        let say = |stream: &mut OpenStream| {
            stream.sink.finished(finish);
            stream.timeline.finished(finish, now, &metrics);
        };
        self.say(id, say, true);
    }

    fn reserved(&mut self, id: RequestId, transferable_prompt_tokens: u32) {
        if self.handoffs.prefilled.remove(&id) {
            self.engine.activate_destination(id);
            return;
        }
        let Some(destination) = self.handoffs.destinations.get(&id) else {
            return;
        };
        let fact = Fact::DestinationReserved {
            handoff_id: destination.handoff_id,
            transferable_prompt_tokens,
        };
        if !self.handoffs.tell_source(id, Message::Fact(fact)) {
            self.fail_handoff(id, ENDED_EARLY);
        }
    }

    fn activate(&mut self, id: RequestId, action: u32) {
        let Some(destination) = self.handoffs.destinations.get_mut(&id) else {
            return;
        };
        destination.active = self.engine.activate_destination(id);
        let outcome = if destination.active {
            Outcome::Applied
        } else {
            Outcome::Noop
        };
        self.answer(id, action, outcome);
    }

    fn answer(&mut self, id: RequestId, action_id: u32, outcome: Outcome) {
        let ack = ActionAck { action_id, outcome };
        if !self.handoffs.tell_source(id, Message::ActionAck(ack)) {
            self.fail_handoff(id, ENDED_EARLY);
        }
    }

    fn obey(&mut self, id: RequestId, Action { id: number, action }: Action, ctx: &mut Context<Self>) {
        match action {
            Command::ReserveDestination { .. } => {
                let destination = self.handoffs.destinations.get_mut(&id);
                let Some(request) = destination.and_then(|destination| destination.request.take()) else {
                    return self.answer(id, number, Outcome::Noop);
                };
                match self.engine.reserve_destination(request, self.clock.now()) {
                    Ok(()) => {
                        self.answer(id, number, Outcome::Accepted);
                        self.do_between(None, ctx);
                    }
                    Err(reason) => {
                        self.answer(id, number, Outcome::Failed(reason.to_string()));
                        self.fail_handoff(id, &reason.to_string());
                    }
                }
            }
            Command::ActivateDestination { .. } => {
                self.do_between(Some(Between::Activate { id, action: number }), ctx);
            }
            Command::CancelDestination { .. } => {
                self.answer(id, number, Outcome::Applied);
                self.fail_handoff(id, &format!("{ENDED_EARLY}: cancelled by the prefill worker"));
            }
        }
    }

    fn heard(&mut self, id: RequestId, message: Option<Message>, ctx: &mut Context<Self>) {
        let Some(destination) = self.handoffs.destinations.get(&id) else {
            return;
        };
        match message {
            Some(Message::Action(action)) => self.obey(id, action, ctx),
            Some(Message::Fact(Fact::SourceHeld { .. }) | Message::Registered) => {}
            // With the KV in place it does not matter any more what becomes of the source.
            Some(Message::Complete) | None if destination.active => {
                if let Some(destination) = self.handoffs.destinations.remove(&id) {
                    destination.room.completed();
                }
            }
            None => self.fail_handoff(id, ENDED_EARLY),
            Some(Message::Abort { message } | Message::ProtocolError { message }) => {
                self.fail_handoff(id, &format!("{ENDED_EARLY}: {message}"));
            }
            Some(
                Message::Complete
                | Message::Overloaded
                | Message::Register(_)
                | Message::ActionAck(_)
                | Message::Fact(Fact::DestinationReserved { .. }),
            ) => self.fail_handoff(id, &format!("{ENDED_EARLY}: the prefill worker broke the protocol")),
        }
    }
}

impl Handler<ConnectRendezvous> for Rank {
    type Result = ();

    fn handle(&mut self, ConnectRendezvous(rendezvous): ConnectRendezvous, _: &mut Self::Context) {
        self.handoffs.rendezvous = Some(rendezvous);
    }
}

impl Handler<SourceMet> for Rank {
    type Result = ();

    fn handle(&mut self, SourceMet(id): SourceMet, ctx: &mut Self::Context) {
        self.wake(ctx);
        let source = self.handoffs.sources.get_mut(&id);
        if let Some(request) = source.and_then(|source| source.request.take())
            && let Err(reason) = self.engine.submit_source(request, self.clock.now())
        {
            self.fail_handoff(id, &reason.to_string());
        }
        self.advance(ctx);
    }
}

impl Handler<SourceReleased> for Rank {
    type Result = ();

    fn handle(&mut self, SourceReleased(id): SourceReleased, ctx: &mut Self::Context) {
        self.wake(ctx);
        if let Some(source) = self.handoffs.sources.get_mut(&id) {
            source.met = false;
            self.do_between(Some(Between::Release(id)), ctx);
        }
        self.advance(ctx);
    }
}

impl Handler<SourceFailed> for Rank {
    type Result = ();

    fn handle(&mut self, SourceFailed { id, why }: SourceFailed, ctx: &mut Self::Context) {
        self.wake(ctx);
        if let Some(source) = self.handoffs.sources.get_mut(&id) {
            source.met = false;
            self.fail_handoff(id, &why);
        }
        self.advance(ctx);
    }
}

impl StreamHandler<FromSource> for Rank {
    fn handle(&mut self, FromSource { id, message }: FromSource, ctx: &mut Self::Context) {
        self.wake(ctx);
        self.heard(id, message, ctx);
        self.advance(ctx);
    }

    /// One connection less; the rank lives on.
    fn finished(&mut self, _: &mut Self::Context) {}
}
