//! Mooncake traces that are read while they are replayed: memory holds the requests in flight, not the file.
//!
//! Works for traces whose rows are sessions of their own and, in an open loop, in the order of their time stamps; a
//! [`MooncakeScan`] tells. The result is that of the loaded trace.

use std::io::BufRead;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{Prompt, SimTime, Token};

use super::held::HeldPrompt;
use super::record::Terminal;
use super::sessions::Load;
use super::source::{Source, Turn};
use super::trace::{MooncakeRow, MooncakeRows, MooncakeScan, TraceError};

/// What a request in flight is made of.
#[derive(Debug)]
struct Held {
    prompt: HeldPrompt,
    session: Option<Box<str>>,
    line: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct StreamSource<R> {
    rows: MooncakeRows<R>,
    scan: MooncakeScan,
    load: Load,
    /// The row that comes next, and when it is due.
    next: Option<(SimTime, MooncakeRow)>,
    taken: u32,
    ended: u64,
    held: HashMap<u32, Held, FxBuildHasher>,
    failure: Option<TraceError>,
}

impl<R: BufRead> StreamSource<R> {
    /// Plays `rows`, which `scan` looked at; `None` when they cannot be played one by one.
    pub fn new(rows: MooncakeRows<R>, scan: MooncakeScan, load: Load) -> Option<Self> {
        let in_order = match load {
            Load::Timestamps { .. } => scan.sorted,
            Load::Concurrency(_) => true,
        };
        if !scan.single_turns || !in_order {
            return None;
        }
        let mut source = Self {
            rows,
            scan,
            load,
            next: None,
            taken: 0,
            ended: 0,
            held: HashMap::default(),
            failure: None,
        };
        source.read_ahead();
        Some(source)
    }

    /// Requests whose rows are in memory.
    pub fn held(&self) -> usize {
        self.held.len() + usize::from(self.next.is_some())
    }

    fn read_ahead(&mut self) {
        let row = match self.rows.advance() {
            Ok(None) if u64::from(self.taken) < self.scan.rows => Err(self.rows.changed()),
            row => row,
        };
        match row {
            Ok(row) => {
                self.next = row.map(|row| {
                    let at = match self.load {
                        Load::Timestamps { speedup } => {
                            SimTime::of_ms((row.timestamp.unwrap_or(0.0) - self.scan.earliest_ms) / speedup)
                        }
                        Load::Concurrency(_) => SimTime::ZERO,
                    };
                    (at, row)
                });
            }
            Err(error) => {
                self.next = None;
                self.failure = Some(error);
            }
        }
    }
}

impl<R: BufRead> Source for StreamSource<R> {
    fn next_at(&self) -> Option<SimTime> {
        match self.load {
            Load::Timestamps { .. } => self.next.as_ref().map(|(at, _)| *at),
            Load::Concurrency(_) => None,
        }
    }

    fn take(&mut self, now: SimTime) -> Option<Turn> {
        let due = match self.load {
            Load::Timestamps { .. } => self.next.as_ref().is_some_and(|(at, _)| *at <= now),
            Load::Concurrency(most) => self.held.len() < most,
        };
        if !due {
            return None;
        }
        let (at, row) = self.next.take()?;
        let tag = self.taken;
        self.taken += 1;
        self.read_ahead();
        let turn = row.turn;
        self.held.insert(
            tag,
            Held {
                prompt: HeldPrompt::new(&turn.hash_ids, turn.input_tokens, self.rows.block_tokens()),
                session: row.session,
                line: row.line,
            },
        );
        Some(Turn {
            tag,
            session: tag,
            turn: 0,
            arrival: match self.load {
                Load::Timestamps { .. } => at,
                Load::Concurrency(_) => now,
            },
            input_tokens: turn.input_tokens,
            output_tokens: turn.output_tokens,
            planned: turn.planned,
            priority: turn.priority,
            strict_priority: turn.strict_priority,
            policy_class: turn.policy_class,
        })
    }

    fn ended(&mut self, tag: u32, _now: SimTime, _terminal: Terminal) {
        self.ended += 1;
        self.held.remove(&tag);
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        if let Some(held) = self.held.get(&tag) {
            held.prompt.write(prompt);
        }
    }

    fn prompt(&self, tag: u32) -> Prompt {
        let held = self.held.get(&tag);
        held.map_or_else(|| Vec::new().into(), |held| held.prompt.prompt())
    }

    fn has_times(&self) -> bool {
        matches!(self.load, Load::Timestamps { .. })
    }

    fn is_drained(&self) -> bool {
        self.ended == self.scan.rows
    }

    fn total(&self) -> u64 {
        self.scan.rows
    }

    fn tells_sessions(&self) -> bool {
        !self.has_times()
    }

    fn session_name(&self, tag: u32) -> String {
        let held = self.held.get(&tag);
        held.map_or_else(String::new, |held| match &held.session {
            Some(name) => name.to_string(),
            None => format!("request_{}", held.line),
        })
    }

