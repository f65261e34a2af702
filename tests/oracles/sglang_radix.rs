//! SGLang's radix cache, operation by operation.

use std::collections::BTreeMap;

use ghostfleet::engine::RadixEviction;
use ghostfleet::engine::sglang::{Insert, NodeId, RadixCache};
use ghostfleet::types::{SequenceHash, Token};
use serde::Deserialize;

use super::sglang_keys::{Event, Key, Names};

#[derive(Debug, Deserialize)]
struct Case {
    config: Config,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    page_size: u32,
    eviction_policy: RadixEviction,
}

#[derive(Debug, Deserialize)]
struct Step {
    #[serde(flatten)]
    op: Op,
    /// Of the cache that a server builds, where SGLang's two differ.
    unified: Option<Outcome>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Op {
    Start,
    Insert {
        key: Key,
        #[serde(default)]
        priority: i32,
    },
    Match {
        key: Key,
    },
    Lock {
        id: u32,
        key: Key,
    },
    Unlock {
        id: u32,
    },
    Evict {
        n: u64,
    },
    Reset,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
struct Outcome {
    hit: Option<u32>,
    dup: Option<u32>,
    evicted: Option<u64>,
    /// First token and tokens of each freed node.
    leaves: Option<Vec<(Token, u32)>>,
    #[serde(default)]
    evictable: u64,
    #[serde(default)]
    protected: u64,
    #[serde(default)]
    total: u64,
    #[serde(default)]
    events: Vec<Event>,
}

struct Replay {
    page_size: u32,
    cache: RadixCache,
    locks: BTreeMap<u32, NodeId>,
    /// First token of each page.
    first_tokens: BTreeMap<SequenceHash, Token>,
}

impl Replay {
    fn pages(&mut self, key: &Key) -> Vec<ghostfleet::types::StoredBlock> {
        let pages = key.pages(self.page_size);
        let tokens = key.tokens();
        let firsts = tokens.chunks_exact(self.page_size as usize).map(|page| page[0]);
        self.first_tokens
            .extend(pages.iter().map(|page| page.block_hash).zip(firsts));
        pages
    }

    fn run(&mut self, op: &Op) -> Outcome {
        let mut outcome = Outcome::default();
        match op {
            Op::Start => {}
            Op::Insert { key, priority } => {
                let pages = self.pages(key);
                let how = Insert {
                    priority: *priority,
                    counted: 0,
                };
                outcome.dup = Some(self.cache.insert(&pages, how).pages * self.page_size);
            }
            Op::Match { key } => {
                let pages = self.pages(key);
                outcome.hit = Some(self.cache.find(&pages).pages * self.page_size);
            }
            Op::Lock { id, key } => {
                let pages = self.pages(key);
                let found = self.cache.find(&pages);
                self.cache.lock(found.node);
                self.locks.insert(*id, found.node);
                outcome.hit = Some(found.pages * self.page_size);
            }
            Op::Unlock { id } => self.cache.unlock(self.locks.remove(id).unwrap()),
            Op::Evict { n } => {
                let (page, firsts) = (self.page_size, &self.first_tokens);
                let mut leaves = Vec::new();
                let freed = self.cache.evict(n.div_ceil(u64::from(page)), |leaf| {
                    leaves.push((firsts[&leaf[0].block_hash], u32::try_from(leaf.len()).unwrap() * page));
                });
                outcome.evicted = Some(freed * u64::from(page));
                outcome.leaves = Some(leaves);
            }
            Op::Reset => self.cache.reset(),
        }
        outcome
    }
}

fn check(name: &str, case: &Case) {
    let page = u64::from(case.config.page_size);
    let mut names = Names::default();
    let mut replay = Replay {
        page_size: case.config.page_size,
        cache: RadixCache::new(case.config.eviction_policy),
        locks: BTreeMap::new(),
        first_tokens: BTreeMap::new(),
    };
    for (number, step) in case.steps.iter().enumerate() {
        let mut outcome = replay.run(&step.op);
        let mut events = Vec::new();
        replay.cache.take_events(&mut events);
        outcome.events = events.iter().map(|event| names.event(event)).collect();
        outcome.evictable = replay.cache.evictable_pages() * page;
        outcome.protected = replay.cache.protected_pages() * page;
        outcome.total = replay.cache.contents().len() as u64 * page;
        let expected = step.unified.as_ref().unwrap_or(&step.outcome);
        assert_eq!(&outcome, expected, "{name}, step {number}: {:?}", step.op);
    }
}

#[test]
fn sglang_radix() {
    super::cases::run("sglang-radix", |name, case: Case| check(name, &case));
}
