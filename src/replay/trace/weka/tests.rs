use std::io::Cursor;

use super::super::super::agentic::{Dependency, HashIds, Relation, Trigger};
use super::*;

const TRACE: &str = r#"{"id":"w","models":["m","m2"],"block_size":4,"hash_id_scope":"local","tool_tokens":1,"requests":[
  {"type":"n","t":1.0,"model":"m","in":8,"out":3,"hash_ids":[1,2],"api_time":0.5,"stop":"x"},
  {"type":"subagent","t":1.6,"agent_id":"a","subagent_type":"k","status":"completed","requests":[
    {"type":"s","t":1.7,"model":"m2","in":4,"out":0,"hash_ids":[9],"api_time":0.2},
    {"type":"n","t":2.0,"model":"m2","in":5,"out":1,"hash_ids":[9],"api_time":0.5}]},
  {"type":"n","t":3.0,"model":"m","in":12,"out":3,"hash_ids":[1,2,3],"api_time":0.5}]}"#;

fn file(name: &str, text: &str) -> WekaFile {
    WekaFile {
        shown: name.to_owned(),
        relative: name.to_owned(),
        several: name.ends_with('l'),
        bytes: text.len() as u64,
    }
}

fn graph(name: &str, text: &str, nested: NestedTimes) -> Result<Graph, TraceError> {
    let file = file(name, text);
    let mut corpus = WekaCorpus::new(None);
    corpus.scan(&file, Cursor::new(text))?;
    let mut reader = corpus.settle(nested, IdSink::default())?;
    reader.read(&file, Cursor::new(text))?;
    reader.finish()
}

/// The request of a place in the document.
fn at<'a>(graph: &'a Graph, place: &str) -> &'a AgenticRequest {
    let ending = format!(":request:{place}");
    let found = graph
        .requests
        .iter()
        .find(|request| request.request_id.ends_with(&ending));
    found.unwrap_or_else(|| panic!("{place} in {:?}", graph.requests))
}

fn ids(request: &AgenticRequest) -> &[u64] {
    let HashIds::Here(ids) = &request.hash_ids else {
        panic!("{request:?}")
    };
    ids
}

fn waits<'a>(graph: &'a Graph, place: &str) -> Vec<(&'a str, Relation, Trigger, f64)> {
    let wait = |edge: &'a Dependency| {
        let place = edge.request_id.split_once(":request:").unwrap().1;
        (place, edge.relation, edge.trigger, edge.delay_ms)
    };
    at(graph, place).dependencies.iter().map(wait).collect()
}

#[test]
fn subagents_are_spawned_and_joined_with_the_recorded_pauses() {
    let graph = graph("w.json", TRACE, NestedTimes::Auto).unwrap();
    assert_eq!(waits(&graph, "outer:0"), []);
    assert_eq!(
        waits(&graph, "outer:1:inner:0"),
        [("outer:0", Relation::Spawn, Trigger::Completion, 200.0)]
    );
    assert_eq!(
        waits(&graph, "outer:1:inner:1"),
        [("outer:1:inner:0", Relation::Sequence, Trigger::Completion, 100.0)]
    );
    assert_eq!(
        waits(&graph, "outer:2"),
        [
            ("outer:0", Relation::Sequence, Trigger::Completion, 1500.0),
            ("outer:1:inner:1", Relation::Join, Trigger::Completion, 500.0)
        ]
    );
    let times = ["outer:0", "outer:1:inner:0", "outer:2"].map(|place| at(&graph, place).not_before_ms);
    assert_eq!(format!("{times:?}"), "[0.0, 700.0, 2000.0]");
    assert_eq!(graph.origin.models, ["m", "m2"]);
    let (first, last) = (at(&graph, "outer:0"), at(&graph, "outer:2"));
    assert_eq!(ids(first), &ids(last)[..2]);
    let (child, longer) = (at(&graph, "outer:1:inner:0"), at(&graph, "outer:1:inner:1"));
    assert_eq!((ids(child).len(), ids(longer).len()), (1, 2));
    assert_eq!(ids(child)[0], ids(longer)[0]);
    assert!(child.session_id.ends_with(":session:subagent:1:a"));
}

