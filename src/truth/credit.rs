//! Drift of an index that cannot be dumped, only asked: how many blocks of this prompt does each rank have?
//!
//! Missing blocks are found wherever the truth has them. Phantom blocks are found as far as somebody has, or had, the
//! prompt to ask for, which ranks remember for a while ([`Past`]): what an index makes up without any such prompt is out of
//! sight.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::cache::{Block, Caches, RankCache, RankId};
use super::drift::{Drift, RankDrift};
use super::past::Past;
use crate::types::{LocalHash, SequenceHash};

/// A prompt to ask for, as blocks, root first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question(pub Vec<Block>);

impl Question {
    /// What an index matches by.
    pub fn locals(&self) -> Vec<LocalHash> {
        self.0.iter().map(|block| block.local).collect()
    }

    /// Its blocks' identities.
    pub fn hashes(&self) -> Vec<SequenceHash> {
        self.0.iter().map(|block| block.hash).collect()
    }
}

/// What an index says to a question: blocks of the longest prefix that each rank has. Ranks that it does not name have
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credit(pub BTreeMap<RankId, u32>);

/// How much of what could be asked for is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Scope {
    /// Prompts that are asked for.
    pub prompts: usize,
    /// Prompts that ranks have, or had and remember.
    pub there_are: usize,
    /// Blocks that ranks had and do not remember.
    pub forgotten_blocks: u64,
}

/// Prompts to ask an index for: at most so many that ranks have, and as many that they had.
pub fn questions(present: &Caches, past: &Past, most: usize) -> (Vec<Question>, Scope) {
    let (has, _) = spread(present, most);
    let (had, there_are) = spread(&past.joined(present), most);
    let all: BTreeSet<Question> = has.into_iter().chain(had).collect();
    let mut questions: Vec<Question> = Vec::new();
    for question in all {
        // In this order a beginning comes right before what begins so, and the longer question asks for both.
        questions.pop_if(|last| question.0.starts_with(&last.0));
        questions.push(question);
    }
    let scope = Scope {
        prompts: questions.len(),
        there_are,
        forgotten_blocks: past.dropped(),
    };
    (questions, scope)
}

/// All prompts of a picture, spread evenly when there are more than `most`. With how many there are.
fn spread(caches: &Caches, most: usize) -> (Vec<Question>, usize) {
    let chains = caches.ranks.values().flat_map(RankCache::chains);
    let all: BTreeSet<Question> = chains.map(Question).collect();
    let there_are = all.len();
    let chosen = |index: usize| {
        let next = |index: usize| index * most / there_are.max(1);
        there_are <= most || next(index) != next(index + 1)
    };
    let questions = all.into_iter().enumerate().filter(|(index, _)| chosen(*index));
    (questions.map(|(_, question)| question).collect(), there_are)
}

/// Compares what an index says with the truth from before and after it was asked. Only blocks that were asked for count;
/// those of `passing` have gone meanwhile, and may have come before: they are no error either way.
pub fn compare(before: &Caches, asked: &[(Question, Credit)], (after, passing): (&Caches, &Caches)) -> Drift {
    let mut ids: BTreeSet<RankId> = before.ranks.keys().chain(after.ranks.keys()).copied().collect();
    ids.extend(asked.iter().flat_map(|(_, credit)| credit.0.keys().copied()));
    let rank = |id: RankId| {
        let (was, is) = (before.ranks.get(&id), after.ranks.get(&id));
        let mut rank = RankDrift::new(id, is.or(was));
        let passes = |hash| passing.ranks.get(&id).is_some_and(|cache| cache.get(hash).is_some());
        let mut seen = BTreeSet::new();
        for (question, credit) in asked {
            let hashes = question.hashes();
            let true_prefix = |cache: Option<&RankCache>| cache.map_or(0, |cache| cache.prefix(&hashes));
            let (was, is) = (true_prefix(was), true_prefix(is));
            let known = credit.0.get(&id).map_or(0, |blocks| *blocks as usize).min(hashes.len());
            for (at, hash) in hashes.into_iter().enumerate().take(was.max(is).max(known)) {
                // Prompts share beginnings; a block counts once.
                if !seen.insert(hash) {
                    continue;
                }
                rank.known_blocks += u64::from(at < known);
                rank.true_blocks += u64::from(at < was && at < is);
                match (at < was, at < known, at < is) {
                    (true, true, true) => {}
                    (true, false, true) | (false, true, false) if passes(hash) => rank.in_flight += 1,
                    (true, false, true) => rank.add_missing(hash),
                    (false, true, false) => rank.add_phantom(hash),
                    (true, _, false) | (false, _, true) | (false, false, false) => rank.in_flight += 1,
                }
            }
        }
        rank
    };
    Drift::of(ids.into_iter().map(rank).collect())
}

#[cfg(test)]
mod tests {
    use super::super::past::Had;
    use super::*;

