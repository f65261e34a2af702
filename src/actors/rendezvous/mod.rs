//! `Rendezvous`: where a prefill worker's prompts and the decode workers that want their KV find each other.
//!
//! Started by its worker, one for all ranks. A room opens with whichever side of a handoff comes first and closes when the
//! handoff is over: completed, given up by a side, or out of time. Rooms are bounded per rank, and an id that was used is
//! refused for as long as a handoff may take, so that a late or second participant never waits in vain. When the actor
//! dies, every source in its rooms fails and every connection closes.

mod door;
mod look;
mod offer;
mod retired;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures::StreamExt;
use rustc_hash::FxHashMap;
use uuid::Uuid;

pub(super) use self::door::Door;
use self::offer::GONE;
pub(super) use self::offer::Offer;
use self::retired::Retired;
pub use self::session::TransferModel;
use self::session::{Session, Step};
use super::clock::Clock;
use super::death::Die;
use super::disagreements::Disagreements;
use super::handoff_faults::{ABORTED, LINK_LOST, Trouble, WhenReady};
use super::handoff_gauge::{HandoffGauge, OpenRoom, OpenTransfer};
use super::liveness::Liveness;
use super::path::ActorPath;
use super::rank::{Rank, SourceMet, SourceReleased};
use crate::faults::WorkerFaults;
use crate::transport::rendezvous::link::{Link, Outbox};
use crate::transport::rendezvous::server::Arrival;
use crate::transport::rendezvous::wire::{Message, Order, Register};
use crate::transport::rendezvous::{Identity, MISMATCH};
use crate::types::{DpRank, RequestId, SimTime};

/// Orders and arrivals that may wait for the actor.
const MAILBOX: usize = 16 * 1024;

/// Why a handoff of two that have met was given up.
pub(super) const TOOK_TOO_LONG: &str = "handoff took longer than --handoff-session-timeout-ms";

/// Everything that it needs to start.
pub(super) struct RendezvousParts {
    pub(super) path: ActorPath,
    pub(super) clock: Clock,
    /// Order of its worker's engine, and the engine's name on the wire.
    pub(super) order: Order,
    pub(super) engine_type: &'static str,
    pub(super) transfer: TransferModel,
    /// How long one side waits for the other, if a handoff may take that long.
    pub(super) pairing_timeout: Duration,
    /// Longest handoff after both sides have met, modelled transfer not included.
    pub(super) session_timeout: Duration,
    /// Most rooms per rank.
    pub(super) max_rooms: u32,
    /// Ranks of the worker.
    pub(super) ranks: u32,
    pub(super) gauge: Arc<HandoffGauge>,
    /// Port that it is reached at.
    pub(super) port: u16,
    pub(super) faults: Arc<WorkerFaults>,
}

/// The meeting place of one worker.
pub struct Rendezvous {
    parts: RendezvousParts,
    rooms: FxHashMap<Uuid, Room>,
    /// Rooms by their source.
    sources: FxHashMap<RequestId, Uuid>,
    sources_of_rank: BTreeMap<DpRank, u32>,
    retired: Retired,
    /// Engines of decode workers that cannot take what this one has.
    disagreements: Disagreements,
    _liveness: Liveness,
}

struct Room {
    identity: Identity,
    source: Option<Source>,
    destination: Option<Outbox>,
    /// What goes wrong with it, from when its two sides have met.
    trouble: Trouble,
    session: Option<Session>,
    /// When the handoff has taken too long.
    deadline: SimTime,
    timer: SpawnHandle,
    transfer: Option<OpenTransfer>,
    open: OpenRoom,
}

impl Room {
    /// Forgotten by a fault: nobody listens to what is said in it.
    fn is_forgotten(&self) -> bool {
        self.trouble.when_ready == WhenReady::Orphan && self.destination.is_none()
    }

    /// Tells the destination, or another room if a fault wants that; whether it listens.
    fn say(&self, message: Message) -> bool {
        let Some(destination) = &self.destination else {
            return false;
        };
        if !self.trouble.wrong_room {
            return destination.say(message);
        }
        let said = destination.say_astray(message);
        if said {
            self.trouble.went_astray();
        }
        said
    }
}

struct Source {
    rank: Addr<Rank>,
    dp_rank: DpRank,
    id: RequestId,
}

/// An offered prompt is computed and its blocks are kept.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Held {
    pub(super) id: RequestId,
    pub(super) at: SimTime,
    pub(super) prompt_tokens: u32,
}

