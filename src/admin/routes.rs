//! What the admin API answers. [`super::openapi`] has the table of its paths.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Asked, Named, Nothing, Problem, read};
use super::blocks::Shape;
use super::figures::{self, Each};
use super::seats::Seats;
use super::unique::Unique;
use super::{dashboard, live, openapi, supervisor};
use crate::actors::control::Control;
use crate::actors::death::Death;
use crate::actors::fleet::CommandError;
use crate::actors::path::ActorPath;
use crate::faults::kind::catalogue;
use crate::faults::standing::Listed;
use crate::faults::{Fault, FaultId, Selector};
use crate::types::{SequenceHash, StoredBlock, WorkerId};

/// What every handler shares.
pub(super) struct Api {
    pub(super) control: Control,
    /// Readers of live changes.
    pub(super) seats: Arc<Seats>,
}

type Answer = Result<Json<Value>, Problem>;

pub(super) fn router(control: Control) -> Router {
    let api = Arc::new(Api {
        control,
        seats: Arc::default(),
    });
    Router::new()
        .route("/v1/fleet", get(fleet))
        .route("/v1/workers", get(workers))
        .route("/v1/actors/{*path}", get(actor))
        .route("/v1/cache/{*path}", get(cache))
        .route("/v1/former/{*path}", get(former))
        .route("/v1/blocks/{*path}", get(blocks))
        .route("/v1/records", get(records))
        .route("/v1/faults", get(faults).post(change).put(replace).delete(clear))
        .route("/v1/faults/{id}", delete(remove))
        .route("/v1/kinds", get(kinds))
        .route("/v1/commands", post(command))
        .route("/v1/requests", get(requests))
        .route("/v1/why/{request}", get(why))
        .route("/v1/journal", get(journal))
        .route("/v1/live", get(live::live))
        .route(dashboard::PATH, get(dashboard::page))
        .route("/openapi.json", get(async || Json(openapi::document())))
        .fallback(async || Problem::not_found("no such path; /openapi.json lists them all"))
        .method_not_allowed_fallback(async || {
            Problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "the path has other methods; /openapi.json lists them".to_owned(),
            )
        })
        .with_state(api)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detail {
    workers: Option<Each>,
}

