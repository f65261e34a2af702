//! The drills that ship, each with a router of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ghostfleet::drill::scenario::server::Server;
use ghostfleet::drill::{Options, Scenario, Status, run};

use crate::release::Release;

fn gallery() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/drills")
}

/// A drill that ships, with the Python of 1.6.1.
fn read(name: &str) -> Scenario {
    let path = gallery().join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).expect("the drill is there");
    let mut scenario = Scenario::parse(&path, &text).expect("the drill can be read");
    let Some(Server::Command(command)) = &mut scenario.frontend else {
        panic!("{name} starts its own router");
    };
    command.words[0] = Release::V1_6_1.python().display().to_string();
    scenario
}

#[track_caller]
fn passes(name: &str) {
    let scenario = read(name);
    let report = run(&scenario, Options::default()).expect("the drill runs to its end");
    eprintln!("{}", report.text());
    let failed = report
        .judgements
        .iter()
        .filter(|judgement| judgement.status == Status::Fail);
    let failed: Vec<&str> = failed.map(|judgement| judgement.name.as_str()).collect();
    let known = KNOWN
        .iter()
        .filter(|(drill, _)| *drill == name)
        .map(|(_, check)| *check);
    assert_eq!(
        failed,
        known.collect::<Vec<_>>(),
        "{name}: checks that fail are not those that Dynamo 1.6.1 is known to fail; one that passes by now is to be taken \
         out of KNOWN, and out of the drill's description and the README"
    );
    assert_eq!(report.errors().next(), None);
    let skipped = report
        .judgements
        .iter()
        .filter(|judgement| judgement.status == Status::Skipped);
    assert_eq!(skipped.count(), 0, "every check applies");
    let mut answers = report
        .record
        .requests
        .iter()
        .filter(|request| request.failure.is_none());
    assert!(
        answers.all(|answer| answer.is_judged),
        "what answers consist of was judged"
    );
}

/// What Dynamo 1.6.1 gets wrong: drills and the checks that show it.
const KNOWN: [(&str, &str); 1] = [("restart-at-zero", "the former cache is forgotten")];

macro_rules! drills {
    ($($test:ident: $name:literal)+) => {
        const TESTED: &[&str] = &[$($name),+];

        $(
            #[test]
            #[ignore = "needs a Dynamo frontend: scripts/test"]
            fn $test() {
                passes($name);
            }
        )+
    };
}

drills! {
    cache_clear_unannounced: "cache-clear-unannounced"
    cancelled_stream: "cancelled-stream"
    changed_block_size: "changed-block-size"
    connection_storm: "connection-storm"
    crash_hottest: "crash-hottest"
    duplicate_hash: "duplicate-hash"
    event_gap: "event-gap"
    hang_mid_stream: "hang-mid-stream"
    hanging_recovery: "hanging-recovery"
    late_event: "late-event"
    lease_blip: "lease-blip"
    overload: "overload"
    prefill_lost: "prefill-lost"
    registration_storm: "registration-storm"
    restart_at_zero: "restart-at-zero"
    rolling_restart: "rolling-restart"
    silent_publisher: "silent-publisher"
    slow_decode: "slow-decode"
    two_sources: "two-sources"
    zombie_key: "zombie-key"
}

#[test]
#[ignore = "needs a Dynamo frontend: scripts/test"]
fn a_router_that_moves_no_streams_fails_the_crash_drill() {
    let mut scenario = read("crash-hottest");
    let Some(Server::Command(command)) = &mut scenario.frontend else {
        panic!("the drill starts its own router");
    };
    for word in &mut command.words {
        if word == "3" {
            *word = "0".to_owned();
        }
    }
    let report = run(&scenario, Options::default()).expect("the drill runs to its end");
    let failed = report
        .judgements
        .iter()
        .filter(|judgement| judgement.status == Status::Fail);
    let failed: Vec<&str> = failed.map(|judgement| judgement.name.as_str()).collect();
    assert_eq!(failed, ["no client sees it", "streams are moved"], "{}", report.text());
}

#[test]
fn every_drill_that_ships_is_run() {
    let files = std::fs::read_dir(gallery()).expect("the gallery is there");
    let names = files.map(|file| file.expect("a directory can be read").path());
    let names: BTreeSet<String> = names
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .collect();
    assert_eq!(names, TESTED.iter().map(|name| (*name).to_owned()).collect());
}
