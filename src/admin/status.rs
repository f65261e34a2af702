//! The status server that probes and Prometheus ask, one for the process, as Dynamo workers have it.
//!
//! | Path | Answer |
//! |---|---|
//! | `/health` | 200 when the fleet has started and a worker can serve, else 503 with the `reason`; says how each worker does: its state, or `hung` (a fault holds it up, or a pass or a request is long overdue), `unreachable` (the NATS server that brings its requests is lost), `unlisted` (its lease has lapsed) or `loading` (its start-up time is not over) |
//! | `/health/w3` | the same for one worker |
//! | `/live` | 200 as long as the fleet is not over |
//! | `/metrics` | fleet counters, gauges, the figures of Dynamo's runtime, and the engine's metrics of every rank that has had a request |
//! | `/metadata` | 404: records are in the discovery store |
//! | others | 404 `Route not found` |
//!
//! Bodies of the probes: `{"status","uptime":{"secs","nanos"},"endpoints":{...},"workers":{"w0":"ready",...}}`, and
//! `"reason"` when it is not ready. Two
//! things differ from Dynamo's mocker, which stays `notready` for its whole life: readiness is told as it is, and a fleet
//! with one dead worker is alive.
//!
//! Source: Dynamo 1.6.1 system status server.

use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::exporter;
use crate::actors::clock::Clock;
use crate::actors::fleet::Launch;
use crate::actors::gauge::RankSnapshot;
use crate::actors::path::ActorPath;
use crate::actors::registry::{FleetSnapshot, Registry, WorkerHealth, WorkerSnapshot, WorkerState};
use crate::actors::store_health::StoreHealth;
use crate::config::StatusConfig;
use crate::types::WorkerId;

/// A server that cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for status requests on {address}: {source}; choose another DYN_SYSTEM_PORT (0: any free one)")]
pub struct StatusError {
    /// Wanted address.
    address: SocketAddr,
    /// Why not.
    source: io::Error,
}

/// A running status server. Dropping it ends it.
#[derive(Debug)]
pub struct StatusServer {
    address: SocketAddr,
    end: CancellationToken,
}

struct Status {
    registry: Arc<Registry>,
    store: StoreHealth,
    launch: watch::Receiver<Launch>,
    clock: Clock,
    ready_while_starting: bool,
    began: Instant,
}

impl StatusServer {
    /// Begins to collect counters. Call it before anything counts.
    pub fn collect() {
        exporter::install();
    }