async fn fleet(State(api): State<Arc<Api>>, Asked(detail): Asked<Detail>) -> Json<Value> {
    let latency = figures::latency(&api.control).figures();
    let mut fleet = figures::fleet(&api.control, detail.workers.unwrap_or(Each::No), latency);
    fleet["supervisor"] = supervisor::rule();
    fleet["fault_sums"] = json!(api.control.fault_sums().await);
    Json(fleet)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Most {
    limit: Option<usize>,
    worker: Option<String>,
}

async fn requests(State(api): State<Arc<Api>>, Asked(most): Asked<Most>) -> Answer {
    let of = most.worker.map(|path| path.parse::<ActorPath>()).transpose()?;
    if let Some(path) = of {
        let entry = api.control.registry().get(path.worker);
        entry.ok_or(CommandError::NoSuchActor(path))?;
    }
    let of = of.map(whole).transpose()?;
    let limit = most.limit.unwrap_or(1000).min(MAX_ENTRIES);
    let (requests, not_listed) = api.control.requests(of, limit);
    Ok(Json(json!({"requests": requests, "not_listed": not_listed})))
}

async fn why(State(api): State<Arc<Api>>, Named(request): Named, _: Asked<Nothing>) -> Answer {
    let mut found = api.control.why(&request).await;
    match (found.pop(), found.is_empty()) {
        (None, _) => Err(Problem::not_found(match api.control.swallowed_unseen() {
            0 => format!(
                "no answer to request {request:?} is under way, and no fault holds it; it is over, or never came here"
            ),
            more => format!(
                "no answer to request {request:?} is under way; it is over, never came here, or is one of {more} that \
                 faults have swallowed and that are too many to be listed"
            ),
        })),
        (Some(only), true) => Ok(Json(json!(only))),
        // A router that migrates a request has two answers to it for a moment.
        (Some(last), false) => {
            let mut value = json!(last);
            value["others"] = json!(found);
            Ok(Json(value))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    select: Option<String>,
}

async fn workers(State(api): State<Arc<Api>>, Asked(which): Asked<Which>) -> Answer {
    let mut rows = api.control.registry().rows(api.control.now());
    if let Some(select) = which.select {
        let select: Selector = select.parse()?;
        if let Some(nobody) = select.unmatched(&api.control.registry().candidates()) {
            return Err(selects_nobody(&nobody));
        }
        let chosen = api.control.choose(select, 0).await;
        let chosen: Vec<String> = chosen.iter().map(ToString::to_string).collect();
        rows.retain(|row| chosen.contains(&row.path));
    }
    Ok(Json(json!(rows)))
}

async fn actor(State(api): State<Arc<Api>>, Named(path): Named, _: Asked<Nothing>) -> Answer {
    let path: ActorPath = path.parse()?;
    let entry = api.control.registry().get(path.worker);
    let entry = entry.ok_or(CommandError::NoSuchActor(path))?;
    if path.child.is_some_and(|child| !entry.has(child)) {
        return Err(CommandError::NoSuchActor(path).into());
    }
    let snapshot = entry.snapshot();
    let now = api.control.now();
    if path.child.is_none() {
        let ids = entry.faults().table().ids();
        let mut faults = api.control.faults().await;
        faults.retain(|fault| ids.contains(&fault.id));
        let mut value = json!(snapshot);
        value["faults"] = json!(faults);
        value["labels"] = entry
            .labels()
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        value["health"] = json!(entry.health(now).word());
        value["supervisor"] = supervisor::stand(&snapshot.deaths, now);
        return Ok(Json(value));
    }
    let inside = api.control.inspect(path).await?;
    let text = path.to_string();
    let rank = snapshot.ranks.iter().find(|rank| rank.path == text);
    let death = snapshot.deaths.iter().filter(|death| death.path == text);
    Ok(Json(json!({
        "path": text,
        "worker_state": snapshot.state,
        "figures": rank,
        "inside": inside,
        "supervisor": supervisor::stand(&death.cloned().collect::<Vec<_>>(), now),
    })))
}

async fn cache(State(api): State<Arc<Api>>, Named(path): Named, _: Asked<Nothing>) -> Answer {
    let ranks = api.control.cached_blocks(path.parse()?).await?;
    let ranks = ranks.iter().map(|blocks| blocks.iter().map(placed).collect::<Vec<_>>());
    Ok(Json(json!(ranks.collect::<Vec<_>>())))
}

fn placed((parent, block): &(Option<SequenceHash>, StoredBlock)) -> Value {
    json!({"block_hash": block.block_hash.0, "tokens_hash": block.tokens_hash.0, "parent": parent.map(|p| p.0)})
}

/// The worker may be dead: what is remembered outlives it.
async fn former(State(api): State<Arc<Api>>, Named(worker): Named, _: Asked<Nothing>) -> Answer {
    let path: ActorPath = worker.parse()?;
    let entry = api.control.registry().get(whole(path)?);
    let entry = entry.ok_or(CommandError::NoSuchActor(path))?;
    let ranks = entry.former().into_iter().map(
        |memory| json!({"blocks": memory.blocks.iter().map(placed).collect::<Vec<_>>(), "dropped": memory.dropped}),
    );
    Ok(Json(json!(ranks.collect::<Vec<_>>())))
}

async fn blocks(State(api): State<Arc<Api>>, Named(path): Named, _: Asked<Nothing>) -> Answer {
    let path: ActorPath = path.parse()?;
    let ranks = api.control.cached_blocks(path).await?;
    let shapes = ranks.iter().enumerate().map(|(index, content)| {
        let rank = match path.child {
            Some(_) => path,
            None => path.rank(index),
        };
        Shape::of(rank.to_string(), content)
    });
    Ok(Json(json!(shapes.collect::<Vec<_>>())))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Under {
    prefix: String,
}

async fn records(State(api): State<Arc<Api>>, Asked(under): Asked<Under>) -> Answer {
    let Under { prefix } = under;
    if !prefix.starts_with("v1/") {
        return Err(Problem::bad(format!(
            "prefix {prefix:?} must start with v1/, as v1/instances/"
        )));
    }
    let records = api.control.records(&prefix).await;
    let records = records.map_err(|error| Problem(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(Json(json!(records)))
}

async fn faults(State(api): State<Arc<Api>>, _: Asked<Nothing>) -> Json<Vec<Listed>> {
    Json(api.control.faults().await)
}

async fn kinds(_: Asked<Nothing>) -> Json<Value> {
    Json(json!(catalogue().collect::<Vec<_>>()))
}

/// A change as it was sent.
struct Change {
    add: Vec<Fault>,
    remove: Vec<FaultId>,
}

impl Change {
    /// A fault, a list of them, or `{"add": [..], "remove": [..]}`. A fault may be an object or one line.
    fn read(body: &Bytes) -> Result<Self, Problem> {
        let Unique(value) = serde_json::from_slice(body).map_err(|error| {
            let wrong = if error.is_data() {
                "of the body"
            } else {
                "the body is no JSON"
            };
            Problem::bad(format!("{wrong}: {error}"))
        })?;
        let mut change = Self {
            add: Vec::new(),
            remove: Vec::new(),
        };
        match value {
            Value::Array(faults) => change.add = read_faults(faults)?,
            Value::Object(mut object) if object.contains_key("add") || object.contains_key("remove") => {
                let mut take = |key: &str| match object.remove(key) {
                    None => Ok(Vec::new()),
                    Some(Value::Array(items)) => Ok(items),
                    Some(_) => Err(Problem::bad(format!("{key} must be a list"))),
                };
                change.add = read_faults(take("add")?)?;
                let remove = take("remove")?.into_iter().map(|id| match id {
                    Value::String(text) => Ok(text.parse()?),
                    other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                        read("remove", other)
                    }
                });
                change.remove = remove.collect::<Result<_, Problem>>()?;
                if let Some(key) = object.keys().next() {
                    return Err(Problem::bad(format!("unknown key `{key}`; use add and remove")));
                }
            }
            fault @ (Value::Object(_) | Value::String(_)) => change.add = read_faults(vec![fault])?,
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                return Err(Problem::bad(
                    "send a fault, a list of faults, or {\"add\": [..], \"remove\": [..]}",
                ));
            }
        }
        Ok(change)
    }
}

fn read_faults(faults: Vec<Value>) -> Result<Vec<Fault>, Problem> {
    let fault = |(index, fault)| match fault {
        Value::String(line) => line.parse::<Fault>().map_err(|error| Problem::bad(error.to_string())),
        other @ Value::Object(_) => read(&format!("fault {index}"), other),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            Err(Problem::bad(format!("fault {index} must be an object or a line")))
        }
    };
    faults.into_iter().enumerate().map(fault).collect()
}

async fn answer_change(api: &Api, remove: Option<Vec<FaultId>>, add: Vec<Fault>) -> Answer {
    let ids = api.control.change_faults(remove, add).await?;
    let mut faults = api.control.faults().await;
    faults.retain(|fault| ids.contains(&fault.id));
    Ok(Json(json!(faults)))
}

async fn change(State(api): State<Arc<Api>>, _: Asked<Nothing>, body: Bytes) -> Answer {
    let Change { add, remove } = Change::read(&body)?;
    answer_change(&api, Some(remove), add).await
}

async fn replace(State(api): State<Arc<Api>>, _: Asked<Nothing>, body: Bytes) -> Answer {
    let Change { add, remove } = Change::read(&body)?;
    if !remove.is_empty() {
        return Err(Problem::bad(
            "a replacement removes all faults by itself; send only the new ones",
        ));
    }
    answer_change(&api, None, add).await
}

async fn clear(State(api): State<Arc<Api>>, _: Asked<Nothing>) -> Answer {
    answer_change(&api, None, Vec::new()).await
}

async fn remove(State(api): State<Arc<Api>>, Named(id): Named, _: Asked<Nothing>) -> Answer {
    answer_change(&api, Some(vec![id.parse()?]), Vec::new()).await
}

/// What can be done to whom.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    command: Word,
    /// Actor path.
    #[serde(default)]
    path: Option<String>,
    /// Workers, instead of a path.
    #[serde(default)]
    select: Option<Selector>,
    #[serde(default)]
    seed: u64,
    /// Restarts and heals come back under the former instance id.
    #[serde(default)]
    same_id: bool,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Word {
    Crash,
    Panic,
    Drain,
    Restart,
    Heal,
    ClearCache,
}

async fn command(State(api): State<Arc<Api>>, _: Asked<Nothing>, body: Bytes) -> Result<Response, Problem> {
    // Members may not come as a list, by position.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad(
            "send an object, as {\"command\": \"crash\", \"path\": \"w3\"}",
        ));
    }
    let mut reader = serde_json::Deserializer::from_slice(&body);
    let order: Order = read("", &mut reader)?;
    reader.end().map_err(|error| Problem::bad(error.to_string()))?;
    let targets: Vec<ActorPath> = match (&order.path, order.select) {
        (Some(path), None) => vec![path.parse()?],
        (None, Some(select)) => {
            if let Some(nobody) = select.unmatched(&api.control.registry().candidates()) {
                return Err(selects_nobody(&nobody));
            }
            let chosen = api.control.choose(select.clone(), order.seed).await;
            if chosen.is_empty() {
                return Err(selects_nobody(&select));
            }
            chosen
                .into_iter()
                .map(|worker| ActorPath { worker, child: None })
                .collect()
        }
        _ => return Err(Problem::bad("say whom: path or select")),
    };
    let calls = targets
        .into_iter()
        .map(|path| carry_out(&api.control, order.command, path, order.same_id));
    let outcomes = futures::future::join_all(calls).await;
    let mut worst = StatusCode::OK;
    let results: Vec<Value> = outcomes
        .into_iter()
        .map(|(path, outcome)| match outcome {
            Ok(()) => json!({"path": path.to_string(), "ok": true}),
            Err(error) => {
                let Problem(status, error) = error.into();
                worst = worst.max(status);
                json!({"path": path.to_string(), "ok": false, "error": error})
            }
        })
        .collect();
    Ok((worst, Json(json!({"results": results}))).into_response())
}

