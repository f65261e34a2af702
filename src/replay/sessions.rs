//! Sessions: turns that follow one another, open loop by time stamps or closed loop by a limit.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{Prompt, SimTime, Token, Tokens};

use super::prompt::{PromptRef, PromptStore};
use super::record::Terminal;
use super::source::{Source, Turn};

const NONE: u32 = u32::MAX;

/// When sessions start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// At their time stamps; times and delays are divided by `speedup`.
    Timestamps {
        /// Positive.
        speedup: f64,
    },
    /// At most so many sessions at a time; the next starts when one ends.
    Concurrency(usize),
}

/// One turn as a reader finds it.
#[derive(Debug, Clone, Default)]
pub struct TurnSpec {
    /// Hash ids of the prompt.
    pub hash_ids: Vec<u64>,
    /// Prompt tokens; at most what the ids cover.
    pub input_tokens: u32,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// Exact ids to generate.
    pub planned: Option<Tokens>,
    /// Time stamp of a first turn, ms; `None` where only a closed loop can use it.
    pub start_ms: Option<f64>,
    /// Wait after the end of the turn before, ms.
    pub delay_ms: f64,
    /// Router queue.
    pub priority: i32,
    /// Router queue.
    pub strict_priority: u32,
    /// Router queue: class or family.
    pub policy_class: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy)]
struct TurnRow {
    prompt: PromptRef,
    output_tokens: u32,
    session: u32,
    turn: u32,
    next: u32,
    /// First turn: time stamp; later ones: delay. Milliseconds.
    time_ms: f64,
    /// Index into `extras` or `NONE`.
    extra: u32,
}

/// What few turns have.
#[derive(Debug, Clone, Default)]
struct Extra {
    planned: Option<Tokens>,
    priority: i32,
    strict_priority: u32,
    policy_class: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy)]
struct Session {
    first: u32,
    last: u32,
    /// Name: index into `names`, or number behind the label.
    name: Name,
}

#[derive(Debug, Clone, Copy)]
enum Name {
    Given(u32),
    Number(u32),
}

/// All turns of a workload.
#[derive(Debug)]
pub struct SessionTrace {
    prompts: PromptStore,
    turns: Vec<TurnRow>,
    sessions: Vec<Session>,
    extras: Vec<Extra>,
    names: Vec<Box<str>>,
    /// What the names of other sessions begin with.
    label: &'static str,
    delta: bool,
    /// See [`Self::of_requests`].
    of_requests: bool,
}

impl SessionTrace {
    /// An empty trace whose hash ids stand for `block_tokens` tokens each. With `delta` a turn's prompt is the one before,
    /// its answer, and the new ids. Sessions without a name are called `label` and a number.
    pub fn new(block_tokens: u32, delta: bool, label: &'static str) -> Self {
        Self {
            prompts: PromptStore::new(block_tokens),
            turns: Vec::new(),
            sessions: Vec::new(),
            extras: Vec::new(),
            names: Vec::new(),
            label,
            delta,
            of_requests: false,
        }
    }

    /// Gives hash ids the numbers that Dynamo's replay gives them: 0, 1, 2, ... as they are first seen. Hashes of blocks depend
    /// on it, and where two blocks of host memory were used last at one instant the lower hash goes first.
    pub fn renumber(&mut self) {
        let fresh = PromptStore::new(self.prompts.block_tokens());
        let old = std::mem::replace(&mut self.prompts, fresh);
        let mut numbers: HashMap<u32, u64, FxBuildHasher> = HashMap::default();
        for row in &mut self.turns {
            let ids = old.ids(row.prompt).map(|id| {
                let next = numbers.len() as u64;
                *numbers.entry(id).or_insert(next)
            });
            let tokens = row.prompt.tokens();
            row.prompt = self.prompts.add(ids, tokens);
        }
    }

    /// Dynamo takes the turns for single requests where they come at their own times and no session has a second one.
    #[must_use]
    pub(crate) fn of_requests(mut self) -> Self {
        self.of_requests = true;
        self
    }

    /// Tokens per hash id.
    pub fn block_tokens(&self) -> u32 {
        self.prompts.block_tokens()
    }

    /// Turns so far.
    pub fn len(&self) -> u64 {
        self.turns.len() as u64
    }

