//! Requests as their clients saw them.

use serde::Serialize;

/// One request as its client saw it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Request {
    /// Which load, by position.
    pub load: usize,
    /// Its number in the load, from 0.
    pub number: u64,
    /// When it was sent.
    pub sent: f64,
    /// When its first token came.
    pub first: Option<f64>,
    /// When its last token came.
    pub last: Option<f64>,
    /// When it was over.
    pub ended: f64,
    /// Tokens that came.
    pub tokens: u32,
    /// Whether the answer itself has told how many tokens it has; else pieces are counted, and its length is not judged.
    pub is_counted: bool,
    /// Whether the ids of its tokens, or its text, could be held against what workers gave.
    pub is_judged: bool,
    /// Longest silence after the first token, seconds.
    pub gap: f64,
    /// How it ended; `None`: well.
    pub failure: Option<Failure>,
    /// Id that the router gave it.
    pub id: Option<String>,
    /// Instance that served it, as the router says.
    pub instance: Option<u64>,
    /// Workers that it came to, in order, prefill workers left out.
    pub workers: Vec<u32>,
    /// Share of the prompt that the router took for cached.
    pub believed_hit: Option<f64>,
}

/// How a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Which way: `connect`, `reset`, `http_<status>`, `error_event`, `truncated`, `malformed`, `timeout`, `first_token_timeout`,
    /// `short_answer` and `long_answer` (fewer or more tokens than were asked for, as its usage says), `wrong_content` (other
    /// tokens than the workers gave: repeated, left out, of another answer),
    /// `unfinished` (the drill was over), `not_sent` (too many under way).
    pub kind: String,
    /// In words.
    pub detail: String,
}

impl Request {
    /// Time to the first token. One that was given up before it came waited at least so long.
    pub fn ttft(&self) -> Option<f64> {
        match (self.first, &self.failure) {
            (Some(first), _) => Some(first - self.sent),
            (None, Some(failure)) if failure.is_wait() => Some(self.ended - self.sent),
            (None, _) => None,
        }
    }

    /// Mean time between its tokens. A next one that its client has waited for in vain would have come no sooner.
    pub fn itl(&self) -> Option<f64> {
        let first = self.first?;
        if self.tokens > 0 && self.failure.as_ref().is_some_and(Failure::is_wait) {
            return Some((self.ended - first) / f64::from(self.tokens));
        }
        let span = self.last? - first;
        (self.tokens > 1).then(|| span / f64::from(self.tokens - 1))
    }
}

impl Failure {
    /// Every kind but `http_<status>`.
    pub const KINDS: [&str; 12] = [
        "connect",
        "reset",
        "error_event",
        "truncated",
        "malformed",
        "timeout",
        "first_token_timeout",
        "short_answer",
        "long_answer",
        "wrong_content",
        "unfinished",
        "not_sent",
    ];

    /// Whether its client waited in vain.
    pub fn is_wait(&self) -> bool {
        matches!(self.kind.as_str(), "timeout" | "first_token_timeout" | "unfinished")
    }
}

#[cfg(test)]
pub(in crate::drill) mod tests {
    use super::*;

    /// A request of 4 tokens, 10 ms apart, whose first token came after `ttft` seconds.
    pub(in crate::drill) fn request(sent: f64, ttft: f64) -> Request {
        Request {
            load: 0,
            number: 0,
            sent,
            first: Some(sent + ttft),
            last: Some(sent + ttft + 0.03),
            ended: sent + ttft + 0.03,
            tokens: 4,
            is_counted: true,
            is_judged: true,
            gap: 0.01,
            failure: None,
            id: None,
            instance: None,
            workers: Vec::new(),
            believed_hit: None,
        }
    }

    pub(in crate::drill) fn failed(sent: f64, kind: &str, after: f64) -> Request {
        Request {
            first: None,
            last: None,
            ended: sent + after,
            tokens: 0,
            is_counted: false,
            is_judged: false,
            failure: Some(Failure {
                kind: kind.to_owned(),
                detail: String::new(),
            }),
            ..request(sent, 0.0)
        }
    }

    #[test]
    fn a_silence_that_never_ends_is_time_between_tokens() {
        let mut stalled = Request {
            ended: 9.1,
            ..request(1.0, 0.1)
        };
        assert!(stalled.itl().unwrap() < 0.02);
        for (kind, waits) in [("unfinished", true), ("timeout", true), ("reset", false)] {
            stalled.failure = failed(1.0, kind, 0.0).failure;
            assert_eq!(stalled.itl().unwrap() > 1.9, waits, "{kind}");
        }
    }
}