fn selects_nobody(select: &Selector) -> Problem {
    Problem::not_found(format!("{select} selects no worker of this fleet"))
}

/// The worker, where none of its children will do.
fn whole(path: ActorPath) -> Result<WorkerId, CommandError> {
    match path.child {
        None => Ok(path.worker),
        Some(_) => Err(CommandError::NeedsWorker(path)),
    }
}

async fn carry_out(
    control: &Control,
    word: Word,
    path: ActorPath,
    same_id: bool,
) -> (ActorPath, Result<(), CommandError>) {
    let outcome = match word {
        Word::Crash => control.kill(path, Death::Crash).await,
        Word::Panic => control.kill(path, Death::Panic).await,
        Word::ClearCache => control.clear_cache(path).await.map(|_| ()),
        Word::Drain => match whole(path) {
            Ok(worker) => control.drain(worker).await,
            Err(error) => Err(error),
        },
        Word::Restart => match whole(path) {
            Ok(worker) => control.restart(worker, same_id).await,
            Err(error) => Err(error),
        },
        Word::Heal => match whole(path) {
            Ok(worker) => control.heal(vec![worker], same_id).await,
            Err(error) => Err(error),
        },
    };
    (path, outcome)
}

/// A part of the journal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
    #[serde(default)]
    draws: bool,
}

/// Entries of one answer.
const MAX_ENTRIES: usize = 10_000;

async fn journal(State(api): State<Arc<Api>>, Asked(part): Asked<Part>) -> Json<Value> {
    let limit = part.limit.unwrap_or(1000).min(MAX_ENTRIES);
    Json(json!(api.control.journal().page(part.after, limit, part.draws)))
}
