//! What faults do to one handoff of a prefill worker. Decided once, so that its dice are thrown once.

use std::time::Duration;

use crate::faults::WorkerFaults;
use crate::faults::kind::RendezvousFault;
use crate::types::span_of_ms;

/// What becomes of a prompt that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenReady {
    /// It is said, so much later than it is true.
    Said {
        /// Delay.
        late: Duration,
    },
    /// It is never said.
    Silence,
    /// The handoff is broken off.
    Abort,
    /// The handoff is forgotten, and the blocks are kept.
    Orphan,
}

/// What goes wrong with one handoff.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trouble {
    /// With its prompt.
    pub(super) when_ready: WhenReady,
    /// The destination hears of another room.
    pub(super) wrong_room: bool,
    /// Multiple of the time that its KV travels.
    slower: f64,
    /// Its KV does not arrive.
    loses_link: bool,
}

/// Text of the error of what is broken off.
pub(super) const ABORTED: &str = "injected fault: the prefill worker breaks the handoff off";
/// The same of a transfer.
pub(super) const LINK_LOST: &str = "injected fault: the link was lost during the transfer";

impl Trouble {
    /// None.
    pub(super) const NONE: Self = Self {
        when_ready: WhenReady::Said { late: Duration::ZERO },
        wrong_room: false,
        slower: 1.0,
        loses_link: false,
    };

    /// That of the next handoff.
    #[inline]
    pub(super) fn of(faults: &WorkerFaults) -> Self {
        if faults.is_quiet::<RendezvousFault>() {
            return Self::NONE;
        }
        let mut trouble = Self::NONE;
        for fault in faults.ask::<RendezvousFault>() {
            match fault {
                RendezvousFault::Late { ms } => trouble.end_with(WhenReady::Said { late: span_of_ms(ms) }),
                RendezvousFault::NeverReady {} => trouble.end_with(WhenReady::Silence),
                RendezvousFault::Abort {} => trouble.end_with(WhenReady::Abort),
                RendezvousFault::Orphan {} => trouble.end_with(WhenReady::Orphan),
                RendezvousFault::WrongRoom {} => trouble.wrong_room = true,
                RendezvousFault::SlowLink { factor } => trouble.slower = factor,
                RendezvousFault::LostLink {} => trouble.loses_link = true,
            }
        }
        trouble
    }

    /// Of several ends the one that comes first counts; lateness gives way to any.
    fn end_with(&mut self, end: WhenReady) {
        if matches!(self.when_ready, WhenReady::Said { .. }) {
            self.when_ready = end;
        }
    }

    /// How long KV travels that would travel for `travel`, and whether it arrives then.
    pub(super) fn travel(&self, travel: Duration) -> (Duration, bool) {
        let slower = if self.slower > 1.0 {
            Duration::try_from_secs_f64(travel.as_secs_f64() * self.slower).unwrap_or(Duration::MAX)
        } else {
            travel
        };
        if self.loses_link {
            (slower / 2, false)
        } else {
            (slower, true)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::faults::select::Candidate;
    use crate::faults::{Fault, Journal, Ledger};
    use crate::types::{SimTime, WorkerId};

    fn trouble(lines: &[&str]) -> Trouble {
        let journal = Arc::new(Journal::new(|| SimTime::ZERO));
        let mut ledger = Ledger::new(1, Arc::clone(&journal));
        let fleet = [Candidate {
            id: WorkerId(0),
            group: String::new(),
            labels: vec![("role".to_owned(), "prefill".to_owned())],
            alive: true,
            requests: 0,
            cached_blocks: 0,
            durable_events: false,
        }];
        let faults: Vec<Fault> = lines.iter().map(|line| line.parse().unwrap()).collect();
        ledger.change(&[], faults, SimTime::ZERO, &fleet).unwrap();
        ledger.turn(SimTime::ZERO, &fleet);
        let table = WorkerFaults::new(WorkerId(0), journal);
        table.set(ledger.table(WorkerId(0)));
        Trouble::of(&table)
    }

    #[test]
    fn without_a_fault_there_is_no_trouble() {
        assert_eq!(trouble(&[]), Trouble::NONE);
        assert_eq!(trouble(&["w0 slow factor=2"]), Trouble::NONE);
        assert_eq!(
            Trouble::NONE.travel(Duration::from_secs(1)),
            (Duration::from_secs(1), true)
        );
    }

    #[test]
    fn links_are_slower_and_break_half_way() {
        let seconds = Duration::from_secs;
        assert_eq!(
            trouble(&["w0 slow_link factor=4"]).travel(seconds(1)),
            (seconds(4), true)
        );
        let both = trouble(&["w0 slow_link factor=4", "w0 lost_link"]);
        assert_eq!(both.travel(seconds(1)), (seconds(2), false));
    }

    #[test]
    fn an_end_wins_over_lateness() {
        let late = WhenReady::Said {
            late: Duration::from_millis(250),
        };
        assert_eq!(trouble(&["w0 rendezvous.late ms=250"]).when_ready, late);
        assert_eq!(
            trouble(&["w0 rendezvous.late ms=250", "w0 abort"]).when_ready,
            WhenReady::Abort
        );
        assert_eq!(
            trouble(&["w0 orphan", "w0 rendezvous.late ms=250"]).when_ready,
            WhenReady::Orphan
        );
    }
}
