//! Handoffs of several requests that meet in one engine.

use ghostfleet::config::EngineDocument;
use ghostfleet::engine::{Engine, HandoffFact, Output, Pass, WorkerRole};
use ghostfleet::types::{EngineRequest, KvEvent, SimTime};
use serde_json::{Value, json};

use super::drive;
use super::form::{Case, Event, HandoffStep, Row};
use super::handoff::{command_of, engine, facts};
use super::passes::{TOLERANCE_MS, assert_time, recorded};

/// Runs the commands and passes of one side.
pub(super) fn check(name: &str, case: &Case, args: &EngineDocument, role: WorkerRole, steps: &[HandoffStep]) {
    let mut engine = engine(args, role);
    let mut event_ids = 0;
    // Here, what a command evicts is told with the next pass.
    let mut early: Vec<Event> = Vec::new();
    let mut ended = SimTime::ZERO;
    let mut looked = SimTime::ZERO;
    let mut heard: Vec<KvEvent> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let place = format!("{name}, {role:?}, step {number}");
        let mut pass = Pass::default();
        let now;
        let next = instant(step.at_ms.or(step.pass.map(|(start, _)| start)).unwrap(), ended);
        let next = look_until(&place, engine.as_mut(), &mut looked, next, &mut heard);
        if let Some(command) = &step.command {
            now = next;
            let request = request(case, step.request.unwrap(), role);
            let done = command_of(engine.as_mut(), command, request, now);
            assert_eq!(
                done,
                step.result.as_deref().unwrap(),
                "{place}: {command} {:?}",
                case.engine_config
            );
            early.extend(step.kv.iter().cloned());
        } else {
            let (_, end) = step.pass.unwrap();
            assert!(engine.step_into(next, &mut pass), "{place}: nothing to do");
            assert_time(&place, "end", pass.ends_at, end);
            now = pass.ends_at;
            ended = now;
            looked = now;
            heard.append(&mut pass.kv_events);
            let events = heard.drain(..).zip(event_ids..);
            let events: Vec<Event> = events.map(|(event, at)| recorded(at, 0, &event)).collect();
            event_ids += events.len() as u64;
            let mut expected = std::mem::take(&mut early);
            expected.extend(step.before.iter().chain(&step.kv).cloned());
            expected.sort_by_key(|event| event.id);
            assert_eq!(events, expected, "{place}: KV events");
        }
        let facts = facts(engine.as_mut(), now);
        let told: Vec<Value> = facts.iter().map(|fact| lifecycle(fact, args)).collect();
        assert_eq!(told, step.lifecycle, "{place}: facts");
        check_pass(&place, &pass, step);
        let load = engine.load();
        assert_eq!(
            (
                load.active_blocks,
                Some(load.inactive_blocks),
                Some(load.running),
                Some(load.waiting)
            ),
            (step.active_blocks, step.inactive_blocks, step.running, step.waiting),
            "{place}: load"
        );
    }
}

/// Whoever drives an engine with memory below the GPU looks at it when a pass or a command is over and when a transfer is;
/// what comes to nothing is not recorded. Returns the recorded instant `next` as the engine knows it.
fn look_until(
    place: &str,
    engine: &mut dyn Engine,
    looked: &mut SimTime,
    next: SimTime,
    heard: &mut Vec<KvEvent>,
) -> SimTime {
    while next.as_ms() - looked.as_ms() > TOLERANCE_MS {
        let mut pass = Pass::default();
        engine.step_into(*looked, &mut pass);
        let nothing = pass.admissions.is_empty() && pass.outputs.is_empty() && pass.ends_at == *looked;
        assert!(nothing, "{place}: a pass at {} ms: {pass:?}", looked.as_ms());
        heard.append(&mut pass.kv_events);
        let wakes_at = engine.wakes_at().filter(|at| at > looked);
        *looked = wakes_at
            .filter(|at| at.as_ms() - next.as_ms() <= TOLERANCE_MS)
            .unwrap_or(next);
    }
    (*looked).max(next)
}

/// A recorded instant: the end of our last pass if that is the one which is meant.
fn instant(ms: f64, ended: SimTime) -> SimTime {
    if (ms - ended.as_ms()).abs() < TOLERANCE_MS {
        ended
    } else {
        SimTime::of_ms(ms)
    }
}

fn request(case: &Case, uuid: u64, role: WorkerRole) -> EngineRequest {
    let at = usize::try_from(uuid).unwrap() - 1;
    let handed = &case.requests[at];
    assert_eq!(handed.uuid, uuid);
    let row = Row {
        session_id: String::new(),
        timestamp: 0.0,
        input_length: handed.input_length,
        output_length: if role == WorkerRole::Prefill {
            1
        } else {
            handed.output_length
        },
        hash_ids: handed.hash_ids.clone(),
    };
    drive::request(at, &row, case.trace_block_size)
}

fn check_pass(place: &str, pass: &Pass, step: &HandoffStep) {
    let admitted: Vec<_> = pass
        .admissions
        .iter()
        .map(|one| (one.id.0, one.cached_tokens))
        .collect();
    assert_eq!(admitted, step.admitted, "{place}: admissions");
    let preempted: Vec<_> = pass.preempted.iter().map(|id| id.0).collect();
    assert_eq!(preempted, step.preempted, "{place}: preemptions");
    let output = |output: &Output| match *output {
        Output::Token { id, token, finish } => (id.0, Some(token), finish.is_some(), false),
        Output::Empty { id, .. } => (id.0, None, true, false),
        Output::Rejected { id, .. } => (id.0, None, true, true),
    };
    assert_eq!(
        pass.outputs.iter().map(output).collect::<Vec<_>>(),
        step.outputs,
        "{place}: outputs"
    );
}

fn lifecycle(fact: &HandoffFact, args: &EngineDocument) -> Value {
    match *fact {
        HandoffFact::SourceHeld { id, prompt_tokens } => json!({ "source_held": {
            "request": id.0,
            "full_prompt_tokens": prompt_tokens,
            "kv_bytes_per_token": args.transfer.bytes_per_token,
            "bandwidth_gb_s": args.transfer.bandwidth_gb_s,
        } }),
        HandoffFact::DestinationReserved {
            id,
            transferable_prompt_tokens,
        } => json!({ "destination_reserved": {
            "request": id.0,
            "transferable_prompt_tokens": transferable_prompt_tokens,
        } }),
    }
}
