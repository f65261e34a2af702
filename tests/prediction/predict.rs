//! The YAML form of a replay.

use tempfile::TempDir;

use super::{json, refuse, succeed, timeless};

const DOCUMENT: &str = "
traffic:
  source: {input_tokens: 300, output_tokens: 20}
  load: {concurrency: 6}
  stop: {requests: 30}
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      parallelism: {replicas: 3, tensor: 2, attention_data: 2}
      scheduler: {max_sequences: 4}
      kv_cache: {block_size: 32, capacity: {type: fixed, blocks: 500}}
      timing: {type: fixed, prefill_ms: 20, decode_ms: 5}
router: {policy: kv_router, overlap_score_credit: 0.5}
evaluation: {sla: {ttft_ms: 60}}
";

fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("p.yaml"), DOCUMENT).unwrap();
    directory
}

#[test]
fn a_document_is_the_replay_of_the_same_flags() {
    let directory = directory();
    let at = directory.path();
    let args = ["predict", "-c", "p.yaml", "--stack", "dynamo", "--capture-per-request"];
    let said = succeed(at, &args);
    assert!(
        said.contains("Time to First Token (ms)") && said.contains("prediction.json"),
        "{said}"
    );
    let prediction = json(&at.join("ghostfleet-output/prediction.json"));
    let engine = r#"{"engine": {"backend": "vllm", "max_num_seqs": 4, "max_num_batched_tokens": 8192, "block_size": 32,
        "num_gpu_blocks": 500, "timing_model": {"type": "fixed", "prefill_ms": 20, "decode_ms": 5}}, "dp_size": 2}"#;
    succeed(
        at,
        &[
            "replay",
            "--input-tokens=300",
            "--output-tokens=20",
            "--request-count=30",
            "--replay-concurrency=6",
            "--num-workers=3",
            "--router-mode=kv_router",
            r#"--router-config={"overlap_score_credit": 0.5}"#,
            "--sla-ttft-ms=60",
            "--extra-engine-args",
            engine,
            "--report-json=r.json",
            "--request-records=r.jsonl",
        ],
    );
    let mut predicted = timeless(prediction["summary"].clone());
    let mut replayed = timeless(json(&at.join("r.json")));
    // The document knows how many GPUs a worker has, the flags do not.
    assert_eq!(predicted["decode_gpus_per_worker"], 4);
    for report in [&mut predicted, &mut replayed] {
        let map = report.as_object_mut().unwrap();
        map.remove("decode_gpus_per_worker").unwrap();
        map.remove("gpu_hours").unwrap();
    }
    assert_eq!(predicted["completed_requests"], 30);
    assert_eq!(predicted, replayed);
    assert_eq!(prediction["coverage"]["per_request_records"], 30);
    let records = |path: &str| std::fs::read_to_string(at.join(path)).unwrap();
    assert_eq!(records("ghostfleet-output/requests.jsonl"), records("r.jsonl"));
}

