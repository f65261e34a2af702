//! What happens to the requests and plays of a graph, and a digest of it.
//!
//! One line of JSON per event, hashed with BLAKE3 behind a domain text. At one instant first what ended, by place in the
//! graph, then what came to rest. Form: Dynamo 1.6.1, whose digest of the
//! same run is equal.

use serde::Serialize;

use crate::types::SimTime;

use super::super::record::Terminal;

const SCHEMA: &str = "aisimulate.agentic.lifecycle.v1";
const DOMAIN: &[u8] = b"aisimulate-agentic-lifecycle-v1\0";

/// A request or play by its names.
#[derive(Debug, Clone)]
pub(super) struct Named<'a> {
    pub(super) play: &'a str,
    pub(super) request: &'a str,
}

#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    ordinal: u64,
    at_ms: f64,
    play_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Terminal>,
}

/// A request that ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: u32,
    pub(super) status: Terminal,
    /// What it took along.
    pub(super) skipped: Vec<u32>,
    /// Its play came to rest with it.
    pub(super) play_over: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Lifecycle {
    hasher: Box<blake3::Hasher>,
    events: u64,
    /// Ends at `now`, not yet written.
    ends: Vec<End>,
    now: SimTime,
}

impl Default for Lifecycle {
    fn default() -> Self {
        let mut hasher: Box<blake3::Hasher> = Box::default();
        hasher.update(DOMAIN);
        Self {
            hasher,
            events: 0,
            ends: Vec::new(),
            now: SimTime::ZERO,
        }
    }
}

impl Lifecycle {
    /// A request was sent out.
    pub(super) fn dispatched<'a>(&mut self, node: u32, now: SimTime, name: impl Fn(u32) -> Named<'a>) {
        self.catch_up(&name);
        self.now = now;
        let named = name(node);
        self.write("dispatch", named.play, Some(named.request), None);
    }

    /// A request ended.
    pub(super) fn ended<'a>(&mut self, end: End, now: SimTime, name: impl Fn(u32) -> Named<'a>) {
        if now != self.now {
            self.catch_up(&name);
            self.now = now;
        }
        self.ends.push(end);
    }

    /// Number of events and their digest.
    pub(super) fn summary<'a>(&self, name: impl Fn(u32) -> Named<'a>) -> (u64, String) {
        let mut all = Self {
            hasher: self.hasher.clone(),
            events: self.events,
            ends: Vec::new(),
            now: self.now,
        };
        all.write_ends(&self.ends, &name);
        (all.events, all.hasher.finalize().to_hex().to_string())
    }

    fn catch_up<'a>(&mut self, name: &impl Fn(u32) -> Named<'a>) {
        let mut ends = std::mem::take(&mut self.ends);
        self.write_ends(&ends, name);
        ends.clear();
        self.ends = ends;
    }

    fn write_ends<'a>(&mut self, ends: &[End], name: &impl Fn(u32) -> Named<'a>) {
        let mut order: Vec<&End> = ends.iter().collect();
        order.sort_by_key(|end| end.node);
        // A play rests with the last of its requests.
        let over: Vec<&str> = ends
            .iter()
            .filter(|end| end.play_over)
            .map(|end| name(end.node).play)
            .collect();
        for end in &order {
            let named = name(end.node);
            self.write("causal_terminal", named.play, Some(named.request), Some(end.status));
            for &node in &end.skipped {
                let named = name(node);
                self.write("skipped", named.play, Some(named.request), None);
            }
        }
        for (at, end) in order.iter().enumerate() {
            let named = name(end.node);
            self.write("quiescent", named.play, Some(named.request), None);
            let last = order[at + 1..].iter().all(|later| name(later.node).play != named.play);
            if last && over.contains(&named.play) {
                self.write("play_quiescent", named.play, None, None);
            }
        }
    }

    fn write(&mut self, event: &'static str, play_id: &str, request_id: Option<&str>, status: Option<Terminal>) {
        let line = Line {
            schema: SCHEMA,
            ordinal: self.events,
            at_ms: self.now.as_ms(),
            play_id,
            request_id,
            event,
            status,
        };
        self.events += 1;
        let line = serde_json::to_vec(&line).expect("texts and numbers are JSON");
        self.hasher.update(&line);
        self.hasher.update(b"\n");
    }
}
