//! The shape of a prefix cache: how many blocks, how deep, how many prefixes. What a view shows instead of every hash.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::actors::control::CacheContent;

/// Bars of [`Shape::by_depth`] at most.
const BARS: usize = 64;

/// One rank's prefix cache.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Shape {
    /// Actor path of the rank.
    path: String,
    /// Blocks known by their hash, in use or not.
    blocks: usize,
    /// Blocks without a parent: prefixes that have nothing in common.
    roots: usize,
    /// Blocks without a child.
    leaves: usize,
    /// Blocks of the longest chain.
    deepest: usize,
    /// Depths that one bar covers.
    depths_per_bar: usize,
    /// Blocks by depth, the first blocks of prefixes first.
    by_depth: Vec<usize>,
}

impl Shape {
    /// Of `content`, parents first. A block whose parent is not there counts as a root.
    pub(super) fn of(path: String, content: &CacheContent) -> Self {
        let mut depths = FxHashMap::default();
        let mut parents = FxHashSet::default();
        for (parent, block) in content {
            let depth = parent.and_then(|parent| {
                parents.insert(parent);
                depths.get(&parent).copied()
            });
            depths.insert(block.block_hash, depth.map_or(0, |depth: usize| depth + 1));
        }
        let deepest = depths.values().max().map_or(0, |depth| depth + 1);
        let depths_per_bar = deepest.div_ceil(BARS).max(1);
        let mut by_depth = vec![0; deepest.div_ceil(depths_per_bar)];
        for depth in depths.values() {
            by_depth[depth / depths_per_bar] += 1;
        }
        Self {
            path,
            blocks: depths.len(),
            roots: depths.values().filter(|depth| **depth == 0).count(),
            leaves: depths.keys().filter(|hash| !parents.contains(*hash)).count(),
            deepest,
            depths_per_bar,
            by_depth,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LocalHash, SequenceHash, StoredBlock};

    #[test]
    fn a_shape_counts_prefixes_ends_and_depths() {
        let block = |parent: u64, hash: u64| {
            let stored = StoredBlock {
                block_hash: SequenceHash(hash),
                tokens_hash: LocalHash(hash),
            };
            ((parent > 0).then_some(SequenceHash(parent)), stored)
        };
        let two_ends = [block(0, 1), block(1, 2), block(1, 3), block(3, 4), block(0, 9)];
        let shape = Shape::of("w0/r0".to_owned(), &two_ends.to_vec());
        assert_eq!((shape.blocks, shape.roots, shape.leaves, shape.deepest), (5, 2, 3, 3));
        assert_eq!(shape.by_depth, [2, 2, 1]);
        let long: Vec<_> = (1..=1000).map(|hash| block(hash - 1, hash)).collect();
        let shape = Shape::of(String::new(), &long);
        assert_eq!(
            (shape.deepest, shape.depths_per_bar, shape.by_depth.len()),
            (1000, 16, 63)
        );
        assert_eq!(shape.by_depth.iter().sum::<usize>(), 1000);
        assert_eq!(Shape::of(String::new(), &Vec::new()).by_depth, Vec::<usize>::new());
    }
}
