//! Prompts that others compute for a rank.

use std::time::Duration;

use actix::prelude::*;
use futures::StreamExt;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::super::handoff_gauge::OpenRoom;
use super::super::super::rendezvous::TOOK_TOO_LONG;
use super::super::Rank;
use super::{Between, ENDED_EARLY, Handoffs, refused};
use crate::engine::KvTransfer;
use crate::transport::intake::Failure;
use crate::transport::rendezvous::link::{Link, LinkError, Outbox};
use crate::transport::rendezvous::wire::{
    Action, ActionAck, Command, Fact, Message, Outcome, Register, Role, TransferTiming,
};
use crate::transport::rendezvous::{MISMATCH, Meeting, client};
use crate::types::{EngineRequest, RequestId, SimTime};

/// A prompt computed by someone else.
pub(super) struct Destination {
    handoff_id: Uuid,
    /// The prefill worker's rendezvous.
    peer: String,
    /// Until the prefill worker has answered.
    joining: Option<Joining>,
    /// Until it is given to the engine.
    request: Option<EngineRequest>,
    /// To the prefill worker, once joined.
    outbox: Option<Outbox>,
    /// The KV is there.
    active: bool,
    /// When it is no longer waited for.
    deadline: SimTime,
    room: OpenRoom,
}

/// What a prefill worker says about a request; `None`: it has closed the connection.
struct FromSource {
    id: RequestId,
    message: Option<Message>,
}

/// A connection under way. A rank that dies says no goodbye: the attempt just ends with it.
struct Joining {
    task: AbortHandle,
    gone: CancellationToken,
}

impl Drop for Joining {
    fn drop(&mut self) {
        if !self.gone.is_cancelled() {
            self.task.abort();
        }
    }
}

/// How often deadlines are looked at.
const SHORTEST_WATCH: Duration = Duration::from_millis(10);
const LONGEST_WATCH: Duration = Duration::from_secs(1);

/// A prefill worker's figures do not make the wait longer than by this.
const LONGEST_TRAVEL: Duration = Duration::from_secs(3600);

impl Destination {
    /// What it waits for, in words.
    pub(super) fn waits_for(&self) -> Option<String> {
        let peer = &self.peer;
        if self.active {
            None
        } else if self.joining.is_some() {
            Some(format!("the prefill worker at {peer} has not answered"))
        } else if self.request.is_some() {
            Some(format!(
                "the prefill worker at {peer} has not asked for blocks: its leg of the request has not come, or its prompt is \
                 not computed yet"
            ))
        } else {
            Some(format!("KV from the prefill worker at {peer} has not arrived"))
        }
    }

    /// Lets the prefill worker know that nobody comes, at once, whether it has been reached or not.
    pub(super) fn leave(self, why: &str) {
        if self.active {
            // It has the KV: the handoff went well, whether its end has been heard yet or not.
            return self.room.completed();
        }
        if let Some(joining) = &self.joining {
            joining.gone.cancel();
        }
        if let Some(outbox) = &self.outbox {
            // A peer that does not listen learns it from the closed connection.
            outbox.say(Message::Abort {
                message: why.to_owned(),
            });
        }
    }
}

impl Handoffs {
    /// Whether what was said has been taken; a request without a connection has nobody to say it to.
    fn tell_source(&self, id: RequestId, message: Message) -> bool {
        let destination = self.destinations.get(&id);
        let outbox = destination.and_then(|destination| destination.outbox.as_ref());
        outbox.is_none_or(|outbox| outbox.say(message))
    }
}

impl Rank {
    /// An answer whose prompt's KV is there: blocks for it, and no prefill.
    pub(super) fn resume(
        &mut self,
        request: EngineRequest,
        now: SimTime,
        ctx: &mut Context<Self>,
    ) -> Result<(), Failure> {
        let id = request.id;
        let reserved = self.engine.reserve_destination(request, now);
        reserved.map_err(|reason| refused(&reason))?;
        self.handoffs.prefilled.insert(id);
        self.do_between(None, ctx);
        Ok(())
    }

