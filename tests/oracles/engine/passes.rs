//! Comparison with the engine core, pass by pass.

use std::collections::BTreeMap;

use ghostfleet::config::EngineDocument;
use ghostfleet::engine::{EngineKind, Output, Pass};
use ghostfleet::types::{KvEvent, LowerTier, RequestId, SimTime};
use serde_json::json;

use super::drive::{Ran, name, run};
use super::form::{Case, Core, Event, Fpm, Metrics, Step, Token};

/// Times are compared with this tolerance, ms.
pub(crate) const TOLERANCE_MS: f64 = 1e-9;

pub(crate) fn check(case_name: &str, case: &Case, expected: &Core) {
    let Some(config) = &expected.engine_config else { return };
    let document = json!({ "engine": config, "dp_size": expected.dp_size });
    let args = EngineDocument::read("engine_config", &document.to_string()).unwrap();
    // The peer takes a speed-up of 0 as 1, ours as no delay at all.
    let no_delay = args.engine.speedup_ratio == 0.0;
    let mut ran = run(case, &args);
    let mut steps = expected.steps.clone();
    let by_tier = args.engine.tiers.is_some();
    if by_tier {
        fold_events(&mut ran);
        fold_steps(&mut steps);
    }
    let mut watch = Watch::new(case, expected.dp_size, args.engine.kind != EngineKind::Sglang, by_tier);
    for (number, (ran, step)) in ran.iter().zip(&steps).enumerate() {
        let place = format!("{case_name}, pass {number}");
        if no_delay {
            assert_eq!(ran.starts_at, ran.pass.ends_at, "{place}: no modelled delay");
        } else {
            assert_time(&place, "start", ran.starts_at, step.start_ms);
            assert_time(&place, "end", ran.pass.ends_at, step.end_ms);
        }
        for (rank, pass) in ran.pass.ranks.iter().enumerate() {
            watch.check(&place, rank, pass, step);
        }
        for start in step.start.iter().filter(|_| !no_delay) {
            assert_time(
                &place,
                "rank end",
                ran.pass.ranks[start.rank].ends_at,
                start.rank_end_ms,
            );
        }
        let duration = (ran.pass.ends_at.since(ran.starts_at)).as_secs_f64() * 1e3;
        for end in step.end.iter().filter(|_| !no_delay) {
            assert!(
                (duration - end.fpm.duration_ms).abs() < TOLERANCE_MS,
                "{place}: duration {duration}"
            );
        }
    }
    assert_eq!(ran.len(), steps.len(), "{case_name}: number of passes");
}

/// Passes in which nothing ran but something was told are told of with the next one.
fn fold_events(ran: &mut Vec<Ran>) {
    let mut early: Vec<Pass> = Vec::new();
    ran.retain_mut(|ran| {
        let ranks = &mut ran.pass.ranks;
        early.resize_with(ranks.len(), Pass::default);
        for (pass, early) in ranks.iter_mut().zip(&mut early) {
            pass.kv_events.splice(0..0, early.kv_events.drain(..));
            pass.tier_events.splice(0..0, early.tier_events.drain(..));
        }
        let starts_at = ran.starts_at;
        let idles = |pass: &Pass| pass.ends_at == starts_at && pass.outputs.is_empty() && pass.admissions.is_empty();
        let idle = ranks.iter().all(idles);
        if idle {
            early = std::mem::take(ranks);
        }
        !idle
    });
}

/// The same for the recording.
fn fold_steps(steps: &mut Vec<Step>) {
    let mut early: Vec<Event> = Vec::new();
    steps.retain_mut(|step| {
        early.append(&mut step.before);
        let idle = step.end_ms <= step.start_ms
            && step.start.iter().all(|start| start.admitted.is_empty())
            && step.end.iter().all(|end| end.tokens.is_empty());
        for end in &mut step.end {
            if idle {
                early.append(&mut end.kv);
            } else {
                let own = early.extract_if(.., |event| event.rank == end.rank);
                end.kv.splice(0..0, own).for_each(drop);
            }
        }
        !idle
    });
}

pub(crate) fn assert_time(place: &str, what: &str, ours: SimTime, expected_ms: f64) {
    let off = (ours.as_ms() - expected_ms).abs();
    assert!(
        off < TOLERANCE_MS,
        "{place}: {what} {} instead of {expected_ms}",
        ours.as_ms()
    );
}

/// State of the comparison that runs through all passes.
struct Watch<'a> {
    case: &'a Case,
    event_ids: Vec<u64>,
    /// Reused tokens of the first admission until the first token shows them.
    reused: BTreeMap<RequestId, u32>,
    /// SGLang's outputs do not say how much was reused.
    shows_reuse: bool,
    /// Events below the GPU are told apart here, and are in one list there.
    by_tier: bool,
}

impl<'a> Watch<'a> {
    fn new(case: &'a Case, ranks: usize, shows_reuse: bool, by_tier: bool) -> Self {
        Self {
            case,
            event_ids: vec![0; ranks],
            reused: BTreeMap::new(),
            shows_reuse,
            by_tier,
        }
    }

