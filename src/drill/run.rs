//! A drill from beginning to end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::check::{Check, Quantity, judge};
use super::error::{DrillError, Unfinished};
use super::index;
use super::load::{self, Pace, Shared, Targets};
use super::plan::Plan;
use super::process::{Process, Surroundings};
use super::program::{self, Job};
use super::record::{Drift, ProgramRun, Record, Request, Witness};
use super::refuse;
use super::report::Report;
use super::router::{self, Expected};
use super::scenario::index::Way;
use super::scenario::load::Target;
use super::scenario::server::Server;
use super::scenario::{Scenario, step};
use super::scratch::Scratch;
use super::stage::{self, Wanted};
use super::stop::Stop;
use super::timeline::Timeline;
use super::truth::Truth;
use super::watcher::Watcher;
use crate::actors::control::Control;
use crate::cluster::Cluster;
use crate::config::Config;

/// Puts a router in front of a fleet that has just come up; the answer is its address, `http://host:port`.
pub type MakeRouter<'a> = Box<dyn FnOnce(&Cluster, &Config) -> Result<String, String> + 'a>;

/// Hears of each phase.
pub type Progress<'a> = Box<dyn Fn(&str) + 'a>;

/// Which router a drill has.
#[derive(Default)]
pub enum Front<'a> {
    /// As the scenario says.
    #[default]
    AsWritten,
    /// This one instead; `None`: none at all.
    Instead(Option<Server>),
    /// One that the caller makes when the fleet is up.
    Made(MakeRouter<'a>),
}

/// How a scenario is run.
#[derive(Default)]
pub struct Options<'a> {
    /// Seed instead of the scenario's.
    pub seed: Option<u64>,
    /// Router.
    pub front: Front<'a>,
    /// Environment that the fleet's settings are read from, as for `serve`.
    pub environment: BTreeMap<String, String>,
    /// Ends the drill early, without a verdict.
    pub stop: Stop,
    /// Compares the router's index with the truth while the drill runs; without: whom the scenario names, where a check asks
    /// for it.
    pub truth: Option<Box<dyn Truth>>,
    /// Told of each phase.
    pub progress: Option<Progress<'a>>,
}

/// How often the fleet is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How often the index is compared.
const COMPARE: Duration = Duration::from_millis(500);

/// Longest wait for a fleet that leaves.
const GOODBYE: Duration = Duration::from_secs(5);

/// Runs a scenario: starts its fleet and its router, loads them, disturbs them, and decides the checks. Not from within a
/// runtime.
///
/// # Errors
/// [`DrillError`] when there is no verdict; everything that was started has ended then.
pub fn run(scenario: &Scenario, options: Options<'_>) -> Result<Report, DrillError> {
    attempt(scenario, options).map_err(|unfinished| unfinished.error)
}

/// As [`run`], and keeps what was seen of a drill that did not run to its end.
///
/// # Errors
/// [`Unfinished`] when there is no verdict; everything that was started has ended then.
#[expect(
    clippy::result_large_err,
    reason = "once a drill, and what was seen is what it is about"
)]
pub fn attempt(scenario: &Scenario, options: Options<'_>) -> Result<Report, Unfinished> {
    let begun = std::time::Instant::now();
    let Options {
        seed,
        front,
        environment,
        stop,
        truth,
        progress,
    } = options;
    let tell = |phase: &str| {
        if let Some(progress) = &progress {
            progress(phase);
        }
    };
    let (front, make) = match front {
        Front::AsWritten => (scenario.frontend.clone(), None),
        Front::Instead(server) => (server, None),
        Front::Made(make) => (None, Some(make)),
    };
    let direct = front.is_none() && make.is_none();
    refuse::what_says_nothing(scenario, direct)?;
    let scratch = Scratch::make().map_err(|error| DrillError::Io("make a directory".into(), error))?;
    let wanted = Wanted {
        scenario,
        seed,
        environment: &environment,
        // A router that runs already looks where it looks.
        scratch: (!matches!(front, Some(Server::Url { .. }))).then(|| scratch.path()),
        direct,
    };
    let config = wanted.config()?;
    let seed = seed.unwrap_or(scenario.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| DrillError::Io("start a runtime".into(), error))?;
    tell("starting the fleet");
    let cluster = Cluster::start(&config)?;
    refuse::what_is_not_there(scenario, cluster.control())?;
    let front = match make {
        None => front,
        Some(make) => {
            let url = make(&cluster, &config).map_err(DrillError::Frontend)?;
            Some(Server::from_url(&url).map_err(DrillError::Frontend)?)
        }
    };
    let stage = Stage {
        scenario,
        config: &config,
        cluster: &cluster,
        scratch: &scratch,
        seed,
        stop: &stop,
        tell: &tell,
    };
    let recorded = runtime.block_on(stage.play(front.as_ref(), truth));
    // Tasks of clients that were given up on go before the workers that serve them.
    runtime.shutdown_timeout(GOODBYE);
    cluster.begin_stop();
    cluster.wait_over(GOODBYE);
    drop(cluster);
    let record = recorded?;
    let judgements = scenario.checks.iter().map(|check| judge(check, &record)).collect();
    Ok(Report::new(scenario, record, judgements, begun.elapsed()))
}

