//! The scenarios that ship. `real_frontend` runs them; here they are read.

use std::collections::BTreeSet;

use ghostfleet::drill::check::judge;
use ghostfleet::drill::record::{Arrival, Drift, Failure, Held, Moment, Request, Sample};
use ghostfleet::drill::{Record, Scenario, Status};
use ghostfleet::faults::select::{Candidate, KvEvents};
use ghostfleet::types::WorkerId;

use crate::scene::drills;

#[test]
fn every_scenario_that_ships_reads_and_says_what_a_good_router_does() {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(drills()).unwrap() {
        let path = entry.unwrap().path();
        let scenario = Scenario::parse(&path, &std::fs::read_to_string(&path).unwrap()).unwrap();
        let words: Vec<&str> = scenario.description.split_whitespace().collect();
        assert!(words.join(" ").contains("A good router"), "{}", path.display());
        assert!(
            scenario.duration.0 <= 20.0 && !scenario.checks.is_empty(),
            "{}",
            path.display()
        );
        names.insert(scenario.name);
    }
    let wanted = [
        "cache-clear-unannounced",
        "connection-storm",
        "crash-hottest",
        "event-gap",
        "hang-mid-stream",
        "lease-blip",
        "overload",
        "prefill-lost",
        "registration-storm",
        "restart-at-zero",
        "rolling-restart",
        "silent-publisher",
        "slow-decode",
        "zombie-key",
    ];
    let missing: Vec<_> = wanted.iter().filter(|name| !names.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Before the first disturbance all is well; afterwards everything happens that must not (`noise`), or nothing at all.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::too_many_lines)]
fn ruined(scenario: &Scenario, noise: bool) -> Record {
    let begin = scenario
        .first_disturbance()
        .map_or(scenario.duration.0 / 2.0, |at| at.0);
    let workers = scenario
        .fleet
        .keys
        .get("num_workers")
        .and_then(toml::Value::as_integer)
        .unwrap_or(5);
    let workers: Vec<u32> = (0..u32::try_from(workers).unwrap()).collect();
    let request = |load: usize, sent: f64, ttft: f64| Request {
        load,
        number: 0,
        sent,
        first: Some(sent + ttft),
        last: Some(sent + ttft + 0.01),
        ended: sent + ttft + 0.01,
        tokens: 2,
        gap: 0.01,
        failure: None,
        id: None,
        instance: None,
        workers: vec![0],
        is_counted: true,
        is_judged: true,
        believed_hit: Some(0.9),
    };
    let mut record = Record {
        warmup: scenario.warmup.0,
        duration: scenario.duration.0,
        has_frontend: true,
        prefill: vec![false; workers.len()],
        loads: scenario.loads.iter().map(|load| load.name.clone()).collect(),
        ..Record::default()
    };
    record.workers = workers
        .iter()
        .map(|id| Candidate {
            id: WorkerId(*id),
            group: String::new(),
            labels: Vec::new(),
            alive: true,
            requests: 0,
            cached_blocks: 0,
            events: KvEvents::default(),
        })
        .collect();
    record.moments = scenario
        .steps
        .iter()
        .map(|step| Moment {
            mark: step.mark.clone(),
            at: step.at.0,
            lines: Vec::new(),
            disturbs: step.disturbs(),
            may_miss: false,
            faults: Vec::new(),
            victims: if noise { vec![0, 1] } else { Vec::new() },
            errors: Vec::new(),
        })
        .collect();
    for slice in 0..u32::try_from((scenario.duration.0 * 20.0) as i64).unwrap() {
        let at = f64::from(slice) / 20.0;
        let after = at >= begin;
        for load in 0..record.loads.len() {
            if !after {
                record.requests.push(request(load, at, 0.01));
            } else if noise {
                let kind = ["truncated", "first_token_timeout", "http_500", "timeout"][slice as usize % 4];
                record.requests.push(Request {
                    ended: at + 60.0,
                    last: Some(at + 59.0),
                    gap: 50.0,
                    workers: vec![0, 1],
                    failure: Some(Failure {
                        kind: kind.to_owned(),
                        detail: String::new(),
                    }),
                    ..request(load, at, 9.0)
                });
            }
        }
        if after && noise {
            record.arrivals.extend([0, 0, 0, 1].map(|worker| Arrival {
                at,
                worker: Some(worker),
                alive: true,
                request: String::new(),
            }));
        }
        let tokens = u64::from(slice) * 100;
        record.samples.push(Sample {
            at,
            ready: 0,
            held: Held::default(),
            prompt_tokens: tokens,
            cached_tokens: if after {
                (begin * 1800.0) as u64
            } else {
                tokens * 9 / 10
            },
            tokens,
            recoveries: if after && noise { u64::from(slice) } else { 0 },
            load: Vec::new(),
        });
        record.drift.push(Drift {
            at,
            missing: u64::from(after && noise) * 50,
            phantom: 0,
            cached: 100,
        });
    }
    if noise {
        record.held = Held {
            streams: 9,
            sequences: 9,
            blocks: 9,
            rooms: 9,
        };
    }
    record
}

#[test]
fn every_check_that_ships_fails_when_everything_goes_wrong_or_nothing_goes() {
    for entry in std::fs::read_dir(drills()).unwrap() {
        let path = entry.unwrap().path();
        let scenario = Scenario::parse(&path, &std::fs::read_to_string(&path).unwrap()).unwrap();
        let records = [ruined(&scenario, true), ruined(&scenario, false)];
        for check in &scenario.checks {
            let fails = records.iter().any(|record| judge(check, record).status == Status::Fail);
            assert!(fails, "{}: {:?} cannot fail", path.display(), check.expect);
        }
    }
}
