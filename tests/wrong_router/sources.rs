//! Who is there, and who publishes what: discovery, events, and questions to publishers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ghostfleet::transport::discovery::{Discovery, Record};
use ghostfleet::transport::event_plane::envelope;
use ghostfleet::truth::RankId;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use zeromq::{Socket, SocketRecv, SubSocket};

use crate::index::{Next, Stream, StreamId};
use crate::plane::{Said, call};
use crate::router::{Router, Worker};
use crate::wrong::Wrong;

/// How often discovery is looked at.
const LOOK: Duration = Duration::from_millis(120);

/// Longest wait for what a publisher answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// One publisher, as discovery has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    id: StreamId,
    recovery: Option<String>,
    events: Option<String>,
}

/// Follows discovery until the runtime ends.
pub(crate) async fn follow(router: Arc<Router>, discovery: Discovery) {
    let mut followed: BTreeSet<StreamId> = BTreeSet::new();
    loop {
        if let Ok(records) = discovery.list("v1/").await {
            look(&router, &records, &mut followed);
        }
        sleep(LOOK).await;
    }
}

fn values(records: &[Record], prefix: &str) -> Vec<Value> {
    let of = records.iter().filter(|record| record.key.starts_with(prefix));
    of.filter_map(|record| serde_json::from_slice(&record.value).ok())
        .collect()
}

fn look(router: &Arc<Router>, records: &[Record], followed: &mut BTreeSet<StreamId>) {
    let cards = values(records, "v1/mdc/");
    let mut present = BTreeMap::new();
    for instance in values(records, "v1/instances/") {
        if instance["endpoint"] == "generate"
            && let (Some(id), Some(address)) = (instance["instance_id"].as_u64(), instance["transport"]["tcp"].as_str())
        {
            present.insert(id, address.to_owned());
        }
    }
    let sources = sources(records);
    let state = &mut *router.state();
    for card in &cards {
        let (card, id) = (&card["card_json"], card["instance_id"].as_u64().unwrap_or(0));
        card["display_name"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut state.model);
        state.block_size = usize::try_from(card["kv_cache_block_size"].as_u64().unwrap_or(16)).unwrap();
        if let Some(address) = present.get(&id) {
            let total = card["runtime_config"]["total_kv_blocks"].as_u64().unwrap_or(u64::MAX);
            let worker = state
                .workers
                .entry(id)
                .or_insert_with(|| Worker::new(address.clone(), total));
            if worker.address != *address {
                *worker = Worker::new(address.clone(), total);
            }
        }
    }
    let gone = |id: &u64| !present.contains_key(id) && !state.revived.contains(id);
    let left: Vec<u64> = state.workers.keys().copied().filter(gone).collect();
    for id in left {
        state.workers.remove(&id);
        if !router.is(Wrong::StaleCredit) {
            state.streams.retain(|(rank, _), _| rank.worker.0 != id);
        }
    }
    let mut per_rank: BTreeMap<RankId, Vec<&Source>> = BTreeMap::new();
    for source in &sources {
        per_rank.entry(source.id.0).or_default().push(source);
    }
    for (rank, of_rank) in per_rank {
        if of_rank.len() > 1 && !router.is(Wrong::BothSourcesCount) && !router.is(Wrong::StaleCredit) {
            // Nobody can tell who is right.
            state.streams.retain(|(known, _), _| *known != rank);
            followed.retain(|(known, _)| *known != rank);
            continue;
        }
        for source in of_rank {
            let mut id = source.id;
            if router.is(Wrong::StaleCredit) {
                // The worker is the stream.
                id.1 = 0;
            }
            if source.events.is_none() && !router.is(Wrong::BothSourcesCount) || !followed.insert(source.id) {
                continue;
            }
            state.streams.retain(|(known, publisher), _| {
                *known != rank || *publisher == id.1 || router.is(Wrong::BothSourcesCount)
            });
            let is_new = !state.streams.contains_key(&id);
            state.streams.entry(id).or_insert_with(Stream::asking);
            if let Some(events) = &source.events {
                tokio::spawn(listen(Arc::clone(router), events.clone(), source.clone(), id));
            }
            if is_new {
                tokio::spawn(ask(Arc::clone(router), source.clone(), id, None));
            }
        }
    }
    let listed: BTreeSet<StreamId> = sources.iter().map(|source| source.id).collect();
    let forgotten = |id: &StreamId| !listed.contains(id);
    if !router.is(Wrong::StaleCredit) && !router.is(Wrong::LateEventRevives) {
        state.streams.retain(|id, _| !forgotten(id));
    }
    if !router.is(Wrong::LateEventRevives) {
        followed.retain(|id| !forgotten(id));
    }
}

