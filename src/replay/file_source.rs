//! Sessions that are read from their files when they are due: memory holds what is in flight, and a few bytes per turn.
//!
//! The result is that of the loaded trace ([`super::SessionSource`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{Prompt, SimTime, Token, Tokens};

use super::held::HeldPrompt;
use super::record::Terminal;
use super::sessions::Load;
use super::source::{Source, Turn};
use super::trace::{FoundTurn, TraceError, TurnFile};

/// A turn in flight.
#[derive(Debug)]
struct Flying {
    session: u32,
    prompt: HeldPrompt,
    planned: Option<Tokens>,
    /// Tokens of its answer, where it is shorter than planned.
    tokens: Option<usize>,
    last_seen: Option<f64>,
}

/// A session under way.
#[derive(Debug)]
struct Open {
    name: Option<Box<str>>,
    number: u64,
    /// Turns so far.
    turns: u32,
    /// Delta form: everything said so far.
    history: Vec<Token>,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct FileSource<F> {
    file: F,
    load: Load,
    /// First turn of the session that starts next, and when.
    next: Option<(SimTime, u32, FoundTurn)>,
    /// Later turns: when, of which session, which; with what was read of them.
    due: BinaryHeap<Reverse<(SimTime, u32, u32)>>,
    read: HashMap<u32, FoundTurn, FxBuildHasher>,
    flying: HashMap<u32, Flying, FxBuildHasher>,
    /// By first turn.
    open: HashMap<u32, Open, FxBuildHasher>,
    ended: u64,
    failure: Option<TraceError>,
}

/// A trace that stays in its files: [`super::trace::MooncakeFile`], [`super::trace::AppliedFile`] or
/// [`super::trace::RequestFile`].
#[allow(private_bounds)]
pub fn from_file<F: TurnFile + 'static>(file: F, load: Load) -> Box<dyn Source> {
    Box::new(FileSource::new(file, load))
}

impl<F: TurnFile> FileSource<F> {
    /// Plays `file` under `load`. Time stamps are shifted so that the earliest is 0.
    pub(crate) fn new(file: F, load: Load) -> Self {
        let mut source = Self {
            file,
            load,
            next: None,
            due: BinaryHeap::new(),
            read: HashMap::default(),
            flying: HashMap::default(),
            open: HashMap::default(),
            ended: 0,
            failure: None,
        };
        source.read_ahead();
        source
    }

    /// Requests whose rows are in memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.flying.len() + self.read.len() + usize::from(self.next.is_some())
    }

    fn speedup(&self) -> f64 {
        match self.load {
            Load::Timestamps { speedup } => speedup,
            Load::Concurrency(_) => 1.0,
        }
    }

    fn read_ahead(&mut self) {
        let Some(turn) = self.file.next_start() else { return };
        match self.file.fetch(turn, None) {
            Ok(found) => {
                let ms = (found.timestamp.unwrap_or(0.0) - self.file.earliest_ms()) / self.speedup();
                self.next = Some((SimTime::of_ms(ms), turn, found));
            }
            Err(error) => self.failure = Some(error),
        }
    }

    fn send(&mut self, tag: u32, session: u32, found: FoundTurn, arrival: SimTime) -> Turn {
        let delta = self.file.is_delta();
        let block_tokens = self.file.block_tokens();
        let open = self.open.entry(session).or_insert_with(|| Open {
            name: found.session,
            number: found.number,
            turns: 0,
            history: Vec::new(),
        });
        open.turns += 1;
        let spec = found.turn;
        let prompt = HeldPrompt::new(&spec.hash_ids, spec.input_tokens, block_tokens);
        let mut input_tokens = spec.input_tokens;
        if delta {
            prompt.write(&mut open.history);
            input_tokens = u32::try_from(open.history.len()).unwrap_or(u32::MAX);
        }
        let turn = Turn {
            tag,
            session,
            turn: open.turns - 1,
            arrival,
            input_tokens,
            output_tokens: spec.output_tokens,
            planned: spec.planned.clone(),
            priority: spec.priority,
            strict_priority: spec.strict_priority,
            policy_class: spec.policy_class,
        };
        let flying = Flying {
            session,
            prompt,
            planned: spec.planned,
            tokens: None,
            last_seen: found.last_seen,
        };
        self.flying.insert(tag, flying);
        turn
    }

    fn history(&self, tag: u32) -> Option<&[Token]> {
        let session = self.flying.get(&tag)?.session;
        let open = self.open.get(&session).filter(|_| self.file.is_delta())?;
        Some(&open.history)
    }
}