    pub(super) fn join(
        &mut self,
        request: EngineRequest,
        meeting: Meeting,
        ctx: &mut Context<Self>,
    ) -> Result<(), Failure> {
        let id = request.id;
        let parts = &self.handoffs.parts;
        if self.handoffs.destinations.len() >= parts.limit as usize {
            let (limit, rank) = (parts.limit, self.index);
            return Err(Failure::Internal(format!(
                "handoff session limit of {limit} reached for {rank}; raise --max-num-seqs"
            )));
        }
        let Some(order) = parts.order else {
            return Err(Failure::Internal("no engine for handoffs".to_owned()));
        };
        let register = Register {
            role: Role::Destination,
            dp_rank: self.index.0,
            order,
            engine_type: parts.engine_type.to_owned(),
        };
        let gone = CancellationToken::new();
        let (limits, told) = (parts.limits, gone.clone());
        let (handoff_id, peer) = (
            meeting.identity.handoff_id,
            format!("{}:{}", meeting.host, meeting.port),
        );
        let joining = parts
            .pool
            .spawn(async move { client::join(&meeting, register, limits, &told).await });
        let destination = Destination {
            handoff_id,
            peer,
            joining: Some(Joining {
                task: joining.abort_handle(),
                gone,
            }),
            request: Some(request),
            outbox: None,
            active: false,
            deadline: self.clock.now() + limits.patience + limits.pairing + parts.session_timeout,
            room: parts.gauge.open(),
        };
        self.handoffs.destinations.insert(id, destination);
        self.watch(ctx);
        ctx.spawn(joining.into_actor(self).map(move |joined, rank, ctx| {
            match joined {
                Ok(Ok(link)) => return rank.joined(id, link, ctx),
                Ok(Err(error)) => rank.turned_away(id, &error),
                Err(error) => rank.fail_handoff(id, &format!("cannot join the prefill worker: {error}")),
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
        destination.joining = None;
        destination.outbox = Some(outbox);
        let said = futures::stream::poll_fn(move |cx| inbox.poll_recv(cx)).map(Some);
        let said = said.chain(futures::stream::once(std::future::ready(None)));
        ctx.add_stream(said.map(move |message| FromSource { id, message }));
    }

    fn turned_away(&mut self, id: RequestId, error: &LinkError) {
        if let LinkError::Refused(why) = error
            && why.starts_with(MISMATCH)
        {
            self.disagree(id, why);
        }
        self.fail_handoff(id, &format!("cannot join the prefill worker: {error}"));
    }

    /// Says once per prefill worker that its KV is of no use here.
    fn disagree(&mut self, id: RequestId, why: &str) {
        let handoffs = &mut self.handoffs;
        let Some(destination) = handoffs.destinations.get(&id) else {
            return;
        };
        if handoffs.disagreements.is_new(&destination.peer) {
            let (actor, rendezvous) = (handoffs.parts.path, &destination.peer);
            tracing::warn!(%actor, %rendezvous, why, "cannot take KV from this prefill worker; said once");
        }
    }

    /// The prompt is computed there, and this is what is known of its KV.
    fn told(&mut self, id: RequestId, timing: TransferTiming) {
        let theirs = timing.kv_bytes_per_token;
        let link = KvTransfer {
            bytes_per_token: theirs,
            bandwidth_gb_s: timing.bandwidth_gb_s,
        };
        let travel = link.duration(timing.full_prompt_tokens).min(LONGEST_TRAVEL);
        let deadline = self.clock.now() + self.handoffs.parts.session_timeout + travel;
        if let Some(destination) = self.handoffs.destinations.get_mut(&id) {
            destination.deadline = deadline;
        }
        let ours = self.handoffs.parts.transfer.link.bytes_per_token;
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && ours != theirs
        {
            let why = format!("its KV has {theirs} bytes per token, ours {ours}: real engines could not hand it over");
            self.disagree(id, &why);
        }
    }

    pub(super) fn reserved(&mut self, id: RequestId, transferable_prompt_tokens: u32) {
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

    pub(super) fn activate(&mut self, id: RequestId, action: u32) {
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
            Some(Message::Fact(Fact::SourceHeld { transfer_timing, .. })) => {
                self.told(id, transfer_timing);
            }
            Some(Message::Registered) => {}
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

impl Rank {
    /// Looks after handoffs whose prefill worker has fallen silent, for as long as there are any.
    fn watch(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.handoffs.watching, true) {
            return;
        }
        let period = (self.handoffs.parts.session_timeout / 4).clamp(SHORTEST_WATCH, LONGEST_WATCH);
        ctx.run_later(period, |rank, ctx| {
            rank.handoffs.watching = false;
            rank.wake(ctx);
            rank.give_up_silent();
            if !rank.handoffs.destinations.is_empty() {
                rank.watch(ctx);
            }
            rank.advance(ctx);
        });
    }

    fn give_up_silent(&mut self) {
        let now = self.clock.now();
        let late = self
            .handoffs
            .destinations
            .iter()
            .filter(|(_, destination)| destination.deadline <= now);
        let late: Vec<_> = late.map(|(&id, destination)| (id, destination.active)).collect();
        for (id, active) in late {
            if !active {
                self.fail_handoff(id, &format!("{ENDED_EARLY}: {TOOK_TOO_LONG}"));
            } else if let Some(destination) = self.handoffs.destinations.remove(&id) {
                // It has the KV; only the end was not said.
                destination.room.completed();
            }
        }
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