fn sources(records: &[Record]) -> BTreeSet<Source> {
    let mut channels = BTreeMap::new();
    for channel in values(records, "v1/event_channels/") {
        if channel["topic"] == "kv-events"
            && let (Some(id), Some(at)) = (
                channel["instance_id"].as_u64(),
                channel["transport"]["config"]["endpoint"].as_str(),
            )
        {
            channels.insert(id, at.to_owned());
        }
    }
    let source = |source: Value| {
        let told = &source["metadata"];
        let publisher = source["publisher_id"].as_u64()?;
        let rank = u32::try_from(told["worker"]["dp_rank"].as_u64()?).ok()?;
        Some(Source {
            id: (RankId::new(told["worker"]["worker_id"].as_u64()?, rank), publisher),
            recovery: told["recovery_target"]["transport"]["tcp"].as_str().map(str::to_owned),
            events: channels.get(&publisher).cloned(),
        })
    };
    values(records, "v1/event_sources/")
        .into_iter()
        .filter_map(source)
        .collect()
}

/// Hears what one publisher says.
async fn listen(router: Arc<Router>, endpoint: String, source: Source, id: StreamId) {
    let mut socket = SubSocket::new();
    if socket.connect(&endpoint).await.is_err() || socket.subscribe("kv-events").await.is_err() {
        return;
    }
    while let Ok(message) = socket.recv().await {
        let frames = message.into_vec();
        let Ok((_, envelope)) = envelope::decode_frames(&frames) else {
            continue;
        };
        if envelope.publisher_id.get() != source.id.1 {
            continue;
        }
        let Ok(Value::Array(events)) = rmp_serde::from_slice(envelope.payload) else {
            continue;
        };
        let mut next = Next::Nothing;
        {
            let state = &mut *router.state();
            if router.is(Wrong::LateEventRevives)
                && !state.workers.contains_key(&id.0.worker.0)
                && let Some(recovery) = &source.recovery
            {
                // Its address is still known: that of the endpoint it was asked at.
                let address = recovery.rsplit_once('/').map_or("", |(path, _)| path);
                state
                    .workers
                    .insert(id.0.worker.0, Worker::new(format!("{address}/generate"), u64::MAX));
                state.revived.insert(id.0.worker.0);
            }
            if let Some(worker) = state.workers.get_mut(&id.0.worker.0) {
                worker.heard = Instant::now();
            }
            let stream = if router.is(Wrong::LateEventRevives) {
                Some(state.streams.entry(id).or_default())
            } else {
                // Of a stream that is not followed any more nothing is believed.
                state.streams.get_mut(&id)
            };
            let Some(stream) = stream else { return };
            for event in &events {
                let (worker, rank) = (event["worker_id"].as_u64(), event["event"]["dp_rank"].as_u64());
                if worker != Some(id.0.worker.0) || rank != Some(id.0.rank.0.into()) {
                    continue;
                }
                if let Next::Ask(from) = stream.take(event, router.wrong) {
                    next = Next::Ask(from);
                }
            }
        }
        if let Next::Ask(from) = next {
            tokio::spawn(ask(Arc::clone(&router), source.clone(), id, Some(from)));
        }
    }
}

/// Asks a publisher for what it has, all of it or from an event on.
async fn ask(router: Arc<Router>, source: Source, id: StreamId, from: Option<u64>) {
    let Some(address) = source.recovery.clone() else {
        if let Some(stream) = router.state().streams.get_mut(&id) {
            stream.go_on(router.wrong);
        }
        return;
    };
    let is_gap = from.is_some();
    let from = from.filter(|_| !router.is(Wrong::EndlessDumps));
    let body = json!({
        "worker_id": id.0.worker.0, "dp_rank": id.0.rank.0, "start_event_id": from, "end_event_id": null,
        "supports_tree_dump_failed": true, "kind": "recovery",
    });
    let answer = if router.is(Wrong::RecoveryBlocks) && is_gap {
        let _routing = router.routing.lock().await;
        answer(&address, &body).await
    } else {
        timeout(PATIENCE, answer(&address, &body)).await.ok().flatten()
    };
    {
        let state = &mut *router.state();
        let Some(stream) = state.streams.get_mut(&id) else {
            return;
        };
        match &answer {
            Some(answer) => stream.recover(answer, router.wrong),
            None => stream.go_on(router.wrong),
        }
    }
    if router.is(Wrong::EndlessDumps) && is_gap {
        sleep(Duration::from_millis(50)).await;
        Box::pin(ask(router, source, id, Some(1))).await;
    }
}

async fn answer(address: &str, body: &Value) -> Option<Value> {
    let mut answer = loop {
        match call(address, &uuid::Uuid::new_v4().to_string(), body).await {
            Ok(answer) => break answer,
            // Taken, and nobody dials: it may yet.
            Err(error) if error.to_string() == "nobody dials" => {}
            Err(_) => return None,
        }
    };
    loop {
        match answer.next().await.ok()? {
            Said::Item(item) if !item["data"].is_null() => return Some(item["data"].clone()),
            Said::Item(_) => {}
            Said::End => return None,
        }
    }
}
