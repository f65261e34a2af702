//! The dump of an index that shows everything it believes in.
//!
//! Dynamo's standalone indexer answers `GET /dump` with an object of `<model>:<routing group>`, each
//! `{"block_size", "events": [<router event>]}`. The events are stores only, as in the dump of a worker:
//!
//! ```text
//! {"worker_id", "storage_tier": "device", "event": {"event_id", "dp_rank",
//!     "data": {"stored": {"parent_hash": u64|null, "blocks": [{"block_hash": u64, "tokens_hash": u64, ..}]}}}}
//! ```
//!
//! `GET /workers` tells under which instance it reads which stream: `[{"instance_id", "model_name", "endpoints": {"<rank>":
//! "tcp://host:port"}}]`. Source: release 1.6.1, recorded.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::cache::{Block, Caches, RankCache, RankId};
use crate::types::{LocalHash, SequenceHash};

/// An answer that is no dump.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// It has another form.
    #[error("this is not the dump of an index: {0}")]
    Form(String),
    /// It is about other models.
    #[error("the index has no model {wanted:?}; it has {has}")]
    Model {
        /// As asked for.
        wanted: String,
        /// Its models.
        has: String,
    },
}

/// What an index believes in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    /// Blocks on the device, under the index's own names for ranks.
    pub caches: Caches,
    /// Blocks that it believes in below the device: in host memory, on disk.
    pub lower_blocks: u64,
}

#[derive(Deserialize)]
struct Model {
    events: Vec<Dumped>,
}

#[derive(Deserialize)]
struct Dumped {
    worker_id: u64,
    #[serde(default)]
    storage_tier: Option<String>,
    event: Event,
}

#[derive(Deserialize)]
struct Event {
    dp_rank: u32,
    data: Data,
}

#[derive(Deserialize)]
enum Data {
    #[serde(rename = "stored")]
    Stored {
        parent_hash: Option<u64>,
        blocks: Vec<StoredBlock>,
    },
}

#[derive(Deserialize)]
struct StoredBlock {
    block_hash: u64,
    tokens_hash: u64,
}

impl Dump {
    /// Reads `GET /dump`; of all models, or of one (with or without its routing group).
    ///
    /// # Errors
    /// [`DumpError`].
    pub fn read(text: &str, model: Option<&str>) -> Result<Self, DumpError> {
        let form = |error: serde_json::Error| DumpError::Form(error.to_string());
        let models: BTreeMap<String, Model> = serde_json::from_str(text).map_err(form)?;
        let is_wanted = |name: &str| {
            model.is_none_or(|model| name == model || name.rsplit_once(':').is_some_and(|(name, _)| name == model))
        };
        if let Some(wanted) = model
            && !models.is_empty()
            && !models.keys().any(|name| is_wanted(name))
        {
            return Err(DumpError::Model {
                wanted: wanted.to_owned(),
                has: models.keys().cloned().collect::<Vec<_>>().join(", "),
            });
        }
        let mut ranks: BTreeMap<RankId, Vec<Block>> = BTreeMap::new();
        let mut lower_blocks = 0;
        let wanted = models.into_iter().filter(|(name, _)| is_wanted(name));
        for dumped in wanted.flat_map(|(_, model)| model.events) {
            let Data::Stored { parent_hash, blocks } = dumped.event.data;
            if dumped.storage_tier.is_some_and(|tier| tier != "device") {
                lower_blocks += blocks.len() as u64;
                continue;
            }
            let rank = ranks
                .entry(RankId::new(dumped.worker_id, dumped.event.dp_rank))
                .or_default();
            let mut parent = parent_hash.map(SequenceHash);
            for block in blocks {
                let hash = SequenceHash(block.block_hash);
                rank.push(Block {
                    hash,
                    local: LocalHash(block.tokens_hash),
                    parent,
                });
                parent = Some(hash);
            }
        }
        let rank = |(id, blocks): (RankId, Vec<Block>)| (id, RankCache::new(id.to_string(), blocks));
        Ok(Self {
            caches: Caches {
                ranks: ranks.into_iter().map(rank).collect(),
            },
            lower_blocks,
        })
    }

    /// The same under the fleet's names, by what [`Names`] knows of the index's. Ranks without another name keep theirs.
    pub fn renamed(self, names: &Names) -> Caches {
        let mut ranks: BTreeMap<RankId, Vec<Block>> = BTreeMap::new();
        for (id, cache) in self.caches.ranks {
            let id = names.0.get(&id).copied().unwrap_or(id);
            ranks.entry(id).or_default().extend(cache.blocks());
        }
        let rank = |(id, blocks): (RankId, Vec<Block>)| (id, RankCache::new(id.to_string(), blocks));
        Caches {
            ranks: ranks.into_iter().map(rank).collect(),
        }
    }
}

