//! What faults do to one handoff of a prefill worker. Decided once, so that its dice are thrown once.

use std::time::Duration;

use crate::faults::WorkerFaults;
use crate::faults::kind::RendezvousFault;
use crate::faults::table::Due;
use crate::types::{span_of_ms, span_of_seconds};

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
#[derive(Debug)]
pub(super) struct Trouble {
    /// With its prompt.
    pub(super) when_ready: WhenReady,
    /// The destination hears of another room.
    pub(super) wrong_room: bool,
    /// Multiple of the time that its KV travels.
    slower: Option<f64>,
    /// Its KV does not arrive.
    loses_link: bool,
    /// The faults behind all this.
    due: Vec<Due<RendezvousFault>>,
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
        slower: None,
        loses_link: false,
        due: Vec::new(),
    };

    /// That of the next handoff.
    #[inline]
    pub(super) fn of(faults: &WorkerFaults) -> Self {
        if faults.is_quiet::<RendezvousFault>() {
            return Self::NONE;
        }
        let mut trouble = Self::NONE;
        let due = faults.draw::<RendezvousFault>();
        for fault in &due {
            match **fault {
                RendezvousFault::Late { ms } => trouble.end_with(WhenReady::Said { late: span_of_ms(ms) }),
                RendezvousFault::NeverReady {} => trouble.end_with(WhenReady::Silence),
                RendezvousFault::Abort {} => trouble.end_with(WhenReady::Abort),
                RendezvousFault::Orphan {} => trouble.end_with(WhenReady::Orphan),
                RendezvousFault::WrongRoom {} => trouble.wrong_room = true,
                RendezvousFault::SlowLink { factor } => trouble.slower = Some(factor),
                RendezvousFault::LostLink {} => trouble.loses_link = true,
            }
        }
        trouble.due = due;
        trouble
    }

    fn happened(&self, is_it: impl Fn(&RendezvousFault) -> bool) {
        self.due.iter().filter(|fault| is_it(fault)).for_each(Due::happened);
    }

    /// The prompt is ready, and what is to become of it does.
    pub(super) fn ends(&self) -> WhenReady {
        match self.when_ready {
            WhenReady::Said { late } if late.is_zero() => {}
            WhenReady::Said { .. } => self.happened(|fault| matches!(fault, RendezvousFault::Late { .. })),
            WhenReady::Silence => self.happened(|fault| matches!(fault, RendezvousFault::NeverReady {})),
            WhenReady::Abort => self.happened(|fault| matches!(fault, RendezvousFault::Abort {})),
            WhenReady::Orphan => self.happened(|fault| matches!(fault, RendezvousFault::Orphan {})),
        }
        self.when_ready
    }

    /// Something has been said for another room.
    pub(super) fn went_astray(&self) {
        self.happened(|fault| matches!(fault, RendezvousFault::WrongRoom {}));
    }

    /// Of several ends the one that comes first counts; lateness gives way to any.
    fn end_with(&mut self, end: WhenReady) {
        if matches!(self.when_ready, WhenReady::Said { .. }) {
            self.when_ready = end;
        }
    }

    /// KV sets out that would travel for `travel`: how long it does, and whether it arrives then.
    pub(super) fn travel(&self, travel: Duration) -> (Duration, bool) {
        let slower = |factor| span_of_seconds(travel.as_secs_f64() * factor);
        let slower = self.slower.map_or(travel, slower);
        if slower != travel {
            self.happened(|fault| matches!(fault, RendezvousFault::SlowLink { .. }));
        }
        if self.loses_link {
            self.happened(|fault| matches!(fault, RendezvousFault::LostLink {}));
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
    use crate::faults::kind::GateFault;
    use crate::faults::select::{Candidate, KvEvents};
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
            events: KvEvents::default(),
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
        let said = WhenReady::Said { late: Duration::ZERO };
        for none in [Trouble::NONE, trouble(&[]), trouble(&["w0 slow factor=2"])] {
            assert!(none.ends() == said && !none.wrong_room && none.due.is_empty());
            assert_eq!(none.travel(Duration::from_secs(1)), (Duration::from_secs(1), true));
        }
    }

    #[test]
    fn links_are_slower_and_break_half_way() {
        let seconds = Duration::from_secs;
        assert_eq!(
            trouble(&["w0 slow_link factor=4"]).travel(seconds(1)),
            (seconds(4), true)
        );
        assert_eq!(
            trouble(&["w0 slow_link factor=0.5"]).travel(seconds(2)),
            (seconds(1), true),
            "a link may be faster, too"
        );
        let none = trouble(&["w0 slow_link factor=0"]);
        assert_eq!(none.travel(seconds(2)), (Duration::ZERO, true));
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

    #[test]
    fn what_came_to_pass_is_counted_and_nothing_else() {
        let counts = |trouble: &Trouble| -> Vec<u64> { trouble.due.iter().map(Due::count).collect() };
        let all = trouble(&["w0 abort", "w0 rendezvous.late ms=250", "w0 lost_link", "w0 wrong_room"]);
        let words: Vec<_> = all.due.iter().map(|due| due.word()).collect();
        let counted = |trouble: &Trouble| {
            let counts = counts(trouble);
            let happened = words.iter().zip(counts).filter(|(_, count)| *count > 0);
            happened.map(|(word, _)| *word).collect::<Vec<_>>()
        };
        assert!(counted(&all).is_empty());
        assert_eq!(all.ends(), WhenReady::Abort);
        assert_eq!(counted(&all), ["abort"], "it never got to travel");
        all.went_astray();
        assert_eq!(counted(&all).len(), 2);
        let slow = trouble(&["w0 slow_link factor=4"]);
        slow.travel(Duration::ZERO);
        assert_eq!(counts(&slow), [0], "nothing times four");
        slow.travel(Duration::from_secs(1));
        assert_eq!(counts(&slow), [1]);
    }
}
