//! Notice of death: a value that an actor owns and that reports when it is dropped.
//!
//! actix drops an actor's state on a normal stop, on a panic and when its arbiter ends; so the drop of this value is
//! the one sign that never fails to come.

use actix::prelude::*;
use serde::Serialize;

/// How an actor came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It was stopped: killed by request, if that was before its time.
    #[serde(rename = "killed")]
    Stopped,
    /// It panicked.
    Panicked,
    /// It gave itself up because a child of it died too often.
    Escalated,
}

/// An actor has died.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Died {
    /// Which of its parent's children.
    pub child: Child,
    /// Its incarnation, so that news of an older one can be told from news of the current one.
    pub incarnation: u32,
    /// How.
    pub cause: Cause,
}

/// A child, as its parent knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// A worker, by position in the fleet.
    Worker(u32),
    /// A worker's rank.
    Rank(u32),
    /// A rank's KV publisher.
    Kv(u32),
    /// A rank's native event stream.
    Native(u32),
    /// A worker's metrics reporter.
    Metrics,
    /// A worker's registrar.
    Lease,
    /// A prefill worker's rendezvous.
    Rendezvous,
}

/// Owned by an actor; tells its parent when it goes.
pub struct Liveness {
    parent: Recipient<Died>,
    child: Child,
    incarnation: u32,
    cause: Cause,
}

impl Liveness {
    /// A notice to `parent` about `child`.
    pub fn new(parent: Recipient<Died>, child: Child, incarnation: u32) -> Self {
        Self {
            parent,
            child,
            incarnation,
            cause: Cause::Stopped,
        }
    }

    /// What to report when it comes to a normal end.
    pub(super) fn set_cause(&mut self, cause: Cause) {
        self.cause = cause;
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        let cause = if std::thread::panicking() {
            Cause::Panicked
        } else {
            self.cause
        };
        self.parent.do_send(Died {
            child: self.child,
            incarnation: self.incarnation,
            cause,
        });
    }
}
