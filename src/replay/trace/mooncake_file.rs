//! A Mooncake file of sessions, or one out of order, played from the file.
//!
//! Memory: about nine bytes per row, and for the time of the look at the file some forty per named session.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use xxhash_rust::xxh3::xxh3_128;

use super::line::{Lines, TraceError};
use super::mooncake::{MooncakeOptions, MooncakeRows};
use super::place::{LineNumbers, Offsets, Rewind};
use super::turn_file::{FoundTurn, TurnFile};

/// No row.
const NONE: u32 = u32::MAX;

/// See the module's text.
#[derive(Debug)]
pub struct MooncakeFile<R> {
    /// For first turns, and for later ones: each reads more or less from begin to end.
    readers: [MooncakeRows<R>; 2],
    offsets: Offsets,
    lines: LineNumbers,
    /// Row that follows in the same session, or `NONE`; empty when no session has two.
    next: Vec<u32>,
    /// Bit per row: it is not the first of its session.
    later: Vec<u64>,
    /// First turns by time stamp, unless they are in that order in the file.
    order: Option<Vec<u32>>,
    earliest_ms: f64,
    /// Row, or place in `order`, that starts next.
    start: u32,
}

/// A session whose first row was seen.
struct Seen {
    last: u32,
    last_seen: Option<f64>,
}

impl<R: Rewind> MooncakeFile<R> {
    /// Checks every row of a file and keeps where it is; `open` opens the file, which is read by two readers. `timed`: rows
    /// start at their time stamps.
    ///
    /// # Errors
    /// [`TraceError`] names the line and the field.
    pub fn new(open: impl Fn() -> Result<Lines<R>, TraceError>, options: MooncakeOptions) -> Result<Self, TraceError> {
        let rows = MooncakeRows::new(open()?, options);
        let mut file = Self {
            readers: [rows, MooncakeRows::new(open()?, options)],
            offsets: Offsets::default(),
            lines: LineNumbers::default(),
            next: Vec::new(),
            later: Vec::new(),
            order: None,
            earliest_ms: 0.0,
            start: 0,
        };
        let stamps = file.look()?;
        if let Some(stamps) = stamps {
            let mut order: Vec<u32> = (0..file.offsets.len()).filter(|&row| !file.is_later(row)).collect();
            order.sort_by(|&a, &b| stamps[a as usize].total_cmp(&stamps[b as usize]));
            file.order = Some(order);
        }
        Ok(file)
    }

    /// Reads everything once; the time stamps of all rows when first turns are out of order.
    fn look(&mut self) -> Result<Option<Vec<f64>>, TraceError> {
        let timed = self.readers[0].options.timed;
        let mut sessions: HashMap<u128, Seen, FxBuildHasher> = HashMap::default();
        let mut stamps: Vec<f64> = Vec::new();
        let (mut sorted, mut before, mut first) = (true, f64::NEG_INFINITY, true);
        while let Some(row) = self.readers[0].advance()? {
            let number = self.offsets.len();
            if number == NONE {
                return Err(self.readers[0].lines.wrong("more rows than can be counted"));
            }
            self.offsets.push(self.readers[0].lines.begin());
            self.lines.push(number, row.line);
            if number.is_multiple_of(64) {
                self.later.push(0);
            }
            if timed {
                stamps.push(row.timestamp.unwrap_or(0.0));
            }
            let name = row.session.as_deref().map(|name| xxh3_128(name.as_bytes()));
            if let Some(seen) = name.and_then(|name| sessions.get_mut(&name)) {
                row.delay_after(&mut seen.last_seen, &self.readers[0].lines)?;
                self.later[number as usize / 64] |= 1 << (number % 64);
                self.next.resize(number as usize, NONE);
                self.next[seen.last as usize] = number;
                seen.last = number;
                continue;
            }
            self.readers[0].check_first(&row)?;
            let time = row.timestamp.unwrap_or(0.0);
            self.earliest_ms = if first { time } else { self.earliest_ms.min(time) };
            first = false;
            sorted &= time >= before;
            before = time;
            if let Some(name) = name {
                let seen = Seen {
                    last: number,
                    last_seen: row.timestamp,
                };
                sessions.insert(name, seen);
            }
        }
        if self.offsets.len() == 0 {
            return Err(self.readers[0].lines.wrong_file("no requests in the trace"));
        }
        if !self.next.is_empty() {
            self.next.resize(self.offsets.len() as usize, NONE);
        }
        Ok((timed && !sorted).then_some(stamps))
    }

    fn is_later(&self, row: u32) -> bool {
        self.later[row as usize / 64] >> (row % 64) & 1 == 1
    }
}

impl<R: Rewind> TurnFile for MooncakeFile<R> {
    fn total(&self) -> u64 {
        u64::from(self.offsets.len())
    }

    fn block_tokens(&self) -> u32 {
        self.readers[0].options.block_tokens
    }

    fn is_delta(&self) -> bool {
        self.readers[0].options.delta
    }

    fn label(&self) -> &'static str {
        "request_"
    }

    fn earliest_ms(&self) -> f64 {
        self.earliest_ms
    }

    fn next_start(&mut self) -> Option<u32> {
        if let Some(order) = &self.order {
            let row = order.get(self.start as usize).copied()?;
            self.start += 1;
            return Some(row);
        }
        let row = (self.start..self.offsets.len()).find(|&row| !self.is_later(row))?;
        self.start = row + 1;
        Some(row)
    }

    fn is_of_requests(&self) -> bool {
        self.next.is_empty()
    }

    fn following(&self, turn: u32) -> Option<u32> {
        self.next.get(turn as usize).copied().filter(|&next| next != NONE)
    }

    fn fetch(&mut self, turn: u32, last_seen: Option<f64>) -> Result<FoundTurn, TraceError> {
        let later = self.is_later(turn);
        let reader = &mut self.readers[usize::from(later)];
        reader.lines.read_again(self.offsets.get(turn), self.lines.get(turn))?;
        let row = reader.row()?;
        let mut last_seen = last_seen;
        let delay_ms = if later {
            row.delay_after(&mut last_seen, &reader.lines)?
        } else {
            last_seen = row.timestamp;
            0.0
        };
        Ok(FoundTurn {
            session: row.session,
            number: row.line,
            timestamp: row.timestamp,
            delay_ms,
            last_seen,
            turn: row.turn,
        })
    }
}
