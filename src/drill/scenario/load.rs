//! Probe load as a scenario describes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::span::Span;
use super::words::Words;

/// One load: who asks what, how often, of whom.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// Name in checks and reports.
    pub name: String,
    /// Requests per second of an open loop.
    pub rate: Option<f64>,
    /// How an open loop's requests are spaced.
    pub arrivals: Arrivals,
    /// Clients of a closed loop: each sends its next request when the last one is over.
    pub concurrency: Option<u32>,
    /// Most requests in all.
    pub requests: Option<u64>,
    /// Whether tokens are streamed.
    pub stream: bool,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Tokens of each answer.
    pub output_tokens: u32,
    /// Prompts begin alike within a group of requests: how many groups; 0: no prompt shares anything.
    pub prefix_groups: u32,
    /// How long these beginnings are, in tokens.
    pub prefix_tokens: u32,
    /// Whether a connection that has carried one answer carries the next; else each request has a connection of its own.
    pub keep_alive: bool,
    /// Start, from the drill's start.
    pub start: Span,
    /// End; the drill's end without.
    pub stop: Option<Span>,
    /// Longest wait for the first token.
    pub first_token_timeout: Span,
    /// Longest wait for the whole answer.
    pub timeout: Span,
    /// Whom it asks.
    pub target: Target,
    /// Model it asks for; the fleet's without.
    pub model: Option<String>,
    /// Most requests of an open loop that are under way at a time; further ones fail as `not_sent`.
    pub max_in_flight: u32,
    /// Makes it a [`Program`](super::program::Program); the drill's own loads have none.
    pub command: Option<Words>,
    /// Environment of that program.
    pub env: BTreeMap<String, String>,
    /// Wait for that program.
    pub wait: Option<Span>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            name: String::new(),
            rate: None,
            arrivals: Arrivals::Poisson,
            concurrency: None,
            requests: None,
            stream: true,
            keep_alive: true,
            prompt_tokens: 128,
            output_tokens: 16,
            prefix_groups: 0,
            prefix_tokens: 0,
            start: Span(0.0),
            stop: None,
            first_token_timeout: Span(10.0),
            timeout: Span(30.0),
            target: Target::Router,
            model: None,
            max_in_flight: 4096,
            command: None,
            env: BTreeMap::new(),
            wait: None,
        }
    }
}

/// Spacing of an open loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Exponential gaps.
    #[default]
    Poisson,
    /// Equal gaps.
    Fixed,
}

/// Whom a load asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// The frontend where there is one, else the workers.
    #[default]
    #[serde(rename = "frontend")]
    Router,
    /// The workers' HTTP faces, turn by turn.
    Workers,
}

/// Bounds that keep a typing error from asking for the impossible.
const MAX_RATE: f64 = 50_000.0;
const MAX_CONCURRENCY: u32 = 16_384;

/// A rate that a load can have.
pub(super) fn rate(rate: f64) -> Result<f64, String> {
    if rate > 0.0 && rate <= MAX_RATE {
        return Ok(rate);
    }
    Err(format!(
        "rate {rate} must be above 0 and at most {MAX_RATE} requests per second"
    ))
}

/// So many clients as a load can have.
pub(super) fn clients(concurrency: u32) -> Result<u32, String> {
    positive("concurrency", concurrency, MAX_CONCURRENCY)
}

fn positive(name: &str, value: u32, most: u32) -> Result<u32, String> {
    if (1..=most).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{name} {value} must be between 1 and {most}"))
    }
}
const MAX_TOKENS: u32 = 1 << 20;

impl Load {
    /// What is wrong with it.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.env.is_empty() || self.wait.is_some() {
            return Err("env and wait go with command".to_owned());
        }
        match (self.rate, self.concurrency) {
            (Some(asked), None) => {
                rate(asked)?;
            }
            (None, Some(asked)) => {
                clients(asked)?;
            }
            (None, None) => {
                return Err("say rate (open loop), concurrency (closed loop) or command (a program)".to_owned());
            }
            (Some(_), Some(_)) => return Err("rate and concurrency exclude each other".to_owned()),
        }
        positive("prompt_tokens", self.prompt_tokens, MAX_TOKENS)?;
        positive("output_tokens", self.output_tokens, MAX_TOKENS)?;
        positive("max_in_flight", self.max_in_flight, MAX_CONCURRENCY)?;
        if self.prefix_tokens > self.prompt_tokens {
            return Err(format!(
                "prefix_tokens {} exceeds prompt_tokens {}",
                self.prefix_tokens, self.prompt_tokens
            ));
        }
        if (self.prefix_groups == 0) != (self.prefix_tokens == 0) {
            return Err("prefix_groups and prefix_tokens need each other".to_owned());
        }
        if let Some(stop) = self.stop
            && stop <= self.start
        {
            return Err(format!("stop {stop} must be later than start {}", self.start));
        }
        if self.timeout.0 <= 0.0 || self.first_token_timeout.0 <= 0.0 {
            return Err("timeouts must be above 0".to_owned());
        }
        Ok(())
    }
}