    /// Listens and serves on `pool`.
    ///
    /// # Errors
    /// [`StatusError`] names the address.
    pub fn start(
        options: &StatusConfig,
        registry: Arc<Registry>,
        store: StoreHealth,
        launch: watch::Receiver<Launch>,
        clock: Clock,
        pool: &Handle,
    ) -> Result<Self, StatusError> {
        let wanted = options.address;
        let failed = |source| StatusError {
            address: wanted,
            source,
        };
        let listener = std::net::TcpListener::bind(wanted).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let entered = pool.enter();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        drop(entered);
        let address = listener.local_addr().map_err(failed)?;
        let status = Arc::new(Status {
            registry,
            store,
            launch,
            clock,
            ready_while_starting: options.ready_while_starting,
            began: Instant::now(),
        });
        let worker_path = format!("{}/{{worker}}", options.health_path);
        let router = Router::new()
            .route(&options.health_path, get(health))
            .route(&options.live_path, get(live))
            .route(&worker_path, get(worker_health))
            .route("/metrics", get(metrics_page))
            .route("/metadata", get(metadata))
            .fallback(async || (StatusCode::NOT_FOUND, "Route not found"))
            .with_state(status);
        let end = CancellationToken::new();
        let ended = end.clone();
        pool.spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(async move { ended.cancelled().await });
            if let Err(error) = served.await {
                tracing::error!(%error, "the status server has ended");
            }
        });
        Ok(Self { address, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

fn word(ready: bool) -> &'static str {
    if ready { "ready" } else { "notready" }
}

impl Status {
    fn has_started(&self) -> bool {
        match *self.launch.borrow() {
            Launch::Ready => true,
            Launch::Starting { .. } => self.ready_while_starting,
            Launch::Failed(_) | Launch::Over => false,
        }
    }

    /// Why the fleet, or these workers of it, cannot serve.
    fn reason(&self, workers: &[(WorkerId, WorkerHealth)]) -> String {
        let launch = match &*self.launch.borrow() {
            Launch::Starting { registered } => format!("the fleet is starting: {registered} workers are registered"),
            Launch::Failed(error) => format!("the fleet could not be started: {error}"),
            Launch::Over => "the fleet is over".to_owned(),
            Launch::Ready => String::new(),
        };
        // Each trouble once, with how many workers have it and the first of them.
        let mut troubles: Vec<(&str, WorkerId, usize)> = Vec::new();
        for (worker, health) in workers {
            let Some(trouble) = health.trouble() else { continue };
            match troubles.iter_mut().find(|(known, ..)| *known == trouble) {
                Some((_, _, count)) => *count += 1,
                None => troubles.push((trouble, *worker, 1)),
            }
        }
        let troubles = troubles.into_iter().map(|(trouble, first, count)| match count - 1 {
            0 => format!("{first}: {trouble}"),
            more => format!("{first} and {more} more: {trouble}"),
        });
        let outage = self
            .store
            .trouble()
            .map(|outage| format!("discovery fails: {}", outage.reason));
        let launch = [launch].into_iter().filter(|text| !text.is_empty());
        let words: Vec<String> = launch.chain(outage).chain(troubles).collect();
        words.join("; ")
    }

    fn probe(&self, ready: bool, workers: &[(WorkerId, WorkerHealth)]) -> Response {
        let reason = (!ready).then(|| self.reason(workers));
        let serving = workers.iter().any(|(_, health)| health.is_ready());
        let workers: Map<String, Value> = workers
            .iter()
            .map(|(worker, health)| (worker.to_string(), json!(health)))
            .collect();
        let uptime: Duration = self.began.elapsed();
        let mut body = json!({
            "status": word(ready),
            "uptime": { "secs": uptime.as_secs(), "nanos": uptime.subsec_nanos() },
            "endpoints": { "generate": word(serving) },
            "workers": workers,
        });
        if let Some(reason) = reason {
            body["reason"] = reason.into();
        }
        let code = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        (code, body.to_string()).into_response()
    }
}

async fn health(State(status): State<Arc<Status>>) -> Response {
    let workers = status.registry.health(status.clock.now());
    let serving = workers.iter().any(|(_, health)| health.is_ready());
    let starting = || workers.iter().any(|(_, health)| health.is_starting());
    let ready = status.has_started() && (serving || (status.ready_while_starting && starting()));
    status.probe(ready, &workers)
}

async fn live(State(status): State<Arc<Status>>) -> Response {
    let alive = !matches!(*status.launch.borrow(), Launch::Failed(_) | Launch::Over);
    status.probe(alive, &status.registry.health(status.clock.now()))
}

async fn worker_health(State(status): State<Arc<Status>>, Path(worker): Path<String>) -> Response {
    let path = worker.parse::<ActorPath>().ok().filter(|path| path.child.is_none());
    let Some(entry) = path.and_then(|path| status.registry.get(path.worker)) else {
        return (StatusCode::NOT_FOUND, format!("no worker {worker:?} in this fleet")).into_response();
    };
    let health = entry.health(status.clock.now());
    status.probe(health.is_ready(), &[(entry.id(), health)])
}

async fn metadata() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "Discovery metadata not available")
}

async fn metrics_page(State(status): State<Arc<Status>>) -> Response {
    let mut page = exporter::page();
    fleet_gauges(&mut page, &status.registry.snapshot(), status.began.elapsed());
    page.push_str(&status.registry.component_page(status.began.elapsed()));
    page.push_str(&status.registry.engine_page());
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, page).into_response()
}

