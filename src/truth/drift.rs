//! Blocks that a rank has and a router does not know (*missing*), and blocks that a router believes in and the rank does
//! not have (*phantom*).

use serde::Serialize;

use super::SAMPLES;
use super::cache::{Block, Caches, RankCache, RankId};
use crate::types::SequenceHash;

/// How far an index is from the truth.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Drift {
    /// Blocks of all ranks, in both pictures of the truth.
    pub true_blocks: u64,
    /// Blocks that the index believes in, of all ranks.
    pub known_blocks: u64,
    /// True blocks that it does not know.
    pub missing: u64,
    /// Blocks that it believes in and nobody has.
    pub phantom: u64,
    /// Blocks that came or went while it was asked: no error either way.
    pub in_flight: u64,
    /// Missing and phantom blocks out of all that are true, known, or both; 0 to 1.
    pub share: f64,
    /// Per rank, the worst first. Ranks of the index that the fleet does not have are here too.
    pub ranks: Vec<RankDrift>,
}

/// One rank's part.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RankDrift {
    /// Actor path; instance and rank where the fleet has no such rank.
    pub path: String,
    /// Instance id of the worker.
    pub worker: u64,
    /// Rank in it.
    pub rank: u32,
    /// Whether the fleet has the rank.
    pub exists: bool,
    /// As in [`Drift`].
    pub true_blocks: u64,
    /// As in [`Drift`].
    pub known_blocks: u64,
    /// As in [`Drift`].
    pub missing: u64,
    /// As in [`Drift`].
    pub phantom: u64,
    /// As in [`Drift`].
    pub in_flight: u64,
    /// A few of the missing blocks.
    pub missing_samples: Vec<SequenceHash>,
    /// A few of the phantom blocks.
    pub phantom_samples: Vec<SequenceHash>,
}

impl RankDrift {
    pub(super) fn new(id: RankId, cache: Option<&RankCache>) -> Self {
        Self {
            path: cache.map_or_else(|| id.to_string(), |cache| cache.path.clone()),
            worker: id.worker.0,
            rank: id.rank.0,
            exists: cache.is_some(),
            ..Self::default()
        }
    }

    pub(super) fn add_missing(&mut self, hash: SequenceHash) {
        self.missing += 1;
        if self.missing_samples.len() < SAMPLES {
            self.missing_samples.push(hash);
        }
    }

    pub(super) fn add_phantom(&mut self, hash: SequenceHash) {
        self.phantom += 1;
        if self.phantom_samples.len() < SAMPLES {
            self.phantom_samples.push(hash);
        }
    }
}

impl Drift {
    /// Sums over ranks.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of(mut ranks: Vec<RankDrift>) -> Self {
        ranks.sort_by(|a, b| {
            let errors = |rank: &RankDrift| rank.missing + rank.phantom;
            errors(b).cmp(&errors(a)).then_with(|| a.path.cmp(&b.path))
        });
        let sum = |figure: fn(&RankDrift) -> u64| ranks.iter().map(figure).sum::<u64>();
        let (missing, phantom) = (sum(|rank| rank.missing), sum(|rank| rank.phantom));
        let (true_blocks, known_blocks) = (sum(|rank| rank.true_blocks), sum(|rank| rank.known_blocks));
        // Every phantom is beside the truth, everything else that counts is in it.
        let all = true_blocks + phantom;
        Self {
            true_blocks,
            known_blocks,
            missing,
            phantom,
            in_flight: sum(|rank| rank.in_flight),
            share: if all == 0 {
                0.0
            } else {
                (missing + phantom) as f64 / all as f64
            },
            ranks,
        }
    }
}

/// Compares an index with the truth from before and after it was asked. Ranks must have the same names in all three. A
/// block that the index holds under the right identity but matches by other tokens is missing and phantom at once. Blocks
/// of `passing` have gone meanwhile, and may have come before: they are no error either way.
pub fn compare(before: &Caches, index: &Caches, (after, passing): (&Caches, &Caches)) -> Drift {
    let pictures = [before, index, after];
    let mut ids: Vec<RankId> = pictures
        .iter()
        .flat_map(|caches| caches.ranks.keys().copied())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let rank = |id: RankId| {
        let exists = after.ranks.get(&id).or_else(|| before.ranks.get(&id));
        let mut rank = RankDrift::new(id, exists);
        let blocks = pictures.map(|caches| caches.ranks.get(&id).map_or(&[][..], RankCache::blocks));
        compare_rank(&mut rank, blocks, passing.ranks.get(&id));
        rank
    };
    Drift::of(ids.into_iter().map(rank).collect())
}

