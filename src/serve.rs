//! The `serve` command: settings to fleet, one start-up screen, signals, one summary.

mod attach;
mod drain;
mod screen;
mod summary;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use signal_hook::consts;

use crate::actors::fleet::Launch;
use crate::actors::registry::{FleetSnapshot, InUse, WorkerState};
use crate::cli::ServeArgs;
use crate::cluster::{Cluster, EventLosses, StartError};
use crate::config::{Config, ConfigError, ConfigFile, Merged, Settings, layers};
use crate::transport::repeated::Repeated;

/// How a run failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Settings. Exit code 2.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The fleet did not come up. Exit code 1, or 2 when the input is at fault.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Standard output, the summary file or the signal handlers.
    #[error("cannot {0}: {1}")]
    Io(String, std::io::Error),
    /// Told to stop at once while answers were under way. Exit code 130.
    #[error("stopped at once, before the drain had ended: {0} answers were cut off")]
    Cut(u64),
    /// It came up but did not end well.
    #[error("{0}")]
    Unclean(String),
}

impl ServeError {
    /// Process exit code: 1 the run failed, 2 bad input, 130 a second signal cut answers off.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Start(error) if error.is_bad_input() => 2,
            Self::Cut(_) => 130,
            Self::Start(_) | Self::Io(..) | Self::Unclean(_) => 1,
        }
    }
}

/// Reads `serve` flags (without the program's name) against a given environment, for tests and embedding.
///
/// # Errors
/// As the command line's: unknown flags, unusable values, a broken config file.
pub fn config_from<I, S>(args: I, environment: &BTreeMap<String, String>) -> Result<Config, ConfigError>
where
    I: IntoIterator<Item = S>,
    S: Into<String>,
{
    use clap::Parser;
    let args = std::iter::once("serve".to_owned()).chain(args.into_iter().map(Into::into));
    let args = ServeArgs::try_parse_from(args).map_err(|error| ConfigError::Invalid(error.to_string()))?;
    let merged = merge(&args, environment)?;
    Config::resolve(&merged, environment)
}

fn merge(args: &ServeArgs, environment: &BTreeMap<String, String>) -> Result<Merged, ConfigError> {
    let file = args.config.as_deref().map(ConfigFile::read).transpose()?;
    layers::merge(&args.settings.clone().normalized(), environment, file.as_ref())
}

/// Runs the command until the fleet is told to stop.
///
/// # Errors
/// [`ServeError`].
pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    let merged = merge(args, &environment)?;
    if args.print_config {
        // A config that cannot run is still printed, then refused.
        print_config(&merged)?;
        for doubt in Config::resolve(&merged, &environment)?.doubts {
            tracing::warn!("{doubt}");
        }
        return Ok(());
    }
    let config = Config::resolve(&merged, &environment)?;
    summary::check(args, &merged)?;
    let signals = Signals::install()?;
    let cluster = launch(&config, &signals)?;
    let told = tell(&config, &cluster, &signals);
    // Asked now: when it drains, a fleet that was never registered has nobody left who waits for the store.
    let outage = cluster.store_trouble();
    let unregistered = match (&told, outage) {
        (Ok(Outcome::Signalled), Some(outage)) => Some(outage.reason),
        (Ok(_) | Err(_), _) => None,
    };
    if let Err(error) = told {
        // Whatever went wrong, the workers that are up say goodbye.
        cluster.begin_stop();
        cluster.wait_over(GOODBYE);
        return Err(error);
    }
    end(cluster, &signals, (&config, args.summary.as_deref()))?;
    match unregistered {
        None => Ok(()),
        Some(reason) => Err(ServeError::Unclean(format!("{}: {reason}", StartError::Interrupted))),
    }
}

/// Longest wait for a fleet that leaves because of an error.
const GOODBYE: Duration = Duration::from_secs(5);

/// Launches on a thread of its own: a model on a stalled mount or hub must not keep signals from ending the program.
fn launch(config: &Config, signals: &Signals) -> Result<Cluster, ServeError> {
    let (sender, launched) = crossbeam_channel::bounded(1);
    let config = config.clone();
    std::thread::Builder::new()
        .name("gf-launch".into())
        .spawn(move || {
            // Nobody listens any more when a signal came first; the cluster is dropped then.
            let _ = sender.send(Cluster::launch(&config));
        })
        .map_err(|error| ServeError::Io("start a thread".into(), error))?;
    crossbeam_channel::select! {
        recv(launched) -> cluster => match cluster {
            Ok(cluster) => Ok(cluster?),
            Err(_) => Err(ServeError::Unclean("the launch ended without a result".into())),
        },
        recv(signals.received) -> _ => Err(StartError::Interrupted.into()),
    }
}

