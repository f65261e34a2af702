//! The `serve` command: settings to fleet, one start-up screen, signals, one summary.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use signal_hook::consts;

use crate::actors::fleet::Launch;
use crate::actors::registry::{FleetSnapshot, InUse, WorkerState};
use crate::cli::ServeArgs;
use crate::cluster::{Cluster, Facts, StartError};
use crate::config::{
    Brokers, Config, ConfigError, ConfigFile, DiscoveryBackend, EventPlane, Group, Merged, NativeEvents,
    NatsConnections, RequestPlane, Settings, layers,
};
use crate::engine::WorkerRole;
use crate::transport::discovery::DiscoveryConfig;

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
    /// It came up but did not end well.
    #[error("{0}")]
    Unclean(String),
}

impl ServeError {
    /// Process exit code: 1 the run failed, 2 bad input.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Start(error) if error.is_bad_input() => 2,
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
    let (merged, _) = merge(&args, environment)?;
    Config::resolve(&merged, environment)
}

fn merge(args: &ServeArgs, environment: &BTreeMap<String, String>) -> Result<(Merged, Settings), ConfigError> {
    let file = args.config.as_deref().map(ConfigFile::read).transpose()?;
    let merged = layers::merge(&args.settings.clone().normalized(), environment, file.as_ref())?;
    let settings = merged.fleet.settings()?;
    Ok((merged, settings))
}

/// Runs the command until the fleet is told to stop.
///
/// # Errors
/// [`ServeError`].
pub fn run(args: &ServeArgs) -> Result<(), ServeError> {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .collect();
    let (merged, settings) = merge(args, &environment)?;
    if args.print_config {
        // A config that cannot run is still printed, then refused.
        print_config(&merged)?;
        Config::resolve(&merged, &environment)?;
        return Ok(());
    }
    let config = Config::resolve(&merged, &environment)?;
    if let Some(path) = &args.summary {
        // Hours later would be a bad time to learn that it cannot be written.
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|error| summary_error(path, error))?;
    }
    let signals = Signals::install()?;
    let cluster = launch(&config, &signals)?;
    let told = tell(&config, &settings, &cluster, &signals);
    if told.is_err() {
        // Whatever went wrong, the workers that are up say goodbye.
        cluster.begin_stop();
        cluster.wait_over(GOODBYE);
        return told;
    }
    end(cluster, &signals, args.summary.as_deref())
}

/// Longest wait for a fleet that leaves because of an error.
const GOODBYE: Duration = Duration::from_secs(5);

