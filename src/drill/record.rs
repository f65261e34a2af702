//! What was seen during a drill: requests as clients saw them, requests as the fleet saw them, figures, moments. Times are
//! seconds since the drill's start.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::faults::journal::Entry;
use crate::faults::select::Candidate;

mod moment;
mod program;
mod request;

pub use moment::{Moment, Tally};
pub use program::ProgramRun;
pub use request::{Failure, Request};

/// Everything that checks and reports look at.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Seed of all choices.
    pub seed: u64,
    /// Requests sent before count for nothing.
    pub warmup: f64,
    /// End of loads and timeline.
    pub duration: f64,
    /// Whether a router stands between loads and fleet.
    pub has_frontend: bool,
    /// Workers as selectors see them, by position.
    pub workers: Vec<Candidate>,
    /// Which of them only prefill.
    pub prefill: Vec<bool>,
    /// Whose address is nobody's while they are away, so that what comes to it then is not seen.
    pub unseen_when_away: Vec<bool>,
    /// Names of the loads.
    pub loads: Vec<String>,
    /// Loads that are programs, and what became of them; those that were started.
    pub programs: Vec<ProgramRun>,
    /// Requests, in the order in which they ended.
    pub requests: Vec<Request>,
    /// What came to the fleet, in order.
    pub arrivals: Vec<Arrival>,
    /// Arrivals that were too many to keep.
    pub arrivals_lost: u64,
    /// The fleet, every so often.
    pub samples: Vec<Sample>,
    /// Moments of the timeline, in order.
    pub moments: Vec<Moment>,
    /// Where workers were in their lives from when on.
    pub states: Vec<State>,
    /// The fleet's journal, dice included.
    pub journal: Vec<Entry>,
    /// What was still held when the drill had settled.
    pub held: Held,
    /// How long that took after the end of the loads.
    pub settled_after: f64,
    /// Comparisons of a router's index with the truth; none where it cannot be asked.
    pub drift: Vec<Drift>,
    /// Who was asked for them.
    pub witness: Witness,
    /// The end of the log of a router that the drill has started.
    pub router_log: String,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// Who was asked what is believed of the workers' caches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Witness {
    /// The scenario names it: that it cannot be asked is a failure.
    pub is_named: bool,
    /// It is an index of its own, and there need not be a router.
    pub is_standalone: bool,
    /// Why it could not be asked, the last time that it could not.
    pub problem: Option<String>,
}

/// One request as it came to the fleet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Arrival {
    /// When.
    pub at: f64,
    /// To whom; `None`: to an instance that no worker ever was.
    pub worker: Option<u32>,
    /// Whether anybody was there to take it.
    pub alive: bool,
    /// Id that the router gave it.
    pub request: String,
}

/// The fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// When.
    pub at: f64,
    /// Workers that serve.
    pub ready: u32,
    /// What requests hold.
    pub held: Held,
    /// Prompt tokens admitted since the start.
    pub prompt_tokens: u64,
    /// Those of them that were cached.
    pub cached_tokens: u64,
    /// Tokens handed out since the start.
    pub tokens: u64,
    /// Recovery queries of routers that were answered since the start.
    pub recoveries: u64,
    /// Requests in the engine of each worker.
    pub load: Vec<u32>,
}

/// What requests hold at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Response sockets.
    pub streams: u64,
    /// Requests in engines.
    pub sequences: u64,
    /// Referenced KV blocks.
    pub blocks: u64,
    /// Handoffs.
    pub rooms: u64,
}

impl Held {
    /// All of it.
    pub fn sum(self) -> u64 {
        self.streams + self.sequences + self.blocks + self.rooms
    }
}

/// A worker from a moment on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct State {
    /// From when on.
    pub at: f64,
    /// Which worker.
    pub worker: u32,
    /// Where it is in its life.
    pub state: String,
}

/// A router's index against the truth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Drift {
    /// When.
    pub at: f64,
    /// Blocks that are cached and that the index does not have.
    pub missing: u64,
    /// Blocks that the index has and that are not cached.
    pub phantom: u64,
    /// Blocks that are cached.
    pub cached: u64,
}

