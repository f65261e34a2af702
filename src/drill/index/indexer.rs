//! Dynamo's standalone indexer, which reads the workers' native streams and shows everything that it believes in.
//!
//! Somebody has to register the streams there: a worker's when it appears, and to take them back when discovery has
//! forgotten the worker. A drill does both.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use crate::actors::control::Control;
use crate::actors::path::ActorPath;
use crate::drill::client;
use crate::drill::error::DrillError;
use crate::drill::process::{Process, Surroundings, wait_ready};
use crate::drill::scenario::server::Server;
use crate::drill::truth::{Compared, Comparing, GRACE, Truth};
use crate::truth::RankId;
use crate::truth::drift;
use crate::witness::WitnessError;
use crate::witness::indexer::{Indexer, Stream};

/// One indexer, and what it has been told to read.
pub(super) struct Standalone {
    indexer: Arc<Indexer>,
    /// Streams by rank, with the incarnation of the worker.
    registered: RefCell<BTreeMap<RankId, (u32, Stream)>>,
    /// Ends with the drill.
    _process: Option<Process>,
}

async fn look(authority: &str) -> Result<(), String> {
    match client::get(authority, "/dump", PATIENCE).await {
        Some((200, _)) => Ok(()),
        Some((status, _)) => Err(format!("it answers with status {status}")),
        None => Err("it does not answer".to_owned()),
    }
}

impl Standalone {
    /// One that reads the streams of all workers that are there.
    pub(super) async fn start(
        server: &Server,
        control: &Control,
        surroundings: Surroundings<'_>,
    ) -> Result<Self, DrillError> {
        let (url, process) = match server {
            Server::Url { url, ready_within } => {
                let authority = url.trim_start_matches("http://");
                let (what, tell) = (surroundings.what, surroundings.tell);
                let ready = wait_ready(
                    (what, tell),
                    ready_within.duration(),
                    async || look(authority).await,
                    || None,
                );
                ready
                    .await
                    .map_err(|why| DrillError::Frontend(format!("{url}: {why}")))?;
                (url.clone(), None)
            }
            Server::Command(command) => {
                let process = Process::start(surroundings, command, look).await?;
                (format!("http://{}", process.authority), Some(process))
            }
        };
        let indexer = Indexer::new(&url, None).map_err(|error| DrillError::Input(error.to_string()))?;
        let standalone = Self {
            indexer: Arc::new(indexer),
            registered: RefCell::default(),
            _process: process,
        };
        standalone.follow(control).await.map_err(DrillError::Frontend)?;
        if standalone.registered.borrow().is_empty() {
            let why =
                "[index]: an indexer reads native streams, and no worker has one; give the fleet zmq_kv_events_ports";
            return Err(DrillError::Input(why.to_owned()));
        }
        // What is published before a subscription has got through is lost.
        sleep(GRACE).await;
        Ok(standalone)
    }

    /// Registers streams that are new and takes back those whose worker is forgotten.
    async fn follow(&self, control: &Control) -> Result<(), String> {
        let streams = streams(control).await;
        let instances = control.records("v1/instances/").await?;
        let listed: BTreeSet<u64> = instances
            .iter()
            .filter_map(|record| record.value["instance_id"].as_u64())
            .collect();
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        {
            let registered = self.registered.borrow();
            for (id, (incarnation, stream)) in &streams {
                let known = registered.get(id);
                if known.is_none_or(|(known, _)| known != incarnation) {
                    gone.extend(known.map(|(_, stream)| stream.clone()));
                    come.push((*id, *incarnation, stream.clone()));
                }
            }
            let lapsed = |id: &RankId| !streams.contains_key(id) && !listed.contains(&id.worker.0);
            gone.extend(
                registered
                    .iter()
                    .filter(|(id, _)| lapsed(id))
                    .map(|(_, (_, stream))| stream.clone()),
            );
        }
        if come.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let indexer = Arc::clone(&self.indexer);
        let told = come.clone();
        let tell = move || {
            for stream in &gone {
                indexer.unregister(stream)?;
            }
            told.iter().try_for_each(|(_, _, stream)| indexer.register(stream))?;
            Ok(gone)
        };
        let told: Result<Vec<Stream>, WitnessError> = spawn_blocking(tell).await.map_err(|error| error.to_string())?;
        let gone = told.map_err(|error| error.to_string())?;
        let mut registered = self.registered.borrow_mut();
        for stream in gone {
            registered.remove(&stream.id);
        }
        registered.extend(
            come.into_iter()
                .map(|(id, incarnation, stream)| (id, (incarnation, stream))),
        );
        Ok(())
    }

    async fn look(&self, control: &Control) -> Result<Compared, String> {
        self.follow(control).await?;
        let earlier = control.past();
        let before = control.caches().await;
        sleep(GRACE).await;
        let indexer = Arc::clone(&self.indexer);
        let dump = spawn_blocking(move || indexer.dump()).await;
        let dump = dump.map_err(|error| error.to_string())?;
        let dump = dump.map_err(|error| error.to_string())?;
        let after = control.caches().await;
        let passing = control.past().since(&earlier);
        let found = drift::compare(&before, &dump.caches, (&after, &passing));
        Ok(Compared {
            missing: found.missing,
            phantom: found.phantom,
            cached: found.true_blocks,
        })
    }
}

/// The address for somebody on this machine.
fn near(address: &str) -> String {
    address
        .replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//[::1]:")
}

/// Native streams of all ranks that are alive, with the incarnations of their workers.
async fn streams(control: &Control) -> BTreeMap<RankId, (u32, Stream)> {
    let mut streams = BTreeMap::new();
    for entry in control.registry().entries() {
        for rank in 0..entry.ranks() {
            let path = format!("{}/r{rank}/native", entry.id());
            let Ok(path) = path.parse::<ActorPath>() else { continue };
            // Dead, or it has none.
            let Ok(said) = control.inspect(path).await else {
                continue;
            };
            let said = &said["said"];
            let Some(events) = said["address"].as_str() else {
                continue;
            };
            let id = RankId::new(entry.instance_id(), u32::try_from(rank).unwrap_or(u32::MAX));
            let stream = Stream {
                id,
                model: entry.model().to_owned(),
                block_size: entry.block_size(),
                events: near(events),
                replay: said["replay_address"].as_str().map(near),
            };
            streams.insert(id, (entry.incarnation(), stream));
        }
    }
    streams
}

impl Truth for Standalone {
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a> {
        Box::pin(async move {
            let looked = timeout(2 * PATIENCE, self.look(control)).await;
            looked.unwrap_or_else(|_| Err("the indexer does not answer in time".to_owned()))
        })
    }
}
