//! Which of an agent's requests go on which conversation, told by their prompts.
//!
//! A request goes on the conversation whose latest prompt is the longest that its own begins with, if that request was over
//! and asked the same model. Otherwise a new conversation forks off the one with which it has most blocks in common. Where
//! a conversation never goes on and one of its forks could be what became of it (a rewritten history), the fork is joined
//! to it. A first request that has nothing in common with any other is a preamble and belongs to the main conversation.
//!
//! Source: Dynamo 1.6.1.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;

use super::EPSILON_S;
use super::document::Request;

/// Pause after which a fork needs half of the prompt to be what became of a conversation, s.
const LONG_PAUSE_S: f64 = 3600.0;
/// Answers of more tokens are no preamble if anything of their prompt comes again.
const PREAMBLE_TOKENS: u32 = 64;

/// A request of an agent.
#[derive(Debug)]
pub(super) struct Step {
    /// Name within the play.
    pub(super) name: String,
    /// Position among the agent's requests.
    pub(super) order: usize,
    /// Begin on the clock of the trace, s.
    pub(super) t: f64,
    pub(super) request: Request,
}

impl Step {
    /// End, s; the begin where it is not known.
    pub(super) fn end(&self) -> f64 {
        self.t + self.request.api_time.unwrap_or(0.0)
    }

    fn hashes(&self) -> &[u64] {
        &self.request.hash_ids
    }

    /// By begin.
    fn compare(&self, other: &Self) -> Ordering {
        let order = self.t.total_cmp(&other.t).then(self.order.cmp(&other.order));
        order.then_with(|| self.name.cmp(&other.name))
    }
}

/// Steps by their numbers.
pub(super) type Steps = [Step];

/// A conversation.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// In order.
    pub(super) steps: Vec<usize>,
    /// What it forked off.
    fork: Option<Fork>,
    /// Its latest step with a prompt that is known.
    tail: Option<usize>,
    /// It was joined to another one and is empty.
    joined: bool,
}

#[derive(Debug, Clone, Copy)]
struct Fork {
    off: Option<usize>,
    /// Blocks in common.
    depth: usize,
    time: f64,
}

impl Chain {
    /// The step that it forked off.
    pub(super) fn forked_off(&self) -> Option<usize> {
        self.fork.and_then(|fork| fork.off)
    }

    fn push(&mut self, steps: &Steps, at: usize) {
        if !steps[at].hashes().is_empty() {
            self.tail = Some(at);
        }
        self.steps.push(at);
    }

    fn tail_hashes<'a>(&self, steps: &'a Steps) -> &'a [u64] {
        self.tail.map_or(&[], |tail| steps[tail].hashes())
    }
}

/// The conversations of an agent, whose steps are `members`, the main one first, then by their begin.
pub(super) fn conversations(steps: &Steps, mut members: Vec<usize>) -> Vec<Chain> {
    members.sort_by(|&a, &b| steps[a].compare(&steps[b]));
    let preamble = has_preamble(steps, &members).then(|| members.remove(0));
    let mut chains = Chains::new(steps);
    for at in members {
        chains.take(at);
    }
    chains.join_forks();
    let mut found: Vec<Chain> = chains.found.into_iter().filter(|chain| !chain.joined).collect();
    found.sort_by(|a, b| steps[a.steps[0]].compare(&steps[b.steps[0]]));
    if let (Some(preamble), Some(main)) = (preamble, found.first_mut()) {
        main.steps.push(preamble);
    }
    if let Some(main) = found.first_mut() {
        main.steps.sort_by(|&a, &b| steps[a].compare(&steps[b]));
    }
    found
}

/// Whether the first of `members` has nothing in common with the others.
fn has_preamble(steps: &Steps, members: &[usize]) -> bool {
    let Some((&first, others)) = members.split_first() else {
        return false;
    };
    let first = &steps[first];
    let starts_alike = |at: &usize| in_common(first.hashes(), steps[*at].hashes()) > 0;
    if others.is_empty() || first.hashes().is_empty() || others.iter().any(starts_alike) {
        return false;
    }
    if first.request.output <= PREAMBLE_TOKENS {
        return true;
    }
    let own: HashSet<u64, FxBuildHasher> = first.hashes().iter().copied().collect();
    let mut ids = others.iter().flat_map(|&at| steps[at].hashes());
    !ids.any(|id| own.contains(id))
}

/// Blocks at the begin of both.
fn in_common(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

struct Chains<'a> {
    steps: &'a Steps,
    found: Vec<Chain>,
    /// Chain of each step, before any was joined.
    of_step: HashMap<usize, usize, FxBuildHasher>,
    /// Chains that forked off each step.
    forks: HashMap<usize, Vec<usize>, FxBuildHasher>,
}

impl<'a> Chains<'a> {
    fn new(steps: &'a Steps) -> Self {
        Self {
            steps,
            found: Vec::new(),
            of_step: HashMap::default(),
            forks: HashMap::default(),
        }
    }