#[test]
fn nested_times_count_from_the_marker_when_one_lies_before_it() {
    let text = TRACE
        .replace(r#""t":1.7"#, r#""t":0.1"#)
        .replace(r#""t":2.0"#, r#""t":0.4"#);
    let relative = graph("w.json", &text, NestedTimes::Auto).unwrap();
    assert_eq!(waits(&relative, "outer:1:inner:0")[0].3.to_string(), "200");
    let error = graph("w.json", &text, NestedTimes::Absolute).unwrap_err().to_string();
    assert_eq!(
        error,
        "w.json, line 4: requests[1].requests[0].t is 0.1, before the subagent's own, 1.6; are nested times relative?"
    );
    // The graph is another one, and so is its name.
    let absolute = graph("w.json", TRACE, NestedTimes::Auto).unwrap();
    assert_ne!(relative.origin.digest, absolute.origin.digest);
}

#[test]
fn a_subagent_in_the_background_is_not_waited_for() {
    let text = TRACE.replace("completed", "async_launched");
    let graph = graph("w.json", &text, NestedTimes::Auto).unwrap();
    assert_eq!(waits(&graph, "outer:2").len(), 1);
}

/// Requests of one agent: begin, how long it took, hash ids.
fn agent(requests: &[(f64, f64, &[u64])]) -> String {
    let rows: Vec<String> = requests
        .iter()
        .map(|(t, took, ids)| {
            format!(
                r#"{{"type":"n","t":{t},"model":"m","in":{},"out":100,"hash_ids":{ids:?},"api_time":{took}}}"#,
                ids.len() * 4
            )
        })
        .collect();
    format!(
        r#"{{"id":"w","block_size":4,"hash_id_scope":"local","requests":[{}]}}"#,
        rows.join(",")
    )
}

fn session<'a>(graph: &'a Graph, place: &str) -> &'a str {
    at(graph, place).session_id.split_once(":session:").unwrap().1
}

#[test]
fn a_prompt_that_goes_on_another_way_forks_off_and_one_that_overlaps_waits_for_nobody_in_it() {
    let text = agent(&[
        (0.0, 1.0, &[1, 2]),
        (2.0, 3.0, &[1, 2, 3]),
        // While that runs another one goes on from where it began.
        (2.5, 1.0, &[1, 2, 9]),
        (6.0, 1.0, &[1, 2, 3, 4]),
    ]);
    let graph = graph("w.json", &text, NestedTimes::Auto).unwrap();
    assert_eq!(session(&graph, "outer:3"), "root");
    assert_eq!(session(&graph, "outer:2"), "root:worker:0");
    assert_eq!(
        waits(&graph, "outer:2"),
        [
            ("outer:1", Relation::Spawn, Trigger::Dispatch, 500.0),
            ("outer:0", Relation::ReplayBarrier, Trigger::Completion, 0.0)
        ]
    );
    assert_eq!(
        waits(&graph, "outer:3"),
        [
            ("outer:1", Relation::Sequence, Trigger::Completion, 1000.0),
            ("outer:2", Relation::ReplayBarrier, Trigger::Completion, 0.0)
        ]
    );
}

#[test]
fn a_rewritten_history_goes_on_the_same_conversation_unless_it_is_old_and_little_is_left_of_it() {
    let rewritten = |t: f64| {
        let text = agent(&[(0.0, 1.0, &[1, 2, 3, 4, 5]), (t, 1.0, &[1, 2, 7, 8])]);
        let graph = graph("w.json", &text, NestedTimes::Auto).unwrap();
        session(&graph, "outer:1").to_owned()
    };
    assert_eq!(rewritten(10.0), "root");
    assert_eq!(rewritten(5000.0), "root:worker:0");
}

#[test]
fn a_first_request_with_nothing_in_common_belongs_to_the_main_conversation() {
    let text = agent(&[(0.0, 1.0, &[50]), (2.0, 1.0, &[1, 2]), (4.0, 1.0, &[1, 2, 3])]);
    let graph = graph("w.json", &text, NestedTimes::Auto).unwrap();
    let sessions = ["outer:0", "outer:1", "outer:2"].map(|place| session(&graph, place));
    assert_eq!(sessions, ["root"; 3]);
}

