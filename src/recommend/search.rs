//! Which candidates to try: all, random ones, or those that resemble what did well.
//!
//! `bayesian` is a tree-structured Parzen estimator over the choices: the trials so far are split into the better quarter
//! and the rest, each domain gets the smoothed frequencies of its values in both, and of a number of draws from the good
//! ones the candidate with the best ratio of the two is tried next. Source: Bergstra et al., Algorithms for
//! Hyper-Parameter Optimization, 2011. Batches have a fixed size, so that the same seed tries the same candidates however
//! many run at a time.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::space::Space;

/// Draws among which the best ratio wins.
const DRAWS: usize = 48;

/// How to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Algorithm {
    /// Every candidate.
    Grid,
    /// Any candidates.
    Random,
    /// Learns from the trials so far.
    #[default]
    Bayesian,
}

/// Which candidates are next.
#[derive(Debug)]
pub(super) struct Search<'a> {
    space: &'a Space,
    algorithm: Algorithm,
    batch: usize,
    left: u64,
    /// This part and how many there are.
    part: (u64, u64),
    draws: StdRng,
    tried: BTreeSet<u64>,
    /// Candidates of this part so far, and of all parts where one sequence is dealt to them.
    made: u64,
    dealt: u64,
    next: u64,
}

impl<'a> Search<'a> {
    /// At most `trials` candidates of `space` in all parts together, `batch` at a time; this one is part `part.0` of
    /// `part.1`. The candidates of a grid, and random ones, are dealt to the parts in turn, so that all parts together try
    /// what a search in one tries; a Bayesian part is a search of its own over the candidates whose number leaves `part.0`
    /// when divided by `part.1`.
    pub(super) fn new(
        space: &'a Space,
        algorithm: Algorithm,
        (trials, batch): (u64, usize),
        seed: u64,
        part: (u32, u32),
    ) -> Self {
        let part = (u64::from(part.0), u64::from(part.1.max(1)));
        // Numbers in this part: i, i + n, i + 2n, ...
        let own = |all: u64| all.saturating_sub(part.0).div_ceil(part.1);
        Self {
            space,
            algorithm,
            batch: batch.max(1),
            left: own(trials.min(space.len())).min(own(space.len())),
            part,
            draws: StdRng::seed_from_u64(match algorithm {
                Algorithm::Grid | Algorithm::Random => seed,
                Algorithm::Bayesian => seed.wrapping_add(part.0),
            }),
            tried: BTreeSet::new(),
            made: 0,
            dealt: 0,
            next: part.0,
        }
    }

    /// Candidates that will be tried in all.
    pub(super) fn total(&self) -> u64 {
        self.left + self.made
    }

    /// The next candidates; none: the search is over. `seen` are the trials so far with their ranks, 0 the best, `None`
    /// without a result.
    pub(super) fn next(&mut self, seen: &[(u64, Option<usize>)]) -> Vec<u64> {
        let count = self.left.min(self.batch as u64);
        let good = self.good(seen);
        let mut batch = Vec::new();
        for _ in 0..count {
            let candidate = match self.algorithm {
                Algorithm::Grid => self.unseen_from(self.next),
                Algorithm::Random => self.deal(),
                Algorithm::Bayesian => match &good {
                    Some(model) => self.promising(model),
                    None => self.random(),
                },
            };
            self.tried.insert(candidate);
            self.next = candidate;
            batch.push(candidate);
        }
        self.left -= count;
        self.made += count;
        batch
    }

    /// The first candidate of this part from `from` on, in a circle, that was not tried. There is one: `left` says so.
    fn unseen_from(&self, from: u64) -> u64 {
        self.unseen(from, self.part)
    }

    /// As [`Self::unseen_from`], of those `first`, `first + step`, ...
    fn unseen(&self, from: u64, (first, step): (u64, u64)) -> u64 {
        let mut candidate = from;
        while self.tried.contains(&candidate) {
            candidate += step;
            if candidate >= self.space.len() {
                candidate = first;
            }
        }
        candidate
    }

    /// The next of the random candidates of all parts that falls to this one.
    fn deal(&mut self) -> u64 {
        loop {
            let candidate = self.draws.random_range(0..self.space.len());
            let candidate = self.unseen(candidate, (0, 1));
            self.tried.insert(candidate);
            let part = self.dealt % self.part.1;
            self.dealt += 1;
            if part == self.part.0 {
                return candidate;
            }
        }
    }

    /// The nearest candidate that belongs to this part.
    fn own(&self, candidate: u64) -> u64 {
        let own = candidate - candidate % self.part.1 + self.part.0;
        if own < self.space.len() { own } else { self.part.0 }
    }

    fn random(&mut self) -> u64 {
        let candidate = self.draws.random_range(0..self.space.len());
        self.unseen_from(self.own(candidate))
    }

    /// Frequencies of values in good and other trials, once there are enough.
    fn good(&self, seen: &[(u64, Option<usize>)]) -> Option<Model> {
        let mut ranked: Vec<(usize, u64)> = seen
            .iter()
            .map(|&(at, rank)| (rank.unwrap_or(usize::MAX), at))
            .collect();
        if self.algorithm != Algorithm::Bayesian || ranked.len() < self.batch.min(8) {
            return None;
        }
        ranked.sort_unstable();
        let good = ranked.len().div_ceil(4);
        let frequencies = |trials: &[(usize, u64)]| -> Vec<Vec<f64>> {
            let domains = self.space.domains().iter();
            // One of each to begin with, so that nothing is ruled out.
            let mut counts: Vec<Vec<f64>> = domains.map(|domain| vec![1.0; domain.values.len()]).collect();
            for (_, candidate) in trials {
                for (choice, counts) in self.space.choices(*candidate).into_iter().zip(&mut counts) {
                    counts[choice] += 1.0;
                }
            }
            for counts in &mut counts {
                let sum: f64 = counts.iter().sum();
                for count in counts {
                    *count /= sum;
                }
            }
            counts
        };
        Some(Model {
            good: frequencies(&ranked[..good]),
            other: frequencies(&ranked[good..]),
        })
    }