impl<F: TurnFile> Source for FileSource<F> {
    fn next_at(&self) -> Option<SimTime> {
        let later = self.due.peek().map(|Reverse((at, ..))| *at);
        let first = match self.load {
            Load::Timestamps { .. } => self.next.as_ref().map(|(at, ..)| *at),
            Load::Concurrency(_) => None,
        };
        match (later, first) {
            (Some(later), Some(first)) => Some(later.min(first)),
            (later, first) => later.or(first),
        }
    }

    fn take(&mut self, now: SimTime) -> Option<Turn> {
        let first = self.next.as_ref().map(|&(at, turn, _)| (at, turn));
        let first = match self.load {
            Load::Timestamps { .. } => first.filter(|&(at, _)| at <= now),
            Load::Concurrency(most) => first.filter(|_| self.open.len() < most).map(|(_, turn)| (now, turn)),
        };
        let later = self.due.peek().map(|&Reverse(due)| due).filter(|&(at, ..)| at <= now);
        // Sessions go in the order of the file, which is that of their first turns.
        let take_later = later.is_some_and(|(at, session, _)| first.is_none_or(|first| (at, session) < first));
        if take_later {
            let Reverse((at, session, turn)) = self.due.pop()?;
            let found = self.read.remove(&turn)?;
            let arrival = match self.load {
                Load::Timestamps { .. } => at,
                Load::Concurrency(_) => now,
            };
            return Some(self.send(turn, session, found, arrival));
        }
        let (at, _) = first?;
        let (_, turn, found) = self.next.take()?;
        self.read_ahead();
        Some(self.send(turn, turn, found, at))
    }

    fn cut_short(&mut self, tag: u32, tokens: u32) {
        if let Some(flying) = self.flying.get_mut(&tag) {
            flying.tokens = Some(tokens as usize);
        }
    }