#[test]
fn a_disaggregated_document_is_the_replay_of_the_same_flags() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    for (timing_mode, router) in [("destination_missing", "kv_router"), ("full_prompt", "round_robin")] {
        let document = format!(
            "
traffic:
  source: {{type: synthetic-session, new_input_tokens_per_turn: 700, output_tokens_per_turn: 25, session: {{turns: 3, shared_prefix_ratio: 0.5, prefix_groups: 2, inter_turn_delay_ms: 30}}}}
  load: {{type: poisson, sessions_per_second: 12, seed: 5}}
  stop: {{sessions: 12}}
engine:
  mode: disaggregated
  model: m
  hardware: h
  workers:
    prefill: {{parallelism: {{replicas: 2}}, timing: {{type: polynomial}}, kv_cache: {{block_size: 32}}}}
    decode: {{parallelism: {{replicas: 3, tensor: 2}}, scheduler: {{max_sequences: 9}}, kv_cache: {{block_size: 32, capacity: {{type: fixed, blocks: 600}}}}}}
  kv_transfer: {{bytes_per_token: 131072, bandwidth_gb_per_second: 16, timing_mode: {timing_mode}}}
router: {{policy: {router}}}
planner: {{policy: disabled, target: sla, load_predictor: kalman, kalman_q_level: 2, max_num_gpus: 16}}
"
        );
        std::fs::write(at.join("p.yaml"), document).unwrap();
        succeed(
            at,
            &[
                "predict",
                "-c",
                "p.yaml",
                "--stack",
                "dynamo",
                "--overwrite",
                "--capture-per-request",
            ],
        );
        let prediction = json(&at.join("ghostfleet-output/prediction.json"));
        let side = |role: &str, more: &str| {
            format!(
                r#"{{"engine": {{"backend": "vllm", "worker_type": "{role}", "max_num_batched_tokens": 8192, "block_size": 32,
                "kv_transfer_bytes_per_token": 131072, "kv_transfer_bandwidth": 16, "kv_transfer_timing_mode": "{timing_mode}",
                "timing_model": {{"type": "polynomial"}}, {more}}}}}"#
            )
        };
        let router = format!("--router-mode={router}");
        succeed(
            at,
            &[
                "replay",
                "--input-tokens=700",
                "--output-tokens=25",
                "--request-count=12",
                "--request-rate=12",
                "--arrival-seed=5",
                "--turns-per-session=3",
                "--shared-prefix-ratio=0.5",
                "--num-prefix-groups=2",
                "--inter-turn-delay-ms=30",
                "--num-prefill-workers=2",
                "--num-decode-workers=3",
                "--prefill-engine-args",
                &side("prefill", r#""max_num_seqs": 1"#),
                "--decode-engine-args",
                &side("decode", r#""max_num_seqs": 9, "num_gpu_blocks": 600"#),
                &router,
                "--report-json=r.json",
                "--request-records=r.jsonl",
            ],
        );
        let mut predicted = timeless(prediction["summary"].clone());
        let mut replayed = timeless(json(&at.join("r.json")));
        let gpus = (
            &predicted["prefill_gpus_per_worker"],
            &predicted["decode_gpus_per_worker"],
        );
        assert_eq!(gpus, (&1.into(), &2.into()));
        for report in [&mut predicted, &mut replayed] {
            let map = report.as_object_mut().unwrap();
            map.remove("decode_gpus_per_worker").unwrap();
            map.remove("gpu_hours").unwrap();
        }
        assert_eq!(predicted["completed_requests"], 36);
        assert_eq!(predicted, replayed);
        let records = |path: &str| std::fs::read_to_string(at.join(path)).unwrap();
        assert_eq!(records("ghostfleet-output/requests.jsonl"), records("r.jsonl"));
    }
}

#[test]
fn results_are_not_written_over_by_accident() {
    let directory = directory();
    let args = ["predict", "-c", "p.yaml", "--stack", "dynamo", "--format", "json"];
    let said = succeed(directory.path(), &args);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(found["per_request"], serde_json::Value::Null);
    refuse(
        directory.path(),
        &args,
        2,
        &["prediction.json is there already", "--overwrite"],
    );
    succeed(directory.path(), &[&args[..], &["--overwrite"]].concat());
}

/// Each value is refused with 2 and these words.
fn every_one_is_refused(cases: &[(&str, &str)]) {
    let directory = directory();
    for (set, words) in cases {
        let args = [
            "predict",
            "-c",
            "p.yaml",
            "--stack",
            "dynamo",
            "--set",
            set,
            "--output-dir",
            "none",
        ];
        refuse(directory.path(), &args, 2, &[words]);
    }
}

