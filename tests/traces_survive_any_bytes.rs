//! Whatever a trace file holds, reading it ends with a workload or an error, and a workload that was read can be played.

#![allow(clippy::unwrap_used)]

use std::io::Cursor;

use ghostfleet::engine::Semantics;
use ghostfleet::replay::trace::{
    Lines, MooncakeOptions, MooncakeRows, MooncakeScan, NestedTimes, RequestTrace, RequestTraceReader, SharedPrefix,
    TraceError, WekaCorpus, WekaFile, read_agentic, read_applied_compute, read_mooncake,
};
use ghostfleet::replay::{AgenticSource, Graph, IdSink, Load, SessionSource, Source, StreamSource, Terminal};
use ghostfleet::types::SimTime;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Requests that are played of a workload.
const PLAYED: usize = 200;

const SAMPLES: [&str; 7] = [
    r#"{"session_id":"a","timestamp":10,"input_length":5,"output_length":3,"hash_ids":[1,2],"priority":1,"policy_class":"c"}
{"session_id":"a","delay":5.5,"input_tokens":5,"output_tokens":1,"output_token_ids":[7],"hash_ids":[18446744073709551615]}"#,
    r#"{"timestamp":0,"output_length":1,"hash_ids":[4]}
{"created_time":1e2,"output_length":1,"hash_ids":[4,5,6]}"#,
    r#"{"schema":"dynamo.agentic_mooncake","version":2,"block_size":8,"hash_id_scope":"local","source":{"format":"f","digest":"d"}}
{"request_id":"a","play_id":"p","session_id":"s","model":"m","not_before_ms":1,"input_length":5,"output_length":1,"hash_ids":[1]}
{"request_id":"b","play_id":"p","session_id":"s","model":"m","not_before_ms":1,"input_length":8,"output_length":1,"hash_ids":[1],"dependencies":[{"request_id":"a","trigger":"dispatch","delay_ms":4,"relation":"spawn"}]}"#,
    r#"{"request_id":"a","timestamp":3,"output_length":1,"hash_ids":[1]}
{"request_id":"b","wait_for":["a"],"tool_wait_ms":7,"output_length":1,"hash_ids":[1]}"#,
    r#"{"num_turns":2,"input_prompt_length":90,"assistant_response_length":[3,4],"tool_call_output_length":[5,6],"tool_call_latency":[0.5,1],"final_assistant_response_length":9}"#,
    r#"{"event":{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1764500000000,"agent_context":{"session_id":"s"},"request":{"request_id":"r","output_tokens":3,"total_time_ms":5.5,"replay":{"trace_block_size":64,"input_length":100,"input_sequence_hashes":[5,7]}}}}
{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1764500000100,"agent_context":{"session_id":"c","parent_session_id":"s"},"request":{"request_id":"q","output_tokens":3,"request_received_ms":1764500000090,"replay":{"trace_block_size":64,"input_length":100,"input_sequence_hashes":[5,7]}}}"#,
    r#"{"id":"w","models":["m"],"block_size":4,"hash_id_scope":"local","requests":[{"type":"n","t":1.0,"model":"m","in":8,"out":3,"hash_ids":[1,2],"api_time":0.5},{"type":"subagent","t":1.6,"agent_id":"a","subagent_type":"k","status":"completed","requests":[{"type":"s","t":1.7,"model":"m","in":4,"out":0,"hash_ids":[9]}]},{"type":"n","t":3.0,"model":"m","in":12,"out":3,"hash_ids":[1,2,3]}]}"#,
];

fn play(source: &mut dyn Source) {
    let mut now = SimTime::ZERO;
    let mut played = 0;
    loop {
        while let Some(turn) = source.take(now) {
            let prompt = source.prompt(turn.tag);
            assert!(prompt.len() <= turn.input_tokens);
            source.ended(turn.tag, now, Terminal::Completed);
            played += 1;
            if played == PLAYED {
                return;
            }
        }
        match source.next_at() {
            Some(next) => now = now.max(next),
            None => return,
        }
    }
}

