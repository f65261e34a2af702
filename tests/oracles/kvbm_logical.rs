//! The logical pool against recordings of the crate `kvbm-logical`, operation by operation.

use std::cell::Cell;
use std::collections::BTreeMap;

use ghostfleet::engine::{BlockIdentity, EvictionBackend, LogicalPool, Registered};
use ghostfleet::types::{LocalHash, SequenceHash, StoredBlock};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Case {
    backend: EvictionBackend,
    sequences: Vec<Sequence>,
}

#[derive(Debug, Deserialize)]
struct Sequence {
    seed: u64,
    capacity: u32,
    /// Parent (-1: none in the list), position, hash.
    nodes: Vec<(i64, u32, u64)>,
    ops: Vec<Operation>,
}

/// Available and inactive blocks come last.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Operation {
    Allocate(Allocate, u32, Option<Vec<usize>>, u32, u32),
    Discard(Discard, u32, u32, u32),
    Register(Register, Vec<usize>, Vec<u8>, u32, u32),
    Match(Match, Vec<usize>, usize, u32, u32),
    Scatter(Scatter, Vec<usize>, Vec<u8>, u32, u32),
    Release(Release, Vec<usize>, u32, u32),
    Clear(Clear, bool, u32, u32),
}

macro_rules! words {
    ($($word:ident)*) => {$(
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum $word {
            $word,
        }
    )*};
}

words!(Allocate Discard Register Match Scatter Release Clear);

/// What an operation came to, and available and inactive blocks after it.
#[derive(Debug, PartialEq)]
enum Result {
    Evicted(Option<Vec<usize>>),
    Fresh(Vec<u8>),
    Hits(usize),
    Empty(bool),
    Done,
}

struct Replay<'a> {
    sequence: &'a Sequence,
    pool: LogicalPool,
    nodes: BTreeMap<SequenceHash, usize>,
}

impl<'a> Replay<'a> {
    fn new(sequence: &'a Sequence, backend: EvictionBackend) -> Self {
        let hashes = sequence.nodes.iter().map(|&(.., hash)| SequenceHash(hash));
        Self {
            sequence,
            pool: LogicalPool::new(sequence.capacity, backend).unwrap(),
            nodes: hashes.enumerate().map(|(node, hash)| (hash, node)).collect(),
        }
    }

    fn hash(&self, node: usize) -> SequenceHash {
        SequenceHash(self.sequence.nodes[node].2)
    }

    fn identity(&self, node: usize) -> BlockIdentity {
        let (parent, position, hash) = self.sequence.nodes[node];
        // A parent that is not in the list has a hash all the same.
        let parent = match (usize::try_from(parent), position) {
            (_, 0) => None,
            (Ok(parent), _) => Some(self.hash(parent)),
            (Err(_), _) => Some(SequenceHash(!hash)),
        };
        BlockIdentity {
            block: StoredBlock {
                block_hash: SequenceHash(hash),
                tokens_hash: LocalHash(hash),
            },
            parent,
            position,
        }
    }

    /// Ours and the recorded result of one operation.
    fn run(&mut self, operation: &Operation) -> [(Result, u32, u32); 2] {
        let (ours, theirs, available, inactive) = match operation {
            Operation::Allocate(_, blocks, evicted, available, inactive) => {
                let ours = self.pool.allocate(*blocks);
                let ours = ours.map(|hashes| hashes.iter().map(|hash| self.nodes[hash]).collect());
                (
                    Result::Evicted(ours),
                    Result::Evicted(evicted.clone()),
                    available,
                    inactive,
                )
            }
            Operation::Discard(_, blocks, available, inactive) => {
                self.pool.discard(*blocks);
                (Result::Done, Result::Done, available, inactive)
            }
            Operation::Register(_, nodes, fresh, available, inactive) => {
                let ours = nodes
                    .iter()
                    .map(|&node| u8::from(self.pool.register(self.identity(node)) == Registered::NewStore));
                (
                    Result::Fresh(ours.collect()),
                    Result::Fresh(fresh.clone()),
                    available,
                    inactive,
                )
            }
            Operation::Match(_, nodes, hits, available, inactive) => {
                let hashes: Vec<SequenceHash> = nodes.iter().map(|&node| self.hash(node)).collect();
                let ours = self.pool.match_prefix(&hashes);
                (Result::Hits(ours), Result::Hits(*hits), available, inactive)
            }
            Operation::Scatter(_, nodes, hits, available, inactive) => {
                let ours = nodes.iter().map(|&node| u8::from(self.pool.match_one(self.hash(node))));
                (
                    Result::Fresh(ours.collect()),
                    Result::Fresh(hits.clone()),
                    available,
                    inactive,
                )
            }
            Operation::Release(_, nodes, available, inactive) => {
                let owned = nodes.iter().all(|&node| self.pool.release_one(self.hash(node)));
                (Result::Empty(owned), Result::Empty(true), available, inactive)
            }
            Operation::Clear(_, all, available, inactive) => {
                self.pool.evict_all();
                let ours = self.pool.available() == self.pool.capacity();
                (Result::Empty(ours), Result::Empty(*all), available, inactive)
            }
        };
        let counts = (self.pool.available(), self.pool.inactive());
        [(ours, counts.0, counts.1), (theirs, *available, *inactive)]
    }

    /// The first operation that came out differently.
    fn difference(mut self) -> Option<String> {
        self.sequence.ops.iter().enumerate().find_map(|(number, operation)| {
            let [ours, theirs] = self.run(operation);
            (ours != theirs).then(|| {
                let seed = self.sequence.seed;
                format!("seed {seed}, operation {number} {operation:?}: {ours:?} instead of {theirs:?}")
            })
        })
    }
}

#[test]
fn kvbm_logical() {
    let sequences = Cell::new(0);
    super::cases::run("kvbm-logical", |name, case: Case| {
        assert!(!case.sequences.is_empty(), "{name}: no sequences");
        for sequence in &case.sequences {
            assert!(!sequence.ops.is_empty(), "{name}: nothing happens");
            let difference = Replay::new(sequence, case.backend).difference();
            assert_eq!(difference, None, "{name}");
            sequences.set(sequences.get() + 1);
        }
    });
    println!("kvbm-logical: {} sequences", sequences.get());
}

/// The recordings are worth something only if they tell the backends apart.
#[test]
fn kvbm_logical_recordings_of_one_backend_do_not_fit_another() {
    let told_apart = Cell::new(0);
    super::cases::run("kvbm-logical", |name, case: Case| {
        let others = EvictionBackend::ALL
            .into_iter()
            .filter(|&other| other != case.backend && other != EvictionBackend::Native);
        // Blocks without parents are a forest of leaves: both kinds of lineage evict them as LRU does.
        let alike = |other| {
            let flat = |backend| matches!(backend, EvictionBackend::MultiLru);
            name.ends_with("flat") && !flat(case.backend) && !flat(other)
        };
        for other in others.filter(|&other| !alike(other)) {
            let fits = |sequence| Replay::new(sequence, other).difference().is_none();
            assert!(!case.sequences.iter().all(fits), "{name} fits {other:?}");
            told_apart.set(told_apart.get() + 1);
        }
    });
    println!("kvbm-logical: {} pairs of backends told apart", told_apart.get());
}
