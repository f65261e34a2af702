//! What the router knows of the workers' caches: at each look, the changes since the one before.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::replay::LiveRun;
use crate::replay_run::RunError;
use crate::router::Target;
use crate::types::{KvEvent, SequenceHash, SimTime, WorkerId};

use super::wrong;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Caches {
    seen: BTreeMap<Target, BTreeSet<SequenceHash>>,
}

impl Caches {
    /// Looks at every rank and tells the router what changed.
    pub(super) fn look(&mut self, cluster: &Cluster, run: &mut LiveRun, now: SimTime) -> Result<(), RunError> {
        for worker in 0..run.workers() {
            let contents = cluster
                .cached_blocks(&WorkerId(worker).to_string())
                .map_err(|error| wrong(&error))?;
            for (rank, content) in (0..).zip(contents) {
                let target = Target { worker, rank };
                let seen = self.seen.entry(target).or_default();
                let mut events = Vec::new();
                let mut current = BTreeSet::new();
                for (parent, block) in content {
                    current.insert(block.block_hash);
                    if !seen.contains(&block.block_hash) {
                        events.push(KvEvent::Stored {
                            parent,
                            blocks: vec![block],
                        });
                    }
                }
                let gone: Vec<SequenceHash> = seen.difference(&current).copied().collect();
                if !gone.is_empty() {
                    events.push(KvEvent::Removed { block_hashes: gone });
                }
                *seen = current;
                run.cache_changed(target, &mut events, now);
            }
        }
        Ok(())
    }
}
