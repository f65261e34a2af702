//! Where results may go.

use super::{replay, text};

#[test]
fn outputs_that_cannot_be_written_are_told_before_the_replay() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join("file"), "").unwrap();
    std::fs::write(at.join("bad.json"), "{").unwrap();
    std::fs::create_dir(at.join("taken")).unwrap();
    // Far more work than any test waits for.
    let long = [
        "--input-tokens=100000",
        "--output-tokens=100000",
        "--request-count=4000000",
        "--replay-concurrency=1000",
    ];
    for (flags, expected) in [
        (&["--report-json=file/r.json"][..], "cannot write file/r.json"),
        (&["--request-records=taken"], "cannot write taken"),
        (&["--html=file/p.html"], "cannot write file/p.html"),
        (&["--html=p.html", "--html-compare", "bad.json"], "bad.json: EOF"),
        (
            &["--html=p.html", "--html-compare", "none.json"],
            "none.json: No such file",
        ),
    ] {
        let output = replay(at, &[&long, flags].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let mut left: Vec<_> = std::fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["bad.json", "file", "taken"]);
}

#[test]
fn outputs_that_would_overwrite_what_is_read_or_written_besides_are_refused_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let row = r#"{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}"#;
    std::fs::write(at.join("t.jsonl"), row).unwrap();
    std::fs::create_dir(at.join("deep")).unwrap();
    std::os::unix::fs::symlink("../t.jsonl", at.join("deep/link")).unwrap();
    std::fs::hard_link(at.join("t.jsonl"), at.join("twin")).unwrap();
    std::fs::write(at.join("policy.yaml"), "").unwrap();
    std::fs::write(at.join("engine.json"), "{}").unwrap();
    std::fs::write(at.join("other.json"), r#"{"completed_requests": 1}"#).unwrap();
    let planner = r#"{"initial_tick_ms": 5, "ticks": []}"#;
    std::fs::write(at.join("plan.sh"), "exit").unwrap();
    let program = r#"{"command": ["sh", "plan.sh"]}"#;
    for (flags, expected) in [
        (
            &["--request-records", "t.jsonl"][..],
            "--request-records t.jsonl is the same file as the trace",
        ),
        (
            &["--report-jsonl", "./t.jsonl"],
            "--report-jsonl ./t.jsonl is the same file as the trace (t.jsonl)",
        ),
        (
            &["--html", "deep/link"],
            "--html deep/link is the same file as the trace (t.jsonl)",
        ),
        (
            &["--html", "twin"],
            "--html twin is the same file as the trace (t.jsonl)",
        ),
        (
            &["--html", "deep/../report.json"],
            "is the same file as --report-json (report.json)",
        ),
        (
            &["--request-records", "x", "--html", "x"],
            "--html x is the same file as --request-records",
        ),
        (
            &["--planner-config", planner, "--planner-log", "report.json"],
            "--planner-log report.json is the same file as --report-json",
        ),
        (
            &["--planner-config", program, "--planner-log", "plan.sh"],
            "--planner-log plan.sh is the same file as a file of the planner's command",
        ),
        (
            &["--router-policy-config", "policy.yaml", "--html", "policy.yaml"],
            "is the same file as the router policy file",
        ),
        (
            &["--extra-engine-args", "engine.json", "--html", "engine.json"],
            "is the same file as --extra-engine-args",
        ),
        (
            &["--html", "other.json", "--html-compare", "other.json"],
            "is the same file as --html-compare",
        ),
    ] {
        let output = replay(at, &[&["t.jsonl"], flags].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(expected), "{said}");
    }
    assert_eq!(std::fs::read_to_string(at.join("t.jsonl")).unwrap(), row);
    assert!(
        !at.join("report.json").exists() && !at.join("x").exists(),
        "nothing is made"
    );
    // Results in a directory that is read would be a part of the corpus next time.
    let output = replay(at, &[".", "--trace-format", "weka"]);
    assert!(
        text(&output.stderr).contains("report.json lies in the trace (.)"),
        "{output:?}"
    );
    let output = replay(
        at,
        &["t.jsonl", "--html", "/dev/null", "--request-records", "/dev/null"],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = replay(at, &["t.jsonl", "--report-json", "new/"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(at.join("new")).unwrap().count(), 1);
    std::fs::write(at.join("other.json"), "{}").unwrap();
    let output = replay(at, &["t.jsonl", "--html", "p.html", "--html-compare", "other.json"]);
    assert!(
        text(&output.stderr).contains("other.json: expected a JSON report"),
        "{output:?}"
    );
}
