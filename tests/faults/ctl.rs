//! The `ctl` command against a running fleet.

use std::process::{Command, Output};

use serde_json::Value;

use crate::admin::Admin;

fn ctl(admin: &Admin, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .arg("ctl")
        .args(args)
        .env("GHOSTFLEET_ADMIN_URL", &admin.url)
        .env_remove("GHOSTFLEET_ADMIN_TOKEN")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn done(admin: &Admin, args: &[&str]) -> String {
    let output = ctl(admin, args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    said(&output)
}

#[test]
fn ctl_looks_breaks_and_mends() {
    let admin = Admin::start(&["--num-workers", "3"]);
    assert_eq!(done(&admin, &["list"]).lines().count(), 4);
    assert!(done(&admin, &["kill", "w1"]).contains("w1"));
    admin
        .scene
        .until("w1 is dead", |_| done(&admin, &["list", "w1"]).contains("dead"));
    assert!(done(&admin, &["heal", "w1"]).contains("w1"));
    admin
        .scene
        .until("w1 is well", |_| done(&admin, &["list", "w1"]).contains("ready"));
    assert!(done(&admin, &["slow", "w0-w1", "3", "--for", "30s"]).contains("factor=3.0"));
    done(&admin, &["hang", "w2"]);
    done(&admin, &["cut", "label:engine=vllm", "--tokens", "2"]);
    done(&admin, &["faults", "add", "* stall ms=1 p=0.1", "w0 reject from=1m"]);
    assert_eq!(done(&admin, &["faults"]).lines().count(), 6);
    done(&admin, &["faults", "remove", "f1"]);
    done(&admin, &["faults", "clear"]);
    assert_eq!(done(&admin, &["faults"]).trim(), "no faults");
    done(&admin, &["clear-cache", "w0"]);
    done(&admin, &["clear-cache", "*", "--event", "without"]);
    assert!(done(&admin, &["faults", "kinds"]).contains("events.gap"));
    let slow = done(&admin, &["faults", "kinds", "slow"]);
    assert!(slow.contains("a number from 0 to 4096 (times) needed"), "{slow}");
    assert!(done(&admin, &["faults", "journal"]).contains("crash w1"));
    let newest = done(&admin, &["faults", "journal", "--last", "2"]);
    assert_eq!(newest.lines().count(), 4, "{newest}");
    assert!(newest.contains("earlier entries are not shown"), "{newest}");
    assert!(done(&admin, &["show", "w0/r0"]).contains("activity: idle"));
    assert!(done(&admin, &["show", "w1"]).contains("budget: 5"));
    assert!(done(&admin, &["fleet"]).contains("open_streams: 0"));
    assert!(done(&admin, &["records"]).contains("generate"));
    assert!(done(&admin, &["cache", "w0"]).contains("by_depth"));
    assert_eq!(
        done(&admin, &["cache", "w0/r0", "--blocks"]).lines().count(),
        1,
        "the head alone"
    );
    assert_eq!(done(&admin, &["why", "--worker", "w1"]).lines().count(), 1);
    done(&admin, &["restart", "w0", "--same-id"]);
    done(&admin, &["drain", "w2"]);
    assert!(done(&admin, &["why"]).contains("request"));
    assert!(done(&admin, &["top", "--once"]).contains("tok/s"));
    let rows: Value = serde_json::from_str(&done(&admin, &["--json", "list", "w0"])).unwrap();
    assert_eq!(rows[0]["path"], "w0");
}

#[test]
fn one_change_removes_and_adds_and_one_replaces_everything() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let ids = |said: &str| -> Vec<String> {
        let words = said.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        words.map(str::to_owned).collect()
    };
    done(&admin, &["faults", "add", "w0 stall ms=5", "w1 stall ms=5"]);
    assert_eq!(
        ids(&done(&admin, &["faults", "add", "w0 stall ms=9", "--remove", "f1"])),
        ["f3"]
    );
    assert_eq!(ids(&done(&admin, &["faults"])), ["f2", "f3"]);
    let refused = ctl(&admin, &["faults", "replace", "w0 stall ms=7", "w9 hang"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(ids(&done(&admin, &["faults"])), ["f2", "f3"], "all or nothing");
    assert_eq!(ids(&done(&admin, &["faults", "replace", "w0 stall ms=7"])), ["f4"]);
    assert_eq!(ids(&done(&admin, &["faults"])), ["f4"]);
}

#[test]
fn a_seed_says_whom_a_random_selector_picks() {
    let admin = Admin::start(&["--num-workers", "12", "--stagger-delay", "0"]);
    let picked = |seed: &str| done(&admin, &["clear-cache", "random(2)", "--seed", seed]);
    assert_eq!(picked("3"), picked("3"));
    let seeds = ["3", "4", "5", "6", "7", "8", "9"];
    assert!(seeds.iter().any(|seed| picked(seed) != picked("3")), "the seed decides");
}

#[test]
fn changes_are_followed_line_by_line() {
    let admin = Admin::start(&["--num-workers", "2"]);
    done(&admin, &["kill", "w1"]);
    let said = done(&admin, &["live", "--after", "0", "--every-ms", "0", "--events", "1"]);
    assert!(said.contains("w0 starting") || said.contains("w1 starting"), "{said}");
    let rows = done(
        &admin,
        &["live", "--workers", "rows", "--every-ms", "100", "--events", "1"],
    );
    let rows: Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(
        (&rows["event"], &rows["data"]["workers"][0]["path"]),
        (&"sample".into(), &"w0".into())
    );
    let sums = done(&admin, &["live", "--events", "1"]);
    assert!(sums.contains(" ready, ") && sums.contains(" tokens"), "{sums}");
}

#[test]
fn exit_codes_tell_bad_input_from_a_fleet_that_says_no() {
    let admin = Admin::start(&[]);
    for (args, code, words) in [
        (&["kill", "w0/r7"][..], 1, "no actor w0/r7"),
        (&["kill", "w9"], 2, "selects no worker"),
        (&["kill", "w0,w9"], 2, "w9 selects no worker"),
        (&["drain", "w0/r0"], 2, "whole workers"),
        (&["cache", "w0/r0", "--former"], 2, "whole workers"),
        (&["hang", "w0/r0"], 2, "a part of a worker"),
        (&["kill", "w5-w2"], 2, "reversed"),
        (&["kill", "0%"], 2, "greater than 0%"),
        (&["faults", "add", "w9 hang"], 2, "selects no worker"),
        (&["kill", "everyone"], 2, "no selector"),
        (&["slow", "w0", "-1"], 2, ""),
        (&["faults", "add", "w0 explode"], 2, "no fault kind `explode`"),
        (&["faults", "remove", "f9"], 1, "no fault f9"),
        (&["why", "nobody"], 1, "is under way"),
        (&["why", "--worker", "w99"], 2, "no actor w99"),
        (&["why", "--worker", "w0/r0"], 2, "whole workers"),
        (&["list", "w99"], 2, "selects no worker"),
        (&["faults", "kinds", "explode"], 2, "no fault kind `explode`"),
        (&["faults", "add", "w0 hang", "--remove", "f9"], 2, "no fault f9"),
        (&["--url", "ftp://x", "list"], 2, "no address"),
        (
            &["--url", &admin.url.replace("http:", "https:"), "list"],
            1,
            "use http://",
        ),
        (&["--url", "http://127.0.0.1:1", "list"], 1, "cannot reach the fleet"),
        (&["explode"], 2, ""),
    ] {
        let output = ctl(&admin, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
}
