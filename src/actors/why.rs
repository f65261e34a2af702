//! Who waits for what: why a request is not further than it is.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::control::Control;
use super::fleet::FindRanks;
use super::inspect::Look;
use super::path::ActorPath;
use super::rank::{Holds, Rank};
use super::registry::WorkerEntry;
use crate::faults::Layer;
use crate::transport::held::{HeldRequest, Hold};
use crate::transport::http::open::OpenRequest;
use crate::transport::request_plane::call_home::open::{OpenAnswer, Stage};
use crate::types::{RequestId, WorkerId};

/// Where a request stands.
enum Standing {
    /// It is served.
    At(Stage),
    /// A fault keeps it from being served.
    Held(HeldRequest),
}

/// A request under way, whichever way it came.
struct Seen {
    request: String,
    /// Handles in this process.
    ids: Vec<RequestId>,
    age: Duration,
    tokens: u32,
    standing: Standing,
    /// Its caller gets no ack, because of a fault.
    is_unacked: bool,
    /// What waits for the reader, and in which unit.
    pending: (usize, &'static str),
    /// Where the answer goes.
    address: String,
}

impl Seen {
    fn by_call(answer: &OpenAnswer) -> Self {
        Self {
            request: answer.request.clone(),
            ids: vec![answer.id],
            age: answer.age(),
            tokens: answer.tokens(),
            standing: Standing::At(answer.stage()),
            is_unacked: answer.is_unacked,
            pending: (answer.pending_bytes(), "bytes"),
            address: answer.address.to_string(),
        }
    }

    fn by_http(request: &OpenRequest) -> Self {
        let progress = request.progress();
        Self {
            request: request.answer_id().to_owned(),
            ids: request.choices().to_vec(),
            age: request.age(),
            tokens: progress.tokens,
            standing: Standing::At(match (progress.ended, progress.admitted) {
                (true, _) => Stage::Ending,
                (false, true) => Stage::Running,
                (false, false) => Stage::Waiting,
            }),
            is_unacked: false,
            pending: (progress.pending, "events"),
            address: request.whereabouts(),
        }
    }

    fn by_fault(request: HeldRequest) -> Self {
        Self {
            request: request.request.clone(),
            ids: Vec::new(),
            age: request.age(),
            tokens: 0,
            is_unacked: false,
            pending: (0, "bytes"),
            address: request.address.clone(),
            standing: Standing::Held(request),
        }
    }

    /// Those that faults keep from being served, and how many more there are.
    fn held(entry: &WorkerEntry) -> (Vec<HeldRequest>, u64) {
        let in_force = entry.faults().table().ids();
        let (mut held, more) = entry.streams.held.list(&in_force);
        held.extend(entry.http_requests.held().list(&in_force).0);
        (held, more)
    }

    /// All that a worker has, and how many more there are.
    fn of(entry: &WorkerEntry) -> (Vec<Self>, u64) {
        let calls = entry.streams.answers.list();
        let http = entry.http_requests.list();
        let calls = calls.iter().map(|answer| Self::by_call(answer));
        let served = calls.chain(http.iter().map(|request| Self::by_http(request)));
        let (held, more) = Self::held(entry);
        (served.chain(held.into_iter().map(Self::by_fault)).collect(), more)
    }

    fn find(entry: &WorkerEntry, request: &str) -> Vec<Self> {
        let calls = entry.streams.answers.find(request);
        let http = entry.http_requests.find(request);
        let calls = calls.iter().map(|answer| Self::by_call(answer));
        let served = calls.chain(http.iter().map(|request| Self::by_http(request)));
        let held = Self::held(entry).0.into_iter().filter(|held| held.is(request));
        held.map(Self::by_fault).chain(served).collect()
    }

