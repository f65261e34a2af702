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
fn exit_codes_tell_bad_input_from_a_fleet_that_says_no() {
    let admin = Admin::start(&[]);
    for (args, code, words) in [
        (&["kill", "w0/r7"][..], 1, "no actor w0/r7"),
        (&["kill", "w9"], 2, "selects no worker"),
        (&["kill", "w5-w2"], 2, "reversed"),
        (&["kill", "0%"], 2, "greater than 0%"),
        (&["faults", "add", "w9 hang"], 2, "selects no worker"),
        (&["kill", "everyone"], 2, "no selector"),
        (&["slow", "w0", "-1"], 2, ""),
        (&["faults", "add", "w0 explode"], 2, "no fault kind `explode`"),
        (&["faults", "remove", "f9"], 1, "no fault f9"),
        (&["why", "nobody"], 1, "is under way"),
        (&["--url", "ftp://x", "list"], 2, "no address"),
        (&["--url", "http://127.0.0.1:1", "list"], 1, "cannot reach the fleet"),
        (&["explode"], 2, ""),
    ] {
        let output = ctl(&admin, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
}
