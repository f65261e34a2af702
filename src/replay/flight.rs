//! Requests between arrival and end.

use crate::router::Target;
use crate::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};

use super::memory;
use super::record::Terminal;
use super::source::{Source, Turn};

/// One request in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) turn: Turn,
    /// Number of the request among all that arrived, from 1.
    pub(crate) ordinal: u64,
    /// When latencies start to count.
    pub(crate) arrival: SimTime,
    /// When the workload sent it out.
    pub(crate) sent_out: SimTime,
    pub(crate) dispatched: Option<SimTime>,
    /// Way to the worker that answers.
    pub(crate) route: RouteLog,
    pub(crate) first_admit: Option<SimTime>,
    pub(crate) first_token: Option<SimTime>,
    pub(crate) second_token: Option<SimTime>,
    pub(crate) last_token: SimTime,
    pub(crate) tokens: u32,
    pub(crate) reused: u32,
    pub(crate) first_reused: u32,
    pub(crate) admissions: u32,
    /// Each admission, where records are kept.
    pub(crate) admitted: Vec<AdmissionLog>,
    /// Pass at whose end the stretch of tokens under way began.
    pub(crate) stretch: Option<u64>,
    /// Stretches that a preemption ended, first and last pass.
    pub(crate) stretches: Vec<(u64, u64)>,
    /// Gaps that no stretch covers, ns.
    pub(crate) gaps: Vec<u64>,
    /// The way through a disaggregated fleet.
    pub(crate) handoff: Option<Box<Handoff>>,
}

/// Way from a router to a worker.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RouteLog {
    /// When the router was asked.
    pub(crate) asked: SimTime,
    /// Whether it waited there.
    pub(crate) queued: bool,
    /// When it was sent on.
    pub(crate) sent: Option<SimTime>,
    pub(crate) target: Option<Target>,
    /// Overlap of the chosen target and the best one, blocks.
    pub(crate) overlap: Option<(u32, u32)>,
    /// Router that decided, where there are several.
    pub(crate) replica: Option<u32>,
}

/// One admission to a running batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionLog {
    pub(crate) at: SimTime,
    /// On the prefill side of a disaggregated fleet.
    pub(crate) prefill: bool,
    pub(crate) reused: u32,
    /// Part of it that came from host memory, where that is told.
    pub(crate) from_host: Option<u32>,
    pub(crate) again: bool,
}

impl AdmissionLog {
    /// What did not come from host memory, where that is told.
    pub(crate) fn gpu_reused(&self) -> Option<u32> {
        self.from_host.map(|from_host| self.reused.saturating_sub(from_host))
    }
}

/// Progress of a request through a disaggregated fleet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handoff {
    /// Way to the prefill worker.
    pub(crate) route: RouteLog,
    pub(crate) prefill_admit: Option<SimTime>,
    pub(crate) source_held: Option<SimTime>,
    pub(crate) destination_reserved: Option<SimTime>,
    pub(crate) destination_activated: Option<SimTime>,
    pub(crate) decode_admit: Option<SimTime>,
    pub(crate) source_released: Option<SimTime>,
    /// Most prompt tokens that an admission on the prefill side found in its cache, and on the decode side.
    pub(crate) prefill_reused: Option<u32>,
    pub(crate) decode_reused: Option<u32>,
    /// Prompt tokens that the source holds.
    pub(crate) held_tokens: Option<u32>,
    /// Tokens that the destination lacks.
    pub(crate) missing_tokens: Option<u32>,
    /// How and when it ended, while its source is still held.
    pub(crate) over: Option<(Terminal, SimTime)>,
}

impl RouteLog {
    /// Whether a router had to do with the request.
    pub(crate) fn was_asked(&self) -> bool {
        self.queued || self.sent.is_some()
    }

    /// The router decided `now`.
    pub(crate) fn decided(&mut self, target: Target, overlap: Option<(u32, u32)>, replica: Option<u32>, now: SimTime) {
        self.sent = Some(now);
        self.target = Some(target);
        self.overlap = overlap;
        self.replica = replica;
    }
}

impl Handoff {
    /// Nobody said that the prompt is computed.
    pub(crate) fn is_unheard(&self) -> bool {
        self.source_held.is_none()
    }
}

impl Flight {
    /// The request as an engine sees it.
    pub(crate) fn request(&self, id: u64, source: &dyn Source) -> EngineRequest {
        EngineRequest {
            id: RequestId(id),
            key: u64::from(self.turn.tag) + 1,
            prompt: source.prompt(self.turn.tag),
            stop: StopRule {
                max_tokens: Some(self.turn.output_tokens),
                ignore_eos: true,
                ..StopRule::default()
            },
            planned: self.turn.planned.clone(),
            priority: 0,
            salt: HashSalt::default(),
            routing_key: None,
        }
    }

    pub(crate) fn new(turn: Turn, arrival: SimTime, now: SimTime) -> Self {
        Self {
            ordinal: 0,
            arrival,
            sent_out: now,
            dispatched: None,
            route: RouteLog::default(),
            first_admit: None,
            first_token: None,
            second_token: None,
            last_token: SimTime::ZERO,
            tokens: 0,
            reused: 0,
            first_reused: 0,
            admissions: 0,
            admitted: Vec::new(),
            stretch: None,
            stretches: Vec::new(),
            gaps: Vec::new(),
            handoff: None,
            turn,
        }
    }

    /// Whether it waits for a token after a preemption.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.tokens > 0 && self.stretch.is_none()
    }
}

/// Requests in flight, by ids that are never used twice.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    slots: Vec<(u32, Option<Flight>)>,
    vacant: Vec<u32>,
    count: usize,
    bytes: u64,
    /// Of all times.
    added: u64,
}

impl Flights {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// What they take, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn add(&mut self, turn: Turn, arrival: SimTime, now: SimTime) -> u64 {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let (generation, slot) = &mut self.slots[at as usize];
        *generation += 1;
        self.bytes += memory::of_request(turn.input_tokens);
        self.added += 1;
        *slot = Some(Flight {
            ordinal: self.added,
            ..Flight::new(turn, arrival, now)
        });
        self.count += 1;
        u64::from(*generation) << 32 | u64::from(at)
    }

    /// Place and generation of an id.
    fn split(id: u64) -> (usize, u32) {
        (
            usize::try_from(id & 0xffff_ffff).unwrap_or(usize::MAX),
            u32::try_from(id >> 32).unwrap_or(u32::MAX),
        )
    }

    pub(crate) fn get(&mut self, id: u64) -> Option<&mut Flight> {
        let (at, generation) = Self::split(id);
        let (current, flight) = self.slots.get_mut(at)?;
        flight.as_mut().filter(|_| *current == generation)
    }

    /// Takes out all of them.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, Flight)> {
        (self.count, self.bytes) = (0, 0);
        let slots = (0_u64..).zip(std::mem::take(&mut self.slots));
        let named = slots.filter_map(|(at, (generation, flight))| Some((u64::from(generation) << 32 | at, flight?)));
        named.collect()
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Flight> {
        let bytes = memory::of_request(self.get(id)?.turn.input_tokens);
        self.bytes -= bytes;
        let (at, _) = Self::split(id);
        self.vacant.push(u32::try_from(at).unwrap_or(u32::MAX));
        self.count -= 1;
        self.slots[at].1.take()
    }
}
