//! Drift and leaks of a running fleet: pictures of the truth by the admin API, held against what routers say.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, ClientError};
use super::{CtlError, pretty, print, say};
use crate::actors::row::WorkerRow;
use crate::cli::ctl::{DriftArgs, LeaksArgs};
use crate::truth::credit::{self, Scope};
use crate::truth::drift::compare;
use crate::truth::leaks::{Held, leaked};
use crate::truth::past::Had;
use crate::truth::{Block, Caches, Drift, Past, RankCache, RankId};
use crate::types::{LocalHash, SequenceHash};
use crate::witness::choices;
use crate::witness::indexer::Indexer;
use crate::witness::served::ServedIndex;

/// Time between two attempts while `--within` lasts.
const PAUSE: Duration = Duration::from_millis(250);

/// How far a router is from the truth, by whatever way it could be asked.
enum Found {
    Drift(Drift),
    /// By questions.
    Asked(Drift, Scope),
    Choices(crate::truth::choice::Choices),
}

impl Found {
    fn share(&self) -> f64 {
        match self {
            Self::Drift(drift) | Self::Asked(drift, _) => drift.share,
            Self::Choices(choices) => choices.share,
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Drift(drift) => json!({"by": "index", "drift": drift}),
            Self::Asked(drift, scope) => json!({"by": "index", "drift": drift, "asked": scope}),
            Self::Choices(choices) => json!({"by": "choices", "choices": choices}),
        }
    }
}