/// What came of comparisons.
#[derive(Default)]
struct Comparisons {
    found: Vec<Drift>,
    /// Why the last one that did not work did not.
    problem: Option<String>,
}

/// Compares the index with the truth every so often, for ever.
async fn compare(truth: Option<&dyn Truth>, control: &Control, epoch: Instant, compared: &RefCell<Comparisons>) {
    let Some(truth) = truth else {
        return std::future::pending().await;
    };
    loop {
        match truth.compare(control).await {
            Ok(found) => {
                let drift = found.at(epoch.elapsed().as_secs_f64());
                compared.borrow_mut().found.push(drift);
            }
            // A router may be busy, or not serve its index; without any comparison the checks say so.
            Err(why) => {
                tracing::debug!(why, "the index was not compared");
                compared.borrow_mut().problem = Some(why);
            }
        }
        sleep(COMPARE).await;
    }
}

fn targets_of(target: Target, router: Option<&str>, watcher: &Watcher) -> Targets {
    match router {
        Some(authority) if target == Target::Router => Targets::Router(authority.to_owned()),
        Some(_) | None => Targets::Workers(watcher.faces()),
    }
}

/// Waits for the programs to end, each as long as it may take. The fleet is looked at meanwhile: it still serves them.
async fn programs_over(mut programs: JoinSet<Option<ProgramRun>>, watcher: &mut Watcher) -> Vec<ProgramRun> {
    let mut runs = Vec::new();
    loop {
        tokio::select! {
            joined = programs.join_next() => match joined {
                Some(run) => runs.extend(run.ok().flatten()),
                None => break,
            },
            () = sleep(LOOK) => watcher.look(),
        }
    }
    runs.sort_by(|a, b| a.started.total_cmp(&b.started));
    runs
}

struct Stage<'a> {
    scenario: &'a Scenario,
    config: &'a Config,
    cluster: &'a Cluster,
    scratch: &'a Scratch,
    seed: u64,
    stop: &'a Stop,
    tell: &'a dyn Fn(&str),
}

