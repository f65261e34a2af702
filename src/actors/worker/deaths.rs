//! What happens when a child dies, and how to make it die.

use std::time::Duration;

use actix::prelude::*;

use super::super::death::{Death, Die};
use super::super::fleet::CommandError;
use super::super::kv_publisher::Publish;
use super::super::liveness::{Cause, Child, Died};
use super::super::path::ActorPath;
use super::super::rank::CachedBlocks;
use super::super::supervision::{Supervised, Verdict};
use super::Worker;

/// A command for one of the worker's children.
#[derive(Message)]
#[rtype(result = "Result<(), NoChild>")]
pub(in super::super) struct KillChild(pub(in super::super) Child, pub(in super::super) Death);

/// Why a child cannot be reached.
#[derive(Debug)]
pub(in super::super) enum NoChild {
    /// No worker of this shape has it.
    Unknown,
    /// It has died and is replaced in a while.
    Down(ActorPath, Duration),
}

impl NoChild {
    /// For whoever asked for `path`.
    pub(in super::super) fn error(self, path: ActorPath) -> CommandError {
        match self {
            Self::Unknown => CommandError::NoSuchActor(path),
            Self::Down(path, back_in) => CommandError::Down { path, back_in },
        }
    }
}

impl Worker {
    /// Why `child`, which has no actor now, has none.
    pub(super) fn without(&self, child: Child) -> NoChild {
        let path = self.path(Some(child));
        match self.entry.back_in(&path.to_string(), self.shared.clock.now()) {
            Some(back_in) => NoChild::Down(path, back_in),
            None => NoChild::Unknown,
        }
    }

    fn restart(&mut self, child: Child, ctx: &mut Context<Self>) {
        if self.leaving {
            return;
        }
        self.entry.count_restart();
        tracing::info!(actor = %self.path(Some(child)), "restarting");
        match child {
            Child::Rank(rank) => {
                let index = rank as usize;
                if let Err(error) = self.start_rank(index, self.shared.clock.now(), ctx) {
                    tracing::error!(%error, "cannot restart");
                    return self.give_up(ctx);
                }
                // The new rank's cache is empty, and the router has to hear of it.
                if let Some(publisher) = &self.ranks[index].publisher {
                    publisher.do_send(Publish::Replace(Vec::new(), Vec::new()));
                }
            }
            Child::Kv(rank) => self.restart_publisher(rank as usize, ctx),
            Child::Native(rank) => self.start_native(rank as usize, ctx),
            Child::Metrics => {
                let old = self.metrics_records();
                self.start_reporter(ctx);
                self.replace_records(&old, self.metrics_records());
            }
            Child::Lease => self.start_registrar(ctx),
            Child::Rendezvous => self.start_rendezvous(ctx),
            Child::Worker(_) => {}
        }
    }

    /// Asks the rank for its true blocks first; a rank that is dead itself has none.
    fn restart_publisher(&mut self, index: usize, ctx: &mut Context<Self>) {
        let old = self.kv_records(&self.ranks[index]);
        let old_name = self.records().query_name(self.ranks[index].publisher_id);
        self.sockets.requests.withdraw(&old_name, self.instance);
        let rank = self.ranks[index].actor.clone();
        let blocks = async move {
            match rank {
                Some(rank) => rank.send(CachedBlocks).await.unwrap_or_default(),
                None => Vec::new(),
            }
        };
        ctx.spawn(blocks.into_actor(self).map(move |blocks, worker, ctx| {
            worker.start_publisher(index, &blocks, ctx);
            worker.when_reachable(ctx, move |worker, _| {
                let new = worker.kv_records(&worker.ranks[index]);
                worker.replace_records(&old, new);
            });
        }));
    }

    /// A child is beyond its budget: the worker is not worth keeping. The fleet decides what comes after.
    pub(super) fn give_up(&mut self, ctx: &mut Context<Self>) {
        self.liveness.set_cause(Cause::Escalated);
        ctx.stop();
    }
}

impl Handler<Died> for Worker {
    type Result = ();

    fn handle(
        &mut self,
        Died {
            child,
            incarnation,
            cause,
        }: Died,
        ctx: &mut Self::Context,
    ) {
        let now = self.shared.clock.now();
        let policy = self.shared.restarts;
        let path = self.path(Some(child));
        let (current, restarts) = match child {
            Child::Rank(rank) => {
                let slot = &mut self.ranks[rank as usize];
                if incarnation == slot.rank_incarnation {
                    slot.actor = None;
                    self.gate.set_rank(rank, None);
                }
                (slot.rank_incarnation, &mut slot.rank_restarts)
            }
            Child::Kv(rank) => {
                let slot = &mut self.ranks[rank as usize];
                if incarnation == slot.publisher_incarnation {
                    slot.publisher = None;
                }
                (slot.publisher_incarnation, &mut slot.publisher_restarts)
            }
            Child::Native(rank) => {
                let slot = &mut self.ranks[rank as usize];
                if incarnation == slot.native_incarnation {
                    slot.native = None;
                }
                (slot.native_incarnation, &mut slot.native_restarts)
            }
            Child::Metrics => (self.reporter.incarnation, &mut self.reporter.restarts),
            Child::Lease => {
                if incarnation == self.lease_incarnation {
                    self.registrar = None;
                    self.entry.set_listed(false);
                    if self.said_goodbye {
                        // Nobody is left to close the lease: it runs out by itself.
                        return self.left(ctx);
                    }
                }
                (self.lease_incarnation, &mut self.lease_restarts)
            }
            Child::Rendezvous => {
                if incarnation == self.rendezvous.incarnation {
                    self.lose_rendezvous();
                }
                (self.rendezvous.incarnation, &mut self.rendezvous.restarts)
            }
            Child::Worker(_) => return,
        };
        if incarnation != current || self.leaving {
            return;
        }
        let verdict = restarts.on_death(&policy, now);
        let seen = Supervised::new((path.to_string(), cause), restarts, &policy, now, verdict.backoff());
        self.entry.note_death(seen);
        match verdict {
            Verdict::RestartAfter(wait) => {
                tracing::warn!(actor = %path, ?cause, ?wait, "died; will be replaced");
                ctx.run_later(wait, move |worker, ctx| worker.restart(child, ctx));
            }
            Verdict::GiveUp => {
                tracing::error!(actor = %path, ?cause, budget = policy.budget, "died too often; giving the worker up");
                self.entry.note_gave_up(path.to_string(), &policy);
                self.give_up(ctx);
            }
        }
    }
}

impl Handler<KillChild> for Worker {
    type Result = Result<(), NoChild>;

    fn handle(&mut self, KillChild(child, death): KillChild, _: &mut Self::Context) -> Self::Result {
        let slot = |rank: u32| self.ranks.get(rank as usize);
        let sent = match child {
            Child::Rank(rank) => slot(rank)
                .and_then(|slot| slot.actor.as_ref())
                .map(|a| a.do_send(Die(death))),
            Child::Kv(rank) => slot(rank)
                .and_then(|slot| slot.publisher.as_ref())
                .map(|a| a.do_send(Die(death))),
            Child::Native(rank) => slot(rank)
                .and_then(|slot| slot.native.as_ref())
                .map(|a| a.do_send(Die(death))),
            Child::Metrics => self.reporter.actor.as_ref().map(|a| a.do_send(Die(death))),
            Child::Lease => self.registrar.as_ref().map(|a| a.do_send(Die(death))),
            Child::Rendezvous => self.rendezvous.actor.as_ref().map(|a| a.do_send(Die(death))),
            Child::Worker(_) => None,
        };
        sent.ok_or_else(|| self.without(child))
    }
}