    fn is_held(&self) -> bool {
        matches!(self.standing, Standing::Held(_))
    }
}

/// A request that is under way.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestView {
    /// Id that the router gave it; of an HTTP request, the id of its answer.
    pub request: String,
    /// Who has it.
    pub worker: String,
    /// Since it was accepted, ms.
    pub age_ms: f64,
    /// Tokens said so far.
    pub tokens: u32,
    /// Where it stands.
    pub phase: &'static str,
    /// What waits for the other side to read it: bytes towards a router, events towards an HTTP client.
    pub pending: usize,
    /// Where the answer goes.
    pub address: String,
}

/// A request and what it waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Why {
    /// The request.
    #[serde(flatten)]
    pub view: RequestView,
    /// What it waits for, in words, the nearest cause first.
    pub because: Vec<String>,
    /// What the rank that holds it says.
    pub rank: Option<Value>,
}

/// Time for a rank to answer.
const PATIENCE: Duration = Duration::from_millis(500);

fn view(entry: &WorkerEntry, seen: &Seen) -> RequestView {
    RequestView {
        request: seen.request.clone(),
        worker: entry.id().to_string(),
        age_ms: seen.age.as_secs_f64() * 1e3,
        tokens: seen.tokens,
        phase: match &seen.standing {
            Standing::At(Stage::Dialling) => "dialling",
            Standing::At(Stage::Waiting) => "waiting",
            Standing::At(Stage::Running) => "running",
            Standing::At(Stage::Ending) => "ending",
            Standing::At(Stage::Closing) => "closing",
            Standing::At(Stage::Broken) => "broken",
            Standing::Held(held) => match held.hold {
                Hold::Delayed { .. } => "delayed",
                Hold::Swallowed | Hold::NotDialled => "swallowed",
            },
        },
        pending: seen.pending.0,
        address: seen.address.clone(),
    }
}

impl Control {
    /// At most `limit` requests that are under way or held by a fault, of one worker or of all, and how many more there
    /// are.
    pub fn requests(&self, of: Option<WorkerId>, limit: usize) -> (Vec<RequestView>, u64) {
        let mut views = Vec::new();
        let mut more = 0;
        let entries = match of {
            Some(worker) => self.registry.get(worker).into_iter().collect(),
            None => self.registry.entries(),
        };
        for entry in entries {
            let (all, not_listed) = Seen::of(&entry);
            more += not_listed;
            for seen in all {
                if views.len() < limit {
                    views.push(view(&entry, &seen));
                } else {
                    more += 1;
                }
            }
        }
        (views, more)
    }

    /// Every answer under way to the request of that id, on the request plane or by HTTP, and what it waits for. Before
    /// them those that a fault holds: a router may have given such a one up and asked somebody else.
    pub async fn why(&self, request: &str) -> Vec<Why> {
        let mut seen = Vec::new();
        for entry in self.registry.entries() {
            let found = Seen::find(&entry, request).into_iter();
            seen.extend(found.map(|seen| (Arc::clone(&entry), seen)));
        }
        seen.sort_by_key(|(_, seen)| !seen.is_held());
        let mut found = Vec::new();
        for (entry, seen) in seen {
            found.push(self.explain(&entry, &seen).await);
        }
        found
    }

    /// Requests that faults have swallowed and that are too many to be told one by one.
    pub fn swallowed_unseen(&self) -> u64 {
        self.registry.entries().iter().map(|entry| Seen::held(entry).1).sum()
    }