    /// Finds the chain of the next step.
    fn take(&mut self, at: usize) {
        if self.found.is_empty() {
            self.found.push(Chain::default());
            return self.push(0, at);
        }
        let hashes = self.steps[at].hashes();
        if hashes.is_empty() {
            return self.push(0, at);
        }
        if let Some(chain) = self.continued_by(at) {
            return self.push(chain, at);
        }
        if self.found.iter().all(|chain| chain.tail.is_none()) {
            return self.push(0, at);
        }
        let (off, depth) = self.closest(hashes);
        let chain = self.found.len();
        self.found.push(Chain {
            fork: Some(Fork {
                off,
                depth,
                time: self.steps[at].t,
            }),
            ..Chain::default()
        });
        self.push(chain, at);
        if let Some(off) = off.filter(|_| depth > 0) {
            self.forks.entry(off).or_default().push(chain);
        }
    }

    fn push(&mut self, chain: usize, at: usize) {
        self.of_step.insert(at, chain);
        self.found[chain].push(self.steps, at);
    }

    /// The chain that a step goes on: the one with the longest latest prompt, the first of several.
    fn continued_by(&self, at: usize) -> Option<usize> {
        let step = &self.steps[at];
        let mut best = None;
        let mut longest = 0;
        for (chain, tail) in self
            .found
            .iter()
            .enumerate()
            .filter_map(|(at, chain)| Some((at, chain.tail?)))
        {
            let tail = &self.steps[tail];
            let hashes = tail.hashes();
            let over = tail.end() <= step.t + EPSILON_S;
            if hashes.len() > longest
                && over
                && tail.request.model == step.request.model
                && step.hashes().starts_with(hashes)
            {
                longest = hashes.len();
                best = Some(chain);
            }
        }
        best
    }

    /// The latest step with most blocks in common with `hashes`, of several the one with the longest prompt; how many.
    fn closest(&self, hashes: &[u64]) -> (Option<usize>, usize) {
        let mut best = None;
        let mut most = (0, 0);
        for chain in &self.found {
            let tail = chain.tail_hashes(self.steps);
            let key = (in_common(tail, hashes), tail.len());
            if key.0 > 0 && key > most {
                most = key;
                best = chain.tail;
            }
        }
        (best, most.0)
    }

    /// Joins forks to conversations that do not go on otherwise.
    fn join_forks(&mut self) {
        let steps = self.steps;
        // By name, as texts sort.
        let mut open: BTreeSet<(&str, usize)> = self.forks.keys().map(|&at| (steps[at].name.as_str(), at)).collect();
        let mut looked_at: HashSet<usize, FxBuildHasher> = HashSet::default();
        while let Some((_, at)) = open.pop_first() {
            let owner = self.of_step[&at];
            if !looked_at.insert(at) || self.found[owner].tail != Some(at) {
                continue;
            }
            let forks = self.forks.get(&at).into_iter().flatten().copied();
            let forks: Vec<usize> = forks.filter(|&fork| !self.found[fork].joined).collect();
            let heirs = forks.iter().copied().filter(|&fork| self.may_be_heir(fork, at));
            let Some(heir) = heirs.max_by(|&a, &b| self.compare_heirs(a, b)) else {
                continue;
            };
            self.join(heir, owner);
            let Some(tail) = self.found[owner].tail else { continue };
            for fork in forks.into_iter().filter(|&fork| fork != heir) {
                let first = &steps[self.found[fork].steps[0]];
                let depth = in_common(steps[tail].hashes(), first.hashes());
                // Nothing forks off what comes later.
                if depth == 0 || steps[tail].t > first.t + EPSILON_S {
                    continue;
                }
                if let Some(fork) = &mut self.found[fork].fork {
                    (fork.off, fork.depth) = (Some(tail), depth);
                }
                self.forks.entry(tail).or_default().push(fork);
                looked_at.remove(&tail);
                open.insert((steps[tail].name.as_str(), tail));
            }
        }
    }

    fn join(&mut self, heir: usize, owner: usize) {
        let joined = std::mem::take(&mut self.found[heir].steps);
        for &at in &joined {
            self.of_step.insert(at, owner);
        }
        self.found[heir].joined = true;
        let tail = self.found[heir].tail;
        let owner = &mut self.found[owner];
        owner.steps.extend(joined);
        owner.tail = tail;
    }

    /// Whether a fork can be what became of the conversation whose latest step is `tail`.
    #[allow(clippy::cast_precision_loss)]
    fn may_be_heir(&self, fork: usize, tail: usize) -> bool {
        let (chain, tail) = (&self.found[fork], &self.steps[tail]);
        let (Some(fork), Some(&first)) = (chain.fork, chain.steps.first()) else {
            return false;
        };
        let first = &self.steps[first];
        let share = fork.depth as f64 / tail.hashes().len().max(1) as f64;
        let long_ago = first.t - tail.end() > LONG_PAUSE_S;
        fork.depth > 0
            && tail.end() <= first.t + EPSILON_S
            && first.request.model == tail.request.model
            && (!long_ago || share >= 0.5)
    }

    /// Most in common, then the earliest.
    fn compare_heirs(&self, a: usize, b: usize) -> Ordering {
        let key = |chain: usize| self.found[chain].fork.map_or((0, 0.0), |fork| (fork.depth, fork.time));
        let ((a_depth, a_time), (b_depth, b_time)) = (key(a), key(b));
        let order = a_depth.cmp(&b_depth).then_with(|| b_time.total_cmp(&a_time));
        order.then_with(|| b.cmp(&a))
    }
}