/// Walks three ordered lists side by side.
fn compare_rank(rank: &mut RankDrift, mut lists: [&[Block]; 3], passing: Option<&RankCache>) {
    let passes = |hash| passing.is_some_and(|cache| cache.get(hash).is_some());
    let key = |block: &Block| (block.hash, block.local);
    while let Some(next) = lists.iter().filter_map(|list| list.first().map(key)).min() {
        let [before, known, after] = lists.each_mut().map(|list| match list.split_first() {
            Some((first, rest)) if key(first) == next => {
                *list = rest;
                true
            }
            Some(_) | None => false,
        });
        rank.known_blocks += u64::from(known);
        rank.true_blocks += u64::from(before && after);
        match (before, known, after) {
            (true, true, true) => {}
            (true, false, true) | (false, true, false) if passes(next.0) => rank.in_flight += 1,
            (true, false, true) => rank.add_missing(next.0),
            (false, true, false) => rank.add_phantom(next.0),
            (true, _, false) | (false, _, true) | (false, false, false) => rank.in_flight += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LocalHash;

    fn caches(ranks: &[(u32, &[u64])]) -> Caches {
        Caches::sample(ranks)
    }

    #[test]
    fn an_index_that_knows_everything_has_no_drift() {
        let truth = caches(&[(0, &[1, 2, 3]), (1, &[])]);
        let drift = compare(&truth, &truth, (&truth, &Caches::default()));
        assert_eq!((drift.true_blocks, drift.known_blocks), (3, 3));
        assert_eq!((drift.missing, drift.phantom, drift.in_flight), (0, 0, 0));
        assert!(drift.share.abs() < f64::EPSILON);
        assert!(
            compare(&caches(&[]), &caches(&[]), (&caches(&[]), &Caches::default()))
                .share
                .abs()
                < f64::EPSILON
        );
    }

    #[test]
    fn missing_and_phantom_blocks_are_counted_per_rank_and_shown() {
        let truth = caches(&[(0, &[1, 2, 3, 4]), (1, &[5])]);
        let index = caches(&[(0, &[2, 9]), (1, &[5]), (6, &[1, 2])]);
        let drift = compare(&truth, &index, (&truth, &Caches::default()));
        assert_eq!((drift.true_blocks, drift.known_blocks), (5, 5));
        assert_eq!((drift.missing, drift.phantom), (3, 3));
        assert!((drift.share - 6.0 / 8.0).abs() < 1e-12);
        let worst = &drift.ranks[0];
        assert_eq!((worst.path.as_str(), worst.missing, worst.phantom), ("w0/r0", 3, 1));
        assert_eq!(worst.missing_samples, [1, 3, 4].map(SequenceHash));
        assert_eq!(worst.phantom_samples, [SequenceHash(9)]);
        let stranger = &drift.ranks[1];
        assert_eq!(
            (stranger.path.as_str(), stranger.exists, stranger.phantom),
            ("7/r6", false, 2)
        );
    }

    #[test]
    fn what_comes_and_goes_meanwhile_is_no_error() {
        let (before, after) = (caches(&[(0, &[1, 2])]), caches(&[(0, &[2, 3])]));
        for index in [
            caches(&[(0, &[1, 2])]),
            caches(&[(0, &[2, 3])]),
            caches(&[(0, &[1, 2, 3])]),
        ] {
            let drift = compare(&before, &index, (&after, &Caches::default()));
            assert_eq!((drift.missing, drift.phantom, drift.in_flight), (0, 0, 2));
        }
        let index = caches(&[(0, &[4])]);
        let drift = compare(&before, &index, (&after, &Caches::default()));
        assert_eq!((drift.missing, drift.phantom), (1, 1));
        let drift = compare(&before, &index, (&after, &caches(&[(0, &[4])])));
        assert_eq!(
            (drift.missing, drift.phantom, drift.in_flight),
            (1, 0, 3),
            "it came and went"
        );
    }

    #[test]
    fn a_block_that_is_matched_by_other_tokens_is_wrong_both_ways() {
        let truth = caches(&[(0, &[1])]);
        let mut index = truth.clone();
        let wrong = Block {
            hash: SequenceHash(1),
            local: LocalHash(2),
            parent: None,
        };
        index
            .ranks
            .insert(RankId::new(7, 0), RankCache::new(String::new(), vec![wrong]));
        let drift = compare(&truth, &index, (&truth, &Caches::default()));
        assert_eq!((drift.missing, drift.phantom), (1, 1));
        assert!((drift.share - 1.0).abs() < f64::EPSILON);
    }
}
