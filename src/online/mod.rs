//! `replay --replay-mode online`: the workload in real time, against workers that live in this process.
//!
//! The workers are those of `serve`, found in memory, with the replay's engines and a small model of our own; requests
//! reach their ranks without a wire, and the halves of a disaggregated one meet at the prefill worker's rendezvous. Round
//! robin or the KV router model decides where they go. The router hears of cache changes when ranks announce them.

mod fleet;
mod sink;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use uuid::Uuid;

use crate::cli::ReplayArgs;
use crate::replay::{Answer, Control, LiveRun, Outgoing, Part, Progress, Report, Source};
use crate::replay_run::{RealTimePlan, RunError};
use crate::router::Target;
use crate::transport::intake::{Intake, Leg, Refusal, Submission, next_request_id};
use crate::transport::rendezvous::{Identity, Meeting};
use crate::types::{RequestId, SimTime};

use fleet::LiveFleet;
use sink::{Heard, LiveSink};

/// Longest wait between two looks at everything.
const LOOK: Duration = Duration::from_millis(100);
/// How long a full mailbox is left alone.
const FULL: Duration = Duration::from_millis(1);
/// How long workers may take to end.
const FAREWELL: Duration = Duration::from_secs(10);

fn wrong(what: &dyn std::fmt::Display) -> RunError {
    RunError::Online(what.to_string())
}

/// Runs the workload that the flags name. `observe` is asked several times a second and can end the run.
///
/// # Errors
/// [`RunError`] as for an offline replay, and when the workers cannot be started.
pub fn execute(args: &ReplayArgs, observe: &mut dyn FnMut(Progress) -> Control) -> Result<Report, RunError> {
    let mut plan = RealTimePlan::new(args)?;
    let fleet = LiveFleet::start(&plan.fleet)?;
    let mut run = LiveRun::new(plan.fleet.clone(), &plan.router)?.with_sla(plan.sla);
    run = run.with_memory_limit(plan.memory);
    if plan.records {
        run = run.with_records();
    }
    if plan.curves {
        run = run.with_curves();
    }
    let played = Driver::new(fleet, run).play(plan.source.as_mut(), plan.max_time, observe);
    if let Some(error) = plan.source.failure() {
        return Err(error.into());
    }
    let mut report = played?;
    report.graph = plan.source.graph();
    Ok(report)
}

struct Driver {
    fleet: LiveFleet,
    run: LiveRun,
    epoch: Instant,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
    /// Requests that a full mailbox did not take.
    blocked: Vec<Outgoing>,
    /// What meets at a prefill worker, and where the answers of such requests are made and under which names.
    met: BTreeMap<u64, (Uuid, Option<(Target, RequestId)>)>,
}

impl Driver {
    fn new(fleet: LiveFleet, run: LiveRun) -> Self {
        // Each request in flight says at most three things, each pass of a rank one.
        let (sender, heard) = crossbeam_channel::unbounded();
        if run.follows_caches() {
            let first = if fleet.prefill.is_empty() {
                &fleet.serving
            } else {
                &fleet.prefill
            };
            for (worker, ranks) in (0..).zip(first) {
                for (rank, door) in (0..).zip(ranks) {
                    let sender = sender.clone();
                    let target = Target { worker, rank };
                    door.listen(Arc::new(move |events, lower| {
                        // A driver that stopped listening has its report already.
                        let _ = sender.send(Heard::Cache(target, events.to_vec(), lower.to_vec()));
                    }));
                }
            }
        }
        Self {
            fleet,
            run,
            epoch: Instant::now(),
            sender,
            heard,
            blocked: Vec::new(),
            met: BTreeMap::new(),
        }
    }

    fn now(&self) -> SimTime {
        SimTime::ZERO + self.epoch.elapsed()
    }

    fn play(
        mut self,
        source: &mut dyn Source,
        limit: Option<SimTime>,
        observe: &mut dyn FnMut(Progress) -> Control,
    ) -> Result<Report, RunError> {
        self.epoch = Instant::now();
        let mut looked = self.epoch;
        let mut out = Vec::new();
        let mut partial = false;
        loop {
            let now = self.now();
            if limit.is_some_and(|limit| now > limit) {
                break;
            }
            out.append(&mut self.blocked);
            self.run.take_due(source, now, &mut out)?;
            self.send(&mut out, source)?;
            if self.run.in_flight() == 0 && source.is_drained() {
                break;
            }
            if self.run.in_flight() == 0 && source.next_at().is_none() {
                break;
            }
            match self.heard.recv_timeout(self.wait(source)) {
                Ok(heard) => self.take_in(heard, source, &mut out)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(wrong(&"the workers ended")),
            }
            while let Ok(heard) = self.heard.try_recv() {
                self.take_in(heard, source, &mut out)?;
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                let progress = Progress {
                    ended: self.run.ended_count(),
                    total: source.total(),
                    now: self.now(),
                };
                if observe(progress) == Control::Stop {
                    partial = true;
                    break;
                }
            }
        }
        let ended_at = self.now();
        self.fleet.cluster.stop_within(FAREWELL);
        Ok(self.run.report(ended_at, source, partial))
    }