/// Start screen, progress, and the wait for a signal.
fn tell(config: &Config, cluster: &Cluster, signals: &Signals) -> Result<Outcome, ServeError> {
    say(&screen::render(config, cluster))?;
    let outcome = follow_launch(cluster, signals, config)?;
    match outcome {
        Outcome::Ready => {
            say(&format!(
                "ready: {} workers registered; Ctrl-C drains, twice stops at once",
                config.num_workers()
            ))?;
            if config.http_port == Some(0) {
                say(&http_ports(cluster))?;
            }
            signals.wait();
        }
        Outcome::Signalled => {}
    }
    Ok(outcome)
}

/// The ports that workers took when any free one would do.
fn http_ports(cluster: &Cluster) -> String {
    let workers = cluster.snapshot().workers;
    let taken = workers
        .iter()
        .filter_map(|worker| Some(format!("{} http://{}", worker.path, worker.http?)));
    format!("http ports: {}", taken.collect::<Vec<_>>().join(", "))
}

fn say(text: &str) -> Result<(), ServeError> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is the reader's choice; the fleet goes on.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| ServeError::Io("write to standard output".into(), error)),
    }
}

fn print_config(merged: &Merged) -> Result<(), ServeError> {
    let grouped = merged.groups.len() > 1 || merged.groups.iter().any(|group| group.origin("name").is_some());
    // What follows from a group's settings is shown there.
    let fleet = if grouped {
        merged.fleet.clone()
    } else {
        merged.fleet.spelled_out()
    };
    let mut text = fleet.lines().join("\n");
    if grouped {
        for group in &merged.groups {
            let lines = group.spelled_out().lines().into_iter().filter(|line| {
                Settings::GROUP_KEYS
                    .iter()
                    .any(|key| line.split(" = ").next() == Some(key))
            });
            text.push_str("\n\n[[group]]\n");
            text.push_str(&lines.collect::<Vec<_>>().join("\n"));
        }
    }
    say(&text)
}

enum Outcome {
    Ready,
    Signalled,
}

/// Shows progress: one line that is redrawn on a terminal, a line now and then elsewhere. What keeps workers from being
/// registered is shown, too.
fn follow_launch(cluster: &Cluster, signals: &Signals, config: &Config) -> Result<Outcome, ServeError> {
    let workers = config.num_workers();
    let progress = cluster.progress();
    let terminal = std::io::stderr().is_terminal();
    let mut shown = 0;
    let mut trouble = Repeated::default();
    loop {
        if let Some(outage) = cluster.store_trouble() {
            if trouble.say().is_some() {
                let end = if terminal && shown > 0 { "\n" } else { "" };
                progress_line(&format!(
                    "{end}starting {}/{workers}: waiting for discovery, at most {} s: {}\n",
                    registered(&progress.borrow()),
                    config.registration_limit.as_secs_f32(),
                    outage.reason
                ));
            }
        } else {
            trouble = Repeated::default();
        }
        let launch = progress.borrow().clone();
        match launch {
            Launch::Ready => {
                if terminal && shown > 0 {
                    progress_line("\n");
                }
                return Ok(Outcome::Ready);
            }
            Launch::Failed(error) => return Err(StartError::Worker(error).into()),
            Launch::Over => return Err(StartError::Interrupted.into()),
            Launch::Starting { registered } => {
                let step = (workers / 8).max(1);
                if terminal && registered != shown {
                    progress_line(&format!("\rstarting {registered}/{workers}"));
                    shown = registered;
                } else if !terminal && registered >= shown + step {
                    progress_line(&format!("starting {registered}/{workers}\n"));
                    shown = registered;
                }
            }
        }
        if signals.wait_for(Duration::from_millis(50)) {
            return Ok(Outcome::Signalled);
        }
    }
}

fn registered(launch: &Launch) -> u32 {
    match launch {
        Launch::Starting { registered } => *registered,
        Launch::Ready | Launch::Failed(_) | Launch::Over => 0,
    }
}