impl Stage<'_> {
    async fn play(&self, front: Option<&Server>, truth: Option<Box<dyn Truth>>) -> Result<Record, Unfinished> {
        let expected = stage::expected(self.config, self.cluster);
        let (mut router, authority) = tokio::select! {
            router = self.router(front, &expected) => router?,
            reason = self.stop.wait() => return Err(reason.into()),
        };
        let truth = tokio::select! {
            truth = self.truth(truth, authority.as_deref()) => truth?,
            reason = self.stop.wait() => return Err(reason.into()),
        };
        (self.tell)("running");
        let (mut record, broken) = self.drill(authority, router.as_mut(), truth.as_deref()).await;
        record.router_log = router.map_or_else(String::new, |router| router.log_tail());
        match broken {
            None => Ok(record),
            Some(error) => Err(Unfinished {
                error,
                record: Some(Box::new(record)),
            }),
        }
    }

    /// Who is asked what is believed of caches, where a check wants to know.
    async fn truth(
        &self,
        given: Option<Box<dyn Truth>>,
        authority: Option<&str>,
    ) -> Result<Option<Box<dyn Truth>>, DrillError> {
        let asks = |check: &Check| check.condition.quantity == Quantity::IndexDrift;
        if given.is_some() || !self.scenario.checks.iter().any(asks) {
            return Ok(given);
        }
        let places = stage::places(self.config);
        let surroundings = Surroundings {
            what: "indexer",
            places: &places,
            scratch: self.scratch.path(),
            tell: self.tell,
        };
        let fleet = (self.config, self.seed, self.cluster.control());
        index::witness(&self.scenario.index.way, authority, fleet, surroundings).await
    }

    async fn router(
        &self,
        front: Option<&Server>,
        expected: &Expected,
    ) -> Result<(Option<Process>, Option<String>), DrillError> {
        match front {
            None => Ok((None, None)),
            Some(Server::Url { url, ready_within }) => {
                (self.tell)("waiting for the frontend");
                let authority = url.trim_start_matches("http://").to_owned();
                let ready = router::wait(&authority, expected, ready_within.duration(), self.tell).await;
                ready.map_err(|why| {
                    let way_out = stage::way_to(self.config);
                    DrillError::Frontend(format!("{url}: {why}; {way_out}"))
                })?;
                Ok((None, Some(authority)))
            }
            Some(Server::Command(command)) => {
                (self.tell)("starting the frontend");
                let places = stage::places(self.config);
                let surroundings = Surroundings {
                    what: router::WHAT,
                    places: &places,
                    scratch: self.scratch.path(),
                    tell: self.tell,
                };
                let router = router::start(surroundings, command, expected).await?;
                let authority = router.authority.clone();
                Ok((Some(router), Some(authority)))
            }
        }
    }

    /// What was seen, and what has ended it early.
    #[expect(
        clippy::too_many_lines,
        reason = "one loop over everything that happens during a drill"
    )]
    async fn drill(
        &self,
        authority: Option<String>,
        mut router: Option<&mut Process>,
        truth: Option<&dyn Truth>,
    ) -> (Record, Option<DrillError>) {
        let scenario = self.scenario;
        let control = self.cluster.control();
        let mut record = self.record(authority.is_some());
        let mut watcher = Watcher::begin(control.clone());
        let epoch = Instant::now();
        let results: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (give_up, requests) = (CancellationToken::new(), TaskTracker::new());
        let foretold = stage::foretold(self.config, self.cluster);
        let mut paces = BTreeMap::new();
        let mut loops = Vec::new();
        for (position, load) in scenario.loads.iter().enumerate() {
            let targets = targets_of(load.target, authority.as_deref(), &watcher);
            let plan = Plan::new(self.seed, position, load, self.cluster.facts().token_ids);
            let shared = Arc::new(Shared::new(
                (position, load.clone()),
                load.model.clone().unwrap_or_else(|| self.config.model_name.clone()),
                (plan, targets, foretold.clone().ok()),
                epoch,
                Arc::clone(&results),
                give_up.clone(),
                requests.clone(),
            ));
            let (pace, told) = watch::channel(Pace::of(load));
            if load.rate.is_some() {
                loops.push(tokio::spawn(load::open_loop(shared, told)));
            } else {
                loops.push(tokio::spawn(load::closed_loop(shared, told)));
            }
            paces.insert(load.name.clone(), pace);
        }
        let over = CancellationToken::new();
        let mut programs = JoinSet::new();
        for program in &scenario.programs {
            let job = Job {
                targets: targets_of(program.target, authority.as_deref(), &watcher),
                program: program.clone(),
                model: self.config.model_name.clone(),
                seed: self.seed,
                dir: scenario.path.parent().unwrap_or(Path::new("")).join("."),
                scratch: self.scratch.path().to_owned(),
                epoch,
                over: over.clone(),
            };
            let (pace, told) = watch::channel(Pace::of_program());
            programs.spawn(program::run(job, told));
            paces.insert(program.name.clone(), pace);
        }
        let steps = self.steps();
        let end = epoch + scenario.duration.duration();
        let mut timeline = Timeline::new(control.clone(), self.seed, paces, epoch);
        let compared = RefCell::<Comparisons>::default();
        let mut alive = || router.as_deref_mut().map_or(Ok(()), Process::check_alive);
        let broken = {
            let acting = timeline.run(&steps);
            let mut acting = std::pin::pin!(acting);
            let mut acted = false;
            let comparing = compare(truth, control, epoch, &compared);
            let mut comparing = std::pin::pin!(comparing);
            let mut next_look = epoch;
            loop {
                tokio::select! {
                    () = &mut acting, if !acted => acted = true,
                    () = sleep_until(next_look) => {
                        watcher.look();
                        next_look = Instant::now() + LOOK;
                        if let Some(error) = self.stop.reason().or_else(|| alive().err()) {
                            break Some(error);
                        }
                    }
                    () = &mut comparing => {}
                    () = sleep_until(end), if acted => break alive().err(),
                }
            }
        };
        let compared = compared.take();
        record.drift = compared.found;
        record.witness = Witness {
            is_named: !self.scenario.index.is_optional,
            is_standalone: matches!(self.scenario.index.way, Way::Indexer(_)),
            problem: compared.problem,
        };
        let patience = if broken.is_some() {
            record.duration = epoch.elapsed().as_secs_f64();
            Duration::ZERO
        } else {
            (self.tell)("settling");
            scenario.settle.duration()
        };
        // Programs hear of the end before their loads stop, and are given time.
        over.cancel();
        let mut marks = timeline.stop_loads();
        for running in loops {
            running.abort();
        }
        // What they strike from now on is struck because of them all the same: a stream that is still to be cut.
        marks.keep_counters().await;
        self.mend(&mut record).await;
        if broken.is_some() {
            // Nobody waits for what they would report.
            programs.abort_all();
        }
        record.programs = programs_over(programs, &mut watcher).await;
        self.settle(&mut watcher, &mut record, patience, (&give_up, &requests))
            .await;
        record.requests = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        watcher.tell(&mut record);
        record.moments = marks.tell(&record.journal);
        record.moments.retain(|moment| !moment.mark.starts_with(step::OWN));
        if broken.is_none() {
            let has_router = record.has_frontend;
            let moments = record.moments.iter_mut();
            let missed: Vec<String> = moments.flat_map(|moment| moment.look_for_misses(has_router)).collect();
            record.notes.extend(missed);
        }
        let own = truth.map_or_else(Vec::new, Truth::own_requests);
        record.leave_out(&own.into_iter().collect());
        record.join();
        record.refuse_shared_answers();
        record.note_unjudged(foretold.err());
        (record, broken.or_else(|| self.stop.reason()))
    }

    /// The timeline with the starts and ends of the loads in it.
    fn steps(&self) -> Vec<step::Step> {
        let mut steps = self.scenario.steps.clone();
        let loads = self
            .scenario
            .loads
            .iter()
            .map(|load| (&load.name, load.start, load.stop));
        let programs = self.scenario.programs.iter();
        let programs = programs.map(|program| (&program.name, program.start, program.stop));
        for (name, start, stop) in loads.chain(programs) {
            steps.push(step::Step::own(start, name, step::Change::Start));
            if let Some(stop) = stop.filter(|stop| *stop < self.scenario.duration) {
                steps.push(step::Step::own(stop, name, step::Change::Stop));
            }
        }
        steps.sort_by(|a, b| a.at.0.total_cmp(&b.at.0));
        steps
    }

    fn record(&self, has_frontend: bool) -> Record {
        Record {
            seed: self.seed,
            warmup: self.scenario.warmup.0,
            duration: self.scenario.duration.0,
            has_frontend,
            workers: self.cluster.control().registry().candidates(),
            prefill: stage::prefill(self.config),
            unseen_when_away: stage::unseen_when_away(self.config),
            loads: self.scenario.loads.iter().map(|load| load.name.clone()).collect(),
            ..Record::default()
        }
    }

    async fn mend(&self, record: &mut Record) {
        if let Err(error) = self.cluster.control().change_faults(None, Vec::new()).await {
            record
                .notes
                .push(format!("faults could not be removed at the end: {error}"));
        }
    }

    /// Waits for the answers under way, then for what they held to be free.
    async fn settle(
        &self,
        watcher: &mut Watcher,
        record: &mut Record,
        patience: Duration,
        (give_up, requests): (&CancellationToken, &TaskTracker),
    ) {
        requests.close();
        let all_over = tokio::select! {
            waited = timeout(patience, requests.wait()) => waited.is_ok(),
            _ = self.stop.wait() => false,
        };
        if !all_over {
            let late = requests.len();
            record.notes.push(format!(
                "{late} requests were still under way {} s after the end",
                patience.as_secs_f64()
            ));
            give_up.cancel();
            requests.wait().await;
        }
        let over = Instant::now();
        record.held = watcher.held();
        while record.held.sum() > 0 && over.elapsed() < patience && self.stop.reason().is_none() {
            sleep(LOOK).await;
            watcher.look();
            record.held = watcher.held();
        }
        record.settled_after = over.elapsed().as_secs_f64();
    }
}
