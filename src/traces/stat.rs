//! What is in a trace.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;

use serde_json::{Value, json};

use crate::block_hash::{BlockHasher, chain, salted_seed};
use crate::replay::{Source, Turn};
use crate::types::{HashSalt, SequenceHash, Token};

use super::playback::play;

/// Lengths of prompts or answers.
#[derive(Debug, Default)]
struct Lengths(Vec<u32>);

impl Lengths {
    fn total(&self) -> u64 {
        self.0.iter().map(|&length| u64::from(length)).sum()
    }

    #[allow(clippy::cast_precision_loss)]
    fn mean(&self) -> f64 {
        self.total() as f64 / self.0.len().max(1) as f64
    }

    /// Sorts first; the value at the rounded rank.
    fn at(&self, percent: usize) -> u32 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last * percent + 50) / 100).copied().unwrap_or(0)
    }

    fn to_json(&self) -> Value {
        json!({
            "total": self.total(),
            "mean": self.mean(),
            "min": self.at(0),
            "p50": self.at(50),
            "p90": self.at(90),
            "p99": self.at(99),
            "max": self.at(100),
        })
    }
}

/// Description of a trace. Times are those of requests served in no time.
#[derive(Debug)]
pub(super) struct Stat {
    sessions: usize,
    turns: u32,
    seconds: f64,
    input: Lengths,
    output: Lengths,
    blocks: u64,
    reusable: u64,
    distinct: u64,
    block_tokens: u32,
}

impl Stat {
    pub(super) fn of(source: &mut dyn Source, block_tokens: u32) -> Self {
        let mut stat = Self {
            sessions: 0,
            turns: 0,
            seconds: 0.0,
            input: Lengths::default(),
            output: Lengths::default(),
            blocks: 0,
            reusable: 0,
            distinct: 0,
            block_tokens,
        };
        let mut hasher = BlockHasher::with_seed(salted_seed(&HashSalt::default()));
        let mut known: BTreeSet<SequenceHash> = BTreeSet::new();
        let mut sessions = BTreeSet::new();
        let each = |_: &dyn Source, turn: &Turn, prompt: &[Token]| -> Result<(), Infallible> {
            sessions.insert(turn.session);
            stat.turns = stat.turns.max(turn.turn + 1);
            stat.seconds = stat.seconds.max(turn.arrival.as_ms() / 1e3);
            stat.input.0.push(turn.input_tokens);
            stat.output.0.push(turn.output_tokens);
            let mut parent = None;
            let mut cached = true;
            for block in prompt.chunks_exact(block_tokens.max(1) as usize) {
                let hash = chain(parent, hasher.local(block));
                parent = Some(hash);
                let fresh = known.insert(hash);
                cached &= !fresh;
                stat.blocks += 1;
                stat.reusable += u64::from(cached);
            }
            Ok(())
        };
        let Ok(()) = play(source, each);
        stat.sessions = sessions.len();
        stat.distinct = known.len() as u64;
        stat.input.0.sort_unstable();
        stat.output.0.sort_unstable();
        stat
    }

    #[allow(clippy::cast_precision_loss)]
    fn reuse(&self) -> f64 {
        self.reusable as f64 / self.blocks.max(1) as f64
    }

    #[allow(clippy::cast_precision_loss)]
    fn rate(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.input.0.len() as f64 / self.seconds)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "requests": self.input.0.len(),
            "sessions": self.sessions,
            "most_turns": self.turns,
            "duration_s": self.seconds,
            "requests_per_second": self.rate(),
            "input_tokens": self.input.to_json(),
            "output_tokens": self.output.to_json(),
            "block_tokens": self.block_tokens,
            "full_blocks": self.blocks,
            "distinct_blocks": self.distinct,
            "reusable_share": self.reuse(),
        })
    }
}

impl fmt::Display for Stat {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "requests          {}", self.input.0.len())?;
        writeln!(to, "sessions          {} (at most {} turns)", self.sessions, self.turns)?;
        write!(to, "duration          {:.3} s", self.seconds)?;
        match self.rate() {
            Some(rate) => writeln!(to, " ({rate:.3} requests/s)")?,
            None => writeln!(to)?,
        }
        for (name, lengths) in [("input tokens ", &self.input), ("output tokens", &self.output)] {
            writeln!(
                to,
                "{name}     mean {:.1}, p50 {}, p90 {}, p99 {}, max {}, total {}",
                lengths.mean(),
                lengths.at(50),
                lengths.at(90),
                lengths.at(99),
                lengths.at(100),
                lengths.total()
            )?;
        }
        writeln!(
            to,
            "blocks            {} full ones of {} tokens, {} distinct",
            self.blocks, self.block_tokens, self.distinct
        )?;
        writeln!(
            to,
            "reusable          {:.1} % with an endless cache",
            self.reuse() * 100.0
        )
    }
}
