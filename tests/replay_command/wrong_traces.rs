//! What is said of traces that make no sense.

use super::{replay, text};

#[test]
fn what_is_wrong_with_a_graph_has_file_line_and_field() {
    let directory = tempfile::tempdir().unwrap();
    let header = r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":8,"hash_id_scope":"local","source":{"format":"f","digest":"d"}}"#;
    let row = |name: &str, waits_for: &str| {
        format!(
            r#"{{"request_id":"{name}","play_id":"p","session_id":"s","model":"m","not_before_ms":0,"input_length":8,"output_length":1,"hash_ids":[1],"dependencies":[{{"request_id":"{waits_for}","trigger":"completion","delay_ms":0,"relation":"sequence"}}]}}"#
        )
    };
    let record = |name: &str, start: u32, agent: &str| {
        format!(
            r#"{{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":{},"agent_context":{agent},"request":{{"request_id":"{name}","output_tokens":1,"request_received_ms":{start},"total_time_ms":10,"replay":{{"trace_block_size":8,"input_length":8,"input_sequence_hashes":[1]}}}}}}"#,
            start + 10
        )
    };
    let session = r#"{"session_id":"s"}"#;
    for (form, rows, expected) in [
        (
            "agentic_mooncake",
            [header.to_owned(), row("a", "zz")],
            "t.jsonl, line 2: dependencies of request a names zz, expected the request_id of a line of this trace",
        ),
        (
            "agentic_mooncake",
            [header.to_owned(), row("a", "a")],
            "t.jsonl, line 2: dependencies of request a names the request itself",
        ),
        (
            "dynamo",
            [record("a", 100, session), record("b", 105, session)],
            "t.jsonl, line 2: request b began 5 ms before the end of a",
        ),
        (
            "dynamo",
            [
                record("a", 100, session),
                record("b", 200, r#"{"session_id":"t","parent_session_id":"x"}"#),
            ],
            "t.jsonl, line 2: agent_context.parent_session_id of session t is x, of which there is no request",
        ),
        (
            "dynamo",
            [record("a", 100, session), record("b", 200, "5")],
            "t.jsonl, line 2: agent_context is 5, expected an object",
        ),
        (
            "dynamo",
            [record("a", 100, session), record("a", 200, session)],
            "t.jsonl, line 2: request.request_id is a, as in a line before",
        ),
    ] {
        std::fs::write(directory.path().join("t.jsonl"), rows.join("\n")).unwrap();
        let output = replay(directory.path(), &["t.jsonl", "--trace-format", form]);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn times_beyond_the_clock_are_refused_one_by_one_and_in_sum() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.jsonl");
    let row = |time: &str| format!(r#"{{"session_id":"s",{time},"input_length":8,"output_length":2,"hash_ids":[1]}}"#);
    std::fs::write(&path, row(r#""timestamp":1e308"#)).unwrap();
    let output = replay(directory.path(), &["t.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(
        said.contains("t.jsonl, line 1: timestamp is 1e308, expected ms from -4e12 to 4e12"),
        "{said}"
    );
    let rows: Vec<String> = (0..4)
        .map(|at| row(if at == 0 { r#""timestamp":0"# } else { r#""delay":4e12"# }))
        .collect();
    std::fs::write(&path, rows.join("\n")).unwrap();
    let output = replay(directory.path(), &["t.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("the end of the clock"), "{said}");
}

#[test]
fn whoever_means_standard_input_is_told_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let output = replay(directory.path(), &["-"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("-: no such file; standard input is /dev/stdin"), "{said}");
}
