//! The fleet as anyone may see it at any time: one entry per worker, written by its actors, read without asking them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dashmap::DashMap;

use super::component_page;
use super::engine_metrics::EngineMetrics;
use super::engine_page::{self, PageRank};
use super::fault_post::FaultPost;
use super::gauge::{Lateness, RankGauge};
use super::handoff_gauge::HandoffGauge;
use super::latency::RequestLatency;
use super::liveness::Child;
use super::path::ActorPath;
use super::plan::WorkerPlan;
use super::recovery::RecoveryCounts;
use super::shape::Shape;
use super::supervision::{RestartPolicy, Supervised};
use super::told_loads::ToldLoads;
use crate::engine::EngineKind;
use crate::faults::Journal;
use crate::faults::journal::Event;
use crate::faults::kind::MetricsFault;
use crate::faults::select::{Candidate, KvEvents};
use crate::transport::discovery::EndpointName;
use crate::transport::event_plane::former::Memory;
use crate::transport::http::open::OpenRequests;
use crate::transport::request_plane::call_home::generate::StreamCounts;
use crate::transport::request_plane::figures::EndpointFigures;
use crate::transport::request_plane::plane::Reach;
use crate::types::{DpRank, SimTime, WorkerId, span_of_ms};

pub use super::health::{WorkerHealth, WorkerState};
pub use super::snapshot::{FleetSnapshot, InUse, RecoverySnapshot, WorkerSnapshot};

/// One worker's entry; outlives its incarnations.
#[derive(Debug)]
pub struct WorkerEntry {
    id: WorkerId,
    group: String,
    endpoint: EndpointName,
    labels: Vec<(String, String)>,
    model: Arc<str>,
    kind: EngineKind,
    block_size: u32,
    events: KvEvents,
    pub(super) shape: Shape,
    state: AtomicU8,
    /// Whether its records are in discovery, as far as anybody knows.
    listed: AtomicBool,
    /// Whether any incarnation of it has been.
    registered: AtomicBool,
    incarnation: AtomicU32,
    instance: AtomicU64,
    restarts: AtomicU64,
    /// Where its HTTP face listens.
    http: Mutex<Option<SocketAddr>>,
    /// What brings its requests.
    reach: Mutex<Reach>,
    pub(super) streams: Arc<StreamCounts>,
    pub(super) http_requests: Arc<OpenRequests>,
    pub(super) recovery: Arc<RecoveryCounts>,
    /// By rank: its present recovery endpoint and what is counted of it.
    queries: Mutex<BTreeMap<usize, (EndpointName, Arc<EndpointFigures>)>>,
    pub(super) handoffs: Arc<HandoffGauge>,
    pub(super) gauges: Vec<Arc<RankGauge>>,
    pub(super) metrics: Vec<Arc<EngineMetrics>>,
    pub(super) told: Arc<ToldLoads>,
    pub(super) faults: Arc<FaultPost>,
    deaths: Mutex<Vec<Supervised>>,
    event_drops: Mutex<EventDrops>,
}

/// Event messages that sockets of a worker's own have dropped because a reader was too slow.
#[derive(Debug, Default)]
struct EventDrops {
    /// By sockets of earlier incarnations.
    earlier: u64,
    present: Vec<Arc<AtomicU64>>,
}

impl EventDrops {
    fn total(&self) -> u64 {
        self.earlier + self.present.iter().map(|drops| drops.load(Relaxed)).sum::<u64>()
    }
}

impl WorkerEntry {
    pub(super) fn new(plan: &WorkerPlan, journal: Arc<Journal>, latency: &Arc<RequestLatency>) -> Self {
        let (id, group) = (plan.id, &plan.group);
        let role = group.engine.role;
        let ranks = 0..group.data_parallel_size;
        Self {
            id,
            group: group.name.clone(),
            endpoint: group.endpoint.clone(),
            labels: group.labels().into_iter().chain(plan.labels.iter().cloned()).collect(),
            model: Arc::clone(&group.model_name),
            kind: group.engine.kind,
            block_size: group.engine.block_size,
            events: match (group.engine.publishes_kv_events(), group.durable_kv_events) {
                (false, _) => KvEvents::None,
                (true, false) => KvEvents::Published,
                (true, true) => KvEvents::Durable,
            },
            shape: Shape::of(plan),
            state: AtomicU8::new(0),
            listed: AtomicBool::new(false),
            registered: AtomicBool::new(false),
            incarnation: AtomicU32::new(0),
            instance: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            http: Mutex::default(),
            reach: Mutex::default(),
            streams: Arc::default(),
            http_requests: Arc::default(),
            recovery: Arc::default(),
            queries: Mutex::default(),
            handoffs: Arc::default(),
            gauges: ranks.clone().map(|_| Arc::default()).collect(),
            metrics: ranks
                .map(|_| EngineMetrics::new(group.engine.kind, group.max_model_len).watched_by(role, latency))
                .map(Arc::new)
                .collect(),
            told: Arc::default(),
            faults: Arc::new(FaultPost::new(id, journal)),
            deaths: Mutex::default(),
            event_drops: Mutex::default(),
        }
    }