    fn ended(&mut self, tag: u32, now: SimTime, terminal: Terminal) {
        let Some(flying) = self.flying.remove(&tag) else { return };
        self.ended += 1;
        let session = flying.session;
        let mut following = self.file.following(tag);
        while terminal == Terminal::Failed
            && let Some(next) = following
        {
            self.ended += 1;
            following = self.file.following(next);
        }
        let Some(next) = following else {
            self.open.remove(&session);
            return;
        };
        if self.file.is_delta()
            && terminal == Terminal::Completed
            && let (Some(open), Some(said)) = (self.open.get_mut(&session), flying.planned)
        {
            let tokens = flying.tokens.map_or(said.len(), |tokens| tokens.min(said.len()));
            open.history.extend_from_slice(&said[..tokens]);
        }
        match self.file.fetch(next, flying.last_seen) {
            Ok(found) => {
                let due = now.after_ms(found.delay_ms / self.speedup());
                self.due.push(Reverse((due, session, next)));
                self.read.insert(next, found);
            }
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        match self.history(tag) {
            Some(history) => prompt.extend_from_slice(history),
            None => {
                if let Some(flying) = self.flying.get(&tag) {
                    flying.prompt.write(prompt);
                }
            }
        }
    }

    fn prompt(&self, tag: u32) -> Prompt {
        match self.history(tag) {
            Some(history) => history.into(),
            None => self
                .flying
                .get(&tag)
                .map_or_else(|| Vec::new().into(), |flying| flying.prompt.prompt()),
        }
    }

    fn has_times(&self) -> bool {
        matches!(self.load, Load::Timestamps { .. })
    }

    fn is_drained(&self) -> bool {
        self.ended == self.file.total()
    }

    fn total(&self) -> u64 {
        self.file.total()
    }

    fn tells_sessions(&self) -> bool {
        !(self.file.is_of_requests() && self.has_times())
    }

    fn session_name(&self, tag: u32) -> String {
        let open = self.flying.get(&tag).and_then(|flying| self.open.get(&flying.session));
        open.map_or_else(String::new, |open| match &open.name {
            Some(name) => name.to_string(),
            None => format!("{}{}", self.file.label(), open.number),
        })
    }

    fn failure(&mut self) -> Option<TraceError> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::io::{BufReader, Cursor};

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use crate::engine::Semantics;

    use super::super::stream::tests::replay;
    use super::super::trace::{
        AppliedFile, Lines, MooncakeFile, MooncakeOptions, MooncakeRows, RequestFile, RequestTrace, RequestTraceReader,
        SharedPrefix, read_applied_compute, read_mooncake,
    };
    use super::super::{SessionSource, SessionTrace};
    use super::*;

    type Text = BufReader<Cursor<Vec<u8>>>;

    fn lines(name: &str, text: &str) -> Lines<Text> {
        Lines::new(
            name,
            BufReader::with_capacity(64, Cursor::new(text.as_bytes().to_vec())),
        )
    }

    /// Sessions of one to five turns, mixed up, some without names or time stamps, with blank lines in between.
    fn sessions(count: u32, in_order: bool) -> String {
        let mut random = StdRng::seed_from_u64(7);
        let mut text = String::new();
        let mut at = 50_000.0;
        let mut open = [0_u32; 6];
        for row in 0..count {
            at += if in_order {
                random.random_range(0.0..30.0)
            } else {
                random.random_range(-400.0..430.0)
            };
            let session = random.random_range(0..open.len());
            let id = if row % 7 == 0 {
                u64::from(row) << 33
            } else {
                u64::from(row % 50)
            };
            let ids = [u64::from(row % 3), 9, id];
            let name = format!("s{session}-{}", open[session] / 5);
            let first = open[session].is_multiple_of(5);
            let time = match (first, random.random_range(0..3)) {
                (true, _) => format!(r#""session_id":"{name}","timestamp":{at},"#),
                (false, 0) => format!(r#""session_id":"{name}","delay":{},"#, row % 40),
                (false, 1) => format!(r#""session_id":"{name}","#),
                (false, _) => format!(r#""timestamp":{at},"#),
            };
            open[session] += 1;
            let _ = writeln!(
                text,
                r#"{{{time}"input_length":{},"output_length":3,"hash_ids":{ids:?}}}"#,
                33 + row % 15
            );
            if row % 11 == 0 {
                text.push_str("\n  \n");
            }
        }
        text
    }

    fn same(mut from_file: Box<dyn Source>, loaded: SessionTrace, load: Load) {
        let expected = replay(&mut SessionSource::new(loaded, load));
        assert!(expected.completed_requests > 0);
        assert_eq!(replay(from_file.as_mut()), expected);
        assert!(from_file.failure().is_none());
    }

    #[test]
    fn sessions_from_the_file_give_the_report_of_the_loaded_ones() {
        for (in_order, delta) in [(true, false), (false, false), (true, true)] {
            let text = sessions(300, in_order);
            for load in [Load::Timestamps { speedup: 2.0 }, Load::Concurrency(3)] {
                let options = MooncakeOptions {
                    block_tokens: 16,
                    delta,
                    timed: load != Load::Concurrency(3),
                    rules: Semantics::V1_6_1,
                };
                let file = MooncakeFile::new(|| Ok(lines("t", &text)), options).unwrap();
                let loaded = read_mooncake(MooncakeRows::new(lines("t", &text), options)).unwrap();
                same(from_file(file, load), loaded, load);
            }
        }
    }

    #[test]
    fn tool_sessions_from_the_file_give_the_report_of_the_loaded_ones() {
        let mut text = String::new();
        for row in 0..40_u32 {
            let turns = row % 4;
            let list = |by: u32| (0..turns).map(|turn| turn * by + row % 9).collect::<Vec<_>>();
            let _ = writeln!(
                text,
                r#"{{"num_turns":{turns},"input_prompt_length":{},"assistant_response_length":{:?},"tool_call_output_length":{:?},"tool_call_latency":{:?},"final_assistant_response_length":4}}"#,
                100 + row,
                list(2),
                list(30),
                list(1),
            );
        }
        let prefix = SharedPrefix { ratio: 0.4, groups: 3 };
        let load = Load::Concurrency(4);
        let file = AppliedFile::new(lines("t", &text), 16, prefix).unwrap();
        same(
            from_file(file, load),
            read_applied_compute(lines("t", &text), 16, prefix).unwrap(),
            load,
        );
    }

    fn request(name: &str, start: u32, hash: u64) -> String {
        format!(
            r#"{{"event":{{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":{},"request":{{"request_id":"{name}","output_tokens":3,"request_received_ms":{start},"total_time_ms":9,"replay":{{"trace_block_size":16,"input_length":30,"input_sequence_hashes":[{},{hash}]}}}}}}}}"#,
            start + 9,
            u64::MAX - hash % 3,
        )
    }

    #[test]
    fn requests_from_shards_give_the_report_of_the_loaded_ones() {
        let mut random = StdRng::seed_from_u64(3);
        let mut shards = [String::new(), String::new(), String::new()];
        for number in 0..200_u32 {
            let start = 5000 + number / 4 * 11 + random.random_range(0..40);
            let shard = &mut shards[number as usize % 3];
            let name = format!("r{}", random.random::<u64>());
            let _ = writeln!(shard, "17\n{}", request(&name, start, u64::from(number % 20) << 40));
        }
        let mut reader = RequestTraceReader::new(None, Semantics::V1_6_1);
        for shard in &shards {
            reader.read(lines("t", shard)).unwrap();
        }
        let RequestTrace::Independent(loaded) = reader.finish().unwrap() else {
            panic!("not sessions");
        };
        let load = Load::Timestamps { speedup: 1.0 };
        let shards = shards.iter().map(|shard| lines("t", shard)).collect();
        let file = RequestFile::new(shards, None, Semantics::V1_6_1).unwrap().unwrap();
        same(from_file(file, load), loaded, load);
    }

    #[test]
    fn a_name_twice_is_refused_with_its_file_and_line() {
        let shards =
            ["a", "b"].map(|shard| lines(shard, &format!("{}\n\n{}", request(shard, 7, 1), request("x", 9, 1))));
        let error = RequestFile::new(shards.into(), None, Semantics::V1_6_1).err().unwrap();
        assert_eq!(
            error.to_string(),
            "b, line 3: request.request_id is x, as in a line before; expected a name of its own"
        );
    }

    #[test]
    fn memory_holds_what_is_in_flight_and_the_next_turn_of_each_session() {
        let text = sessions(4000, true);
        let options = MooncakeOptions {
            block_tokens: 16,
            delta: false,
            timed: false,
            rules: Semantics::V1_6_1,
        };
        let file = MooncakeFile::new(|| Ok(lines("t", &text)), options).unwrap();
        let mut source = FileSource::new(file, Load::Concurrency(5));
        let (mut most, mut now) = (0, SimTime::ZERO);
        while !source.is_drained() {
            while let Some(turn) = source.take(now) {
                most = most.max(source.held());
                source.ended(turn.tag, now, Terminal::Completed);
                most = most.max(source.held());
            }
            now = source.next_at().unwrap_or(now);
        }
        assert!(most <= 2 * 5 + 1, "{most}");
    }

    #[test]
    fn a_file_that_changes_is_an_error() {
        let text = sessions(40, true);
        let options = MooncakeOptions {
            block_tokens: 16,
            delta: false,
            timed: true,
            rules: Semantics::V1_6_1,
        };
        let half = text[..text.len() / 2].rfind('\n').map_or(0, |end| end + 1);
        let opened = std::cell::Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            // The second reader finds less than the first.
            Ok(lines("t", if opened.get() == 1 { &text } else { &text[..half] }))
        };
        let mut source = FileSource::new(
            MooncakeFile::new(open, options).unwrap(),
            Load::Timestamps { speedup: 1.0 },
        );
        let mut now = SimTime::ZERO;
        while let Some(turn) = source.take(now) {
            source.ended(turn.tag, now, Terminal::Completed);
            now = source.next_at().unwrap_or(now);
        }
        let error = source.failure().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("the file changed while it was replayed"), "{error}");
    }
}
