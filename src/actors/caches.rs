//! What all ranks of a fleet have in their caches, as a picture to compare routers with.

use super::control::Control;
use super::path::ActorPath;
use crate::truth::past::Had;
use crate::truth::{Block, Caches, Past, RankCache, RankId};

impl Control {
    /// What all ranks have had.
    pub fn past(&self) -> Past {
        let mut past = Past::default();
        for entry in self.registry.entries() {
            for (rank, memory) in (0..).zip(entry.former()) {
                let had = Had {
                    id: RankId::new(entry.instance_id(), rank),
                    blocks: memory.blocks.iter().map(Block::of).collect(),
                    dropped: memory.dropped,
                };
                past.ranks.insert(format!("{}/r{rank}", entry.id()), had);
            }
        }
        past
    }

    /// The true prefix caches of all ranks, by instance id. Workers that are not alive have none.
    pub async fn caches(&self) -> Caches {
        let mut caches = Caches::default();
        for entry in self.registry.entries() {
            let path = ActorPath {
                worker: entry.id(),
                child: None,
            };
            // Dead, or it dies just now.
            let Ok(ranks) = self.cached_blocks(path).await else {
                continue;
            };
            for (rank, told) in (0..).zip(ranks) {
                let cache = RankCache::of(format!("{path}/r{rank}"), &told);
                caches.ranks.insert(RankId::new(entry.instance_id(), rank), cache);
            }
        }
        caches
    }
}
