//! Ctrl-C and SIGTERM.

use std::process::{Command, Stdio};

use super::{planner, replay, report, text};

#[test]
fn an_interrupted_replay_writes_what_it_has_and_marks_it() {
    let directory = tempfile::tempdir().unwrap();
    // The planner interrupts its parent in the middle of the run.
    let config = planner("kill -INT $PPID; echo '{}'; exit");
    let load = [
        "--input-tokens",
        "64",
        "--output-tokens",
        "2",
        "--request-count",
        "50000",
    ];
    let more = [
        "--arrival-interval-ms",
        "20",
        "--planner-config",
        &config,
        "--html",
        "page.html",
    ];
    let output = replay(directory.path(), &[&load[..], &more].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let page = std::fs::read_to_string(directory.path().join("page.html")).unwrap();
    assert!(page.contains("report is partial") && page.contains("report (partial)</th>"));
    assert!(said.contains("report.json is a partial report"), "{said}");
    assert!(text(&output.stdout).contains("(partial: the run was interrupted)"));
    let report = report(directory.path());
    assert_eq!(report["partial"], true);
    let completed = report["completed_requests"].as_u64().unwrap();
    assert!((10..50_000).contains(&completed), "{completed}");
}

/// Whether a process runs; one that nobody has waited for yet does not.
fn runs(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    state.is_ok_and(|state| {
        !state
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z')
    })
}

#[test]
fn a_signal_ends_a_replay_whose_planner_does_not_answer_and_the_planner_too() {
    // Once, and again and again: a second signal does not wait for a report.
    for (each, reports) in [
        ("kill -INT $PPID; sleep 600", true),
        ("while kill -INT $PPID; do :; done", false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let config = planner(&format!("echo $$ > pid; {each}"));
        let load = ["--input-tokens", "64", "--output-tokens", "2", "--request-count", "500"];
        let more = ["--arrival-interval-ms", "20", "--planner-config", &config];
        let output = replay(at, &[&load[..], &more].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        if reports {
            assert!(said.contains("report.json is a partial report"), "{said}");
            assert_eq!(report(at)["partial"], true);
        }
        let pid = std::fs::read_to_string(at.join("pid")).unwrap();
        while runs(pid.trim()) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_signal_ends_a_replay_that_waits_for_its_trace_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let pipe = at.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for signal in ["-INT", "-TERM"] {
        let child = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .current_dir(at)
            .args(["replay", "pipe", "--report-json", "report.json"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It can be opened once the replay reads it, and signals are heard before that.
        let writer = std::fs::File::options().write(true).open(&pipe).unwrap();
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        drop(writer);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("interrupted while the workload was read"), "{said}");
        assert!(!at.join("report.json").exists());
    }
}