impl Drift {
    /// Blocks that the index has wrong, of all that either side knows.
    #[allow(clippy::cast_precision_loss)]
    pub fn share(&self) -> f64 {
        let wrong = self.missing + self.phantom;
        let all = self.cached + self.phantom;
        if all == 0 { 0.0 } else { wrong as f64 / all as f64 }
    }
}

impl Record {
    /// Of a drill of which nothing was seen: all that is known is its seed.
    pub fn unseen(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Tells each request the workers that it came to, by the id that router and fleet share.
    pub fn join(&mut self) {
        let mut came: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for arrival in &self.arrivals {
            if let Some(worker) = arrival.worker
                && !arrival.request.is_empty()
                && !self.prefill.get(worker as usize).copied().unwrap_or(false)
            {
                came.entry(&arrival.request).or_default().push(worker);
            }
        }
        for request in &mut self.requests {
            let Some(id) = &request.id else { continue };
            // `cmpl-<id>`
            let inner = id.split_once('-').map_or(id.as_str(), |(_, inner)| inner);
            if let Some(workers) = came.get(inner).or_else(|| came.get(id.as_str())) {
                request.workers.clone_from(workers);
            }
        }
    }

    /// Says so when there are answers that do not tell their length, or not what they consist of. `unforetold`: why no
    /// client knows that beforehand, so that nobody has asked.
    pub fn note_unjudged(&mut self, unforetold: Option<&str>) {
        let answers = || self.requests.iter().filter(|request| request.failure.is_none());
        let uncounted = answers().filter(|request| !request.is_counted).count();
        let (all, unnamed) = (
            answers().count(),
            answers().filter(|request| !request.is_judged).count(),
        );
        let mut notes = Vec::new();
        if uncounted > 0 {
            notes.push(format!(
                "{uncounted} answers came without usage.completion_tokens: nobody can tell whether they are as long as \
                 asked for"
            ));
        }
        match unforetold {
            Some(why) if all > 0 => notes.push(format!("what answers consist of was not looked at: {why}")),
            None if unnamed > 0 => notes.push(format!(
                "{unnamed} answers tell neither the ids of their tokens nor a text that can be compared: nobody knows \
                 whether they are what the workers gave"
            )),
            Some(_) | None => {}
        }
        self.notes.extend(notes);
    }

    /// Two clients cannot have one answer: whoever has it second has another's.
    pub fn refuse_shared_answers(&mut self) {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for request in &mut self.requests {
            let Some(id) = &request.id else { continue };
            if !seen.insert(id) && request.failure.is_none() {
                request.failure = Some(Failure {
                    kind: "wrong_content".to_owned(),
                    detail: format!("its id {id} is that of another client's answer"),
                });
            }
        }
    }

    /// Takes out requests that the drill has sent for its own ends.
    pub fn leave_out(&mut self, own: &BTreeSet<String>) {
        self.arrivals.retain(|arrival| !own.contains(&arrival.request));
    }

    /// The first moment that disturbs.
    pub fn first_disturbance(&self) -> Option<&Moment> {
        self.moments.iter().find(|moment| moment.disturbs)
    }

    /// A moment by name.
    pub fn moment(&self, mark: &str) -> Option<&Moment> {
        self.moments.iter().find(|moment| moment.mark == mark)
    }

    /// Whether a worker is gone at some time from `from` until before `until`.
    pub fn is_away(&self, worker: u32, from: f64, until: f64) -> bool {
        let gone = |state: &State| matches!(state.state.as_str(), "dead" | "left");
        let own = || self.states.iter().filter(|state| state.worker == worker);
        let at_first = own().rfind(|state| state.at <= from);
        at_first.is_some_and(gone) || own().any(|state| from < state.at && state.at < until && gone(state))
    }

    /// When a worker serves again after having been away at some time after `at`.
    pub fn returned(&self, worker: u32, at: f64) -> Option<f64> {
        let later = self
            .states
            .iter()
            .filter(|state| state.worker == worker && state.at >= at);
        let mut away = false;
        for state in later {
            match state.state.as_str() {
                "ready" if away => return Some(state.at),
                "ready" => {}
                _ => away = true,
            }
        }
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    pub(in crate::drill) use super::request::tests::{failed, request};
    use super::*;
    use crate::faults::select::KvEvents;
    use crate::types::WorkerId;

    /// Ten seconds with a router and four workers; w1 is struck at 4 s.
    pub(in crate::drill) fn record() -> Record {
        Record {
            duration: 10.0,
            has_frontend: true,
            workers: (0..4)
                .map(|id| Candidate {
                    id: WorkerId(id),
                    group: "a".into(),
                    labels: Vec::new(),
                    alive: true,
                    requests: 0,
                    cached_blocks: 0,
                    events: KvEvents::default(),
                })
                .collect(),
            prefill: vec![false; 4],
            loads: vec!["probe".into()],
            moments: vec![Moment {
                mark: "crash".into(),
                at: 4.0,
                lines: vec!["w1 crash".into()],
                disturbs: true,
                may_miss: false,
                faults: Vec::new(),
                victims: vec![1],
                errors: Vec::new(),
            }],
            ..Record::default()
        }
    }

    pub(in crate::drill) fn arrival(at: f64, worker: u32, request: &str) -> Arrival {
        Arrival {
            at,
            worker: Some(worker),
            alive: true,
            request: request.into(),
        }
    }

    #[test]
    fn a_request_is_joined_with_all_workers_that_it_came_to() {
        let mut record = record();
        record.prefill[0] = true;
        record.requests = vec![Request {
            id: Some("cmpl-a-b".into()),
            ..request(1.0, 0.1)
        }];
        record.arrivals = vec![
            arrival(1.0, 0, "a-b"),
            arrival(1.1, 1, "a-b"),
            arrival(1.2, 2, "a-b"),
            arrival(1.2, 3, "c"),
        ];
        record.join();
        assert_eq!(record.requests[0].workers, [1, 2]);
        record.leave_out(&["a-b".to_owned()].into());
        assert_eq!(record.arrivals.len(), 1);
    }

    #[test]
    fn answers_that_do_not_tell_their_length_or_their_tokens_are_noted() {
        let mut record = record();
        record.requests = vec![request(1.0, 0.1), failed(1.0, "reset", 0.1)];
        record.note_unjudged(None);
        assert!(record.notes.is_empty(), "{:?}", record.notes);
        record.requests[0].is_counted = false;
        record.requests[0].is_judged = false;
        record.note_unjudged(None);
        record.note_unjudged(Some("they think"));
        let starts = |index: usize, words: &str| record.notes[index].starts_with(words);
        assert!(starts(0, "1 answers came without usage"), "{:?}", record.notes);
        assert!(starts(1, "1 answers tell neither the ids"), "{:?}", record.notes);
        assert!(
            starts(3, "what answers consist of was not looked at: they think"),
            "{:?}",
            record.notes
        );
    }

    #[test]
    fn an_answer_that_two_clients_get_is_wrong_for_one_of_them() {
        let mut record = record();
        let with_id = |id: &str| Request {
            id: Some(id.to_owned()),
            ..request(1.0, 0.1)
        };
        record.requests = vec![
            with_id("cmpl-a"),
            with_id("cmpl-b"),
            with_id("cmpl-a"),
            request(1.0, 0.1),
            request(1.0, 0.1),
        ];
        record.refuse_shared_answers();
        let failed: Vec<usize> = (0..5).filter(|at| record.requests[*at].failure.is_some()).collect();
        assert_eq!(failed, [2]);
    }

    #[test]
    fn a_worker_returns_when_it_has_been_away() {
        let mut record = record();
        record.states = [(0.0, "ready"), (4.0, "dead"), (6.0, "starting"), (6.5, "ready")]
            .map(|(at, state)| State {
                at,
                worker: 1,
                state: state.into(),
            })
            .to_vec();
        assert_eq!(record.returned(1, 4.0), Some(6.5));
        assert_eq!((record.returned(1, 6.2), record.returned(2, 0.0)), (None, None));
        for (from, until, away) in [(0.0, 4.0, false), (0.0, 4.1, true), (5.0, 5.5, true), (6.0, 9.0, false)] {
            assert_eq!(record.is_away(1, from, until), away, "{from} to {until}");
        }
        assert!(!record.is_away(2, 0.0, 9.0));
    }
}
