//! Requests that wait in the router, class by class, served in deficit round robin.
//!
//! Each class has a credit in uncached prompt tokens. Whoever is served pays with it; a class that cannot pay gets its
//! quantum when its turn comes, so that over time classes send prefill work in the ratio of their quanta. Who was served last
//! and has credit left is asked first, once: when it cannot pay or may not go then, its turn is over and the others come
//! before it the next time too. Source: Dynamo 1.6.1 policy queue.

use super::RouterError;
use super::policy::{PolicyClass, PolicyProfile};
use super::queue::{Queue, Urgency};

/// What waits in one class.
#[derive(Debug)]
struct Class<T> {
    queue: Queue<Entry<T>>,
    credit: u64,
    raw_isl_tokens: u64,
    cached_tokens: u64,
}

#[derive(Debug)]
struct Entry<T> {
    request: T,
    isl: u64,
    cached: u64,
}

impl<T> Entry<T> {
    /// What it takes to be served.
    fn cost(&self) -> u64 {
        self.isl.saturating_sub(self.cached).max(1)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Classes<T> {
    profile: PolicyProfile,
    queues: Vec<Class<T>>,
    /// Class whose turn is next.
    cursor: usize,
    /// Class that was served last and has credit left, until it is asked again.
    carry: Option<usize>,
    waiting: usize,
}

impl<T> Classes<T> {
    pub(crate) fn new(profile: &PolicyProfile) -> Self {
        let class = |class: &PolicyClass| Class {
            queue: Queue::new(class.queue_policy),
            credit: 0,
            raw_isl_tokens: 0,
            cached_tokens: 0,
        };
        Self {
            queues: profile.classes().iter().map(class).collect(),
            profile: profile.clone(),
            cursor: 0,
            carry: None,
            waiting: 0,
        }
    }

    /// Requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Class of a request.
    pub(crate) fn class_of(&self, wanted: Option<&str>, uncached_tokens: u64) -> usize {
        self.profile.class_of(wanted, uncached_tokens)
    }

    /// Rules of a class.
    pub(crate) fn rules(&self, class: usize) -> &PolicyClass {
        &self.profile.classes()[class]
    }

    /// Whether somebody waits in a class.
    pub(crate) fn has_backlog(&self, class: usize) -> bool {
        !self.queues[class].queue.is_empty()
    }

    /// Lets a request wait in a pool of so many ranks.
    ///
    /// # Errors
    /// [`RouterError::QueueLimit`] when the class is full; the request is dropped.
    pub(crate) fn push(&mut self, class: usize, urgency: Urgency, ranks: u64, request: T) -> Result<(), RouterError> {
        let (rules, state) = (&self.profile.classes()[class], &mut self.queues[class]);
        let limits = rules.limits;
        let usage = [
            ("requests", limits.requests, state.queue.len() as u64),
            ("raw_isl_tokens", limits.raw_isl_tokens, state.raw_isl_tokens),
            ("cached_tokens", limits.cached_tokens, state.cached_tokens),
        ];
        for (what, limit, current) in usage {
            let Some(limit) = limit.map(|limit| limit.saturating_mul(ranks)) else {
                continue;
            };
            if current >= limit {
                return Err(RouterError::QueueLimit {
                    class: rules.name.clone(),
                    what,
                    current,
                    limit,
                });
            }
        }
        let cached = urgency.best_cached.min(urgency.isl);
        state.raw_isl_tokens += urgency.isl;
        state.cached_tokens += cached;
        self.waiting += 1;
        let entry = Entry {
            request,
            isl: urgency.isl,
            cached,
        };
        state.queue.push(urgency, entry);
        Ok(())
    }

    /// The next request of the classes that `may_go` lets through.
    pub(crate) fn pop(&mut self, may_go: impl Fn(&PolicyClass) -> bool) -> Option<T> {
        let carry = self.carry.take();
        if self.waiting == 0 {
            return None;
        }
        let count = self.queues.len();
        let classes = self.profile.classes();
        let open: Vec<bool> = (0..count)
            .map(|at| !self.queues[at].queue.is_empty() && may_go(&classes[at]))
            .collect();
        if let Some(at) = carry.filter(|&at| open[at] && self.can_pay(at)) {
            return self.serve(at);
        }
        let turns: Vec<usize> = (0..count)
            .map(|step| (self.cursor + step) % count)
            .filter(|&at| open[at])
            .collect();
        for &at in &turns {
            if !self.can_pay(at) {
                self.queues[at].credit += self.profile.classes()[at].quantum;
            }
            if self.can_pay(at) {
                return self.serve(at);
            }
        }
        // Nobody can pay after one round: as many rounds at once as the first one needs.
        let rounds = turns.iter().filter_map(|&at| {
            let missing = self.head_cost(at)?.saturating_sub(self.queues[at].credit);
            Some(missing.div_ceil(self.profile.classes()[at].quantum))
        });
        let rounds = rounds.min()?;
        for &at in &turns {
            self.queues[at].credit += self.profile.classes()[at].quantum.saturating_mul(rounds);
        }
        let first = turns.into_iter().find(|&at| self.can_pay(at))?;
        self.serve(first)
    }

    fn head_cost(&self, class: usize) -> Option<u64> {
        self.queues[class].queue.peek().map(Entry::cost)
    }

    fn can_pay(&self, class: usize) -> bool {
        self.head_cost(class)
            .is_some_and(|cost| cost <= self.queues[class].credit)
    }

    fn serve(&mut self, class: usize) -> Option<T> {
        let count = self.queues.len();
        let state = &mut self.queues[class];
        let entry = state.queue.pop()?;
        state.credit -= entry.cost().min(state.credit);
        state.raw_isl_tokens -= entry.isl;
        state.cached_tokens -= entry.cached;
        if state.queue.is_empty() {
            state.credit = 0;
        }
        self.waiting -= 1;
        self.cursor = (class + 1) % count;
        self.carry = (state.credit > 0).then_some(class);
        Some(entry.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::RouterConfig;
    use crate::types::SimTime;

    fn classes(yaml: &str) -> Classes<&'static str> {
        Classes::new(&PolicyProfile::parse(yaml, None, &RouterConfig::default()).unwrap())
    }

    fn two(quanta: (u64, u64), limits: &str) -> Classes<&'static str> {
        let (a, b) = quanta;
        classes(&format!(
            "
default_policy_family: f
uncached_isl_buckets: [{{min_tokens: 0, bucket: all}}]
policy_classes:
  - {{name: a, quantum: {a}{limits}}}
  - {{name: b, quantum: {b}}}
  - {{name: f-all, policy_family: f, cache_bucket: all, quantum: 1}}
"
        ))
    }

    fn push(
        classes: &mut Classes<&'static str>,
        class: usize,
        name: &'static str,
        isl: u64,
    ) -> Result<(), RouterError> {
        let urgency = Urgency {
            strict_priority: 0,
            priority: 0,
            arrival: SimTime::of_nanos(0),
            isl,
            best_cached: 0,
        };
        classes.push(class, urgency, 2, name)
    }

    fn drain(classes: &mut Classes<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| classes.pop(|_| true)).collect()
    }

    #[test]
    fn classes_send_tokens_in_the_ratio_of_their_quanta() {
        let mut classes = two((300, 100), "");
        for _ in 0..8 {
            push(&mut classes, 0, "a", 100).unwrap();
            push(&mut classes, 1, "b", 100).unwrap();
        }
        let order = drain(&mut classes);
        assert_eq!(order[..8], ["a", "a", "a", "b", "a", "a", "a", "b"]);
        assert_eq!((order.len(), classes.len()), (16, 0));
    }

    #[test]
    fn a_long_prompt_waits_for_as_many_rounds_as_it_needs() {
        let mut classes = two((10, 30), "");
        push(&mut classes, 0, "a", 100).unwrap();
        push(&mut classes, 1, "b", 100).unwrap();
        // One round each, then two and eight more at once: the second class needs fewer.
        assert_eq!(drain(&mut classes), ["b", "a"]);
    }

    #[test]
    fn a_turn_lasts_while_the_credit_pays() {
        let mut classes = two((100, 100), "");
        push(&mut classes, 0, "a", 60).unwrap();
        push(&mut classes, 0, "a", 60).unwrap();
        push(&mut classes, 1, "b", 10).unwrap();
        assert_eq!(classes.pop(|_| true), Some("a"));
        // 40 left do not pay for the next one, but they do for a cheaper one that comes later and goes first.
        let urgent = Urgency {
            strict_priority: 1,
            priority: 0,
            arrival: SimTime::of_nanos(1),
            isl: 30,
            best_cached: 0,
        };
        classes.push(0, urgent, 2, "c").unwrap();
        assert_eq!(drain(&mut classes), ["c", "b", "a"]);
    }

    #[test]
    fn a_turn_ends_when_its_class_may_not_go() {
        let mut classes = two((100, 100), "");
        push(&mut classes, 0, "a", 40).unwrap();
        push(&mut classes, 0, "a", 40).unwrap();
        push(&mut classes, 1, "b", 40).unwrap();
        assert_eq!(classes.pop(|_| true), Some("a"));
        assert_eq!(classes.pop(|_| false), None);
        // 60 left pay for the next one, yet the other class comes first now.
        assert_eq!(drain(&mut classes), ["b", "a"]);
    }

    #[test]
    fn a_class_that_may_not_go_is_passed_over() {
        let mut classes = two((100, 100), "");
        push(&mut classes, 0, "a", 10).unwrap();
        push(&mut classes, 1, "b", 10).unwrap();
        assert_eq!(classes.pop(|class| class.name == "b"), Some("b"));
        assert_eq!(classes.pop(|class| class.name == "b"), None);
        assert_eq!(classes.len(), 1);
    }

    #[test]
    fn a_full_class_refuses_and_says_how_full_it_is() {
        let mut classes = two((1, 1), ", request_queue_limit_per_worker: 1");
        push(&mut classes, 0, "x", 5).unwrap();
        push(&mut classes, 0, "y", 5).unwrap();
        let error = push(&mut classes, 0, "z", 5).unwrap_err();
        let text = "router policy class \"a\" queue requests limit reached (current=2, limit=2)";
        assert_eq!(error.to_string(), text);
        push(&mut classes, 1, "z", 5).unwrap();
    }
}