#[test]
fn equal_ids_of_different_documents_are_different_blocks() {
    let graph = graph(
        "w.jsonl",
        &format!("{TRACE}\n{}", TRACE.replace(r#""id":"w""#, r#""id":"v""#)),
        NestedTimes::Auto,
    )
    .unwrap();
    let first: Vec<&AgenticRequest> = graph.requests.iter().filter(|found| found.input_tokens == 8).collect();
    assert_eq!(first.len(), 2);
    assert_ne!(first[0].hash_ids, first[1].hash_ids);
    assert_eq!(
        first
            .iter()
            .map(|request| request.source_play_ordinal)
            .collect::<Vec<_>>(),
        [Some(0), Some(1)]
    );
}

#[test]
fn a_value_that_is_wrong_is_refused_with_its_place() {
    refused(&[
        (
            TRACE.replace(r#""in":5"#, r#""in":0"#),
            "w.json, line 5: requests[1].requests[1].in is 0, expected at least 1",
        ),
        (
            TRACE.replace(r#""in":12"#, r#""in":"x""#),
            "w.json, line 6: requests[2].in is \"x\", expected a whole number from 0 to 4294967295",
        ),
        (
            TRACE.replace(r#""t":2.0"#, r#""t":"x""#),
            "w.json, line 5: requests[1].requests[1].t is \"x\", expected a number",
        ),
        (
            TRACE.replace("[1,2],", "[1,-2],"),
            "w.json, line 2: requests[0].hash_ids[1] is -2, expected a whole number from 0 on",
        ),
        (
            TRACE.replace(r#""agent_id":"a","#, ""),
            "w.json, line 3: requests[1].agent_id is missing",
        ),
        (
            TRACE.replace(r#""type":"n","t":1.0"#, r#""type":"z","t":1.0"#),
            "w.json, line 2: requests[0].type is \"z\", expected \"n\", \"s\" or \"subagent\"",
        ),
        (
            TRACE.replace(r#""type":"s","t":1.7"#, r#""t":1.7"#),
            "w.json, line 4: requests[1].requests[0].type is missing",
        ),
        (
            TRACE.replace(r#""in":8"#, r#""in":8,"in":9"#),
            "w.json, line 2: requests[0].in is given twice",
        ),
        (
            TRACE.replace(r#""t":1.0"#, r#""t":1e300"#),
            "w.json, line 2: requests[0].t is 1e300, expected seconds",
        ),
        (
            TRACE.replace(r#""models":["m","m2"]"#, r#""models":5"#),
            "w.json, line 1: models is 5, expected an array",
        ),
        (
            TRACE.replace(r#""block_size":4,"#, ""),
            "w.json, line 1: block_size is missing",
        ),
        (
            TRACE.replace(r#""block_size":4"#, r#""block_size":0"#),
            "w.json, line 1: block_size is 0",
        ),
        (
            TRACE.replace(r#""t":3.0"#, r#""t":-3.0"#),
            "w.json, line 6: requests[2].t is -3",
        ),
        (
            TRACE.replace(r#""api_time":0.2"#, r#""api_time":-1"#),
            "w.json, line 4: requests[1].requests[0].api_time is -1",
        ),
    ]);
}

#[test]
fn a_document_that_does_not_hold_together_is_refused_with_the_place() {
    refused(&[
        (
            TRACE.replace("local", "global"),
            "w.json, line 1: hash_id_scope is \"global\", expected \"local\"",
        ),
        (
            TRACE.replace("completed", "failed"),
            "w.json, line 3: requests[1].status is \"failed\", expected completed or async_launched",
        ),
        (
            TRACE.replace(r#"["m","m2"]"#, r#"["m"]"#),
            "w.json, line 4: requests[1].requests[0].model is m2, which is not among",
        ),
        (
            TRACE.replace(r#""type":"n","t":1.0"#, r#""type":"n","t":9.0"#).replace(
                r#"{"type":"n","t":9.0,"model":"m","in":8,"out":3,"hash_ids":[1,2],"api_time":0.5,"stop":"x"},"#,
                "",
            ),
            "w.json, line 3: requests[0] is a subagent before the first request",
        ),
        (
            TRACE.replace(
                r#""models":["m","m2"],"block_size":4"#,
                "\n\"models\":[\"m\",\n \"\"],\n\"block_size\":4",
            ),
            "w.json, line 3: models[1] is empty",
        ),
        (
            TRACE.replace(r#""tool_tokens":1"#, r#""tool_tokens":"many""#),
            "w.json, line 1: tool_tokens is \"many\", expected a whole number from 0 on",
        ),
        (
            TRACE.replace(r#""stop":"x""#, r#""stop":5"#),
            "w.json, line 2: requests[0].stop is 5, expected a string",
        ),
        (format!("{TRACE}\n{TRACE}"), "w.json: a second document"),
        (format!("{TRACE} x"), "w.json, line 6: not JSON: expected value"),
        (TRACE[..300].to_owned(), "w.json, line "),
        (String::new(), "w.json: no requests in the trace"),
    ]);
}

/// Each text is refused with words that begin like this.
#[track_caller]
fn refused(cases: &[(String, &str)]) {
    for (text, expected) in cases {
        let error = graph("w.json", text, NestedTimes::Auto)
            .err()
            .map(|error| error.to_string());
        assert!(
            error.as_ref().is_some_and(|error| error.starts_with(expected)),
            "{error:?} {expected}"
        );
    }
}

#[test]
fn a_file_that_changes_between_its_readings_is_an_error() {
    let whole = file("w.jsonl", TRACE);
    let mut corpus = WekaCorpus::new(None);
    corpus.scan(&whole, Cursor::new(TRACE)).unwrap();
    let mut reader = corpus.settle(NestedTimes::Auto, IdSink::default()).unwrap();
    let twice = format!("{TRACE}\n{TRACE}");
    let error = reader.read(&whole, Cursor::new(&twice)).unwrap_err().to_string();
    assert_eq!(error, "w.jsonl: the file changed while it was read");
    let grown = WekaCorpus::new(None)
        .scan(&whole, Cursor::new(&twice))
        .unwrap_err()
        .to_string();
    assert!(grown.contains("the file changed while it was read"), "{grown}");
}
