//! Shards of independent requests, played from the files.
//!
//! Memory: about thirteen bytes per request, and for the time of the look at the files some fifty.

use xxhash_rust::xxh3::xxh3_128;

use crate::engine::Semantics;

use super::super::sessions::TurnSpec;
use super::line::{Lines, TraceError};
use super::place::{LineNumbers, Offsets, Rewind};
use super::request_trace::{Found, RequestTraceReader};
use super::turn_file::{FoundTurn, TurnFile};

/// One shard.
#[derive(Debug)]
struct Shard<R> {
    lines: Lines<R>,
    offsets: Offsets,
    numbers: LineNumbers,
    /// Requests in the shards before it.
    before: u32,
}

/// See the module's text.
pub struct RequestFile<R> {
    shards: Vec<Shard<R>>,
    reader: RequestTraceReader,
    /// Requests, counted over all shards, in the order of their begin, end and name.
    order: Vec<u32>,
    /// Begin of the first one, ms of the Unix clock.
    first: u64,
    start: u32,
}

/// What requests are sorted by, and what tells their names apart.
struct Key {
    start: u64,
    end: u64,
    name: u128,
}

impl<R: Rewind> RequestFile<R> {
    /// Checks every line of the shards and keeps where requests are; `None` when they belong to agents, which is known at
    /// the first one.
    ///
    /// # Errors
    /// [`TraceError`] names the line and the field.
    pub fn new(shards: Vec<Lines<R>>, block_tokens: Option<u32>, rules: Semantics) -> Result<Option<Self>, TraceError> {
        let mut file = Self {
            shards: Vec::new(),
            reader: RequestTraceReader::new(block_tokens, rules),
            order: Vec::new(),
            first: 0,
            start: 0,
        };
        let mut keys: Vec<Key> = Vec::new();
        for mut lines in shards {
            let mut offsets = Offsets::default();
            let mut numbers = LineNumbers::default();
            let before = u32::try_from(keys.len()).unwrap_or(u32::MAX);
            while let Some(found) = file.reader.next_request(&mut lines)? {
                if found.agent.is_some() {
                    return Ok(None);
                }
                numbers.push(offsets.len(), lines.number());
                offsets.push(lines.begin());
                keys.push(Key {
                    start: found.start,
                    end: found.end,
                    name: xxh3_128(found.request_id.as_bytes()),
                });
                if u32::try_from(keys.len()).is_err() {
                    return Err(lines.wrong("more requests than can be counted"));
                }
            }
            file.shards.push(Shard {
                lines,
                offsets,
                numbers,
                before,
            });
        }
        file.sort(&keys)?;
        Ok(Some(file))
    }

    fn sort(&mut self, keys: &[Key]) -> Result<(), TraceError> {
        let count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let key = |row: u32| &keys[row as usize];
        self.order = (0..count).collect();
        self.order.sort_unstable_by_key(|&row| key(row).name);
        let alike = self
            .order
            .windows(2)
            .find(|pair| key(pair[0]).name == key(pair[1]).name);
        if let Some(later) = alike.and_then(|pair| pair.iter().copied().max()) {
            let (_, found) = self.found(later)?;
            let name = found.request_id;
            let shard = self.shard_of(later);
            return Err(self.shards[shard].lines.wrong(format!(
                "request.request_id is {name}, as in a line before; expected a name of its own"
            )));
        }
        self.order.sort_unstable_by_key(|&row| (key(row).start, key(row).end));
        let Some(&first) = self.order.first() else {
            let shard = self.shards.first().map(|shard| &shard.lines);
            return Err(shard.map_or_else(
                || TraceError::File {
                    file: String::new(),
                    what: "no shard of a trace".into(),
                },
                |lines| lines.wrong_file("no requests in the trace"),
            ));
        };
        self.first = key(first).start;
        // Requests at one time go by their names, which are in the files.
        let mut order = std::mem::take(&mut self.order);
        let time = |row: u32| (key(row).start, key(row).end);
        for alike in order.chunk_by_mut(|&a, &b| time(a) == time(b)) {
            if alike.len() < 2 {
                continue;
            }
            let mut named = Vec::with_capacity(alike.len());
            for &row in &*alike {
                named.push((self.found(row)?.1.request_id, row));
            }
            named.sort_unstable();
            for (place, (_, row)) in alike.iter_mut().zip(named) {
                *place = row;
            }
        }
        self.order = order;
        Ok(())
    }

    /// Tokens per hash id.
    pub fn tokens_per_id(&self) -> u32 {
        self.reader.block_tokens().unwrap_or(1)
    }

    fn shard_of(&self, row: u32) -> usize {
        self.shards.partition_point(|shard| shard.before <= row) - 1
    }

    /// Reads a request once more; with its line.
    fn found(&mut self, row: u32) -> Result<(u64, Found), TraceError> {
        let at = self.shard_of(row);
        let shard = &mut self.shards[at];
        let own = row - shard.before;
        let number = shard.numbers.get(own);
        shard.lines.read_again(shard.offsets.get(own), number)?;
        match self.reader.line(&shard.lines)? {
            Some(found) if found.agent.is_none() => Ok((number, found)),
            _ => Err(shard.lines.changed()),
        }
    }
}

impl<R: Rewind> TurnFile for RequestFile<R> {
    fn total(&self) -> u64 {
        self.order.len() as u64
    }

    fn block_tokens(&self) -> u32 {
        self.tokens_per_id()
    }

    fn is_delta(&self) -> bool {
        false
    }

    fn label(&self) -> &'static str {
        "request_"
    }

    fn earliest_ms(&self) -> f64 {
        0.0
    }

    fn next_start(&mut self) -> Option<u32> {
        let turn = self.start;
        let more = (turn as usize) < self.order.len();
        self.start += u32::from(more);
        more.then_some(turn)
    }

    fn is_of_requests(&self) -> bool {
        true
    }

    fn following(&self, _turn: u32) -> Option<u32> {
        None
    }

    fn fetch(&mut self, turn: u32, _last_seen: Option<f64>) -> Result<FoundTurn, TraceError> {
        let (_, found) = self.found(self.order[turn as usize])?;
        #[allow(clippy::cast_precision_loss)]
        let timestamp = found.start.saturating_sub(self.first) as f64;
        Ok(FoundTurn {
            session: None,
            number: u64::from(turn) + 1,
            timestamp: Some(timestamp),
            delay_ms: 0.0,
            last_seen: None,
            turn: TurnSpec {
                hash_ids: found.hash_ids.into_here(),
                input_tokens: found.input_tokens,
                output_tokens: found.output_tokens,
                ..TurnSpec::default()
            },
        })
    }
}