/// An offered prompt is gone: its client, or its rank.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Withdraw {
    pub(super) id: RequestId,
    pub(super) why: String,
}

/// A decode worker has come.
#[derive(Message)]
#[rtype(result = "()")]
struct Arrived(Arrival);

/// What a decode worker says; `None`: it has closed its connection.
struct Heard {
    handoff: Uuid,
    message: Option<Message>,
}

impl Rendezvous {
    pub(super) fn new(parts: RendezvousParts, liveness: Liveness) -> Self {
        let retired = Retired::new(parts.session_timeout);
        Self {
            parts,
            rooms: FxHashMap::default(),
            sources: FxHashMap::default(),
            sources_of_rank: BTreeMap::new(),
            retired,
            disagreements: Disagreements::default(),
            _liveness: liveness,
        }
    }

    /// The room of a handoff, opened if need be.
    fn room(&mut self, identity: Identity, ctx: &mut Context<Self>) -> &mut Room {
        let (gauge, now) = (&self.parts.gauge, self.parts.clock.now());
        let wait = self.parts.pairing_timeout.min(self.parts.session_timeout);
        self.rooms.entry(identity.handoff_id).or_insert_with(|| {
            let handoff = identity.handoff_id;
            let timer = ctx.run_later(wait, move |rendezvous, ctx| {
                rendezvous.fail(handoff, "handoff participant rendezvous timed out", ctx);
            });
            Room {
                identity,
                source: None,
                destination: None,
                trouble: Trouble::NONE,
                session: None,
                deadline: now + wait,
                timer,
                transfer: None,
                open: gauge.open(),
            }
        })
    }

    /// Both sides are there: the handoff begins.
    fn pair(&mut self, handoff: Uuid, ctx: &mut Context<Self>) {
        let parts = &self.parts;
        let Some(room) = self.rooms.get_mut(&handoff) else {
            return;
        };
        if room.source.is_none() || room.destination.is_none() {
            return;
        }
        room.trouble = Trouble::of(&parts.faults);
        ctx.cancel_future(room.timer);
        room.deadline = parts.clock.now() + parts.session_timeout;
        room.timer = Self::watch(handoff, parts.session_timeout, ctx);
        let (session, steps) = Session::begin(handoff, parts.order, parts.transfer);
        room.session = Some(session);
        self.take(handoff, steps, ctx);
    }

    fn watch(handoff: Uuid, wait: Duration, ctx: &mut Context<Self>) -> SpawnHandle {
        ctx.run_later(wait, move |rendezvous, ctx| {
            rendezvous.fail(handoff, TOOK_TOO_LONG, ctx);
        })
    }

    fn take(&mut self, handoff: Uuid, steps: Vec<Step>, ctx: &mut Context<Self>) {
        for step in steps {
            let Some(room) = self.rooms.get_mut(&handoff) else {
                return;
            };
            match step {
                Step::SubmitSource => {
                    if let Some(source) = &room.source {
                        source.rank.do_send(SourceMet(source.id));
                    }
                }
                Step::Say(message) => {
                    if !room.say(message) {
                        return self.fail(handoff, "destination does not listen", ctx);
                    }
                }
                Step::TransferUntil(ends_at) => {
                    room.transfer = Some(self.parts.gauge.transfer());
                    let now = self.parts.clock.now();
                    let (travel, arrives) = room.trouble.travel(ends_at.since(now));
                    room.deadline = room.deadline + travel;
                    ctx.cancel_future(room.timer);
                    room.timer = Self::watch(handoff, room.deadline.since(now), ctx);
                    if !arrives {
                        ctx.run_later(travel, move |rendezvous, ctx| rendezvous.fail(handoff, LINK_LOST, ctx));
                    } else if travel.is_zero() {
                        self.transferred(handoff, ctx);
                    } else {
                        ctx.run_later(travel, move |rendezvous, ctx| rendezvous.transferred(handoff, ctx));
                    }
                }
                Step::ReleaseSource => {
                    if let Some(source) = room.source.take() {
                        forget(&mut self.sources, &mut self.sources_of_rank, &source);
                        source.rank.do_send(SourceReleased(source.id));
                    }
                }
                Step::End => {
                    if let Some(room) = self.close(handoff, ctx) {
                        room.open.completed();
                    }
                }
            }
        }
    }

