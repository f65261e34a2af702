//! `replay --replay-mode online`: the workload in real time, against workers that live in this process.
//!
//! The workers are those of `serve`, found in memory, with the replay's engines and a small model of our own; requests
//! reach their ranks without a wire. Round robin or the KV router model decides where they go. The router sees each
//! rank's cache as it was at its last look, a tenth of a second ago at most.

mod caches;
mod sink;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::cli::ReplayArgs;
use crate::cluster::{Cluster, RankDoor};
use crate::replay::{Control, LiveRun, Outgoing, Progress, Report, Source};
use crate::replay_run::{RealTimePlan, RunError};
use crate::transport::intake::{Intake, Leg, Refusal, Submission, next_request_id};
use crate::types::{SimTime, WorkerId};

use caches::Caches;
use sink::{Heard, LiveSink};

/// Longest wait between two looks at everything.
const LOOK: Duration = Duration::from_millis(100);
/// How long a full mailbox is left alone.
const FULL: Duration = Duration::from_millis(1);
/// How long workers may take to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// Files of a model: the workers want one, though nobody reads text here.
const MODEL: [(&str, &str); 4] = [
    ("config.json", include_str!("../../config/tiny-model/config.json")),
    (
        "generation_config.json",
        include_str!("../../config/tiny-model/generation_config.json"),
    ),
    ("tokenizer.json", include_str!("../../config/tiny-model/tokenizer.json")),
    (
        "tokenizer_config.json",
        include_str!("../../config/tiny-model/tokenizer_config.json"),
    ),
];

fn wrong(what: &dyn std::fmt::Display) -> RunError {
    RunError::Online(what.to_string())
}

/// Runs the workload that the flags name. `observe` is asked several times a second and can end the run.
///
/// # Errors
/// [`RunError`] as for an offline replay, and when the workers cannot be started.
pub fn execute(args: &ReplayArgs, observe: &mut dyn FnMut(Progress) -> Control) -> Result<Report, RunError> {
    let mut plan = RealTimePlan::new(args)?;
    let model = ModelDirectory::write()?;
    let cluster = start(&plan, &model.0)?;
    let doors = doors(&cluster, plan.pool.workers)?;
    let mut run = LiveRun::new(plan.pool.clone(), &plan.router)?.with_sla(plan.sla);
    if plan.records {
        run = run.with_records();
    }
    if plan.curves {
        run = run.with_curves();
    }
    let limit = plan.max_time.map(|limit| SimTime::ZERO + limit);
    let played = Driver::new(cluster, doors, run).play(plan.source.as_mut(), limit, observe);
    if let Some(error) = plan.source.failure() {
        return Err(error.into());
    }
    let mut report = played?;
    report.graph = plan.source.graph();
    Ok(report)
}

/// A directory with the model's files, as long as it is needed.
struct ModelDirectory(PathBuf);

impl ModelDirectory {
    fn write() -> Result<Self, RunError> {
        let path = std::env::temp_dir().join(format!("ghostfleet-online-{}", std::process::id()));
        let directory = Self(path.clone());
        let failed = |error: std::io::Error| RunError::Write(path.display().to_string(), error);
        std::fs::create_dir_all(&path).map_err(failed)?;
        for (name, text) in MODEL {
            let text = if name == "config.json" {
                unlimited(text)
            } else {
                text.to_owned()
            };
            std::fs::write(path.join(name), text).map_err(failed)?;
        }
        Ok(directory)
    }
}