/// Compares until the drift is small enough, or time is up.
pub(super) fn drift(client: &Client, args: &DriftArgs, as_json: bool) -> Result<(), CtlError> {
    let begin = Instant::now();
    let within = Duration::try_from_secs_f64(args.within).unwrap_or_default();
    let (found, share) = loop {
        let is_over = begin.elapsed() >= within;
        match look(client, args) {
            Ok(found) => {
                let share = found.share();
                if share <= args.max || is_over {
                    break (found, share);
                }
            }
            // A router that has just started may not be ready to be asked.
            Err(CtlError::Witness(_)) if !is_over => {}
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    };
    if as_json {
        let mut value = found.json();
        value["share"] = share.into();
        value["max"] = args.max.into();
        say(&pretty(&value))?;
    } else {
        say(&match &found {
            Found::Drift(drift) => print::drift(drift),
            Found::Asked(drift, scope) => format!("{}\n{}", print::drift(drift), print::scope(scope)),
            Found::Choices(choices) => print::choices(choices),
        })?;
    }
    if share <= args.max {
        Ok(())
    } else {
        Err(CtlError::Verdict(format!(
            "drift {share:.6} is above --max {}",
            args.max
        )))
    }
}

fn look(client: &Client, args: &DriftArgs) -> Result<Found, CtlError> {
    if let Some(url) = &args.indexer {
        return by_dump(client, &Indexer::new(url, args.model.clone())?).map(Found::Drift);
    }
    if args.served {
        return by_questions(client, args).map(|(drift, scope)| Found::Asked(drift, scope));
    }
    let url = args.frontend.as_deref().unwrap_or_default();
    by_choices(client, url, args).map(Found::Choices)
}

/// An index that shows everything.
fn by_dump(client: &Client, indexer: &Indexer) -> Result<Drift, CtlError> {
    let earlier = past(client)?;
    let before = caches(client)?;
    // What has just come or gone is on its way to the index.
    thread::sleep(PAUSE);
    let dump = indexer.dump()?;
    let after = caches(client)?;
    let passing = past(client)?.since(&earlier);
    let known = |id: &RankId| after.ranks.contains_key(id);
    let names = if dump.caches.ranks.keys().all(known) {
        crate::truth::dump::Names::default()
    } else {
        indexer.names(&native_ports(client, &after)?)?
    };
    Ok(compare(&before, &dump.renamed(&names), (&after, &passing)))
}

/// An index that answers questions.
fn by_questions(client: &Client, args: &DriftArgs) -> Result<(Drift, Scope), CtlError> {
    let records = client.get("/v1/records", &[("prefix", "v1/instances/".to_owned())])?;
    let index = ServedIndex::find(&records, model(client, args)?)?;
    let earlier = past(client)?;
    let before = caches(client)?;
    thread::sleep(PAUSE);
    let (questions, scope) = credit::questions(&before, &past(client)?, args.probes);
    let mut asked = Vec::new();
    for question in questions {
        let credit = index.ask(&question)?;
        asked.push((question, credit));
    }
    let after = caches(client)?;
    let passing = past(client)?.since(&earlier);
    Ok((credit::compare(&before, &asked, (&after, &passing)), scope))
}

/// What the fleet says of its models in discovery.
fn cards(client: &Client) -> Result<Value, ClientError> {
    client.get("/v1/records", &[("prefix", "v1/mdc/".to_owned())])
}

/// Tokens per block: as asked for, or what every card of the fleet says.
fn block_size(client: &Client, args: &DriftArgs) -> Result<usize, CtlError> {
    if let Some(tokens) = args.block_size {
        return Ok(tokens);
    }
    let cards = cards(client)?;
    let sizes = cards.as_array().into_iter().flatten();
    let sizes: BTreeSet<u64> = sizes
        .filter_map(|card| card["value"]["card_json"]["kv_cache_block_size"].as_u64())
        .collect();
    let mut sizes = sizes.into_iter();
    match (sizes.next().map(usize::try_from), sizes.next()) {
        (Some(Ok(tokens)), None) => Ok(tokens),
        (None | Some(_), _) => Err(client
            .not_a_fleet("its workers have no block size in common; name one with --block-size".to_owned())
            .into()),
    }
}

/// The model that is meant: the one asked for, or the first that the fleet serves.
fn model(client: &Client, args: &DriftArgs) -> Result<String, CtlError> {
    if let Some(model) = &args.model {
        return Ok(model.clone());
    }
    let cards = cards(client)?;
    let name = cards[0]["value"]["card_json"]["display_name"].as_str();
    match name {
        Some(name) => Ok(name.to_owned()),
        None => Err(client
            .not_a_fleet("no model is in discovery; name it with --model".to_owned())
            .into()),
    }
}

/// A router that only routes.
fn by_choices(client: &Client, url: &str, args: &DriftArgs) -> Result<crate::truth::choice::Choices, CtlError> {
    let frontend = choices::Frontend::new(url, args.model.clone())?;
    let ranks: Vec<RankId> = caches(client)?.ranks.into_keys().collect();
    let prompts = choices::Prompts::new(args.seed, args.probes, args.prompt_blocks, block_size(client, args)?);
    let holders = prompts.plant(&frontend, &ranks)?;
    // What was planted has to be told to the router first.
    thread::sleep(PAUSE);
    let before = caches(client)?;
    let probes = prompts.probe(&frontend, &holders)?;
    Ok(crate::truth::choice::judge(&before, &probes, &caches(client)?))
}

fn rows(client: &Client) -> Result<Vec<WorkerRow>, CtlError> {
    let rows = client.get("/v1/workers", &[])?;
    serde_json::from_value(rows).map_err(|error| client.not_a_fleet(error.to_string()).into())
}

/// What every rank of the fleet has now. Workers that are not alive have nothing.
fn caches(client: &Client) -> Result<Caches, CtlError> {
    let mut caches = Caches::default();
    for row in rows(client)? {
        let told = match client.get(&format!("/v1/cache/{}", row.path), &[]) {
            Ok(told) => told,
            // Dead, or it died just now.
            Err(ClientError::Refused { status: 404 | 409, .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        for (rank, blocks) in (0..).zip(told.as_array().into_iter().flatten()) {
            let cache = RankCache::new(format!("{}/r{rank}", row.path), read_blocks(blocks));
            caches.ranks.insert(RankId::new(row.instance_id, rank), cache);
        }
    }
    Ok(caches)
}

/// What every rank of the fleet has had, those of dead workers included.
fn past(client: &Client) -> Result<Past, CtlError> {
    let mut past = Past::default();
    for row in rows(client)? {
        let told = client.get(&format!("/v1/former/{}", row.path), &[])?;
        for (rank, memory) in (0..).zip(told.as_array().into_iter().flatten()) {
            let had = Had {
                id: RankId::new(row.instance_id, rank),
                blocks: read_blocks(&memory["blocks"]),
                dropped: memory["dropped"].as_u64().unwrap_or(0),
            };
            past.ranks.insert(format!("{}/r{rank}", row.path), had);
        }
    }
    Ok(past)
}

fn read_blocks(blocks: &Value) -> Vec<Block> {
    blocks.as_array().into_iter().flatten().filter_map(read_block).collect()
}

fn read_block(block: &Value) -> Option<Block> {
    Some(Block {
        hash: SequenceHash(block["block_hash"].as_u64()?),
        local: LocalHash(block["tokens_hash"].as_u64()?),
        parent: block["parent"].as_u64().map(SequenceHash),
    })
}

/// Where each rank publishes its native stream, if it does.
fn native_ports(client: &Client, caches: &Caches) -> Result<BTreeMap<u16, RankId>, CtlError> {
    let mut ports = BTreeMap::new();
    for (id, cache) in &caches.ranks {
        let shown = match client.get(&format!("/v1/actors/{}/native", cache.path), &[]) {
            Ok(shown) => shown,
            Err(ClientError::Refused { status: 404 | 409, .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let address = shown["inside"]["said"]["address"].as_str();
        let port = address
            .and_then(|address| address.rsplit_once(':'))
            .and_then(|(_, port)| port.parse().ok());
        if let Some(port) = port {
            ports.insert(port, *id);
        }
    }
    Ok(ports)
}

/// Looks several times and tells what was held every time.
pub(super) fn leaks(client: &Client, args: &LeaksArgs, as_json: bool) -> Result<(), CtlError> {
    const LOOKS: u32 = 5;
    let pause = Duration::try_from_secs_f64(args.lasting).unwrap_or_default() / (LOOKS - 1);
    let mut looks = Vec::new();
    let mut open = 0;
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(pause);
        }
        let rows = rows(client)?;
        open = rows.iter().map(|row| u64::from(row.open_streams)).sum();
        looks.push(held(&rows));
    }
    let leaks = leaked(&looks);
    say(&if as_json {
        let mut value = json!(leaks);
        value["open_requests"] = open.into();
        pretty(&value)
    } else {
        print::leaks(&leaks)
    })?;
    if leaks.total == 0 {
        Ok(())
    } else {
        Err(CtlError::Verdict(match open {
            0 => format!(
                "{} things are held although no request is open: they have leaked",
                leaks.total
            ),
            _ => format!(
                "{} things are held; {open} requests are still open and may own them, so what has leaked can be told only \
                 when they have ended",
                leaks.total
            ),
        }))
    }
}

fn held(rows: &[WorkerRow]) -> Held {
    let mut held = Held::default();
    for row in rows {
        held.note(&row.path, "streams", row.open_streams.into());
        held.note(&row.path, "sequences", u64::from(row.running) + u64::from(row.waiting));
        held.note(&row.path, "blocks", row.active_blocks);
        held.note(&row.path, "rooms", row.rooms.into());
    }
    held
}