    fn ready(&mut self, handoff: Uuid, at: SimTime, prompt_tokens: u32, ctx: &mut Context<Self>) {
        let room = self.rooms.get_mut(&handoff);
        if let Some(session) = room.and_then(|room| room.session.as_mut()) {
            let steps = session.held(at, prompt_tokens);
            self.take(handoff, steps, ctx);
        }
    }

    fn transferred(&mut self, handoff: Uuid, ctx: &mut Context<Self>) {
        let Some(room) = self.rooms.get_mut(&handoff) else {
            return;
        };
        // Only the first end of a transfer counts, whatever else has happened to the room.
        let (Some(_), Some(session)) = (room.transfer.take(), &mut room.session) else {
            return;
        };
        let steps = session.transferred();
        self.take(handoff, steps, ctx);
    }

    fn heard(&mut self, handoff: Uuid, message: Message, ctx: &mut Context<Self>) {
        let now = self.parts.clock.now();
        let Some(room) = self.rooms.get_mut(&handoff) else {
            return;
        };
        let steps = match (&mut room.session, message) {
            (Some(session), message) => session.heard(message, now).map_err(|broken| broken.to_string()),
            (None, Message::Abort { message } | Message::ProtocolError { message }) => {
                Err(format!("destination failed: {message}"))
            }
            (None, _) => Err("destination spoke before its time".to_owned()),
        };
        match steps {
            Ok(steps) => self.take(handoff, steps, ctx),
            Err(why) => self.fail(handoff, &why, ctx),
        }
    }

    /// Ends a room in failure; both sides hear of it.
    fn fail(&mut self, handoff: Uuid, why: &str, ctx: &mut Context<Self>) {
        let Some(mut room) = self.close(handoff, ctx) else {
            return;
        };
        tracing::debug!(%handoff, why, "handoff failed");
        // A peer that does not listen learns it from the closed connection.
        room.say(Message::Abort {
            message: why.to_owned(),
        });
        if let Some(source) = room.source.take() {
            source.fail(why);
        }
    }

    /// Takes a room away; its id is not to be used again.
    fn close(&mut self, handoff: Uuid, ctx: &mut Context<Self>) -> Option<Room> {
        let room = self.rooms.remove(&handoff)?;
        ctx.cancel_future(room.timer);
        if let Some(source) = &room.source {
            forget(&mut self.sources, &mut self.sources_of_rank, source);
        }
        self.retired.add(handoff, self.parts.clock.now());
        Some(room)
    }

    /// Why a decode worker cannot take what this one has; said once for its kind.
    fn disagree(&mut self, theirs: &Register) -> String {
        let kind = |engine: &str, order| format!("{engine:?} ({})", who_is_first(order));
        let ours = kind(self.parts.engine_type, self.parts.order);
        let theirs = kind(&theirs.engine_type, theirs.order);
        if self.disagreements.is_new(&theirs) {
            let actor = self.parts.path;
            tracing::warn!(%actor, engine = %ours, %theirs, "a decode worker of another engine cannot take KV from here; said once");
        }
        format!("{MISMATCH}: the prefill worker has {ours}, the decode worker {theirs}")
    }

    /// Why a participant may not enter, if so.
    fn refusal(&mut self, identity: &Identity) -> Option<&'static str> {
        if self.retired.contains(identity.handoff_id, self.parts.clock.now()) {
            return Some("handoff session is already active or retired");
        }
        let room = self.rooms.get(&identity.handoff_id)?;
        (room.identity != *identity).then_some(MISMATCH)
    }
}

fn who_is_first(order: Order) -> &'static str {
    match order {
        Order::SourceFirst => "the prompt is computed first",
        Order::DestinationFirst => "blocks are set aside first",
    }
}

fn forget(sources: &mut FxHashMap<RequestId, Uuid>, of_rank: &mut BTreeMap<DpRank, u32>, source: &Source) {
    sources.remove(&source.id);
    if let Some(count) = of_rank.get_mut(&source.dp_rank) {
        *count = count.saturating_sub(1);
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        for source in self.rooms.drain().filter_map(|(_, room)| room.source) {
            source.fail(GONE);
        }
    }
}

impl Actor for Rendezvous {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<Offer> for Rendezvous {
    type Result = ();