#[test]
fn a_load_that_makes_no_sense_is_told_by_its_path() {
    every_one_is_refused(&[
        ("traffic.load.type=poisson", "traffic.load.concurrency is not known"),
        ("traffic.load=5", "traffic.load is 5, expected an object"),
        (
            "traffic.load.type=sometimes",
            "traffic.load is \"sometimes\", expected one of concurrency",
        ),
        (
            "traffic.load.type=5",
            "traffic.load.type is 5, expected the name of a type",
        ),
        (
            "traffic.load.type=",
            "traffic.load.type is null, expected the name of a type",
        ),
        (
            "traffic.load.concurrency=-1",
            "traffic.load.concurrency is -1, expected a whole number",
        ),
        (
            "traffic.load.concurrency=1.5",
            "traffic.load.concurrency is 1.5, expected a whole number",
        ),
        (
            "traffic.load.concurrency=1e1",
            "traffic.load.concurrency is 10.0, expected a whole number",
        ),
        (
            "traffic.load.concurrency=null",
            "traffic.load.concurrency is null, expected a whole number",
        ),
        (
            "traffic.load.concurrency='16'",
            "traffic.load.concurrency is \"16\", expected a whole number",
        ),
        (
            "traffic.load={type: kv_capacity_fraction, fraction: 0.5}",
            "traffic.load: type kv_capacity_fraction is for recommend",
        ),
        (
            "traffic.stop={requests_per_load_unit: 1e300}",
            "requests_per_load_unit is 1e300, expected a number above 0 that makes at most 4294967295 requests",
        ),
        (
            "traffic={source: {type: synthetic-session, session: {prefix_groups: 2, shared_prefix_ratio: 1.5}}}",
            "traffic.source.session.shared_prefix_ratio must be between 0.0 and 1.0, got 1.5",
        ),
        (
            "traffic={source: {type: synthetic-session, session: {inter_turn_delay_ms: -1}}}",
            "traffic.source.session.inter_turn_delay_ms must be finite",
        ),
        (
            "traffic={source: {input_tokens: 4000000000}}",
            "traffic.source.input_tokens is 4000000000, expected at most",
        ),
    ]);
}

#[test]
fn what_engines_refuse_is_told_by_its_path_in_the_document() {
    every_one_is_refused(&[
        ("engine.context_length=0", "engine.context_length 0 must be at least 1"),
        (
            "engine.workers.aggregated.kv_cache.block_size=0",
            "engine.workers.aggregated.kv_cache.block_size 0 must be at least 1",
        ),
        (
            "engine.workers.aggregated.scheduler.max_sequences=0",
            "engine.workers.aggregated.scheduler.max_sequences 0 must be at least 1",
        ),
        (
            "engine.workers.aggregated.kv_cache.capacity={type: fixed, blocks: 0}",
            "engine.workers.aggregated.kv_cache.capacity.blocks 0 must be at least 1",
        ),
        (
            "engine.workers.aggregated.timing={type: fixed, prefill_ms: 1, decode_ms: -1}",
            "engine.workers.aggregated.timing",
        ),
        (
            "engine.workers.aggregated.timing={type: polynomial, decode_ms: 1}",
            "engine.workers.aggregated.timing.decode_ms is not known",
        ),
        (
            "engine.workers.aggregated.parallelism.replicas=1000000000",
            "engine.workers.aggregated.parallelism",
        ),
        (
            "engine.workers.aggregated.parallelism.replicas=100000",
            "engine.workers.aggregated.parallelism.replicas is 100000, expected at most 65536",
        ),
        (
            "engine.workers.aggregated.parallelism.attention_data=5000",
            "engine.workers.aggregated.parallelism.attention_data is 5000, expected at most 1024",
        ),
    ]);
}