    /// Of some draws from the good frequencies, the one that stands out most.
    fn promising(&mut self, model: &Model) -> u64 {
        let mut best: Option<(f64, u64)> = None;
        for _ in 0..DRAWS {
            let choices: Vec<usize> = model
                .good
                .iter()
                .map(|weights| draw(&mut self.draws, weights))
                .collect();
            let candidate = self.own(self.space.candidate(&choices));
            if self.tried.contains(&candidate) {
                continue;
            }
            let ratio = model.ratio(&self.space.choices(candidate));
            if best.is_none_or(|(most, _)| ratio > most) {
                best = Some((ratio, candidate));
            }
        }
        match best {
            Some((_, candidate)) => candidate,
            None => self.random(),
        }
    }
}

/// Frequencies by domain and value.
struct Model {
    good: Vec<Vec<f64>>,
    other: Vec<Vec<f64>>,
}

impl Model {
    fn ratio(&self, choices: &[usize]) -> f64 {
        let pairs = self.good.iter().zip(&self.other).zip(choices);
        pairs
            .map(|((good, other), &choice)| (good[choice] / other[choice]).ln())
            .sum()
    }
}

/// An index by its weight; weights sum to 1.
fn draw(draws: &mut StdRng, weights: &[f64]) -> usize {
    let mut left = draws.random::<f64>();
    for (at, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return at;
        }
    }
    weights.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> Space {
        Space::new(serde_norway::from_str(text).unwrap()).unwrap()
    }

    /// Tries candidates; the score of one is how far its choices are from the last value of each domain.
    fn play(space: &Space, mut search: Search<'_>) -> Vec<u64> {
        let mut seen: Vec<u64> = Vec::new();
        loop {
            let cost = |candidate: u64| -> usize { space.choices(candidate).iter().map(|choice| 9 - choice).sum() };
            let ranked = |&own: &u64| {
                let better = seen.iter().filter(|&&other| cost(other) < cost(own)).count();
                (own, Some(better))
            };
            let ranked: Vec<_> = seen.iter().map(ranked).collect();
            let batch = search.next(&ranked);
            if batch.is_empty() {
                return seen;
            }
            seen.extend(batch);
        }
    }

    const CUBE: &str = "engine: {a: {range: {min: 0, max: 9, step: 1}}, b: {range: {min: 0, max: 9, step: 1}}, \
                        c: {range: {min: 0, max: 9, step: 1}}}";

    #[test]
    fn no_search_tries_a_candidate_twice_and_small_spaces_are_tried_whole() {
        let space = space("engine: {a: {choices: [1, 2, 3]}, b: {choices: [1, 2, 3, 4]}}");
        for algorithm in [Algorithm::Grid, Algorithm::Random, Algorithm::Bayesian] {
            let mut tried = play(&space, Search::new(&space, algorithm, (320, 4), 42, (0, 1)));
            tried.sort_unstable();
            assert_eq!(tried, (0..12).collect::<Vec<_>>(), "{algorithm:?}");
        }
    }

    #[test]
    fn parts_are_disjoint_and_together_they_are_the_whole() {
        let space = space("engine: {a: {choices: [1, 2, 3, 4, 5, 6, 7]}, b: {choices: [1, 2, 3]}}");
        for algorithm in [Algorithm::Grid, Algorithm::Random, Algorithm::Bayesian] {
            let part = |part| play(&space, Search::new(&space, algorithm, (320, 2), 1, (part, 4)));
            let mut tried: Vec<u64> = (0..4).flat_map(part).collect();
            tried.sort_unstable();
            assert_eq!(tried, (0..21).collect::<Vec<_>>(), "{algorithm:?}");
            let part = |part| play(&space, Search::new(&space, algorithm, (10, 2), 1, (part, 4))).len();
            assert_eq!((0..4).map(part).sum::<usize>(), 10, "{algorithm:?}");
        }
    }

    #[test]
    fn parts_of_a_random_search_are_dealt_the_candidates_of_the_search_in_one() {
        let space = space(CUBE);
        let tried = |part| play(&space, Search::new(&space, Algorithm::Random, (50, 4), 9, part));
        let whole = tried((0, 1));
        for part in 0..3 {
            let dealt: Vec<u64> = whole.iter().copied().skip(part as usize).step_by(3).collect();
            assert_eq!(tried((part, 3)), dealt);
        }
    }

    #[test]
    fn the_same_seed_tries_the_same_and_learning_beats_chance() {
        let space = space(CUBE);
        let best = |algorithm, seed| {
            let tried = play(&space, Search::new(&space, algorithm, (80, 8), seed, (0, 1)));
            let cost = |&candidate: &u64| space.choices(candidate).iter().map(|choice| 9 - choice).sum::<usize>();
            (tried.iter().map(cost).min().unwrap(), tried)
        };
        assert_eq!(best(Algorithm::Bayesian, 3), best(Algorithm::Bayesian, 3));
        let sum = |algorithm| (0..10).map(|seed| best(algorithm, seed).0).sum::<usize>();
        let (learned, chance) = (sum(Algorithm::Bayesian), sum(Algorithm::Random));
        assert!(learned < chance, "{learned} {chance}");
    }
}