fn summary_error(path: &Path, error: std::io::Error) -> ServeError {
    ServeError::Io(format!("write the summary to {}", path.display()), error)
}

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
fn tell(config: &Config, settings: &Settings, cluster: &Cluster, signals: &Signals) -> Result<(), ServeError> {
    say(&start_screen(config, settings, cluster))?;
    match follow_launch(cluster, signals, config.num_workers())? {
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
    Ok(())
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
    let mut text = merged.fleet.lines().join("\n");
    if merged.groups.len() > 1 || merged.groups.iter().any(|group| group.origin("name").is_some()) {
        for group in &merged.groups {
            let lines = group.lines().into_iter().filter(|line| {
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

fn start_screen(config: &Config, settings: &Settings, cluster: &Cluster) -> String {
    use std::fmt::Write as _;
    let facts = cluster.facts();
    let mut text = format!("ghostfleet {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: String| {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {name:<11}{value}");
    };
    line(
        "model",
        format!("{} (from {})", config.model_name, facts.model_dir.display()),
    );
    for group in &config.groups {
        let engine = &group.engine;
        line(
            "workers",
            format!(
                "{} x {} [{}], {} rank(s), {} blocks of {} tokens, speed {}",
                group.num_workers,
                group.endpoint,
                group.name,
                group.data_parallel_size,
                engine.num_gpu_blocks,
                engine.block_size,
                if engine.speedup_ratio == 0.0 {
                    "unlimited".to_owned()
                } else {
                    format!("x{}", engine.speedup_ratio)
                },
            ),
        );
        if engine.role == WorkerRole::Prefill {
            line("handoffs", format!("[{}] {}", group.name, group.disaggregation.words()));
        }
    }
    let (discovery, attach) = match &config.discovery {
        DiscoveryConfig::Etcd(etcd) => {
            let servers = etcd.endpoints.join(",");
            (
                format!("etcd {servers}, leases of {} s", etcd.ttl.as_secs()),
                format!("ETCD_ENDPOINTS={servers}"),
            )
        }
        DiscoveryConfig::File(file) => (
            format!("files below {}", file.root.display()),
            // Absolute: the frontend may be started from anywhere.
            format!(
                "DYN_FILE_KV={}",
                std::path::absolute(&file.root)
                    .unwrap_or_else(|_| file.root.clone())
                    .display()
            ),
        ),
        DiscoveryConfig::Mem(_) => ("a map in this process".to_owned(), String::new()),
    };
    line("discovery", discovery);
    for planes in distinct(config.groups.iter().map(|group| describe_planes(config, group, facts))) {
        line("planes", planes);
    }
    if config.http_port == Some(0) {
        line(
            "http",
            format!("{}, a free port per worker, told when ready", config.http_host),
        );
    } else if let Some(first) = config.http_port {
        let last = u32::from(first) + config.num_workers() - 1;
        line(
            "http",
            format!("http://{}:{first} .. {last}, one port per worker", config.http_host),
        );
    }
    if let Some(status) = facts.status {
        line("status", format!("http://{status}/health, /live, /metrics"));
    }
    if let Some(admin) = facts.admin {
        line("admin", format!("ghostfleet ctl --url http://{admin} top"));
    }
    if let Some(native) = &config.native {
        line("native", describe_native(native));
    }
    line(
        "budget",
        format!(
            "{} threads at most; {} descriptors idle, {} allowed; seed {}",
            facts.threads, facts.budget.idle, facts.budget.limit, config.seed
        ),
    );
    let backend = match settings.discovery_backend {
        Some(DiscoveryBackend::File) => "file",
        Some(DiscoveryBackend::Etcd) | None => "etcd",
        Some(DiscoveryBackend::Mem) => {
            text.push_str("no frontend can attach: the map is inside this process");
            return text;
        }
    };
    text.push_str("attach a Dynamo frontend with:");
    for command in distinct(
        config
            .groups
            .iter()
            .map(|group| attach_command(config, group, &attach, backend)),
    ) {
        text.push_str("\n  ");
        text.push_str(&command);
    }
    text
}

/// Each text once, in order.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

fn describe_native(native: &NativeEvents) -> String {
    let how = if native.connect { "connecting to" } else { "on" };
    let mut ports = native.ports.iter().flatten();
    let first = ports.next().copied().unwrap_or_default();
    let last = ports.next_back().copied().unwrap_or(first);
    let replay = if native.replay_ports.iter().any(Option::is_some) {
        ", with replay"
    } else {
        ""
    };
    format!("{how} {}:{first} .. {last}{replay}", native.host)
}

fn describe_planes(config: &Config, group: &Group, facts: &Facts) -> String {
    let nats = || {
        config.nats.as_ref().map_or_else(String::new, |nats| {
            let connections = match nats.connections {
                NatsConnections::Shared => "one connection",
                NatsConnections::PerWorker => "a connection per worker",
            };
            format!("nats {} ({connections})", nats.options.addresses())
        })
    };
    let requests = match (group.request_plane, facts.requests) {
        (RequestPlane::Tcp, Some(at)) => format!("tcp {at}{}", tls(config)),
        (RequestPlane::Tcp, None) => format!("tcp, one listener per worker{}", tls(config)),
        (RequestPlane::Nats, _) => nats(),
    };
    let events = match (group.event_plane, &config.brokers) {
        (EventPlane::Zmq, Brokers::None) => format!("zmq on {}", config.event_advertise),
        (EventPlane::Zmq, Brokers::At(brokers)) => format!("zmq to brokers at {}", brokers.hosts().join(", ")),
        (EventPlane::Zmq, Brokers::Discovered) => "zmq to the brokers in discovery".to_owned(),
        (EventPlane::Nats, _) => nats(),
    };
    format!("requests {requests}; events {events}")
}

fn tls(config: &Config) -> &'static str {
    match (&config.tls.server, &config.tls.client) {
        (None, None) => "",
        (Some(_), None) => ", requests with TLS",
        (None, Some(_)) => ", answers with TLS",
        (Some(_), Some(_)) => " with TLS",
    }
}

/// A frontend for the workers of a group. With several groups it is told which namespace is its own.
fn attach_command(config: &Config, group: &Group, discovery: &str, backend: &str) -> String {
    let mut words = vec![discovery.to_owned()];
    if config.tcp_advertise.is_loopback() {
        words.extend(
            [
                "DYN_TCP_RPC_HOST=127.0.0.1",
                "DYN_TCP_RESPONSE_STREAM_HOST=lo",
                "DYN_EVENT_PLANE_HOST=127.0.0.1",
            ]
            .map(str::to_owned),
        );
    }
    if let Some(nats) = config.nats.as_ref().filter(|_| group.uses_nats()) {
        words.push(format!("NATS_SERVER={}", nats.options.addresses()));
    }
    match (group.event_plane, &config.brokers) {
        (EventPlane::Zmq, Brokers::At(_)) => words.push("DYN_ZMQ_BROKER_URL=$DYN_ZMQ_BROKER_URL".to_owned()),
        (EventPlane::Zmq, Brokers::Discovered) => words.push("DYN_ZMQ_BROKER_ENABLED=true".to_owned()),
        (EventPlane::Zmq, Brokers::None) | (EventPlane::Nats, _) => {}
    }
    if config.tls.server.is_some() {
        words.push("DYN_TCP_TLS_CA_CERT_PATH=$DYN_TCP_TLS_CA_CERT_PATH".to_owned());
    }
    if config.tls.client.is_some() {
        let variables = ["DYN_TCP_TLS_CERT_PATH", "DYN_TCP_TLS_KEY_PATH"];
        words.extend(variables.map(|name| format!("{name}=${name}")));
    }
    words.push(format!(
        "python -m dynamo.frontend --http-port 8000 --router-mode kv --discovery-backend {backend}"
    ));
    if group.request_plane == RequestPlane::Nats {
        words.push("--request-plane nats".to_owned());
    }
    if group.event_plane == EventPlane::Nats {
        words.push("--event-plane nats".to_owned());
    }
    if group.durable_kv_events {
        words.push("--router-durable-kv-events".to_owned());
    }
    if config.groups.len() > 1 {
        words.push(format!("--namespace {}", group.endpoint.namespace()));
    }
    words.join(" ")
}

enum Outcome {
    Ready,
    Signalled,
}

/// Shows progress: one line that is redrawn on a terminal, a line now and then elsewhere.
fn follow_launch(cluster: &Cluster, signals: &Signals, workers: u32) -> Result<Outcome, ServeError> {
    let progress = cluster.progress();
    let terminal = std::io::stderr().is_terminal();
    let mut shown = 0;
    loop {
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

/// Progress is a courtesy: a stderr that takes nothing is no reason to stop.
fn progress_line(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn end(cluster: Cluster, signals: &Signals, summary: Option<&Path>) -> Result<(), ServeError> {
    say("draining; once more stops at once")?;
    cluster.begin_stop();
    let mut drained = false;
    // The peer's limit for running streams at shutdown.
    for _ in 0..900 * 20 {
        if cluster.wait_over(Duration::from_millis(50)) {
            drained = true;
            break;
        }
        if signals.pending() {
            break;
        }
    }
    let snapshot = cluster.snapshot();
    drop(cluster);
    say(&summary_lines(&snapshot))?;
    if let Some(path) = summary {
        let text = serde_json::to_string_pretty(&serde_json::json!({
            "drained": drained,
            "in_use": snapshot.in_use(),
            "lateness": snapshot.lateness(),
            "fleet": snapshot,
        }))
        .map_err(|error| ServeError::Io("write the summary".into(), error.into()))?;
        std::fs::write(path, text).map_err(|error| summary_error(path, error))?;
    }
    if drained && snapshot.in_use() != InUse::default() {
        return Err(ServeError::Unclean(format!(
            "something was left over after the drain: {:?}",
            snapshot.in_use()
        )));
    }
    Ok(())
}

fn summary_lines(snapshot: &FleetSnapshot) -> String {
    let ranks = || snapshot.workers.iter().flat_map(|worker| &worker.ranks);
    let late = snapshot.lateness();
    let left = snapshot
        .workers
        .iter()
        .filter(|worker| worker.state == WorkerState::Left)
        .count();
    let in_use = snapshot.in_use();
    format!(
        "served {} requests, {} tokens in {} passes; {left} of {} workers left in good order\n\
         passes late by {:.3} ms mean, {:.1} ms p99, {:.1} ms max ({:.1} ms of modelled time lost)\n\
         left over: {} streams, {} sequences, {} blocks, {} handoffs",
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
