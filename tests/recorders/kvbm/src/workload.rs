//! What is done to a manager: kinds of operation sequences that tell eviction orders apart.

use kvbm_logical::SequenceHash;

use crate::driver::Driver;
use crate::rng::Rng;

/// Blocks that may exist, each with its parent.
pub(crate) struct Forest(Vec<Node>);

struct Node {
    parent: Option<usize>,
    position: u64,
    hash: u64,
}

impl Forest {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, parent: Option<usize>, position: u64, rng: &mut Rng) -> usize {
        let hash = rng.next();
        self.0.push(Node { parent, position, hash });
        self.0.len() - 1
    }

    pub(crate) fn hash(&self, node: usize) -> SequenceHash {
        let Node { parent, position, hash } = self.0[node];
        // A parent that is not part of the forest has a hash all the same.
        let parent = match (parent, position) {
            (_, 0) => None,
            (Some(parent), _) => Some(self.0[parent].hash),
            (None, _) => Some(!hash),
        };
        SequenceHash::new(hash, parent, position)
    }

    pub(crate) fn find(&self, hash: SequenceHash) -> usize {
        let hash = hash.current_sequence_hash();
        self.0
            .iter()
            .position(|node| node.hash == hash)
            .expect("only blocks of the forest were registered")
    }

    /// Parent (-1: none in the forest), position and hash of each node.
    pub(crate) fn rows(&self) -> Vec<(i64, u64, u64)> {
        let parent = |node: &Node| node.parent.map_or(-1, |parent| parent as i64);
        self.0
            .iter()
            .map(|node| (parent(node), node.position, node.hash))
            .collect()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// The node and those above it, top first.
    fn path(&self, node: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(node), |&node| self.0[node].parent).collect();
        path.reverse();
        path
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Workload {
    /// Blocks without parents, all operations at random.
    Flat,
    /// Requests over trees with shared prefixes: match, fill up, hold, give back in one of three orders.
    Trees,
    /// Few blocks asked for very often: all four tiers, and ageing counters.
    Reuse,
    /// Blocks registered again while they are in use or inactive.
    Duplicates,
    /// Trees across the positions where names change their layout.
    Deep,
}

impl Workload {
    pub(crate) const ALL: [Self; 5] = [Self::Flat, Self::Trees, Self::Reuse, Self::Duplicates, Self::Deep];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Trees => "trees",
            Self::Reuse => "reuse",
            Self::Duplicates => "duplicates",
            Self::Deep => "deep",
        }
    }

    /// Capacity of the pool and the blocks that may be in it: more than fit.
    pub(crate) fn forest(self, rng: &mut Rng) -> (usize, Forest) {
        let mut forest = Forest::new();
        let capacity = match self {
            Self::Flat => rng.between(6, 16),
            Self::Trees | Self::Duplicates => rng.between(10, 24),
            Self::Reuse => [6, 10, 16, 40][rng.below(4)],
            Self::Deep => rng.between(10, 18),
        };
        match self {
            Self::Flat => {
                for _ in 0..capacity * 2 {
                    forest.add(None, 0, rng);
                }
            }
            Self::Trees | Self::Duplicates => grow(&mut forest, capacity * 2, &[0], rng),
            Self::Reuse => grow(&mut forest, capacity * 2, &[0], rng),
            Self::Deep => grow(&mut forest, capacity * 2, &[252, 65_532], rng),
        }
        (capacity, forest)
    }

    /// Some fifty steps, most of them of several operations.
    pub(crate) fn run(self, driver: &mut Driver<'_>, rng: &mut Rng) {
        match self {
            Self::Flat => (0..90).for_each(|_| anything(driver, rng)),
            Self::Trees | Self::Deep => (0..50).for_each(|_| {
                request(driver, rng, true);
                give_back(driver, rng, 60);
            }),
            Self::Reuse => (0..60).for_each(|_| {
                request(driver, rng, true);
                while rng.chance(40) {
                    let node = rng.skewed(driver.forest().len());
                    driver.match_prefix(&driver.forest().path(node));
                }
                give_back(driver, rng, 95);
            }),
            Self::Duplicates => (0..40).for_each(|_| {
                if rng.chance(70) {
                    request(driver, rng, false);
                } else {
                    anything(driver, rng);
                }
                give_back(driver, rng, 50);
            }),
        }
    }
}

/// Adds `count` nodes in trees whose roots are at one of `starts`.
fn grow(forest: &mut Forest, count: usize, starts: &[u64], rng: &mut Rng) {
    for n in 0..count {
        if n < starts.len() || rng.chance(12) {
            let position = starts[n % starts.len()];
            forest.add(None, position, rng);
            continue;
        }
        // Mostly below one of the last few nodes, so that chains grow long and branch now and then.
        let back = rng.skewed(n.min(8));
        let parent = n - 1 - back;
        let position = forest.0[parent].position + 1;
        forest.add(Some(parent), position, rng);
    }
}

/// A request for a path: takes what is there (if it looks), fills up the rest.
fn request(driver: &mut Driver<'_>, rng: &mut Rng, looks: bool) {
    let nodes = driver.forest().len();
    // The most wanted nodes are somewhere, not only at the roots.
    let wanted = (rng.skewed(nodes) * 7 + 3) % nodes;
    let node = if rng.chance(40) { rng.below(nodes) } else { wanted };
    let path = driver.forest().path(node);
    let hits = if looks { driver.match_prefix(&path) } else { 0 };
    let rest = &path[hits..];
    if rest.is_empty() || !driver.allocate(rest.len()) {
        return;
    }
    driver.register(rest, rng.chance(70));
}

/// Gives handles back until at most `percent` of them are left in use, in one of the orders in which owners do that.
fn give_back(driver: &mut Driver<'_>, rng: &mut Rng, percent: usize) {
    let held = driver.held();
    if held == 0 || (driver.available() > 3 && !rng.chance(percent)) {
        return;
    }
    let from = rng.below(held);
    let to = rng.between(from, (from + 12).min(held - 1));
    let mut places: Vec<usize> = (from..=to).collect();
    match rng.below(4) {
        0 | 1 => places.reverse(),
        2 => {}
        _ => {
            for n in (1..places.len()).rev() {
                places.swap(n, rng.below(n + 1));
            }
        }
    }
    driver.release(&places);
}

/// Any operation, as long as the manager can take it.
fn anything(driver: &mut Driver<'_>, rng: &mut Rng) {
    let nodes = driver.forest().len();
    match rng.below(100) {
        0..30 => {
            let room = driver.available();
            let wanted = rng.between(1, 4).min(room + 1);
            if driver.allocate(wanted) {
                let named: Vec<usize> = (0..wanted).map(|_| rng.below(nodes)).collect();
                driver.register(&named, rng.chance(50));
            }
        }
        30..45 => {
            let wanted: Vec<usize> = (0..rng.between(1, 5)).map(|_| rng.below(nodes)).collect();
            driver.match_scattered(&wanted);
        }
        45..58 => {
            let wanted: Vec<usize> = (0..rng.between(1, 3)).map(|_| rng.skewed(nodes)).collect();
            driver.match_prefix(&wanted);
        }
        58..88 => give_back(driver, rng, 100),
        88..93 => {
            let blocks = rng.between(1, 3);
            driver.allocate(blocks);
        }
        93..98 => {
            let blocks = driver.mutable();
            driver.discard(blocks);
        }
        _ => driver.clear(),
    }
}
