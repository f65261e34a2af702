//! Comparison with the peer's replay of release 1.4.2, request by request.

use std::collections::BTreeMap;
use std::sync::Arc;

use ghostfleet::config::EngineDocument;
use ghostfleet::engine::{Output, TimingConfig};
use ghostfleet::types::{RequestId, SimTime};

use super::drive::run;
use super::form::{Case, Outcome, Replay};
use super::passes::TOLERANCE_MS;

#[derive(Debug, Default)]
struct Ours {
    first_admit: Option<SimTime>,
    first_token: Option<SimTime>,
    last_token: Option<SimTime>,
    tokens: u32,
    reused: u32,
    rejected: bool,
}

pub(crate) fn check(case_name: &str, case: &Case, args: &serde_json::Value, expected: &Replay) {
    let mut args = args.clone();
    // The profile is in the recording, not in a file.
    let profile = args
        .as_object_mut()
        .and_then(|args| args.remove("planner_profile_data"));
    let mut args = EngineDocument::read("engine_args", &args.to_string()).unwrap();
    if let Some(path) = profile.as_ref().and_then(serde_json::Value::as_str) {
        let (_, arrays) = case.files.iter().find(|(name, _)| name.starts_with(path)).unwrap();
        args.engine.timing = TimingConfig::Profile(Arc::new(arrays.profile()));
    }
    // The peer's speed-up of 0 is 1.
    if args.engine.speedup_ratio == 0.0 {
        return;
    }
    let mut ours: BTreeMap<RequestId, Ours> = BTreeMap::new();
    for ran in run(case, &args) {
        for pass in &ran.pass.ranks {
            for admission in &pass.admissions {
                let request = ours.entry(admission.id).or_default();
                request.first_admit.get_or_insert(ran.starts_at);
                // The largest of all admissions, those after a preemption included.
                request.reused = request.reused.max(admission.cached_tokens);
            }
            for output in &pass.outputs {
                let (Output::Token { id, .. } | Output::Empty { id, .. } | Output::Rejected { id, .. }) = output;
                let request = ours.entry(*id).or_default();
                request.rejected = matches!(output, Output::Rejected { .. });
                if matches!(output, Output::Token { .. }) {
                    request.tokens += 1;
                    request.first_token.get_or_insert(ran.pass.ends_at);
                    request.last_token = Some(ran.pass.ends_at);
                }
            }
        }
    }
    for (at, outcome) in expected.requests.iter().enumerate() {
        let request = &ours[&RequestId(at as u64 + 1)];
        compare(
            &format!("{case_name} (1.4.2), {}", case.trace[at].session_id),
            request,
            outcome,
        );
    }
}

fn compare(place: &str, ours: &Ours, expected: &Outcome) {
    let same = |ours: Option<SimTime>, expected: Option<f64>| match (ours, expected) {
        (Some(ours), Some(expected)) => (ours.as_ms() - expected).abs() < TOLERANCE_MS,
        (None, None) => true,
        _ => false,
    };
    assert_eq!(
        ours.rejected,
        expected.terminal_status == "rejected",
        "{place}: {expected:?}"
    );
    assert_eq!(ours.tokens, expected.output_length, "{place}");
    assert!(
        same(ours.first_admit, expected.first_admit_ms),
        "{place}: {ours:?} {expected:?}"
    );
    assert!(
        same(ours.first_token, expected.first_token_ms),
        "{place}: {ours:?} {expected:?}"
    );
    assert!(
        same(ours.last_token, expected.last_token_ms),
        "{place}: {ours:?} {expected:?}"
    );
    assert_eq!(ours.reused, expected.reused_input_tokens, "{place}");
}
