//! Prompts that a rank computes for others.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::super::super::handoff_faults::{ABORTED, LINK_LOST, Trouble, WhenReady};
use super::super::super::handoff_gauge::{OpenRoom, OpenTransfer};
use super::super::super::rendezvous::{Held, Offer, TOOK_TOO_LONG};
use super::super::{OpenStream, Rank};
use super::{Between, invalid, refused, rejected};
use crate::engine::{HandoffRefused, Semantics};
use crate::transport::intake::Failure;
use crate::transport::rendezvous::Meeting;
use crate::types::{EngineRequest, FinishReason, RequestId, SimTime, StopRule};

/// A prompt computed for someone else.
pub(super) struct Source {
    /// Until it is given to the engine.
    request: Option<EngineRequest>,
    /// Whether someone is met for it at the rendezvous.
    pub(super) met: bool,
    /// Whether the engine keeps its blocks.
    pub(super) keeps_blocks: bool,
    prompt_tokens: u32,
    /// Why its answer will have ended.
    pub(super) finish: Option<FinishReason>,
    /// While its KV travels without a rendezvous.
    travel: Option<(OpenRoom, OpenTransfer)>,
}

/// Somebody wants the KV of an offered prompt: compute it.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super::super) struct SourceMet(pub(in super::super::super) RequestId);

/// The KV of an offered prompt has arrived.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super::super) struct SourceReleased(pub(in super::super::super) RequestId);

/// Nobody will get the KV of an offered prompt.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super::super) struct SourceFailed {
    pub(in super::super::super) id: RequestId,
    pub(in super::super::super) why: String,
}

/// A live prefill worker brings one token, whatever it is asked for: the first of a recorded answer in Dynamo 1.6.1, while
/// 1.4.2 looks up no recordings there. It is said with the request, because an engine of 1.4.2 has no such limit of its own:
/// in replays of that release it generates the whole answer.
pub(super) fn ask_for_one_token(request: &mut EngineRequest, semantics: Semantics) {
    request.stop = StopRule::one_token();
    if let Some(planned) = request.planned.take() {
        request.planned = match semantics {
            Semantics::V1_6_1 => planned.first().map(|&first| [first].into()),
            Semantics::V1_4_2 => None,
        };
    }
}

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

    /// What it waits for, in words.
    pub(super) fn waits_for(&self) -> String {
        let words = if self.request.is_some() {
            "its prompt waits in a room of the rendezvous: the decode worker has not come, or has no blocks for it yet"
        } else if self.finish.is_none() {
            "its prompt is not computed yet"
        } else if self.met {
            "its prompt is computed; its blocks are kept until the decode worker has the KV"
        } else {
            "its prompt is computed; its blocks are kept while the KV travels"
        };
        words.to_owned()
    }
}

impl Rank {
    /// A prompt whose KV nobody comes for: it travels for as long as the model says.
    pub(super) fn submit_alone(&mut self, request: EngineRequest, now: SimTime) -> Result<(), Failure> {
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

    pub(super) fn offer(
        &mut self,
        request: EngineRequest,
        meeting: &Meeting,
        ctx: &mut Context<Self>,
    ) -> Result<(), Failure> {
        let Some(rendezvous) = &self.handoffs.rendezvous else {
            return Err(invalid(
                "this worker has no rendezvous; start it with --bootstrap-ports",
            ));
        };
        let id = request.id;
        rendezvous.do_send(Offer::new(id, meeting.identity, ctx.address(), self.index));
        let mut source = Source::new(request.prompt.len());
        source.met = true;
        source.request = Some(request);
        self.handoffs.sources.insert(id, source);
        Ok(())
    }

    /// A prompt is computed.
    pub(super) fn held(&mut self, id: RequestId, at: SimTime, ctx: &mut Context<Self>) {
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
        let trouble = Trouble::of(self.faults.post.table());
        source.travel = Some((parts.gauge.open(), parts.gauge.transfer()));
        let after = match trouble.ends() {
            WhenReady::Said { late } => late,
            WhenReady::Abort => return self.fail_handoff(id, ABORTED),
            WhenReady::Silence | WhenReady::Orphan => {
                return Self::fail_later(id, parts.session_timeout, TOOK_TOO_LONG, ctx);
            }
        };
        let (travel, arrives) = trouble.travel(parts.transfer.link.duration(prompt_tokens));
        let arrives_at = at + after + travel;
        let travel = arrives_at.since(self.clock.now());

        if !arrives {
            return Self::fail_later(id, travel, LINK_LOST, ctx);
        }
        if travel.is_zero() {
            return self.release(id);
        }
        ctx.run_later(travel, move |rank, ctx| {
            rank.wake(ctx);
            rank.do_between(Some(Between::Release(id)), ctx);
            rank.advance(ctx);
        });
    }

    fn fail_later(id: RequestId, after: Duration, why: &'static str, ctx: &mut Context<Self>) {
        ctx.run_later(after, move |rank, ctx| {
            rank.wake(ctx);
            rank.fail_handoff(id, why);
            rank.advance(ctx);
        });
    }

    pub(super) fn release(&mut self, id: RequestId) {
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