#[test]
fn every_refusal_names_the_path_of_the_key() {
    every_one_is_refused(&[
        ("engine.backend=mlx", "engine.backend is \"mlx\", expected one of"),
        ("engine.speed=3", "engine.speed is not known"),
        (
            "engine.workers.aggregated.scheduler.max_sequences=-1",
            "engine.workers.aggregated.scheduler.max_sequences is -1, expected a whole number from 0 to 4294967295",
        ),
        (
            "engine.workers.aggregated.parallelism.replicas=0",
            "engine.workers.aggregated.parallelism.replicas is 0",
        ),
        (
            "engine.workers.prefill={}",
            "prefill and decode belong to mode disaggregated",
        ),
        (
            "engine.context_length=many",
            "engine.context_length: `max` or a number of tokens",
        ),
        (
            "planner={policy: {choices: [disabled]}}",
            "planner.policy is an object, expected a string",
        ),
        (
            "traffic.load={type: poisson}",
            "traffic.load: this source needs requests_per_second",
        ),
        (
            "traffic.load={type: trace_timestamps}",
            "trace_timestamps needs a trace",
        ),
        (
            "traffic.stop={sessions: 3}",
            "traffic.stop: this source counts requests",
        ),
        (
            "traffic.source={type: trace, paths: [x], format: weka}",
            "request graphs set their own pace",
        ),
        (
            "traffic.source={type: synthetic-session, session: {turns: 1}}",
            "traffic.source.session.turns is 1",
        ),
        (
            "router.policy=round_robin",
            "router.overlap_score_credit belongs to policy kv_router",
        ),
        ("router.temperature=-1", "router.temperature is -1"),
        (
            "router.temperature=null",
            "router.temperature is null, expected a number",
        ),
        (
            "traffic.load.concurrency=0",
            "traffic.load.concurrency is 0, expected at least 1",
        ),
        (
            "traffic.stop={requests: 0}",
            "traffic.stop.requests is 0, expected at least 1",
        ),
        (
            "planner={policy: enabled, target: sla}",
            "evaluation.sla.itl_ms is missing; planner.target sla",
        ),
        (
            "planner={policy: enabled, load_adjustment_interval_seconds: 0}",
            "planner.load_adjustment_interval_seconds is 0, expected at least 1",
        ),
        (
            "planner={policy: enabled, prefill_min_workers: 2}",
            "planner.prefill_min_workers is for disaggregated fleets; use planner.min_workers",
        ),
        ("planner={policy: enabled, mode: agg}", "planner.mode is not known"),
        ("evaluation.sla.e2e_ms=5", "evaluation.sla: e2e_ms stands alone"),
        ("engine", "--set engine: expected PATH=YAML"),
    ]);
    let directory = directory();
    let args = ["predict", "-c", "p.yaml"];
    refuse(
        directory.path(),
        &args,
        2,
        &["router and planner belong to --stack dynamo"],
    );
    refuse(directory.path(), &["predict", "-c", "absent.yaml"], 2, &["absent.yaml"]);
}

#[test]
fn counts_and_concurrency_follow_the_load() {
    let directory = directory();
    let count = |sets: &[&str]| {
        let mut args = vec![
            "predict",
            "-c",
            "p.yaml",
            "--stack",
            "dynamo",
            "--format",
            "json",
            "--overwrite",
        ];
        for set in sets {
            args.extend(["--set", set]);
        }
        let found: serde_json::Value = serde_json::from_str(&succeed(directory.path(), &args)).unwrap();
        found["summary"]["completed_requests"].as_u64().unwrap()
    };
    assert_eq!(count(&["traffic.stop={requests_per_load_unit: 2.5}"]), 15);
    let rate = "traffic.load={type: constant_rate, requests_per_second: 8}";
    assert_eq!(count(&[rate, "traffic.stop={requests_per_load_unit: 0.01}"]), 1);
}

#[test]
fn pages_of_two_runs_show_both() {
    let directory = directory();
    let at = directory.path();
    let run = |report: &str, more: &[&str]| {
        let args = [
            "replay",
            "--input-tokens=100",
            "--output-tokens=10",
            "--request-count=40",
            "--replay-concurrency=8",
            "--num-workers=2",
            "--report-json",
            report,
        ];
        succeed(at, &[&args[..], more].concat())
    };
    run("one.json", &["--html", "one.html"]);
    run("two.json", &["--html", "pages/both.html", "--html-compare", "one.json"]);
    let page = std::fs::read_to_string(at.join("pages/both.html")).unwrap();
    assert!(
        page.contains("</span>one</th>") && page.contains("</span>two</th>"),
        "{page}"
    );
    // Nine charts and a load picture for each run.
    assert_eq!(page.matches("<svg").count(), 11);
    let report = json(&at.join("two.json"));
    assert_eq!(report["time_series"]["worker_requests"].as_array().unwrap().len(), 2);
    assert_eq!(report["latency_cdf"]["ttft_ms"][200], report["max_ttft_ms"]);
    assert_eq!(report["p99_token_gap_ms"], report["p99_itl_ms"]);
    assert_eq!(report["num_token_gaps"], 40 * 9);
    // Without a page the report has no curves.
    run("three.json", &[]);
    assert!(json(&at.join("three.json")).get("time_series").is_none());
    let broken = [
        "replay",
        "--html-compare",
        "one.json",
        "--input-tokens=1",
        "--output-tokens=1",
        "--request-count=1",
    ];
    refuse(at, &broken, 2, &["--html"]);
}

