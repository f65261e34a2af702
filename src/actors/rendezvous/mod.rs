//! `Rendezvous`: where a prefill worker's prompts and the decode workers that want their KV find each other.
//!
//! Started by its worker, one for all ranks. A room opens with whichever side of a handoff comes first and closes when the
//! handoff is over: completed, given up by a side, or out of time. Rooms are bounded per rank, and an id that was used is
//! refused for as long as a handoff may take, so that a late or second participant never waits in vain. When the actor
//! dies, every source in its rooms fails and every connection closes.

mod door;
mod look;
mod retired;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures::StreamExt;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use uuid::Uuid;

pub(super) use self::door::Door;
use self::retired::Retired;
pub use self::session::TransferModel;
use self::session::{Session, Step};
use super::clock::Clock;
use super::death::Die;
use super::handoff_gauge::{HandoffGauge, OpenRoom, OpenTransfer};
use super::liveness::Liveness;
use super::rank::{Rank, SourceFailed, SourceMet, SourceReleased};
use crate::transport::rendezvous::Identity;
use crate::transport::rendezvous::link::Link;
use crate::transport::rendezvous::server::Arrival;
use crate::transport::rendezvous::wire::{Message, Order};
use crate::types::{DpRank, RequestId, SimTime};

/// Orders and arrivals that may wait for the actor.
const MAILBOX: usize = 16 * 1024;

/// How long one side waits for the other, if a handoff may take that long. Source: Dynamo 1.6.1.
const PAIRING: Duration = Duration::from_secs(30);

/// Everything that it needs to start.
pub(super) struct RendezvousParts {
    pub(super) clock: Clock,
    /// Order of its worker's engine, and the engine's name on the wire.
    pub(super) order: Order,
    pub(super) engine_type: &'static str,
    pub(super) transfer: TransferModel,
    /// Longest handoff after both sides have met, modelled transfer not included.
    pub(super) session_timeout: Duration,
    /// Most rooms per rank.
    pub(super) max_rooms: u32,
    /// Ranks of the worker.
    pub(super) ranks: u32,
    pub(super) gauge: Arc<HandoffGauge>,
    /// Port that it is reached at.
    pub(super) port: u16,
}

/// The meeting place of one worker.
pub struct Rendezvous {
    parts: RendezvousParts,
    rooms: FxHashMap<Uuid, Room>,
    /// Rooms by their source.
    sources: FxHashMap<RequestId, Uuid>,
    sources_of_rank: BTreeMap<DpRank, u32>,
    retired: Retired,
    _liveness: Liveness,
}

struct Room {
    identity: Identity,
    source: Option<Source>,
    destination: Option<mpsc::Sender<Message>>,
    session: Option<Session>,
    /// When the handoff has taken too long.
    deadline: SimTime,
    timer: SpawnHandle,
    transfer: Option<OpenTransfer>,
    open: OpenRoom,
}

struct Source {
    rank: Addr<Rank>,
    dp_rank: DpRank,
    id: RequestId,
}

