//! Handoffs: commands to both engines of the core, and the replay of a disaggregated pair.

use ghostfleet::config::{EngineDocument, TransferTiming};
use ghostfleet::engine::{Engine, HandoffFact, Output, Pass, TokenSource, WorkerRole, build};
use ghostfleet::types::{EngineRequest, HashSalt, RequestId, SimTime, StopRule};
use serde_json::{Value, json};

use super::crowd;
use super::drive::{arrival, request};
use super::form::{Case, Core, HandoffStep, Replay};
use super::passes::{TOLERANCE_MS, assert_time, recorded};

const PROMPT_TOKENS: u32 = 40;

pub(super) fn engine(args: &EngineDocument, role: WorkerRole) -> Box<dyn Engine> {
    let mut config = args.engine.clone();
    config.role = role;
    config.token_source = TokenSource::Peer;
    build(&config).unwrap()
}

pub(super) fn facts(engine: &mut dyn Engine, now: SimTime) -> Vec<HandoffFact> {
    let mut facts = Vec::new();
    engine.take_handoff_facts(now, &mut facts);
    facts
}

/// Runs the command scripts of both sides.
pub(crate) fn check_commands(name: &str, case: &Case, expected: &Core) {
    let Some(config) = &case.engine_config else { return };
    let args = EngineDocument::read("engine_config", &json!({ "engine": config }).to_string()).unwrap();
    if !case.requests.is_empty() {
        crowd::check(name, case, &args, WorkerRole::Prefill, &expected.prefill);
        crowd::check(name, case, &args, WorkerRole::Decode, &expected.decode);
        return;
    }
    check_side(name, &args, WorkerRole::Prefill, 1, 1, &expected.prefill);
    check_side(name, &args, WorkerRole::Decode, 2, 3, &expected.decode);
}

fn check_side(name: &str, args: &EngineDocument, role: WorkerRole, uuid: u64, max_tokens: u32, steps: &[HandoffStep]) {
    let mut engine = engine(args, role);
    let mut event_ids = 0;
    for (number, step) in steps.iter().enumerate() {
        let place = format!("{name}, {role:?}, step {number}");
        let mut pass = Pass::default();
        let now;
        if let Some(command) = &step.command {
            now = SimTime::of_ms(step.at_ms.unwrap());
            let done = command_of(engine.as_mut(), command, small_request(uuid, max_tokens), now);
            assert_eq!(done, step.result.as_deref().unwrap(), "{place}");
        } else {
            let (start, end) = step.pass.unwrap();
            assert!(engine.step_into(SimTime::of_ms(start), &mut pass), "{place}");
            assert_time(&place, "end", pass.ends_at, end);
            now = pass.ends_at;
        }
        let events: Vec<_> = pass
            .kv_events
            .iter()
            .zip(event_ids..)
            .map(|(event, at)| recorded(at, 0, event))
            .collect();
        event_ids += events.len() as u64;
        assert_eq!(events, step.kv, "{place}");
        let told: Vec<_> = facts(engine.as_mut(), now)
            .iter()
            .map(|fact| lifecycle(fact, args))
            .collect();
        assert_eq!(told, step.lifecycle, "{place}");
        let reused: Vec<_> = pass
            .admissions
            .iter()
            .map(|admission| admission.cached_tokens)
            .collect();
        assert_eq!(reused, step.admitted_reused, "{place}");
        assert_eq!(tokens(&pass), step.tokens, "{place}");
        let load = engine.load();
        assert_eq!(load.active_blocks, step.active_blocks, "{place}");
        assert_eq!(
            load.inactive_blocks,
            step.inactive_blocks.unwrap_or(load.inactive_blocks),
            "{place}"
        );
        assert_eq!(load.running, step.running.unwrap_or(load.running), "{place}");
        assert_eq!(load.waiting, step.waiting.unwrap_or(load.waiting), "{place}");
    }
}

fn small_request(uuid: u64, max_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(uuid),
        key: uuid,
        prompt: (0..PROMPT_TOKENS).map(|at| at / 16 + 1).collect(),
        stop: StopRule {
            max_tokens: Some(max_tokens),
            ..StopRule::default()
        },
        planned: None,
        priority: 0,
        salt: HashSalt::default(),
        routing_key: None,
    }
}