fn read_everything(bytes: &[u8]) {
    let lines = || Lines::new("t", bytes);
    for load in [Load::Timestamps { speedup: 3.0 }, Load::Concurrency(2)] {
        for delta in [false, true] {
            let options = MooncakeOptions {
                block_tokens: 16,
                delta,
                timed: load != Load::Concurrency(2),
                rules: Semantics::V1_6_1,
            };
            let rows = || MooncakeRows::new(lines(), options);
            if let Ok(trace) = read_mooncake(rows()) {
                play(&mut SessionSource::new(trace, load));
            }
            if let Ok(scan) = MooncakeScan::of(rows())
                && let Some(mut source) = StreamSource::new(rows(), scan, load)
            {
                play(&mut source);
            }
        }
    }
    let mut graphs = Vec::new();
    graphs.extend(read_agentic(lines(), None, 16, IdSink::default()));
    let prefix = SharedPrefix { ratio: 0.5, groups: 3 };
    if let Ok(trace) = read_applied_compute(lines(), 16, prefix) {
        play(&mut SessionSource::new(trace, Load::Concurrency(1)));
    }
    for rules in [Semantics::V1_6_1, Semantics::V1_4_2] {
        let mut reader = RequestTraceReader::new(None, rules);
        if reader.read(lines()).is_ok() {
            match reader.finish() {
                Ok(RequestTrace::Independent(trace)) => {
                    play(&mut SessionSource::new(trace, Load::Timestamps { speedup: 1.0 }));
                }
                Ok(RequestTrace::Agentic(graph)) => graphs.push(graph),
                Err(_) => {}
            }
        }
    }
    for nested in [NestedTimes::Auto, NestedTimes::Absolute, NestedTimes::Relative] {
        graphs.extend(weka(bytes, nested));
    }
    for graph in graphs {
        for lanes in [None, Some(1)] {
            if let Ok(mut source) = AgenticSource::new(graph.clone(), 2.0, lanes) {
                play(&mut source);
            }
        }
    }
}

/// A sample in which some numbers, or some bytes, are others.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let numbers = [
        "-1",
        "0",
        "4294967295",
        "18446744073709551615",
        "1e308",
        "1e400",
        "null",
        "\"x\"",
        "[]",
        "67108864",
    ];
    let swap = (any::<Index>(), select(numbers.to_vec()));
    let bytes = vec((any::<Index>(), any::<u8>()), 0..2);
    (select(SAMPLES.to_vec()), vec(swap, 0..4), bytes).prop_map(|(sample, swaps, bytes)| {
        let mut text = sample.to_owned();
        for (at, number) in swaps {
            let digits = |place: &usize| text.as_bytes()[*place].is_ascii_digit();
            let places: Vec<usize> = (0..text.len()).filter(digits).collect();
            if places.is_empty() {
                break;
            }
            let begin = places[at.index(places.len())];
            let end = (begin..text.len()).find(|at| !text.as_bytes()[*at].is_ascii_digit());
            text.replace_range(begin..end.unwrap_or(text.len()), number);
        }
        let mut text = text.into_bytes();
        for (at, byte) in bytes {
            let at = at.index(text.len());
            text[at] = byte;
        }
        text
    })
}

#[test]
fn every_sample_is_a_workload_of_its_reader() {
    for sample in SAMPLES {
        read_everything(sample.as_bytes());
    }
    let options = MooncakeOptions {
        block_tokens: 16,
        delta: false,
        timed: true,
        rules: Semantics::V1_6_1,
    };
    for sample in &SAMPLES[..2] {
        read_mooncake(MooncakeRows::new(Lines::new("t", sample.as_bytes()), options)).unwrap();
    }
    for sample in &SAMPLES[2..4] {
        read_agentic(Lines::new("t", sample.as_bytes()), None, 16, IdSink::default()).unwrap();
    }
    read_applied_compute(Lines::new("t", SAMPLES[4].as_bytes()), 16, SharedPrefix::default()).unwrap();
    let mut reader = RequestTraceReader::new(None, Semantics::V1_6_1);
    reader.read(Lines::new("t", SAMPLES[5].as_bytes())).unwrap();
    reader.finish().unwrap();
    weka(SAMPLES[6].as_bytes(), NestedTimes::Auto).unwrap();
}

fn weka(bytes: &[u8], nested: NestedTimes) -> Result<Graph, TraceError> {
    let file = WekaFile {
        shown: "t".into(),
        relative: "t".into(),
        several: true,
        bytes: bytes.len() as u64,
    };
    let mut corpus = WekaCorpus::new(None);
    corpus.scan(&file, Cursor::new(bytes))?;
    let mut reader = corpus.settle(nested, IdSink::default())?;
    reader.read(&file, Cursor::new(bytes))?;
    reader.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..300)) {
        read_everything(&bytes);
    }

    #[test]
    fn damaged_traces_are_survived(bytes in damaged()) {
        read_everything(&bytes);
    }
}