/// A prompt that is to be handed over; answered by [`SourceMet`] or [`SourceFailed`].
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Offer {
    pub(super) id: RequestId,
    pub(super) identity: Identity,
    pub(super) rank: Addr<Rank>,
    pub(super) dp_rank: DpRank,
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
            _liveness: liveness,
        }
    }

    /// The room of a handoff, opened if need be.
    fn room(&mut self, identity: Identity, ctx: &mut Context<Self>) -> &mut Room {
        let (gauge, now) = (&self.parts.gauge, self.parts.clock.now());
        let wait = PAIRING.min(self.parts.session_timeout);
        self.rooms.entry(identity.handoff_id).or_insert_with(|| {
            let handoff = identity.handoff_id;
            let timer = ctx.run_later(wait, move |rendezvous, ctx| {
                rendezvous.fail(handoff, "handoff participant rendezvous timed out", ctx);
            });
            Room {
                identity,
                source: None,
                destination: None,
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
        ctx.cancel_future(room.timer);
        room.deadline = parts.clock.now() + parts.session_timeout;
        room.timer = Self::watch(handoff, parts.session_timeout, ctx);
        let (session, steps) = Session::begin(handoff, parts.order, parts.transfer);
        room.session = Some(session);
        self.take(handoff, steps, ctx);
    }

    fn watch(handoff: Uuid, wait: Duration, ctx: &mut Context<Self>) -> SpawnHandle {
        ctx.run_later(wait, move |rendezvous, ctx| {
            rendezvous.fail(handoff, "handoff took longer than --handoff-session-timeout-ms", ctx);
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
                    let said = room.destination.as_ref().is_some_and(|to| to.try_send(message).is_ok());
                    if !said {
                        return self.fail(handoff, "destination does not listen", ctx);
                    }
                }
                Step::TransferUntil(ends_at) => {
                    room.transfer = Some(self.parts.gauge.transfer());
                    let now = self.parts.clock.now();
                    let travel = ends_at.since(now);
                    room.deadline = room.deadline + travel;
                    ctx.cancel_future(room.timer);
                    room.timer = Self::watch(handoff, room.deadline.since(now), ctx);
                    if travel.is_zero() {
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
        if let Some(destination) = room.destination.take() {
            // A peer that does not listen learns it from the closed connection.
            drop(destination.try_send(Message::Abort {
                message: why.to_owned(),
            }));
        }
        if let Some(source) = room.source.take() {
            source.rank.do_send(SourceFailed {
                id: source.id,
                why: why.to_owned(),
            });
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

    /// Why a participant may not enter, if so.
    fn refusal(&mut self, identity: &Identity) -> Option<&'static str> {
        if self.retired.contains(identity.handoff_id, self.parts.clock.now()) {
            return Some("handoff session is already active or retired");
        }
        let room = self.rooms.get(&identity.handoff_id)?;
        (room.identity != *identity).then_some(MISMATCH)
    }
}

const MISMATCH: &str = "handoff participant identity or backend mismatch";

fn forget(sources: &mut FxHashMap<RequestId, Uuid>, of_rank: &mut BTreeMap<DpRank, u32>, source: &Source) {
    sources.remove(&source.id);
    if let Some(count) = of_rank.get_mut(&source.dp_rank) {
        *count = count.saturating_sub(1);
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        for source in self.rooms.values().filter_map(|room| room.source.as_ref()) {
            source.rank.do_send(SourceFailed {
                id: source.id,
                why: "the worker's rendezvous is gone".to_owned(),
            });
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

    fn handle(&mut self, offer: Offer, ctx: &mut Self::Context) {
        let Offer {
            id,
            identity,
            rank,
            dp_rank,
        } = offer;
        let refuse = |why: &str| {
            rank.do_send(SourceFailed {
                id,
                why: why.to_owned(),
            });
        };
        let handoff = identity.handoff_id;
        if let Some(why) = self.refusal(&identity) {
            return refuse(why);
        }
        if self.rooms.get(&handoff).is_some_and(|room| room.source.is_some()) {
            return refuse("duplicate source participant");
        }
        let count = self.sources_of_rank.entry(dp_rank).or_default();
        if *count >= self.parts.max_rooms {
            return refuse(&format!(
                "handoff session limit of {} reached for {dp_rank}",
                self.parts.max_rooms
            ));
        }
        *count += 1;
        self.sources.insert(id, handoff);
        self.room(identity, ctx).source = Some(Source { rank, dp_rank, id });
        self.pair(handoff, ctx);
    }
}

impl Handler<Held> for Rendezvous {
    type Result = ();

    fn handle(&mut self, held: Held, ctx: &mut Self::Context) {
        let Some(&handoff) = self.sources.get(&held.id) else {
            return;
        };
        let room = self.rooms.get_mut(&handoff);
        if let Some(session) = room.and_then(|room| room.session.as_mut()) {
            let steps = session.held(held.at, held.prompt_tokens);
            self.take(handoff, steps, ctx);
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
        let say = |message: Message| drop(link.outbox.try_send(message));
        let refuse = |why: &str| {
            say(Message::ProtocolError {
                message: why.to_owned(),
            });
        };
        // A stranger in the wrong room is sent away; who is there already waits on.
        if let Some(why) = self.refusal(&identity) {
            return refuse(why);
        }
        if register.order != self.parts.order || register.engine_type != self.parts.engine_type {
            refuse(MISMATCH);
            return self.fail(handoff, MISMATCH, ctx);
        }
        let known = self.rooms.get(&handoff);
        if known.is_some_and(|room| room.destination.is_some()) {
            return refuse("duplicate destination participant");
        }
        let waiting = self.rooms.len() - self.sources.len();
        let limit = u64::from(self.parts.max_rooms) * u64::from(self.parts.ranks);
        if known.is_none() && waiting as u64 >= limit {
            return say(Message::Overloaded);
        }
        say(Message::Registered);
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
