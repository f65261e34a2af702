//! The order in which waiting requests are tried.

use std::cmp::Reverse;

use hashbrown::{HashMap, HashSet};
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::types::Token;

use super::super::config::{RadixEviction, SglangPolicy};
use super::Sglang;
use super::tree::{Match, NodeId};

/// Above this many waiting requests `lpm` and `hrrn` are not worth their matching, and no more prefixes are kept fresh.
const MATCHED_MOST: usize = 128;
/// Requests with at most so many cached tokens may be put off for an earlier one that starts with as many equal tokens.
const SHARED_TOKENS: u32 = 32;
/// How often prefixes are kept fresh: every so many chances.
const REFRESH_INTERVAL: u64 = 32;

impl Sglang {
    /// Sorts the queue for an attempt. O(waiting · path), with at most [`MATCHED_MOST`] waiting for `lpm` and `hrrn`; O(1)
    /// for `fcfs` but for every 32nd attempt.
    pub(super) fn order_waiting(&mut self) {
        let attempt = self.attempts;
        self.attempts += 1;
        match self.rules.policy {
            SglangPolicy::Lpm if self.waiting.len() <= MATCHED_MOST => self.longest_prefix_first(),
            SglangPolicy::Hrrn if self.waiting.len() <= MATCHED_MOST => self.highest_response_ratio_first(),
            SglangPolicy::Lpm | SglangPolicy::Hrrn | SglangPolicy::Fcfs => self.refresh(),
            SglangPolicy::ShortestPrefillFirst => self.shortest_prefill_first(),
            SglangPolicy::DfsWeight => self.depth_first(),
            SglangPolicy::Lof => {
                self.refresh();
                let slots = &self.slots;
                let queue = self.waiting.make_contiguous();
                queue.sort_by_key(|&at| Reverse(slots[at].max_new));
            }
            SglangPolicy::Random => {
                self.refresh();
                let (slots, seed) = (&self.slots, self.seed ^ attempt);
                let queue = self.waiting.make_contiguous();
                queue.sort_by_key(|&at| xxh3_64_with_seed(&slots[at].sequence.id.0.to_le_bytes(), seed));
            }
            SglangPolicy::RoutingKey => {
                self.refresh();
                self.commonest_key_first();
            }
        }
    }