impl Drop for ModelDirectory {
    fn drop(&mut self) {
        // What stays behind are a few small files in a directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A model's configuration without a bound on the context: the workload decides.
fn unlimited(config: &str) -> String {
    let mut document: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    if let Some(keys) = document.as_object_mut() {
        keys.insert("max_position_embeddings".into(), i32::MAX.into());
    }
    document.to_string()
}

fn start(plan: &RealTimePlan, model: &Path) -> Result<Cluster, RunError> {
    let (workers, ranks) = (plan.pool.workers.to_string(), plan.pool.dp_size.to_string());
    let flags = [
        "--model-path",
        &model.display().to_string(),
        "--discovery-backend",
        "mem",
        "--stagger-delay",
        "0",
        "--num-workers",
        &workers,
        "--data-parallel-size",
        &ranks,
    ]
    .map(str::to_owned);
    let mut config = crate::serve::config_from(flags, &BTreeMap::new()).map_err(|error| wrong(&error))?;
    for group in &mut config.groups {
        group.engine = plan.pool.engine.clone();
    }
    Cluster::start(&config).map_err(|error| wrong(&error))
}

/// The doors of every worker's ranks.
fn doors(cluster: &Cluster, workers: u32) -> Result<Vec<Vec<RankDoor>>, RunError> {
    let of = |worker| cluster.doors(&WorkerId(worker).to_string());
    (0..workers)
        .map(of)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(&error))
}

struct Driver {
    cluster: Cluster,
    doors: Vec<Vec<RankDoor>>,
    run: LiveRun,
    caches: Caches,
    epoch: Instant,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
    /// Requests that a full mailbox did not take.
    blocked: Vec<Outgoing>,
}

impl Driver {
    fn new(cluster: Cluster, doors: Vec<Vec<RankDoor>>, run: LiveRun) -> Self {
        // Each request in flight says at most two things.
        let (sender, heard) = crossbeam_channel::unbounded();
        Self {
            cluster,
            doors,
            run,
            caches: Caches::default(),
            epoch: Instant::now(),
            sender,
            heard,
            blocked: Vec::new(),
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
                if self.run.follows_caches() {
                    let now = self.now();
                    self.caches.look(&self.cluster, &mut self.run, now)?;
                }
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
        self.cluster.stop_within(FAREWELL);
        Ok(self.run.report(ended_at, source, partial))
    }

    /// How long nothing has to be done unless something is heard.
    fn wait(&self, source: &dyn Source) -> Duration {
        if !self.blocked.is_empty() {
            return FULL;
        }
        source.next_at().map_or(LOOK, |at| at.since(self.now())).min(LOOK)
    }

    fn send(&mut self, out: &mut Vec<Outgoing>, source: &mut dyn Source) -> Result<(), RunError> {
        let mut refused = Vec::new();
        for outgoing in out.drain(..) {
            let door = &self.doors[outgoing.target.worker as usize][outgoing.target.rank as usize];
            let mut request = outgoing.request.clone();
            // Handles of a process are never used twice, also not by another run.
            request.id = next_request_id();
            let sink = Arc::new(LiveSink::new(outgoing.id, self.epoch, self.sender.clone()));
            let submission = Submission {
                request,
                dp_rank: None,
                leg: Leg::Whole,
                sink,
            };
            match door.submit(submission) {
                Ok(()) => {}
                Err(Refusal::Overloaded) => self.blocked.push(outgoing),
                Err(Refusal::Unavailable) => return Err(wrong(&"a worker died")),
                Err(Refusal::Invalid(_)) => refused.push(outgoing.id),
            }
        }
        for id in refused {
            let now = self.now();
            let nothing = crate::replay::Answer::default();
            self.run.ended(id, &nothing, (now, now), source, out);
        }
        self.blocked.append(out);
        Ok(())
    }

    fn take_in(&mut self, heard: Heard, source: &mut dyn Source, out: &mut Vec<Outgoing>) -> Result<(), RunError> {
        let now = self.now();
        match heard {
            Heard::FirstToken(id) => self.run.first_token(id, source, now, out),
            Heard::Over(id, answer) => {
                let at = answer.tokens.last().copied().unwrap_or(now);
                self.run.ended(id, &answer, (at, now), source, out);
            }
            Heard::Broken => return Err(wrong(&"a worker died with requests in flight")),
        }
        Ok(())
    }
}