    fn check(&mut self, place: &str, rank: usize, pass: &Pass, step: &Step) {
        let admitted: Vec<_> = pass
            .admissions
            .iter()
            .map(|one| (name(self.case, one.id), one.cached_tokens))
            .collect();
        let preempted: Vec<_> = pass.preempted.iter().map(|&id| name(self.case, id)).collect();
        let start = step.start.iter().find(|start| start.rank == rank);
        assert_eq!(
            admitted,
            start.map_or(&[][..], |start| &start.admitted),
            "{place}: admissions"
        );
        assert_eq!(
            preempted,
            start.map_or(&[][..], |start| &start.preempted),
            "{place}: preemptions"
        );
        assert!(start.is_none_or(|start| start.kv_first.is_empty()));
        let shown = pass
            .admissions
            .iter()
            .filter(|admission| self.shows_reuse && !admission.again);
        for admission in shown {
            self.reused.insert(admission.id, admission.cached_tokens);
        }
        let end = step.end.iter().find(|end| end.rank == rank).unwrap();
        let tokens: Vec<_> = pass.outputs.iter().map(|output| self.token(output)).collect();
        assert_eq!(tokens, end.tokens, "{place}: tokens");
        let events: Vec<_> = pass.kv_events.iter().map(|event| self.event(rank, event)).collect();
        if self.by_tier {
            // The peer tells nothing of its disk.
            let lower = pass.tier_events.iter().filter(|event| event.tier == LowerTier::Host);
            let lower = lower.map(|event| recorded(0, rank, &event.event));
            let (expected_lower, expected): (Vec<Event>, Vec<Event>) =
                end.kv.iter().cloned().partition(|event| event.tier.is_some());
            assert_eq!(without_ids(events), without_ids(expected), "{place}: KV events");
            assert_eq!(
                without_ids(lower.collect()),
                without_ids(expected_lower),
                "{place}: events below the GPU"
            );
        } else {
            assert_eq!(events, end.kv, "{place}: KV events");
        }
        assert_eq!(metrics(pass), end.metrics, "{place}: metrics");
        assert_eq!(fpm(pass, end.fpm.duration_ms), end.fpm, "{place}: forward-pass metrics");
    }

    fn token(&mut self, output: &Output) -> Token {
        match output {
            Output::Token { id, token, finish } => {
                let kind = if finish.is_some() { "done" } else { "more" };
                Token(name(self.case, *id), Some(*token), kind.into(), self.reused.remove(id))
            }
            Output::Empty { id, .. } => Token(name(self.case, *id), None, "done".into(), self.reused.remove(id)),
            Output::Rejected { id, .. } => Token(name(self.case, *id), None, "rejected".into(), None),
        }
    }

    fn event(&mut self, rank: usize, event: &KvEvent) -> Event {
        let id = self.event_ids[rank];
        self.event_ids[rank] += 1;
        recorded(id, rank, event)
    }
}

/// Events without their place among those of other tiers.
fn without_ids(events: Vec<Event>) -> Vec<Event> {
    let bare = |event: Event| Event {
        id: 0,
        tier: None,
        position: None,
        ..event
    };
    events.into_iter().map(bare).collect()
}

/// An event in the form of the recording.
pub(crate) fn recorded(id: u64, rank: usize, event: &KvEvent) -> Event {
    {
        let (parent, stored, removed) = match event {
            KvEvent::Stored { parent, blocks } => {
                let pair = |block: &ghostfleet::types::StoredBlock| {
                    (block.block_hash.0.to_string(), block.tokens_hash.0.to_string())
                };
                (
                    parent.map(|hash| hash.0.to_string()),
                    Some(blocks.iter().map(pair).collect()),
                    None,
                )
            }
            KvEvent::Removed { block_hashes } => (
                None,
                None,
                Some(block_hashes.iter().map(|hash| hash.0.to_string()).collect()),
            ),
            KvEvent::Cleared => panic!("nothing clears the cache"),
        };
        Event {
            id,
            rank,
            parent,
            stored,
            removed,
            tier: None,
            position: None,
        }
    }
}

fn metrics(pass: &Pass) -> Metrics {
    Metrics {
        active_blocks: pass.load.active_blocks,
        inactive_blocks: pass.load.inactive_blocks,
        preemptions: pass.load.preemptions,
        running: pass.load.running,
        total_blocks: pass.load.total_blocks,
        waiting: pass.load.waiting,
    }
}

/// The group's duration is compared on its own.
fn fpm(pass: &Pass, duration_ms: f64) -> Fpm {
    let forward = &pass.forward;
    Fpm {
        duration_ms,
        num_prefill: forward.prefill.requests,
        prefill_tokens: forward.prefill_tokens,
        prefill_kv: forward.prefill_kv_tokens,
        num_decode: forward.decode.requests,
        decode_kv: forward.decode.tokens,
        queued_prefill: forward.queued_prefill.requests,
        queued_decode: forward.queued_decode.requests,
    }
}
