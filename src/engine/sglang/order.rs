//! The order in which waiting requests are tried.

use std::cmp::Reverse;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::types::Token;

use super::super::config::{RadixEviction, SglangPolicy};
use super::Sglang;
use super::tree::{Match, NodeId};

/// Above this many waiting requests `lpm` is not worth its matching.
const LPM_MOST: usize = 128;
/// Requests with at most so many cached tokens may be put off for an earlier one that starts with as many equal tokens.
const SHARED_TOKENS: u32 = 32;
/// Waiting requests whose prefixes are kept fresh, and how often.
const REFRESHED: usize = 128;
const REFRESH_INTERVAL: u64 = 32;

impl Sglang {
    /// Sorts the queue for an attempt. O(waiting · path), at most [`LPM_MOST`] for `lpm`; O(1) for `fcfs` but for every
    /// 32nd attempt.
    pub(super) fn order_waiting(&mut self) {
        let attempt = self.attempts;
        self.attempts += 1;
        match self.rules.policy {
            SglangPolicy::Lpm if self.waiting.len() <= LPM_MOST => self.longest_prefix_first(),
            SglangPolicy::Lpm => {}
            SglangPolicy::DfsWeight => self.depth_first(),
            SglangPolicy::Fcfs => self.refresh(attempt),
            SglangPolicy::Lof => {
                self.refresh(attempt);
                let slots = &self.slots;
                let queue = self.waiting.make_contiguous();
                queue.sort_by_key(|&at| Reverse(slots[at].max_new));
            }
            SglangPolicy::Random => {
                let (slots, seed) = (&self.slots, self.seed ^ attempt);
                let queue = self.waiting.make_contiguous();
                queue.sort_by_key(|&at| xxh3_64_with_seed(&slots[at].sequence.id.0.to_le_bytes(), seed));
            }
        }
    }

    /// The cached prefix of a request, of which at least `kept` tokens are left to compute. Finding it refreshes it.
    pub(super) fn find_prefix(&mut self, at: u32, kept: u32) -> Match {
        let most = self.hash_pages(at, kept);
        self.cache.find(self.slots[at].sequence.hashed(most))
    }

    /// The tokens that [`Self::find_prefix`] would find, without refreshing anything.
    pub(super) fn peek_prefix(&mut self, at: u32, kept: u32) -> u32 {
        let most = self.hash_pages(at, kept);
        self.cache.peek(self.slots[at].sequence.hashed(most)) * self.rules.page
    }

    /// Hashes the pages of a request that may be cached, all but its last `kept` tokens; returns how many.
    fn hash_pages(&mut self, at: u32, kept: u32) -> u32 {
        let sequence = &mut self.slots[at].sequence;
        let most = if self.rules.prefix_caching {
            (sequence.len() - kept) / self.rules.page
        } else {
            0
        };
        if let Some(last) = most.checked_sub(1) {
            self.hasher.block(sequence, last);
        }
        most
    }

    fn longest_prefix_first(&mut self) {
        let mut keys: HashMap<u32, (bool, Reverse<u32>), FxBuildHasher> = HashMap::default();
        let mut seen = HashSet::<u64, FxBuildHasher>::default();
        // The emulator sorts by all that is cached, also where it will compute the last token again.
        let kept = u32::from(self.rules.is_real());
        for index in 0..self.waiting.len() {
            let at = self.waiting[index];
            let cached = if self.rules.is_real() {
                self.find_prefix(at, kept).pages * self.rules.page
            } else {
                self.peek_prefix(at, kept)
            };
            let put_off = cached <= SHARED_TOKENS && self.start_hash(at).is_some_and(|hash| !seen.insert(hash));
            // SGLang leaves those it puts off in their order.
            let by = if put_off && self.rules.is_real() { 0 } else { cached };
            keys.insert(at, (put_off, Reverse(by)));
        }
        self.waiting.make_contiguous().sort_by_key(|at| keys.get(at).copied());
    }

    /// Hash of the tokens that make two requests share a start; `None`: too short.
    fn start_hash(&self, at: u32) -> Option<u64> {
        let page = self.rules.page;
        let tokens = if self.rules.is_real() {
            SHARED_TOKENS
        } else {
            SHARED_TOKENS.next_multiple_of(page)
        };
        let sequence = &self.slots[at].sequence;
        if sequence.len() < tokens {
            return None;
        }
        let mut start = Vec::new();
        let of_prompt = sequence.prompt_len().min(tokens);
        sequence.prompt.append(0..of_prompt, &mut start);
        let generated = (0..tokens - of_prompt).map(|index| sequence.answer.token(self.generator, index));
        start.extend(generated);
        let start: Vec<u8> = start.into_iter().flat_map(Token::to_le_bytes).collect();
        Some(xxh3_64_with_seed(&start, sequence.hash_seed()))
    }

    fn depth_first(&mut self) {
        let mut ends: HashMap<NodeId, Vec<u32>, FxBuildHasher> = HashMap::default();
        let mut nodes = Vec::new();
        for index in 0..self.waiting.len() {
            let at = self.waiting[index];
            let node = self.find_prefix(at, 1).node;
            ends.entry(node).or_default().push(at);
            nodes.push(node);
        }
        self.waiting.clear();
        for node in self.cache.heaviest_first(nodes.into_iter()) {
            self.waiting.extend(ends.get(&node).into_iter().flatten());
        }
    }

    /// Keeps what waits for a prefix from being evicted by what came later.
    fn refresh(&mut self, attempt: u64) {
        let wanted = self.rules.is_real() && self.rules.prefix_caching && self.rules.eviction == RadixEviction::Lru;
        if !wanted || !attempt.is_multiple_of(REFRESH_INTERVAL) {
            return;
        }
        for index in (0..self.waiting.len().min(REFRESHED)).rev() {
            self.find_prefix(self.waiting[index], 1);
        }
    }
}