    /// Whether there is no turn.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Opens a session with its first turn; `number` names it where `name` is missing. Returns its number.
    pub fn open(&mut self, name: Option<&str>, number: u64, turn: TurnSpec) -> u32 {
        let session = u32::try_from(self.sessions.len()).unwrap_or(NONE);
        let name = match name {
            Some(name) => {
                self.names.push(name.into());
                Name::Given(u32::try_from(self.names.len() - 1).unwrap_or(NONE))
            }
            None => Name::Number(u32::try_from(number).unwrap_or(NONE)),
        };
        let time_ms = turn.start_ms.unwrap_or(0.0);
        let first = self.push(session, 0, time_ms, turn);
        self.sessions.push(Session {
            first,
            last: first,
            name,
        });
        session
    }

    /// Adds the next turn of a session.
    pub fn follow(&mut self, session: u32, turn: TurnSpec) {
        let last = self.sessions[session as usize].last;
        let number = self.turns[last as usize].turn + 1;
        let delay_ms = turn.delay_ms;
        let next = self.push(session, number, delay_ms, turn);
        self.turns[last as usize].next = next;
        self.sessions[session as usize].last = next;
    }

    fn push(&mut self, session: u32, number: u32, time_ms: f64, turn: TurnSpec) -> u32 {
        let queued_alike = turn.priority == 0 && turn.strict_priority == 0 && turn.policy_class.is_none();
        let plain = turn.planned.is_none() && queued_alike;
        let extra = if plain {
            NONE
        } else {
            self.extras.push(Extra {
                planned: turn.planned,
                priority: turn.priority,
                strict_priority: turn.strict_priority,
                policy_class: turn.policy_class,
            });
            u32::try_from(self.extras.len() - 1).unwrap_or(NONE)
        };
        self.turns.push(TurnRow {
            prompt: self.prompts.add(turn.hash_ids, turn.input_tokens),
            output_tokens: turn.output_tokens,
            session,
            turn: number,
            next: NONE,
            time_ms,
            extra,
        });
        u32::try_from(self.turns.len() - 1).unwrap_or(NONE)
    }