    /// Most tokens that `shortest-prefill-first` lets the prompt that is computed in part have of `budget` tokens, so that
    /// shorter ones fit beside it; `None`: all.
    pub(super) fn leave_room(&mut self, rest: u32, budget: i64) -> Option<i64> {
        let page = i64::from(self.rules.page);
        if self.rules.policy != SglangPolicy::ShortestPrefillFirst || budget < 2 * page {
            return None;
        }
        let mut reserved = 0;
        for index in 0..self.waiting.len() {
            let at = self.waiting[index];
            let cached = self.peek_prefix(at, 0);
            let work = self.work(at, self.usable(at, cached));
            let charge = self.rules.ceil(work);
            if work >= rest || reserved + charge > budget - page {
                break;
            }
            reserved += charge;
        }
        (reserved > 0).then(|| (budget - reserved) / page * page)
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

    /// Of each waiting request, how much is cached, and whether it is put off for an earlier one that starts alike.
    fn prefixes(&mut self) -> HashMap<u32, (bool, u32), FxBuildHasher> {
        let mut prefixes = HashMap::default();
        let mut seen = HashSet::<u64, FxBuildHasher>::default();
        for index in 0..self.waiting.len() {
            let at = self.waiting[index];
            // All that is cached, also where the last token will be computed again.
            let cached = if self.rules.is_real() {
                self.find_prefix(at, 0).pages * self.rules.page
            } else {
                self.peek_prefix(at, 0)
            };
            let put_off = cached <= SHARED_TOKENS && self.start_hash(at).is_some_and(|hash| !seen.insert(hash));
            prefixes.insert(at, (put_off, self.usable(at, cached)));
        }
        prefixes
    }

    /// How many of the `cached` tokens of a request its order goes by: SGLang leaves one to compute out.
    fn usable(&self, at: u32, cached: u32) -> u32 {
        let kept = u32::from(self.rules.is_real());
        cached.min(self.slots[at].sequence.len() - kept)
    }

    fn longest_prefix_first(&mut self) {
        let prefixes = self.prefixes();
        let real = self.rules.is_real();
        self.waiting.make_contiguous().sort_by_key(|at| {
            let &(put_off, cached) = prefixes.get(at)?;
            // SGLang leaves those it puts off in their order.
            Some((put_off, Reverse(if put_off && real { 0 } else { cached })))
        });
    }

    /// What a request waited for, counted in prompt tokens computed meanwhile, in proportion to what it will compute: the
    /// longest wait first, before it those that have nothing to compute.
    fn highest_response_ratio_first(&mut self) {
        let prefixes = self.prefixes();
        let (slots, computed) = (&self.slots, self.computed_tokens);
        let key = |at: &u32| {
            let slot = &slots[*at];
            let (put_off, cached) = prefixes.get(at).copied().unwrap_or_default();
            let uncached = u64::from(slot.sequence.prompt_len().saturating_sub(cached));
            (put_off, computed - slot.queued_at.1, uncached, slot.sequence.id)
        };
        self.waiting.make_contiguous().sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            let by_ratio = match (a.2, b.2) {
                _ if a.0 || b.0 => a.0.cmp(&b.0),
                (0, _) | (_, 0) => (a.2 > 0).cmp(&(b.2 > 0)),
                // waited / uncached, without a division
                _ => (u128::from(b.1) * u128::from(a.2)).cmp(&(u128::from(a.1) * u128::from(b.2))),
            };
            by_ratio.then(a.3.0.cmp(&b.3.0))
        });
    }

    fn shortest_prefill_first(&mut self) {
        let prefixes = self.prefixes();
        let mut keys: HashMap<u32, (bool, u32, u64), FxBuildHasher> = HashMap::default();
        for (&at, &(put_off, cached)) in &prefixes {
            keys.insert(at, (put_off, self.work(at, cached), self.slots[at].queued_at.0));
        }
        self.waiting.make_contiguous().sort_by_key(|at| keys.get(at).copied());
    }

    /// Keys that most of those that run have come first. The order of arrival stays while nobody who runs has a key.
    fn commonest_key_first(&mut self) {
        let slots = &self.slots;
        let mut counts: HashMap<&str, u32, FxBuildHasher> = HashMap::default();
        for key in self
            .running
            .iter()
            .filter_map(|lane| slots[lane.slot].routing_key.as_deref())
        {
            *counts.entry(key).or_default() += 1;
        }
        if counts.is_empty() {
            return;
        }
        self.waiting.make_contiguous().sort_by_key(|&at| {
            let key = slots[at].routing_key.as_deref().unwrap_or_default();
            (Reverse(counts.get(key).copied().unwrap_or(0)), key)
        });
    }

    /// Tokens that a request will compute when `cached` are there, at least 1.
    fn work(&self, at: u32, cached: u32) -> u32 {
        self.slots[at].sequence.len().saturating_sub(cached).max(1)
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
            let node = self.find_prefix(at, 0).node;
            ends.entry(node).or_default().push(at);
            nodes.push(node);
        }
        self.waiting.clear();
        for node in self.cache.heaviest_first(nodes.into_iter()) {
            self.waiting.extend(ends.get(&node).into_iter().flatten());
        }
    }

    /// Keeps what waits for a prefix from being evicted by what came later.
    fn refresh(&mut self) {
        let wanted = self.rules.is_real() && self.rules.prefix_caching && self.rules.eviction == RadixEviction::Lru;
        if !wanted || self.waiting.is_empty() {
            return;
        }
        let chance = self.refreshes;
        self.refreshes += 1;
        if !chance.is_multiple_of(REFRESH_INTERVAL) {
            return;
        }
        for index in (0..self.waiting.len().min(MATCHED_MOST)).rev() {
            self.find_prefix(self.waiting[index], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Engine;
    use super::super::super::config::{EngineConfig, EngineKind, SglangConfig};
    use super::*;
    use crate::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};

    fn engine(policy: SglangPolicy, pages: u32) -> Sglang {
        let config = EngineConfig {
            kind: EngineKind::Sglang,
            num_gpu_blocks: pages,
            block_size: 4,
            sglang: SglangConfig {
                schedule_policy: policy,
                chunked_prefill_size: Some(64),
                ..SglangConfig::default()
            },
            ..EngineConfig::default()
        };
        Sglang::from_config(&config).unwrap()
    }

    /// An engine in which requests 0, 1, 2 ... with prompts of these lengths wait.
    fn waiting(policy: SglangPolicy, lengths: &[u32]) -> Sglang {
        let mut engine = engine(policy, 1000);
        for (id, &length) in (0..).zip(lengths) {
            submit(&mut engine, id, length, "");
        }
        engine
    }

    fn submit(engine: &mut Sglang, id: u64, length: u32, routing_key: &str) {
        submit_long(engine, id, length, 5, routing_key);
    }

    fn submit_long(engine: &mut Sglang, id: u64, length: u32, max_tokens: u32, routing_key: &str) {
        let first = 1000 * u32::try_from(id).unwrap();
        let request = EngineRequest {
            id: RequestId(id),
            key: id,
            prompt: (first..first + length).collect(),
            stop: StopRule {
                max_tokens: Some(max_tokens),
                ..StopRule::default()
            },
            planned: None,
            priority: 0,
            salt: HashSalt::default(),
            routing_key: Some(routing_key.into()).filter(|_| !routing_key.is_empty()),
        };
        engine.submit(request, SimTime::ZERO).unwrap();
    }

    fn order(engine: &mut Sglang) -> Vec<u64> {
        engine.order_waiting();
        engine
            .waiting
            .iter()
            .map(|&at| engine.slots[at].sequence.id.0)
            .collect()
    }

    #[test]
    fn the_highest_response_ratio_is_the_longest_wait_per_token_to_compute() {
        let mut engine = waiting(SglangPolicy::Hrrn, &[100, 10, 50]);
        assert_eq!(order(&mut engine), [0, 1, 2], "nobody has waited yet");
        engine.computed_tokens = 600;
        for (at, since) in [(0, 0), (1, 500), (2, 550)] {
            engine.slots[at].queued_at.1 = since;
        }
        // 600 / 100, 100 / 10 and 50 / 50.
        assert_eq!(order(&mut engine), [1, 0, 2]);
    }

    #[test]
    fn the_shortest_prefill_comes_first_and_of_equals_the_one_that_came_first() {
        let mut engine = waiting(SglangPolicy::ShortestPrefillFirst, &[40, 8, 40, 12]);
        assert_eq!(order(&mut engine), [1, 3, 0, 2]);
    }

    #[test]
    fn keys_that_most_of_the_running_have_come_first_and_the_others_by_their_keys() {
        let mut engine = waiting(SglangPolicy::RoutingKey, &[]);
        for (id, key) in [(0, "b"), (1, "a"), (2, ""), (3, "a")] {
            submit(&mut engine, id, 8, key);
        }
        assert_eq!(order(&mut engine), [0, 1, 2, 3], "nobody runs yet");
        engine.step(SimTime::ZERO).unwrap();
        for (id, key) in [(4, "z"), (5, "b"), (6, ""), (7, "a"), (8, "c"), (9, "a")] {
            submit(&mut engine, id, 8, key);
        }
        assert_eq!(order(&mut engine), [7, 9, 5, 6, 8, 4]);
    }

    #[test]
    fn a_request_that_found_no_memory_keeps_nobody_out_while_a_prompt_goes_on_in_parts() {
        let mut engine = engine(SglangPolicy::ShortestPrefillFirst, 128);
        submit_long(&mut engine, 0, 200, 1, "");
        let pass = engine.step(SimTime::ZERO).unwrap();
        assert_eq!(pass.forward.prefill_tokens, 64);
        // Its answer does not fit beside the long prompt.
        submit_long(&mut engine, 1, 40, 400, "");
        let pass = engine.step(pass.ends_at).unwrap();
        assert_eq!((pass.admissions.len(), pass.forward.prefill_tokens), (0, 24));
        submit_long(&mut engine, 2, 8, 1, "");
        let pass = engine.step(pass.ends_at).unwrap();
        assert!(engine.chunked.is_some(), "the long prompt goes on");
        assert_eq!(
            pass.admissions
                .iter()
                .map(|admission| admission.id.0)
                .collect::<Vec<_>>(),
            [2]
        );
    }

    #[test]
    fn a_long_prompt_leaves_room_for_shorter_ones_in_whole_pages() {
        let mut engine = waiting(SglangPolicy::ShortestPrefillFirst, &[9, 14, 70]);
        order(&mut engine);
        // 12 and 16 tokens in pages of 4 for the short ones.
        assert_eq!(engine.leave_room(100, 64), Some(36));
        assert_eq!(engine.leave_room(10, 64), Some(52), "the second is no shorter");
        assert_eq!(engine.leave_room(100, 16), Some(4));
        assert_eq!(engine.leave_room(5, 64), None);
        assert_eq!(
            engine.leave_room(100, 4),
            None,
            "a page for the long one, and one for others"
        );
        assert_eq!(waiting(SglangPolicy::Fcfs, &[9]).leave_room(100, 64), None);
    }
}