    fn chain(hashes: &[u64]) -> Vec<Block> {
        let mut parent = None;
        let block = |&hash: &u64| Block {
            hash: SequenceHash(hash),
            local: LocalHash(hash),
            parent: parent.replace(SequenceHash(hash)),
        };
        hashes.iter().map(block).collect()
    }

    fn caches(ranks: &[&[&[u64]]]) -> Caches {
        let rank = |(rank, chains): (u32, &&[&[u64]])| {
            let blocks = chains.iter().flat_map(|hashes| chain(hashes)).collect();
            (RankId::new(7, rank), RankCache::new(format!("w0/r{rank}"), blocks))
        };
        Caches {
            ranks: (0..).zip(ranks).map(rank).collect(),
        }
    }

    fn credit(blocks: &[u32]) -> Credit {
        Credit(
            (0..)
                .zip(blocks)
                .map(|(rank, blocks)| (RankId::new(7, rank), *blocks))
                .collect(),
        )
    }

    #[test]
    fn questions_cover_every_prompt_once_or_are_spread() {
        let truth = caches(&[&[&[1, 2, 3], &[1, 2, 4]], &[&[1, 2, 3], &[9]]]);
        let (all, scope) = questions(&truth, &Past::default(), 100);
        let asked: Vec<Vec<u64>> = all
            .iter()
            .map(|question| question.hashes().iter().map(|hash| hash.0).collect())
            .collect();
        assert_eq!(
            (asked, scope.there_are),
            (vec![vec![1, 2, 3], vec![1, 2, 4], vec![9]], 3)
        );
        let hashes: Vec<Vec<u64>> = (0..100).map(|n| vec![n + 1]).collect();
        let many = caches(&[&hashes.iter().map(Vec::as_slice).collect::<Vec<_>>()]);
        let (some, scope) = questions(&many, &Past::default(), 10);
        assert_eq!((some.len(), scope.prompts, scope.there_are), (10, 10, 100));
    }

    #[test]
    fn credit_beyond_the_truth_is_phantom_and_short_of_it_missing() {
        let truth = caches(&[&[&[1, 2, 3], &[1, 2, 4]], &[&[1]]]);
        let (questions, _) = questions(&truth, &Past::default(), 10);
        let right: Vec<_> = questions
            .iter()
            .cloned()
            .zip([credit(&[3, 1]), credit(&[3, 1])])
            .collect();
        let drift = compare(&truth, &right, (&truth, &Caches::default()));
        assert_eq!((drift.true_blocks, drift.known_blocks), (5, 5));
        assert_eq!((drift.missing, drift.phantom), (0, 0));
        let wrong: Vec<_> = questions
            .iter()
            .cloned()
            .zip([credit(&[2, 2]), credit(&[3, 2, 1])])
            .collect();
        let drift = compare(&truth, &wrong, (&truth, &Caches::default()));
        let path = |path: &str| drift.ranks.iter().find(|rank| rank.path == path).unwrap();
        assert_eq!((path("w0/r0").missing, path("w0/r0").phantom), (1, 0));
        assert_eq!(path("w0/r0").missing_samples, [SequenceHash(3)]);
        assert_eq!((path("w0/r1").missing, path("w0/r1").phantom), (0, 1), "block 2 once");
        assert_eq!((path("7/r2").exists, path("7/r2").phantom), (false, 1));
    }

    fn had(hashes: &[u64]) -> Had {
        Had {
            id: RankId::new(7, 0),
            blocks: chain(hashes),
            dropped: 4,
        }
    }

    #[test]
    fn a_prompt_that_was_there_finds_what_an_index_has_not_forgotten() {
        let (before, after) = (caches(&[&[&[1, 2]]]), caches(&[&[]]));
        let past = Past {
            ranks: [("w0/r0".to_owned(), had(&[1, 2]))].into(),
        };
        let (asked, scope) = questions(&after, &past, 10);
        assert_eq!((scope.prompts, scope.there_are, scope.forgotten_blocks), (1, 1, 4));
        let longer = caches(&[&[&[1, 2, 3], &[7]]]);
        let (both, _) = questions(&longer, &past, 10);
        let hashes: Vec<Vec<SequenceHash>> = both.iter().map(Question::hashes).collect();
        assert_eq!(
            hashes,
            [vec![1, 2, 3], vec![7]].map(|hashes| hashes.into_iter().map(SequenceHash).collect::<Vec<_>>())
        );
        let asked: Vec<_> = asked.into_iter().zip([credit(&[2])]).collect();
        let drift = compare(&after, &asked, (&after, &Caches::default()));
        assert_eq!((drift.missing, drift.phantom), (0, 2));
        let drift = compare(&before, &asked, (&after, &Caches::default()));
        assert_eq!((drift.phantom, drift.in_flight), (0, 2));
        // It came and went between the two pictures.
        let drift = compare(&after, &asked, (&after, &before));
        assert_eq!((drift.phantom, drift.in_flight), (0, 2));
    }
}