#[test]
fn an_interrupted_prediction_writes_what_it_has_and_marks_it() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    std::fs::write(
        at.join("long.yaml"),
        "engine: {model: m, hardware: h}\ntraffic: {stop: {requests: 4000000}}\n",
    )
    .unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .current_dir(at)
        .args(["predict", "--config", "long.yaml"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The directory of the results is made when signals are handled.
    while !at.join("ghostfleet-output").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::yield_now();
    }
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("prediction.json is a partial report"), "{said}");
    let found = json(&at.join("ghostfleet-output/prediction.json"));
    assert_eq!(found["summary"]["partial"], true);
}

#[test]
fn results_that_would_overwrite_what_is_read_or_written_besides_are_refused() {
    let directory = directory();
    let at = directory.path();
    std::fs::create_dir(at.join("out")).unwrap();
    let row = r#"{"timestamp":0,"input_length":8,"output_length":2,"hash_ids":[1]}"#;
    std::fs::write(at.join("out/requests.jsonl"), row).unwrap();
    let predict = [
        "predict",
        "-c",
        "p.yaml",
        "--stack",
        "dynamo",
        "--output-dir",
        "out",
        "--overwrite",
    ];
    for (more, words) in [
        (&["--html", "p.yaml"][..], "--html p.yaml is the same file as --config"),
        (
            &["--html", "./out/prediction.json"],
            "is the same file as --html (./out/prediction.json)",
        ),
        (
            &[
                "--set",
                "traffic={source: {type: trace, paths: [out/requests.jsonl]}, load: {type: trace_timestamps}}",
            ],
            "the result out/requests.jsonl is the same file as the trace",
        ),
    ] {
        refuse(at, &[&predict[..], more].concat(), 2, &[words]);
    }
    assert_eq!(std::fs::read_to_string(at.join("p.yaml")).unwrap(), DOCUMENT);
    assert_eq!(std::fs::read_to_string(at.join("out/requests.jsonl")).unwrap(), row);
}

#[test]
fn a_planner_scales_a_prediction_as_its_configuration_scales_a_replay() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let document = "
traffic:
  source: {type: synthetic, input_tokens: 800, output_tokens: 100}
  load: {type: concurrency, concurrency: 24}
  stop: {requests: 300}
engine:
  model: m
  hardware: h
  workers: {aggregated: {kv_cache: {capacity: {type: fixed, blocks: 500}}, parallelism: {tensor: 2}}}
router: {policy: round_robin}
planner: {policy: enabled, target: latency, load_adjustment_interval_seconds: 1, max_num_gpus: 6}
";
    std::fs::write(at.join("p.yaml"), document).unwrap();
    let printed = succeed(at, &["predict", "-c", "p.yaml", "--stack", "dynamo"]);
    assert!(
        printed.starts_with("\nScaling events:\n  t=1.0s [agg]: 1 -> 2 workers (scale_up)\n"),
        "{printed}"
    );
    let prediction = json(&at.join("ghostfleet-output/prediction.json"));
    let configuration = serde_json::json!({
        "mode": "agg", "optimization_target": "latency", "load_adjustment_interval": 1, "max_gpu_budget": 6,
        "decode_engine_num_gpu": 2,
    });
    succeed(
        at,
        &[
            "replay",
            "--input-tokens=800",
            "--output-tokens=100",
            "--request-count=300",
            "--replay-concurrency=24",
            "--report-json=r.json",
            r#"--extra-engine-args={"engine": {"backend": "vllm", "block_size": 64, "num_gpu_blocks": 500}}"#,
            &format!("--planner-config={configuration}"),
        ],
    );
    let replayed = json(&at.join("r.json"));
    assert_eq!(prediction["planner"], replayed["planner"]);
    assert_eq!(prediction["summary"]["duration_ms"], replayed["duration_ms"]);
    let most = prediction["planner"]["scaling_events"].as_array().unwrap().iter();
    assert_eq!(most.map(|event| event["to_count"].as_u64().unwrap()).max(), Some(3));
}
