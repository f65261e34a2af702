//! Requests that wait in the router until some target is not busy.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::QueuePolicy;
use crate::types::SimTime;

/// What the order of waiting requests depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Urgency {
    /// Higher classes are served first.
    pub(crate) strict_priority: u32,
    /// Seconds of advantage (fcfs, lcfs) or weight (wspt).
    pub(crate) priority: i32,
    /// When the request came.
    pub(crate) arrival: SimTime,
    /// Prompt tokens.
    pub(crate) isl: u64,
    /// Most of them that some target has cached.
    pub(crate) best_cached: u64,
}

/// Sorts first what is served first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Key {
    strict_priority: u32,
    score: f64,
    number: u64,
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_class = other.strict_priority.cmp(&self.strict_priority);
        let by_score = other.score.total_cmp(&self.score);
        by_class.then(by_score).then(self.number.cmp(&other.number))
    }
}

/// Waiting requests in the order of a policy.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    policy: QueuePolicy,
    waiting: BTreeMap<Key, T>,
    number: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new(policy: QueuePolicy) -> Self {
        Self {
            policy,
            waiting: BTreeMap::new(),
            number: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn push(&mut self, urgency: Urgency, request: T) {
        self.number += 1;
        let key = Key {
            strict_priority: urgency.strict_priority,
            score: self.score(urgency),
            number: self.number,
        };
        self.waiting.insert(key, request);
    }

    pub(crate) fn peek(&self) -> Option<&T> {
        self.waiting.first_key_value().map(|(_, request)| request)
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.waiting.pop_first().map(|(_, request)| request)
    }

    #[allow(clippy::cast_precision_loss)]
    fn score(&self, urgency: Urgency) -> f64 {
        let priority = f64::from(urgency.priority.max(0));
        let arrival_s = urgency.arrival.as_ms() / 1e3;
        match self.policy {
            QueuePolicy::Fcfs => priority - arrival_s,
            QueuePolicy::Lcfs => priority + arrival_s,
            QueuePolicy::Wspt => {
                let uncached = urgency.isl.saturating_sub(urgency.best_cached).max(1);
                (1.0 + priority) / uncached as f64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(policy: QueuePolicy, requests: &[(u32, i32, u64, u64)]) -> Vec<usize> {
        let mut queue = Queue::new(policy);
        for (name, &(strict_priority, priority, arrival_ms, isl)) in requests.iter().enumerate() {
            let urgency = Urgency {
                strict_priority,
                priority,
                arrival: SimTime::of_nanos(arrival_ms * 1_000_000),
                isl,
                best_cached: 0,
            };
            queue.push(urgency, name);
        }
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn strict_priority_goes_before_every_score_and_arrival_breaks_ties() {
        let requests = [(0, 0, 1, 9), (0, 50, 3, 9), (1, 0, 4, 9), (0, 0, 1, 9)];
        assert_eq!(order(QueuePolicy::Fcfs, &requests), [2, 1, 0, 3]);
    }

    #[test]
    fn policies_order_by_arrival_or_by_weight_per_token() {
        let requests = [(0, 0, 1, 900), (0, 0, 2, 100), (0, -7, 3, 500)];
        assert_eq!(order(QueuePolicy::Fcfs, &requests), [0, 1, 2]);
        assert_eq!(order(QueuePolicy::Lcfs, &requests), [2, 1, 0]);
        assert_eq!(order(QueuePolicy::Wspt, &requests), [1, 2, 0]);
    }
}
