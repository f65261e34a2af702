//! How a worker goes: politely, or as the end of a process does.

use std::time::Duration;

use actix::prelude::*;

use super::super::death::{Death, Die};
use super::super::fleet::WorkerNews;
use super::super::registrar::{Leave, Withdraw};
use super::super::registry::WorkerState;
use super::Worker;
use crate::transport::discovery::EndpointName;

/// Unlist the worker, finish its streams, then leave.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct Drain;

/// A drained worker stays reachable for this long after its records are gone: requests that were on their way are
/// served too.
const LATE_REQUESTS: Duration = Duration::from_millis(500);

/// How often a draining worker looks whether it is done.
const DRAIN_CHECK: Duration = Duration::from_millis(20);

impl Worker {
    fn leave(&mut self, ctx: &mut Context<Self>) {
        let name = &self.plan.group.endpoint;
        self.sockets.requests.withdraw(name, self.instance);
        match &self.registrar {
            Some(registrar) => registrar.do_send(Leave),
            None => self.left(ctx),
        }
    }

    pub(super) fn left(&mut self, ctx: &mut Context<Self>) {
        self.left = true;
        self.sockets.close_events();
        self.fleet.do_send(WorkerNews::Left(self.plan.id));
        ctx.stop();
    }

    fn is_idle(&self) -> bool {
        self.entry.open_streams() == 0
    }
}

impl Handler<Drain> for Worker {
    type Result = ();

    fn handle(&mut self, _: Drain, ctx: &mut Self::Context) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.entry.set_state(WorkerState::Draining);
        if let Some(registrar) = &self.registrar {
            registrar.do_send(Withdraw(
                self.records().serving().into_iter().map(|record| record.key).collect(),
            ));
        }
        ctx.run_later(LATE_REQUESTS, |worker, ctx| {
            if let Some(face) = &worker.sockets.face {
                face.shutdown().stop_accepting.cancel();
            }
            ctx.run_interval(DRAIN_CHECK, |worker, ctx| {
                if worker.is_idle() && !worker.said_goodbye {
                    worker.said_goodbye = true;
                    worker.leave(ctx);
                }
            });
        });
    }
}

impl Drop for Worker {
    /// What the end of a process does: doors shut, sockets reset, nothing said.
    fn drop(&mut self) {
        self.gate.close();
        let end = |name: &EndpointName| {
            if self.left {
                self.sockets.requests.withdraw(name, self.instance);
            } else {
                self.sockets.requests.crash(name, self.instance);
            }
        };
        end(&self.plan.group.endpoint);
        for slot in &self.ranks {
            end(&self.records().query_name(slot.publisher_id));
            if let Some(rank) = &slot.actor {
                rank.do_send(Die(Death::Crash));
            }
            if let Some(publisher) = &slot.publisher {
                publisher.do_send(Die(Death::Crash));
            }
            if let Some(native) = &slot.native {
                native.do_send(Die(Death::Crash));
            }
        }
        if let Some(reporter) = &self.reporter.actor {
            reporter.do_send(Die(Death::Crash));
        }
        if let Some(rendezvous) = &self.rendezvous.actor {
            rendezvous.do_send(Die(Death::Crash));
        }
        if let Some(registrar) = &self.registrar {
            registrar.do_send(Die(Death::Crash));
        }
        if !self.left {
            self.sockets.crash();
        }
        // Connections that all workers share outlive this one; what it has spoiled there ends with it.
        self.entry.faults.mending().mend();
        self.entry.streams.held.forget_lost();
    }
}