/// What an index calls the ranks of a fleet. Who registers a stream at an index chooses its instance number freely; the
/// stream's address tells whose it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<RankId, RankId>);

impl Names {
    /// From `GET /workers` and the ports at which the ranks of a fleet publish their native streams. Streams from other
    /// ports keep the index's names.
    ///
    /// # Errors
    /// [`DumpError::Form`].
    pub fn read(text: &str, ports: &BTreeMap<u16, RankId>) -> Result<Self, DumpError> {
        #[derive(Deserialize)]
        struct Registered {
            instance_id: u64,
            #[serde(default)]
            endpoints: BTreeMap<u32, Value>,
        }
        let workers: Vec<Registered> =
            serde_json::from_str(text).map_err(|error| DumpError::Form(error.to_string()))?;
        let mut names = BTreeMap::new();
        for worker in workers {
            for (rank, endpoint) in worker.endpoints {
                let port = endpoint.as_str().and_then(port_of);
                if let Some(id) = port.and_then(|port| ports.get(&port)) {
                    names.insert(RankId::new(worker.instance_id, rank), *id);
                }
            }
        }
        Ok(Self(names))
    }
}

/// Port of `tcp://host:port`; a host may have colons of its own.
fn port_of(endpoint: &str) -> Option<u16> {
    endpoint.strip_prefix("tcp://")?.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Dynamo's indexer 1.6.1 answered after stores of two chained messages and one to host memory.
    const RECORDED: &str = r#"{"tiny:default":{"block_size":4,"events":[
        {"worker_id":1,"storage_tier":"device","residency_domain":"worker","event":{"event_id":0,"data":{"stored":{
            "parent_hash":null,"start_position":null,"blocks":[
            {"block_hash":101,"tokens_hash":14643705804678351452,"mm_extra_info":null},
            {"block_hash":102,"tokens_hash":16777012769546811212,"mm_extra_info":null},
            {"block_hash":103,"tokens_hash":483935686894639516,"mm_extra_info":null}]}},"dp_rank":0}},
        {"worker_id":1,"storage_tier":"host_pinned","residency_domain":"worker","event":{"event_id":0,"data":{"stored":{
            "parent_hash":103,"start_position":null,"blocks":[
            {"block_hash":104,"tokens_hash":135165725823939817,"mm_extra_info":null}]}},"dp_rank":0}}]}}"#;
    const WORKERS: &str = r#"[{"instance_id":1,"source":"zmq","status":"active","model_name":"tiny",
        "routing_group":"default","block_size":4,"endpoints":{"0":"tcp://127.0.0.1:42829","1":"tcp://[::1]:42830"},
        "listeners":{}}]"#;

    #[test]
    fn a_recorded_dump_reads_as_chains_per_rank() {
        let dump = Dump::read(RECORDED, Some("tiny")).unwrap();
        assert_eq!(dump.lower_blocks, 1);
        let rank = &dump.caches.ranks[&RankId::new(1, 0)];
        let chain: Vec<(u64, Option<u64>)> = rank.chains()[0]
            .iter()
            .map(|block| (block.hash.0, block.parent.map(|hash| hash.0)))
            .collect();
        assert_eq!(chain, [(101, None), (102, Some(101)), (103, Some(102))]);
        assert_eq!(dump, Dump::read(RECORDED, Some("tiny:default")).unwrap());
        assert_eq!(dump, Dump::read(RECORDED, None).unwrap());
    }

    #[test]
    fn ranks_get_the_names_that_their_ports_tell() {
        let ports = BTreeMap::from([(42829, RankId::new(0xabc, 3))]);
        let names = Names::read(WORKERS, &ports).unwrap();
        let renamed = Dump::read(RECORDED, None).unwrap().renamed(&names);
        assert_eq!(renamed.ranks.keys().collect::<Vec<_>>(), [&RankId::new(0xabc, 3)]);
        let same = Dump::read(RECORDED, None).unwrap().renamed(&Names::default());
        assert_eq!(same.ranks.keys().collect::<Vec<_>>(), [&RankId::new(1, 0)]);
    }

    #[test]
    fn what_is_no_dump_is_an_error_in_words() {
        assert!(matches!(Dump::read("[]", None), Err(DumpError::Form(_))));
        assert!(matches!(
            Dump::read(r#"{"m:d":{"events":[{"worker_id":-1}]}}"#, None),
            Err(DumpError::Form(_))
        ));
        let error = Dump::read(RECORDED, Some("other")).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"the index has no model "other"; it has tiny:default"#
        );
        assert_eq!(
            Dump::read("{}", Some("any")),
            Ok(Dump::default()),
            "an index that has heard nothing yet"
        );
    }
}