/// Progress is a courtesy: a stderr that takes nothing is no reason to stop.
fn progress_line(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn end(cluster: Cluster, signals: &Signals, (config, summary): (&Config, Option<&Path>)) -> Result<(), ServeError> {
    let limit = config.drain_limit;
    say(&format!(
        "draining, at most {} s (--drain-timeout); once more stops at once",
        limit.as_secs_f32()
    ))?;
    cluster.begin_stop();
    let ended = drain::wait(&cluster, || signals.pending(), limit);
    let drained = ended == drain::Ended::Drained;
    let snapshot = cluster.snapshot();
    let events = if drained {
        cluster.settle_events()
    } else {
        EventLosses::default()
    };
    let unsaid = cluster.unsaid_goodbyes();
    drop(cluster);
    say(&summary_lines(&snapshot, events, unsaid))?;
    if let Some(path) = summary {
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "drained": drained,
            "in_use": snapshot.in_use(),
            "lateness": snapshot.lateness(),
            "events": events,
            "unsaid_goodbyes": unsaid,
            "fleet": snapshot,
        }))
        .map_err(|error| ServeError::Io("write the summary".into(), error.into()))?;
        std::fs::write(path, text).map_err(|error| summary::failed(path, error))?;
    }
    if drained && snapshot.in_use() != InUse::default() {
        return Err(ServeError::Unclean(format!(
            "something was left over after the drain: {:?}",
            snapshot.in_use()
        )));
    }
    let cut = snapshot.in_use().open_streams;
    match ended {
        drain::Ended::Stopped if cut > 0 => return Err(ServeError::Cut(cut)),
        drain::Ended::OutOfTime => {
            return Err(ServeError::Unclean(format!(
                "the fleet had not drained within {} s (--drain-timeout): {cut} answers were cut off",
                limit.as_secs_f32()
            )));
        }
        drain::Ended::Drained | drain::Ended::Stopped => {}
    }
    if unsaid > 0 {
        return Err(ServeError::Unclean(format!(
            "discovery could not be told that {unsaid} workers have left: their records stay until the leases run out; \
             bring discovery back before the drain"
        )));
    }
    if events.undelivered > 0 {
        return Err(ServeError::Unclean(format!(
            "{} event messages were never delivered: NATS or the broker was away, or too slow, when the fleet ended; \
             bring it back before the drain",
            events.undelivered
        )));
    }
    Ok(())
}

fn summary_lines(snapshot: &FleetSnapshot, events: EventLosses, unsaid: usize) -> String {
    let ranks = || snapshot.workers.iter().flat_map(|worker| &worker.ranks);
    let late = snapshot.lateness();
    let left = snapshot
        .workers
        .iter()
        .filter(|worker| worker.registered && worker.state == WorkerState::Left)
        .count()
        .saturating_sub(unsaid);
    let in_use = snapshot.in_use();
    let unregistered = snapshot.workers.iter().filter(|worker| !worker.registered).count();
    let unregistered = match unregistered {
        0 => String::new(),
        count => format!(", {count} were never registered"),
    };
    let unsaid = match unsaid {
        0 => String::new(),
        count => format!(", {count} could not tell discovery"),
    };
    let lost = if events == EventLosses::default() {
        String::new()
    } else {
        format!(
            "\nevent messages lost: {} dropped at the bound, {} refused by NATS, {} not delivered at the end",
            events.dropped, events.refused, events.undelivered
        )
    };
    format!(
        "served {} requests, {} tokens in {} passes; {left} of {} workers left in good order{unsaid}{unregistered}\n\
         passes late by {:.3} ms mean, {:.1} ms p99, {:.1} ms max ({:.1} ms of modelled time lost)\n\
         left over: {} streams, {} sequences, {} blocks, {} handoffs{lost}",
        ranks().map(|rank| rank.requests_total).sum::<u64>(),
        ranks().map(|rank| rank.tokens_total).sum::<u64>(),
        ranks().map(|rank| rank.passes_total).sum::<u64>(),
        snapshot.workers.len(),
        late.mean_ms,
        late.p99_ms,
        late.max_ms,
        late.slipped_ms,
        in_use.open_streams,
        in_use.sequences,
        in_use.active_blocks,
        in_use.rooms,
    )
}

/// Signals that follow each other within this time count as one.
const ECHO: Duration = Duration::from_millis(300);

/// SIGINT, SIGTERM and SIGHUP, counted.
struct Signals {
    received: crossbeam_channel::Receiver<()>,
}

impl Signals {
    fn install() -> Result<Self, ServeError> {
        // Two are told apart; more say nothing new.
        let (sender, received) = crossbeam_channel::bounded(2);
        let failed = |error| ServeError::Io("handle signals".into(), error);
        let mut signals =
            signal_hook::iterator::Signals::new([consts::SIGINT, consts::SIGTERM, consts::SIGHUP]).map_err(failed)?;
        std::thread::Builder::new()
            .name("gf-signals".into())
            .spawn(move || {
                let mut last: Option<Instant> = None;
                for _ in signals.forever() {
                    // One request to end often arrives twice: from the terminal and from a parent that passes it on.
                    let echo = last.is_some_and(|at| at.elapsed() < ECHO);
                    last = Some(Instant::now());
                    if !echo {
                        // Full: the two that matter are there already.
                        let _ = sender.try_send(());
                    }
                }
            })
            .map_err(failed)?;
        Ok(Self { received })
    }

    fn wait(&self) {
        // The sender lives as long as the process.
        let _ = self.received.recv();
    }

    fn wait_for(&self, limit: Duration) -> bool {
        self.received.recv_timeout(limit).is_ok()
    }

    fn pending(&self) -> bool {
        self.received.try_recv().is_ok()
    }
}