    fn handle(&mut self, mut offer: Offer, ctx: &mut Self::Context) {
        let identity = offer.identity;
        let Some(source) = offer.take() else { return };
        let (id, dp_rank) = (source.id, source.dp_rank);
        let handoff = identity.handoff_id;
        if let Some(why) = self.refusal(&identity) {
            return source.fail(why);
        }
        if self.rooms.get(&handoff).is_some_and(|room| room.source.is_some()) {
            return source.fail("duplicate source participant");
        }
        let count = self.sources_of_rank.entry(dp_rank).or_default();
        if *count >= self.parts.max_rooms {
            let limit = self.parts.max_rooms;
            return source.fail(&format!("handoff session limit of {limit} reached for {dp_rank}"));
        }
        *count += 1;
        self.sources.insert(id, handoff);
        self.room(identity, ctx).source = Some(source);
        self.pair(handoff, ctx);
    }
}

impl Handler<Held> for Rendezvous {
    type Result = ();

    fn handle(&mut self, held: Held, ctx: &mut Self::Context) {
        let Some(&handoff) = self.sources.get(&held.id) else {
            return;
        };
        let Some(room) = self.rooms.get_mut(&handoff) else {
            return;
        };
        match room.trouble.ends() {
            WhenReady::Said { late } if late.is_zero() => self.ready(handoff, held.at, held.prompt_tokens, ctx),
            WhenReady::Said { late } => {
                ctx.run_later(late, move |rendezvous, ctx| {
                    rendezvous.ready(handoff, held.at + late, held.prompt_tokens, ctx);
                });
            }
            WhenReady::Silence => {}
            WhenReady::Abort => self.fail(handoff, ABORTED, ctx),
            WhenReady::Orphan => {
                room.session = None;
                room.destination = None;
            }
        }
    }
}

impl Handler<Withdraw> for Rendezvous {
    type Result = ();

    fn handle(&mut self, Withdraw { id, why }: Withdraw, ctx: &mut Self::Context) {
        let Some(handoff) = self.sources.get(&id).copied() else {
            return;
        };
        if let Some(source) = self.rooms.get_mut(&handoff).and_then(|room| room.source.take()) {
            forget(&mut self.sources, &mut self.sources_of_rank, &source);
        }
        self.fail(handoff, &why, ctx);
    }
}

impl Handler<Arrived> for Rendezvous {
    type Result = ();

    fn handle(&mut self, Arrived(arrival): Arrived, ctx: &mut Self::Context) {
        let Arrival {
            identity,
            register,
            link,
        } = arrival;
        let handoff = identity.handoff_id;
        // The queue of a fresh connection has room.
        let refuse = |why: &str| {
            link.outbox.say(Message::ProtocolError {
                message: why.to_owned(),
            });
        };
        // A stranger in the wrong room is sent away; who is there already waits on.
        if let Some(why) = self.refusal(&identity) {
            return refuse(why);
        }
        if register.order != self.parts.order || register.engine_type != self.parts.engine_type {
            let why = self.disagree(&register);
            refuse(&why);
            return self.fail(handoff, &why, ctx);
        }
        let known = self.rooms.get(&handoff);
        if known.is_some_and(|room| room.destination.is_some()) {
            return refuse("duplicate destination participant");
        }
        let waiting = self.rooms.len() - self.sources.len();
        let limit = u64::from(self.parts.max_rooms) * u64::from(self.parts.ranks);
        if known.is_none() && waiting as u64 >= limit {
            link.outbox.say(Message::Overloaded);
            return;
        }
        link.outbox.say(Message::Registered);
        let Link { mut inbox, outbox } = link;
        self.room(identity, ctx).destination = Some(outbox);
        let heard = futures::stream::poll_fn(move |cx| inbox.poll_recv(cx)).map(Some);
        let heard = heard.chain(futures::stream::once(std::future::ready(None)));
        ctx.add_stream(heard.map(move |message| Heard { handoff, message }));
        self.pair(handoff, ctx);
    }
}

impl StreamHandler<Heard> for Rendezvous {
    fn handle(&mut self, Heard { handoff, message }: Heard, ctx: &mut Self::Context) {
        if self.rooms.get(&handoff).is_none_or(Room::is_forgotten) {
            return;
        }
        match message {
            Some(message) => self.heard(handoff, message, ctx),
            None => self.fail(handoff, "destination handoff ended before completion", ctx),
        }
    }

    /// One connection less; the actor lives on.
    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<Die> for Rendezvous {
    type Result = ();

    fn handle(&mut self, Die(death): Die, ctx: &mut Self::Context) {
        death.happen(ctx);
    }
}