    fn failure(&mut self) -> Option<TraceError> {
        self.failure.take()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fmt::Write;
    use std::io::{self, BufReader, Read};

    use crate::engine::{EngineConfig, Semantics};
    use crate::router::{PolicyProfile, RouterConfig};

    use super::super::trace::{Lines, MooncakeOptions, read_mooncake};
    use super::super::{Control, FleetSpec, Harness, PoolSpec, Report, RouterSpec, SessionSource};
    use super::*;

    const OPTIONS: MooncakeOptions = MooncakeOptions {
        block_tokens: 16,
        delta: false,
        timed: true,
        rules: Semantics::V1_6_1,
    };

    /// A trace that is written while it is read: `rows` lines of about a kilobyte.
    #[derive(Default)]
    struct Endless {
        rows: u64,
        /// Added to some ids.
        wide: u64,
        written: u64,
        text: String,
        at: usize,
    }

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.at == self.text.len() && self.written < self.rows {
                let (n, first) = (self.written, self.wide | (self.written % 5));
                self.text.clear();
                self.at = 0;
                let _ = write!(
                    self.text,
                    r#"{{"timestamp":{},"input_length":80,"output_length":2,"hash_ids":[{first},{},3,4,{n}],"note":"{:900}"}}"#,
                    n * 40,
                    n % 3,
                    ""
                );
                self.text.push('\n');
                self.written += 1;
            }
            let left = &self.text.as_bytes()[self.at..];
            let count = left.len().min(into.len());
            into[..count].copy_from_slice(&left[..count]);
            self.at += count;
            Ok(count)
        }
    }

    fn rows(rows: u64, wide: u64) -> MooncakeRows<BufReader<Endless>> {
        let endless = Endless {
            rows,
            wide,
            ..Endless::default()
        };
        MooncakeRows::new(Lines::new("endless", BufReader::new(endless)), OPTIONS)
    }

    /// Of two small workers behind a KV router.
    pub(in crate::replay) fn replay(source: &mut dyn Source) -> Report {
        harness().run(source, |_| Control::Continue).unwrap()
    }

    /// Two small workers behind a KV router.
    pub(in crate::replay) fn harness() -> Harness {
        let fleet = FleetSpec {
            serving: PoolSpec {
                engine: EngineConfig {
                    block_size: 4,
                    ..EngineConfig::default()
                },
                workers: 2,
                dp_size: 1,
                gpus_per_worker: 1,
                startup: std::time::Duration::ZERO,
            },
            prefill: None,
            events_at_start: false,
            looks_between_passes: false,
        };
        let config = RouterConfig::default();
        let router = RouterSpec::Kv {
            policy: Box::new(PolicyProfile::of_config(&config)),
            config: Box::new(config),
            seed: 1,
            event_lag_ms: 0.0,
            replicas: 1,
            prefill_times: None,
        };
        Harness::new(fleet, &router).unwrap().with_records()
    }

    #[test]
    fn a_streamed_trace_gives_the_report_of_the_loaded_one() {
        for wide in [0, 1 << 40] {
            let scan = MooncakeScan::of(rows(200, wide)).unwrap();
            assert!(scan.sorted && scan.single_turns);
            for load in [Load::Timestamps { speedup: 2.0 }, Load::Concurrency(7)] {
                let streamed = replay(&mut StreamSource::new(rows(200, wide), scan, load).unwrap());
                let loaded = replay(&mut SessionSource::new(read_mooncake(rows(200, wide)).unwrap(), load));
                assert_eq!(streamed.completed_requests, 200);
                assert_eq!(streamed, loaded);
            }
        }
    }

    #[test]
    fn memory_holds_requests_in_flight_and_not_the_file() {
        // A file of 60 MB that is nowhere: rows are made when they are read.
        let count = 60_000;
        let scan = MooncakeScan::of(rows(count, 0)).unwrap();
        let mut source = StreamSource::new(rows(count, 0), scan, Load::Concurrency(5)).unwrap();
        let mut most = 0;
        let mut ended = 0;
        while let Some(turn) = source.take(SimTime::ZERO) {
            most = most.max(source.held());
            if turn.tag >= 4 {
                source.ended(turn.tag - 4, SimTime::ZERO, Terminal::Completed);
                ended += 1;
            }
        }
        assert_eq!((most, ended, source.next_at()), (6, count - 4, None));
        assert!(source.failure().is_none());
    }

    #[test]
    fn a_file_that_shrinks_under_the_replay_is_an_error() {
        let scan = MooncakeScan::of(rows(9, 0)).unwrap();
        let mut source = StreamSource::new(rows(5, 0), scan, Load::Concurrency(100)).unwrap();
        while source.take(SimTime::ZERO).is_some() {}
        let error = source.failure().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("endless, line 5: the file changed")));
    }

    #[test]
    fn traces_out_of_order_or_with_sessions_are_not_streamed() {
        let scan = MooncakeScan::of(rows(3, 0)).unwrap();
        let open = Load::Timestamps { speedup: 1.0 };
        let unsorted = MooncakeScan { sorted: false, ..scan };
        assert!(StreamSource::new(rows(3, 0), unsorted, open).is_none());
        assert!(StreamSource::new(rows(3, 0), unsorted, Load::Concurrency(1)).is_some());
        let turns = MooncakeScan {
            single_turns: false,
            ..scan
        };
        assert!(StreamSource::new(rows(3, 0), turns, Load::Concurrency(1)).is_none());
    }
}