/// Gives a command about `request`; returns what the recording calls the result.
pub(super) fn command_of(engine: &mut dyn Engine, command: &str, request: EngineRequest, now: SimTime) -> &'static str {
    let id = request.id;
    let applied = |done: bool| if done { "Applied" } else { "Noop" };
    match command {
        "SubmitHandoffPrefill" => engine.submit_source(request, now).map_or("Failed", |()| "Submitted"),
        "ReserveDestination" => engine
            .reserve_destination(request, now)
            .map_or("Failed", |()| "DestinationAccepted"),
        "ActivateDestination" => applied(engine.activate_destination(id)),
        "ReleaseSource" => applied(engine.release_source(id)),
        "CancelSource" | "CancelDestination" => applied(engine.cancel(id, now)),
        other => panic!("unknown command {other}"),
    }
}

fn lifecycle(fact: &HandoffFact, args: &EngineDocument) -> Value {
    match fact {
        HandoffFact::SourceHeld { prompt_tokens, .. } => json!({ "source_held": {
            "full_prompt_tokens": prompt_tokens,
            "kv_bytes_per_token": args.transfer.bytes_per_token,
            "bandwidth_gb_s": args.transfer.bandwidth_gb_s,
        } }),
        HandoffFact::DestinationReserved {
            transferable_prompt_tokens,
            ..
        } => json!({ "destination_reserved": { "transferable_prompt_tokens": transferable_prompt_tokens } }),
    }
}

fn tokens(pass: &Pass) -> Vec<(u32, bool)> {
    let token = |output: &Output| match output {
        Output::Token { token, finish, .. } => (*token, finish.is_some()),
        Output::Empty { .. } | Output::Rejected { .. } => panic!("every request generates"),
    };
    pass.outputs.iter().map(token).collect()
}

/// Replays requests, one after the other, through a prefill and a decode engine of release 1.4.2.
pub(crate) fn check_pair(name: &str, case: &Case, expected: &Replay) {
    let (Some(prefill), Some(decode)) = (&case.prefill_engine_args, &case.decode_engine_args) else {
        return;
    };
    let args = EngineDocument::read("prefill_engine_args", &prefill.to_string()).unwrap();
    let mut source = engine(&args, WorkerRole::Prefill);
    let decode = EngineDocument::read("decode_engine_args", &decode.to_string()).unwrap();
    let mut destination = engine(&decode, WorkerRole::Decode);
    let link = args.transfer;
    for (at, (row, outcome)) in case.trace.iter().zip(&expected.requests).enumerate() {
        let place = format!("{name}, request {at}");
        let now = arrival(row);
        let request = request(at, row, case.trace_block_size);
        let id = request.id;
        let mut prompt_only = request.clone();
        prompt_only.stop.max_tokens = Some(1);
        source.submit_source(prompt_only, now).unwrap();
        let held_at = source.step(now).unwrap().ends_at;
        let [HandoffFact::SourceHeld { prompt_tokens, .. }] = facts(source.as_mut(), held_at)[..] else {
            panic!("{place}: the prompt is held after its pass")
        };
        destination.reserve_destination(request, held_at).unwrap();
        let reserved = facts(destination.as_mut(), held_at);
        let [
            HandoffFact::DestinationReserved {
                transferable_prompt_tokens,
                ..
            },
        ] = reserved[..]
        else {
            panic!("{place}: an empty pool has room")
        };
        let moved = match args.transfer_timing {
            TransferTiming::FullPrompt => prompt_tokens,
            TransferTiming::DestinationMissing => transferable_prompt_tokens,
        };
        let activated_at = held_at + link.duration(moved);
        assert!(destination.activate_destination(id) && source.release_source(id));
        let first = destination.step(activated_at).unwrap();
        let mut last = first.ends_at;
        while let Some(pass) = destination.step(last) {
            last = pass.ends_at;
        }
        let times = [
            (held_at, outcome.source_held_ms),
            (held_at, outcome.destination_reserved_ms),
            (activated_at, outcome.destination_activated_ms),
            (first.ends_at, outcome.first_token_ms),
            (last, outcome.last_token_ms),
        ];
        for (ours, expected) in times {
            assert!(
                (ours.as_ms() - expected.unwrap()).abs() < TOLERANCE_MS,
                "{place}: {times:?}"
            );
        }
        assert_eq!(
            (source.load().active_blocks, destination.load().active_blocks),
            (0, 0),
            "{place}"
        );
    }
}