    /// Its position in the fleet.
    pub fn id(&self) -> WorkerId {
        self.id
    }

    /// The endpoint that it serves.
    pub fn endpoint(&self) -> &EndpointName {
        &self.endpoint
    }

    pub(super) fn set_state(&self, state: WorkerState) {
        self.state.store(state as u8, Relaxed);
        self.faults.table().journal().note(Event::State {
            worker: self.id,
            state: state.word(),
        });
    }

    /// Keeps what became of the last death of each of the worker's actors.
    pub(super) fn note_death(&self, death: Supervised) {
        let mut deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        deaths.retain(|earlier| earlier.path != death.path);
        deaths.push(death);
    }

    /// Time at `now` until a dead actor is replaced; `None`: it never will be by itself, or there never was one.
    pub(super) fn back_in(&self, path: &str, now: SimTime) -> Option<Duration> {
        let deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        let death = deaths.iter().find(|death| death.path == path)?;
        death.backoff_ms?;
        Some(span_of_ms(death.replaced_in_ms(now)))
    }

    /// An actor of this worker, or the worker itself, has died too often.
    pub(super) fn note_gave_up(&self, path: String, policy: &RestartPolicy) {
        self.faults.table().journal().note(Event::GaveUp {
            worker: self.id,
            path,
            budget: policy.budget,
            window_s: policy.window.as_secs_f64(),
        });
    }

    /// What selectors may ask for besides the group.
    pub fn labels(&self) -> &[(String, String)] {
        &self.labels
    }

    /// Its ranks.
    pub fn ranks(&self) -> usize {
        self.gauges.len()
    }

    /// Whether a worker of these settings has such a child, alive or not.
    pub fn has(&self, child: Child) -> bool {
        self.shape.has(child)
    }

    /// Name of the model that it serves.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Tokens of its KV blocks.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Its group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// How often it has been built.
    pub fn incarnation(&self) -> u32 {
        self.incarnation.load(Relaxed)
    }

    /// Its id in discovery.
    pub fn instance_id(&self) -> u64 {
        self.instance.load(Relaxed)
    }