    async fn explain(&self, entry: &WorkerEntry, seen: &Seen) -> Why {
        let mut because = Vec::new();
        let mut rank = None;
        let address = &seen.address;
        match &seen.standing {
            Standing::At(Stage::Dialling) => because.push(format!(
                "the response server at {address} has not taken the connection yet"
            )),
            Standing::At(Stage::Closing) => because.push(format!("complete; {address} has not closed the stream yet")),
            Standing::At(Stage::Broken) => because.push("the stream broke off and is being reset".to_owned()),
            Standing::At(Stage::Waiting | Stage::Running | Stage::Ending) => {}
            Standing::Held(held) => because.push(held_by(held)),
        }
        if seen.is_unacked {
            because.push(
                "its caller has no ack: a fault has withheld one on the connection that brought it, and with it all later ones"
                    .to_owned(),
            );
        }
        if let (many @ 1.., unit) = seen.pending {
            because.push(format!("{many} {unit} wait for {address} to read them"));
        }
        if let Standing::At(stage @ (Stage::Waiting | Stage::Running)) = seen.standing {
            rank = self.ask(entry, (seen, stage), &mut because).await;
        }
        let ids = entry.faults().table().ids();
        if !ids.is_empty() {
            for fault in self.faults().await {
                let concerns = !matches!(
                    fault.fault.kind.layer(),
                    Layer::Events | Layer::Metrics | Layer::Discovery
                );
                if concerns && ids.contains(&fault.id) {
                    because.push(format!("fault {} is in force: {}", fault.id, fault.line));
                }
            }
        }
        if because.is_empty() {
            because.push("nothing holds it up".to_owned());
        }
        Why {
            view: view(entry, seen),
            because,
            rank,
        }
    }

    /// What the rank that holds the request says.
    async fn ask(
        &self,
        entry: &WorkerEntry,
        (seen, stage): (&Seen, Stage),
        because: &mut Vec<String>,
    ) -> Option<Value> {
        let path = ActorPath {
            worker: entry.id(),
            child: None,
        };
        let found: Result<Result<Vec<Addr<Rank>>, _>, _> = self.fleet.send(FindRanks { path }).await;
        let Ok(Ok(ranks)) = found else {
            because.push(format!("{path} has no rank that is alive"));
            return None;
        };
        for (index, rank) in ranks.iter().enumerate() {
            match tokio::time::timeout(PATIENCE, rank.send(Holds(seen.ids.clone()))).await {
                Err(_) => because.push(format!(
                    "{path}/r{index} did not answer within {} ms",
                    PATIENCE.as_millis()
                )),
                Ok(Ok(Some(handoff))) => {
                    because.extend(handoff);
                    let said = tokio::time::timeout(PATIENCE, rank.send(Look)).await.ok()?.ok()?;
                    because.extend(words(&format!("{path}/r{index}"), stage, &said));
                    return Some(said);
                }
                Ok(Ok(None) | Err(_)) => {}
            }
        }
        because.push(format!(
            "no rank of {path} has it: it is in a mailbox, or it was swallowed"
        ));
        None
    }
}

/// What a fault does to a request, in words.
fn held_by(held: &HeldRequest) -> String {
    let (fault, address) = (held.fault, &held.address);
    match held.hold {
        Hold::Delayed { until } => {
            let left = until.saturating_duration_since(Instant::now());
            format!("fault {fault} delays it: it is looked at in {} ms", left.as_millis())
        }
        Hold::Swallowed => format!("fault {fault} has swallowed it: {address} hears nothing"),
        Hold::NotDialled => format!("fault {fault} has swallowed it: it was acked, and nobody dials {address} back"),
    }
}

fn words(path: &str, stage: Stage, said: &Value) -> Vec<String> {
    let mut words = Vec::new();
    if said["hangs"] == true {
        words.push(format!("{path} hangs"));
    }
    if let Some(starts) = said["activity"]["starts_in_ms"].as_f64() {
        words.push(format!("{path} is still starting, for {starts:.0} ms more"));
    }
    let load = &said["load"];
    if stage == Stage::Waiting {
        words.push(format!(
            "{path} has not admitted it: {} running, {} waiting, {} of {} blocks in use",
            load["running"], load["waiting"], load["active_blocks"], load["total_blocks"]
        ));
    }
    let pass = &said["activity"]["pass"];
    if let (Some(ends), Some(overdue)) = (pass["ends_in_ms"].as_f64(), pass["overdue_ms"].as_f64()) {
        words.push(if overdue > 0.0 {
            format!(
                "{path} is {overdue:.1} ms behind with a pass of {} requests",
                load["running"]
            )
        } else {
            format!(
                "{path} is in a pass of {} requests that ends in {ends:.1} ms",
                load["running"]
            )
        });
    }
    words
}
