//! What entries of a journal say. Each field stands with an example, so that whoever shows, describes or tests entries has
//! one of every sort.

use std::time::Duration;

use serde::Serialize;

use crate::faults::kind::{Kind, LifeFault};
use crate::faults::{Fault, FaultId, Selector};
use crate::types::WorkerId;

/// The events and an example of each.
macro_rules! events {
    ($(
        $(#[doc = $doc:literal])+
        $event:ident {
            $( $(#[doc = $field_doc:literal])+ $(#[serde($($serde:tt)+)])? $field:ident : $ty:ty = $example:expr, )+
        }
    )+) => {
        /// What an entry says.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(tag = "event", rename_all = "snake_case")]
        pub enum Event {
            $(
                $(#[doc = $doc])+
                $event { $( $(#[doc = $field_doc])+ $(#[serde($($serde)+)])? $field: $ty, )+ },
            )+
        }

        impl Event {
            /// One of each.
            pub fn examples() -> Vec<Self> {
                vec![ $( Self::$event { $( $field: $example, )+ }, )+ ]
            }
        }
    };
}

events! {
    /// A fault was added.
    Added {
        /// Its number.
        id: FaultId = FaultId(3),
        /// The fault.
        fault: Fault = fault(),
    }
    /// A fault was removed.
    Removed {
        /// Its number.
        id: FaultId = FaultId(3),
    }
    /// Its window opened.
    Opened {
        /// Its number.
        id: FaultId = FaultId(3),
        /// Whom it strikes.
        workers: Vec<WorkerId> = vec![WorkerId(1)],
    }
    /// Its window closed, or what it was for is done.
    Closed {
        /// Its number.
        id: FaultId = FaultId(3),
    }
    /// It was taken off some workers.
    Healed {
        /// Whose.
        workers: Vec<WorkerId> = vec![WorkerId(1)],
    }
    /// Dice were thrown at a gate.
    Drawn {
        /// The fault.
        id: FaultId = FaultId(3),
        /// Whose gate.
        worker: WorkerId = WorkerId(1),
        /// How often this gate of this worker had thrown for this fault before.
        draw: u64 = 0,
        /// Whether it happens.
        hit: bool = true,
    }
    /// Something was done to an actor.
    Done {
        /// Because of this fault; `None`: by command.
        id: Option<FaultId> = Some(FaultId(3)),
        /// Actor path.
        path: String = "w1".to_owned(),
        /// What.
        act: &'static str = "crash",
        /// Why it could not be done.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String> = Some("w1 is not alive; restart it first".to_owned()),
    }
    /// An actor died more often than it may; what it belongs to dies with it, and a worker stays dead.
    GaveUp {
        /// The worker.
        worker: WorkerId = WorkerId(1),
        /// Path of the actor that died too often.
        path: String = "w1/r0/kv".to_owned(),
        /// Deaths that are made good within a window.
        budget: u32 = 5,
        /// Length of a window, seconds.
        window_s: f64 = 60.0,
    }
    /// A worker is somewhere else in its life.
    State {
        /// Which one.
        worker: WorkerId = WorkerId(1),
        /// Where.
        state: &'static str = "dead",
    }
}

/// One that has everything that a fault may have.
fn fault() -> Fault {
    let crash = Kind::from(LifeFault::Crash {
        actor: Some("r0".to_owned()),
        restart_after_ms: None,
        same_id: false,
    });
    Fault {
        probability: 0.5,
        from: Duration::from_secs(1),
        to: Some(Duration::from_secs(2)),
        seed: 4,
        ..Fault::new(Selector::worker(WorkerId(1)), crash)
    }
}