    /// Restarts of the worker or one of its children.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Relaxed)
    }

    /// Blocks that each of its ranks has had.
    pub fn former(&self) -> Vec<Memory> {
        self.gauges.iter().map(|gauge| gauge.former().memory()).collect()
    }

    /// The faults in force.
    pub fn faults(&self) -> &Arc<FaultPost> {
        &self.faults
    }

    /// The worker as selectors see it.
    pub fn candidate(&self) -> Candidate {
        let loads = self.gauges.iter().map(|gauge| gauge.load());
        let (requests, cached_blocks) = loads.fold((0, 0), |(requests, cached), load| {
            (
                requests + u64::from(load.running) + u64::from(load.waiting),
                cached + u64::from(load.inactive_blocks) + u64::from(load.active_blocks),
            )
        });
        Candidate {
            id: self.id,
            group: self.group.clone(),
            labels: self.labels.clone(),
            alive: matches!(self.state(), WorkerState::Ready | WorkerState::Starting),
            requests,
            cached_blocks,
            events: self.events,
        }
    }

    /// Where it is in its life.
    pub fn state(&self) -> WorkerState {
        WorkerState::ALL[usize::from(self.state.load(Relaxed)).min(WorkerState::ALL.len() - 1)]
    }

    pub(super) fn set_listed(&self, listed: bool) {
        self.listed.store(listed, Relaxed);
        self.registered.fetch_or(listed, Relaxed);
    }

    /// Whether requests that come now are served: `now` by the fleet's clock.
    pub fn health(&self, now: SimTime) -> WorkerHealth {
        let state = self.state();
        if state != WorkerState::Ready {
            WorkerHealth::InState(state)
        } else if self.hangs(now) {
            WorkerHealth::Hung
        } else if !self.is_reachable() {
            WorkerHealth::Unreachable
        } else if !self.listed.load(Relaxed) {
            WorkerHealth::Unlisted
        } else if self.gauges.iter().any(|gauge| gauge.loads(now)) {
            WorkerHealth::Loading
        } else {
            WorkerHealth::InState(state)
        }
    }

    /// Whether it is kept from working, which is so as soon as a fault says it, or a rank is long overdue for whatever reason.
    pub fn hangs(&self, now: SimTime) -> bool {
        self.faults.hangs() || self.gauges.iter().any(|gauge| gauge.is_overdue(now))
    }

    /// Notes what brings the requests of its present incarnation.
    pub(super) fn set_reach(&self, reach: Reach) {
        *self.reach.lock().unwrap_or_else(PoisonError::into_inner) = reach;
    }

    fn is_reachable(&self) -> bool {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner).is_there()
    }

    pub(super) fn set_incarnation(&self, incarnation: u32, instance: u64) {
        self.incarnation.store(incarnation, Relaxed);
        self.instance.store(instance, Relaxed);
    }

    /// Notes what the event sockets of its new incarnation drop.
    pub(super) fn set_event_drops(&self, present: Vec<Arc<AtomicU64>>) {
        let mut drops = self.event_drops.lock().unwrap_or_else(PoisonError::into_inner);
        *drops = EventDrops {
            earlier: drops.total(),
            present,
        };
    }

    /// Notes where its HTTP face listens now.
    pub(super) fn set_http(&self, address: SocketAddr) {
        *self.http.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    fn http(&self) -> Option<SocketAddr> {
        *self.http.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fresh figures of a rank's new recovery endpoint.
    pub(super) fn query_figures(&self, rank: usize, name: &EndpointName) -> Arc<EndpointFigures> {
        let figures = Arc::<EndpointFigures>::default();
        let mut queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        queries.insert(rank, (name.clone(), Arc::clone(&figures)));
        figures
    }

    /// Every endpoint of the worker with what Dynamo's runtime counts of it.
    pub fn endpoint_figures(&self) -> Vec<(EndpointName, Arc<EndpointFigures>)> {
        let own = (self.endpoint.clone(), Arc::clone(&self.streams.figures));
        let queries = self.queries.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(own).chain(queries.values().cloned()).collect()
    }

    /// Passes whose KV events did not reach the publisher.
    pub fn lost_event_batches(&self) -> u64 {
        self.gauges.iter().map(|gauge| gauge.lost_event_batches()).sum()
    }

    pub(super) fn count_restart(&self) {
        self.restarts.fetch_add(1, Relaxed);
    }

    /// Answers under way: response sockets and HTTP requests, those included that a fault holds back.
    pub fn open_streams(&self) -> u32 {
        let http = self.http_requests.active() + self.http_requests.held().waiting();
        self.streams.open.load(Relaxed).saturating_add(http)
    }

    fn page_ranks(&self, label: bool) -> impl Iterator<Item = PageRank> {
        let ranks = self.gauges.iter().zip(&self.metrics).zip(0..);
        ranks.map(move |((gauge, metrics), rank)| PageRank {
            kind: self.kind,
            worker: label.then(|| self.id.to_string()),
            rank,
            block_size: self.block_size,
            model: Arc::clone(&self.model),
            gauge: Arc::clone(gauge),
            told: None,
            metrics: Arc::clone(metrics),
        })
    }

    /// Its engine's metrics, as its own server would show them: with the load that the worker tells while that is not the
    /// true one.
    pub fn engine_page(&self) -> String {
        let mut ranks: Vec<PageRank> = self.page_ranks(false).collect();
        if !self.faults.table().is_quiet::<MetricsFault>() {
            for rank in &mut ranks {
                rank.told = Some(self.told.instead_of(DpRank(rank.rank), rank.gauge.load()));
            }
        }
        engine_page::render(&ranks)
    }

    /// Everything about it now.
    pub fn snapshot(&self) -> WorkerSnapshot {
        let path = |child| ActorPath { worker: self.id, child }.to_string();
        let rank = |(index, gauge): (usize, &Arc<RankGauge>)| {
            gauge.snapshot(path(Some(Child::Rank(u32::try_from(index).unwrap_or(u32::MAX)))))
        };
        WorkerSnapshot {
            path: path(None),
            group: self.group.clone(),
            state: self.state(),
            incarnation: self.incarnation(),
            instance_id: self.instance_id(),
            restarts: self.restarts(),
            registered: self.registered.load(Relaxed),
            http: self.http(),
            open_streams: self.open_streams(),
            accepted_total: self.streams.accepted.load(Relaxed) + self.http_requests.accepted(),
            completed_total: self.streams.completed.load(Relaxed) + self.http_requests.completed(),
            failed_total: self.streams.failed.load(Relaxed) + self.http_requests.failed(),
            cancelled_total: self.streams.cancelled.load(Relaxed) + self.http_requests.cancelled(),
            recovery: RecoverySnapshot {
                answered_total: self.recovery.answered(),
                given_up_total: self.recovery.given_up(),
                dumps_built_total: self.recovery.dumps_built(),
            },
            event_messages_dropped_total: self.event_drops.lock().unwrap_or_else(PoisonError::into_inner).total(),
            handoffs: self.handoffs.snapshot(),
            deaths: self.deaths.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ranks: self.gauges.iter().enumerate().map(rank).collect(),
        }
    }
}

/// All workers, by position. Read-mostly.
#[derive(Debug, Default)]
pub struct Registry {
    workers: DashMap<WorkerId, Arc<WorkerEntry>>,
    latency: Arc<RequestLatency>,
}

impl Registry {
    pub(super) fn insert(&self, entry: WorkerEntry) -> Arc<WorkerEntry> {
        let entry = Arc::new(entry);
        self.workers.insert(entry.id, Arc::clone(&entry));
        entry
    }

    /// Times of the fleet's requests.
    pub fn latency(&self) -> &Arc<RequestLatency> {
        &self.latency
    }

    /// One worker.
    pub fn get(&self, id: WorkerId) -> Option<Arc<WorkerEntry>> {
        self.workers.get(&id).map(|entry| Arc::clone(&entry))
    }

    /// Workers in `state`.
    pub fn count(&self, state: WorkerState) -> usize {
        self.workers.iter().filter(|entry| entry.state() == state).count()
    }

    /// All workers, by position.
    pub fn entries(&self) -> Vec<Arc<WorkerEntry>> {
        let mut entries: Vec<_> = self.workers.iter().map(|entry| Arc::clone(&entry)).collect();
        entries.sort_by_key(|entry| entry.id);
        entries
    }

    /// Engines' metrics of all ranks that have had a request, with the worker's path as a further label.
    pub fn engine_page(&self) -> String {
        let entries = self.entries();
        let ranks = entries.iter().flat_map(|entry| entry.page_ranks(true));
        let ranks: Vec<_> = ranks.filter(PageRank::has_served).collect();
        engine_page::render(&ranks)
    }

    /// What Dynamo's runtime would show of the workers' endpoints, `uptime` after the start.
    pub fn component_page(&self, uptime: Duration) -> String {
        component_page::render(&self.entries(), uptime)
    }

    /// How each worker does, by position.
    pub fn health(&self, now: SimTime) -> Vec<(WorkerId, WorkerHealth)> {
        self.entries()
            .iter()
            .map(|entry| (entry.id, entry.health(now)))
            .collect()
    }

    /// Every worker as selectors see it, by position.
    pub fn candidates(&self) -> Vec<Candidate> {
        self.entries().iter().map(|entry| entry.candidate()).collect()
    }

    /// Lateness of all passes of the fleet.
    pub fn lateness(&self) -> Lateness {
        let entries = self.entries();
        let gauges = entries.iter().flat_map(|entry| &entry.gauges);
        gauges.fold(Lateness::default(), |sum, gauge| sum.merged(&gauge.lateness()))
    }

    /// Everything now.
    pub fn snapshot(&self) -> FleetSnapshot {
        FleetSnapshot {
            workers: self.entries().iter().map(|entry| entry.snapshot()).collect(),
        }
    }
}