    fn name(&self, session: u32) -> String {
        match self.sessions[session as usize].name {
            Name::Given(at) => self.names[at as usize].to_string(),
            Name::Number(number) => format!("{}{number}", self.label),
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct SessionSource {
    trace: SessionTrace,
    load: Load,
    /// First turns in order of their start.
    starts: VecDeque<u32>,
    /// Later turns: when and which, earliest first.
    due: BinaryHeap<Reverse<(SimTime, u32, u32)>>,
    /// Closed loop: sessions under way.
    open: usize,
    ended: u64,
    /// Delta form: everything said so far, of sessions under way.
    histories: HashMap<u32, Vec<Token>, FxBuildHasher>,
    /// Request whose answer is shorter than planned, and its tokens.
    cut: Option<(u32, usize)>,
}

impl SessionSource {
    /// Plays `trace` under `load`. Time stamps are shifted so that the earliest is 0.
    pub fn new(mut trace: SessionTrace, load: Load) -> Self {
        trace.prompts.seal();
        let mut starts: Vec<u32> = trace.sessions.iter().map(|session| session.first).collect();
        if let Load::Timestamps { speedup } = load {
            let earliest = starts.iter().map(|&tag| trace.turns[tag as usize].time_ms);
            let earliest = earliest.min_by(f64::total_cmp).unwrap_or(0.0);
            for row in &mut trace.turns {
                let shifted = if row.turn == 0 {
                    row.time_ms - earliest
                } else {
                    row.time_ms
                };
                row.time_ms = shifted / speedup;
            }
            starts.sort_by(|&a, &b| {
                trace.turns[a as usize]
                    .time_ms
                    .total_cmp(&trace.turns[b as usize].time_ms)
            });
        }
        Self {
            load,
            starts: starts.into(),
            due: BinaryHeap::new(),
            open: 0,
            ended: 0,
            histories: HashMap::default(),
            cut: None,
            trace,
        }
    }

    fn turn(&mut self, tag: u32, arrival: SimTime) -> Turn {
        let row = self.trace.turns[tag as usize];
        let extra = self.trace.extras.get(row.extra as usize).cloned().unwrap_or_default();
        let mut input_tokens = row.prompt.tokens();
        if self.trace.delta {
            let history = self.histories.entry(row.session).or_default();
            self.trace.prompts.write(row.prompt, history);
            input_tokens = u32::try_from(history.len()).unwrap_or(u32::MAX);
        }
        Turn {
            tag,
            session: row.session,
            turn: row.turn,
            arrival,
            input_tokens,
            output_tokens: row.output_tokens,
            planned: extra.planned,
            priority: extra.priority,
            strict_priority: extra.strict_priority,
            policy_class: extra.policy_class,
        }
    }

    fn start_of(&self, tag: u32) -> SimTime {
        SimTime::of_ms(self.trace.turns[tag as usize].time_ms)
    }
}

impl Source for SessionSource {
    fn next_at(&self) -> Option<SimTime> {
        let later = self.due.peek().map(|Reverse((at, ..))| *at);
        let first = match self.load {
            Load::Timestamps { .. } => self.starts.front().map(|&tag| self.start_of(tag)),
            Load::Concurrency(_) => None,
        };
        match (later, first) {
            (Some(later), Some(first)) => Some(later.min(first)),
            (later, first) => later.or(first),
        }
    }

    fn take(&mut self, now: SimTime) -> Option<Turn> {
        let first = match self.load {
            Load::Timestamps { .. } => {
                let tag = self.starts.front().copied();
                tag.map(|tag| (self.start_of(tag), tag)).filter(|&(at, _)| at <= now)
            }
            Load::Concurrency(most) => self.starts.front().filter(|_| self.open < most).map(|&tag| (now, tag)),
        };
        let later = self.due.peek().map(|&Reverse(due)| due).filter(|&(at, ..)| at <= now);
        let first_key = first.map(|(at, tag)| (at, self.trace.turns[tag as usize].session));
        let later_key = later.map(|(at, session, _)| (at, session));
        let take_later = later_key.is_some_and(|later| first_key.is_none_or(|first| later < first));
        if take_later {
            let Reverse((at, _, tag)) = self.due.pop()?;
            let arrival = match self.load {
                Load::Timestamps { .. } => at,
                Load::Concurrency(_) => now,
            };
            return Some(self.turn(tag, arrival));
        }
        let (at, tag) = first?;
        self.starts.pop_front();
        self.open += 1;
        Some(self.turn(tag, at))
    }

    fn cut_short(&mut self, tag: u32, tokens: u32) {
        self.cut = Some((tag, tokens as usize));
    }

    fn ended(&mut self, tag: u32, now: SimTime, terminal: Terminal) {
        let row = self.trace.turns[tag as usize];
        self.ended += 1;
        if self.trace.delta && row.next != NONE && terminal == Terminal::Completed {
            let said = self
                .trace
                .extras
                .get(row.extra as usize)
                .and_then(|extra| extra.planned.clone());
            if let (Some(history), Some(said)) = (self.histories.get_mut(&row.session), said) {
                let tokens = self
                    .cut
                    .take_if(|(cut, _)| *cut == tag)
                    .map_or(said.len(), |(_, tokens)| tokens);
                history.extend_from_slice(&said[..tokens.min(said.len())]);
            }
        }
        let over = terminal == Terminal::Failed;
        if over {
            let mut next = row.next;
            while next != NONE {
                self.ended += 1;
                next = self.trace.turns[next as usize].next;
            }
        }
        if over || row.next == NONE {
            self.open -= 1;
            self.histories.remove(&row.session);
            return;
        }
        let delay = self.trace.turns[row.next as usize].time_ms;
        self.due.push(Reverse((now.after_ms(delay), row.session, row.next)));
    }

    fn write_prompt(&self, tag: u32, prompt: &mut Vec<Token>) {
        let row = self.trace.turns[tag as usize];
        match self.histories.get(&row.session) {
            Some(history) if self.trace.delta => prompt.extend_from_slice(history),
            _ => self.trace.prompts.write(row.prompt, prompt),
        }
    }

    fn prompt(&self, tag: u32) -> Prompt {
        let row = self.trace.turns[tag as usize];
        match self.histories.get(&row.session) {
            Some(history) if self.trace.delta => history.as_slice().into(),
            _ => self.trace.prompts.prompt(row.prompt),
        }
    }

    fn has_times(&self) -> bool {
        matches!(self.load, Load::Timestamps { .. })
    }

    fn is_drained(&self) -> bool {
        self.ended == self.trace.turns.len() as u64
    }

    fn total(&self) -> u64 {
        self.trace.turns.len() as u64
    }

    fn tells_sessions(&self) -> bool {
        let single_turns = self.trace.turns.len() == self.trace.sessions.len();
        !(self.trace.of_requests && single_turns && self.has_times())
    }

    fn session_name(&self, tag: u32) -> String {
        self.trace.name(self.trace.turns[tag as usize].session)
    }
}