/// What is there to see in a snapshot.
fn fleet_gauges(page: &mut String, snapshot: &FleetSnapshot, uptime: Duration) {
    let states = [
        ("planned", WorkerState::Planned),
        ("starting", WorkerState::Starting),
        ("ready", WorkerState::Ready),
        ("draining", WorkerState::Draining),
        ("left", WorkerState::Left),
        ("dead", WorkerState::Dead),
    ];
    // Writing into a String cannot fail.
    let _ = writeln!(
        page,
        "# HELP ghostfleet_workers Workers by state.\n# TYPE ghostfleet_workers gauge"
    );
    for (name, state) in states {
        let count = snapshot.workers.iter().filter(|worker| worker.state == state).count();
        let _ = writeln!(page, "ghostfleet_workers{{state=\"{name}\"}} {count}");
    }
    fleet_sums(page, snapshot);
    let lateness = snapshot.lateness();
    let floats = [
        ("uptime_seconds", "Time since the start.", uptime.as_secs_f64()),
        (
            "pass_lateness_p99_seconds",
            "How late passes end against their model, p99.",
            lateness.p99_ms / 1e3,
        ),
        (
            "pass_lateness_max_seconds",
            "How late passes end against their model, worst.",
            lateness.max_ms / 1e3,
        ),
    ];
    for (name, help, value) in floats {
        let _ = writeln!(
            page,
            "# HELP ghostfleet_{name} {help}\n# TYPE ghostfleet_{name} gauge\nghostfleet_{name} {value:?}"
        );
    }
}

fn fleet_sums(page: &mut String, snapshot: &FleetSnapshot) {
    let in_use = snapshot.in_use();
    let workers = |figure: fn(&WorkerSnapshot) -> u64| snapshot.workers.iter().map(figure).sum::<u64>();
    let ranks = |figure: fn(&RankSnapshot) -> u64| {
        let ranks = snapshot.workers.iter().flat_map(|worker| &worker.ranks);
        ranks.map(figure).sum::<u64>()
    };
    let sums = [
        ("open_streams", "gauge", "Answers under way.", in_use.open_streams),
        ("sequences", "gauge", "Requests in engines.", in_use.sequences),
        (
            "active_blocks",
            "gauge",
            "KV blocks in use by requests.",
            in_use.active_blocks,
        ),
        (
            "handoff_rooms",
            "gauge",
            "Handoffs that are not over, counted on either side.",
            in_use.rooms,
        ),
        (
            "kv_transfers",
            "gauge",
            "Handoffs whose KV is travelling.",
            workers(|w| w.handoffs.transfers.into()),
        ),
        (
            "handoffs_completed_total",
            "counter",
            "Handoffs that ended well, counted on either side.",
            workers(|w| w.handoffs.completed_total),
        ),
        (
            "handoffs_failed_total",
            "counter",
            "Handoffs that ended otherwise, counted on either side.",
            workers(|w| w.handoffs.failed_total),
        ),
        ("restarts_total", "counter", "Actors replaced.", workers(|w| w.restarts)),
        (
            "requests_accepted_total",
            "counter",
            "Calls accepted.",
            workers(|w| w.accepted_total),
        ),
        (
            "requests_completed_total",
            "counter",
            "Answers complete.",
            workers(|w| w.completed_total),
        ),
        (
            "requests_failed_total",
            "counter",
            "Answers that ended with an error.",
            workers(|w| w.failed_total),
        ),
        (
            "requests_cancelled_total",
            "counter",
            "Answers cut short.",
            workers(|w| w.cancelled_total),
        ),
        (
            "tokens_total",
            "counter",
            "Tokens handed out.",
            ranks(|r| r.tokens_total),
        ),
        ("passes_total", "counter", "Forward passes.", ranks(|r| r.passes_total)),
        (
            "kv_events_published_total",
            "counter",
            "KV events given to the event plane.",
            ranks(|r| r.kv_events_total),
        ),
        (
            "recovery_answers_total",
            "counter",
            "Recovery queries answered.",
            workers(|w| w.recovery.answered_total),
        ),
        (
            "recovery_dumps_built_total",
            "counter",
            "Times that a whole cache was encoded for routers.",
            workers(|w| w.recovery.dumps_built_total),
        ),
    ];
    for (name, kind, help, value) in sums {
        let _ = writeln!(
            page,
            "# HELP ghostfleet_{name} {help}\n# TYPE ghostfleet_{name} {kind}\nghostfleet_{name} {value}"
        );
    }
}