    /// How long nothing has to be done unless something is heard.
    fn wait(&self, source: &dyn Source) -> Duration {
        if !self.blocked.is_empty() {
            return FULL;
        }
        source.next_at().map_or(LOOK, |at| at.since(self.now())).min(LOOK)
    }

    /// A request, or half of one, as its rank takes it.
    fn submission(&mut self, outgoing: &Outgoing) -> Submission {
        let mut request = outgoing.request.clone();
        // Handles of a process are never used twice, also not by another run.
        request.id = next_request_id();
        let leg = match outgoing.part {
            Part::Whole => Leg::Whole,
            Part::Prompt => self.meeting(outgoing.id, outgoing.target),
            Part::Answer(source) => self.meeting(outgoing.id, source),
        };
        if let Some((_, answer)) = self.met.get_mut(&outgoing.id)
            && outgoing.part != Part::Prompt
        {
            *answer = Some((outgoing.target, request.id));
        }
        let prompt = outgoing.part == Part::Prompt;
        let sink = Arc::new(LiveSink::new(outgoing.id, prompt, self.epoch, self.sender.clone()));
        Submission {
            request,
            dp_rank: None,
            leg,
            sink,
        }
    }

    /// Where both halves of a request meet.
    fn meeting(&mut self, id: u64, source: Target) -> Leg {
        let (handoff_id, _) = self.met.entry(id).or_insert_with(|| (Uuid::new_v4(), None));
        Leg::Met(Box::new(Meeting {
            host: "127.0.0.1".into(),
            port: self.fleet.ports[source.worker as usize],
            identity: Identity {
                handoff_id: *handoff_id,
                bootstrap_room: id,
                request_id: *handoff_id,
            },
        }))
    }

    fn send(&mut self, out: &mut Vec<Outgoing>, source: &mut dyn Source) -> Result<(), RunError> {
        let mut refused = Vec::new();
        for outgoing in std::mem::take(out) {
            let submission = self.submission(&outgoing);
            let side = match outgoing.part {
                Part::Prompt => &self.fleet.prefill,
                Part::Whole | Part::Answer(_) => &self.fleet.serving,
            };
            let door = &side[outgoing.target.worker as usize][outgoing.target.rank as usize];
            match door.submit(submission) {
                Ok(()) => {}
                Err(Refusal::Overloaded) => self.blocked.push(outgoing),
                Err(Refusal::Unavailable) => return Err(wrong(&"a worker died")),
                Err(Refusal::Invalid(_)) => refused.push(outgoing.id),
            }
        }
        for id in refused {
            self.call_off(id, source, out)?;
        }
        self.blocked.append(out);
        Ok(())
    }

    /// Ends a request of which one half came to nothing.
    fn call_off(&mut self, id: u64, source: &mut dyn Source, out: &mut Vec<Outgoing>) -> Result<(), RunError> {
        let now = self.now();
        self.blocked.retain(|outgoing| outgoing.id != id);
        if let Some((_, Some((target, request)))) = self.met.remove(&id) {
            self.fleet.serving[target.worker as usize][target.rank as usize].cancel(request);
        }
        Ok(self.run.ended(id, &Answer::default(), (now, now), source, out)?)
    }

    fn take_in(&mut self, heard: Heard, source: &mut dyn Source, out: &mut Vec<Outgoing>) -> Result<(), RunError> {
        let now = self.now();
        match heard {
            Heard::FirstToken(id) => self.run.first_token(id, source, now, out)?,
            Heard::PromptOver(id, answer) => {
                if !self.run.prompt_over(id, &answer, now, source, out)? {
                    self.call_off(id, source, out)?;
                }
            }
            Heard::Over(id, answer) => {
                self.met.remove(&id);
                let at = answer.tokens.last().copied().unwrap_or(now);
                self.run.ended(id, &answer, (at, now), source, out)?;
            }
            Heard::Cache(target, mut events, mut lower) => {
                self.run.cache_changed(target, (&mut events, &mut lower), now);
            }
            Heard::Broken => return Err(wrong(&"a worker died with requests in flight")),
        }
        Ok(())
    }
}
