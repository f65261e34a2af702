//! Sweeps.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{json, refuse, succeed};

const SWEEP: &str = "
traffic:
  source: {input_tokens: 200, output_tokens: 10}
  load: {concurrency: {choices: [2, 8]}}
  stop: {requests: 20}
engine:
  model: m
  hardware: h
  workers:
    aggregated:
      parallelism: {replicas: {choices: [1, 2, 4]}, tensor: {choices: [1, 16]}}
      kv_cache: {capacity: {type: fixed, blocks: 64}}
optimization: {target: pareto, constraints: {max_candidate_gpus: 32}}
optimizer: {algorithm: grid, parallelism: 3}
";

fn directory() -> TempDir {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("s.yaml"), SWEEP).unwrap();
    directory
}

#[test]
fn a_front_is_recommended_and_each_of_its_files_is_a_prediction_of_the_same_numbers() {
    let directory = directory();
    let at = directory.path();
    let said = succeed(at, &["recommend", "-c", "s.yaml", "--output-dir", "out"]);
    assert!(said.starts_with("Pareto front"), "{said}");
    assert!(
        said.contains("12 trials of 12 candidates: 10 completed, 2 infeasible, 0 failed"),
        "{said}"
    );
    let found = json(&at.join("out/recommendation.json"));
    let best = found["recommendations"].as_array().unwrap();
    assert!(best.len() >= 2, "{best:?}");
    let number = |entry: &Value, key: &str| entry["metrics"][key].as_f64().unwrap();
    // Along a front one axis falls while the other rises.
    for pair in best.windows(2) {
        assert!(number(&pair[0], "throughput_per_gpu") >= number(&pair[1], "throughput_per_gpu"));
        assert!(number(&pair[0], "throughput_per_user") <= number(&pair[1], "throughput_per_user"));
    }
    assert_eq!(found["not_completed"][0]["reason"], "64 GPUs, expected 1 to 32");
    for entry in best {
        let config = format!("out/{}", entry["config"].as_str().unwrap());
        let args = ["predict", "-c", &config, "--format", "json", "--overwrite"];
        let prediction: Value = serde_json::from_str(&succeed(at, &args)).unwrap();
        let throughput = prediction["summary"]["output_throughput_tok_s"].as_f64().unwrap();
        assert!((throughput - number(entry, "throughput")).abs() < 1e-9 * throughput);
    }
    let csv = std::fs::read_to_string(at.join("out/recommendation.csv")).unwrap();
    assert!(csv.starts_with("rank,config,traffic.load.concurrency,"), "{csv}");
    assert_eq!(csv.lines().count(), best.len() + 1);
}

#[test]
fn the_result_does_not_depend_on_how_many_replays_run_at_a_time() {
    let directory = directory();
    let run = |jobs: &str| {
        let sets = [
            "optimizer.algorithm=bayesian",
            "optimizer.max_trials=7",
            "optimization.target=ttft",
        ];
        let mut args = vec![
            "recommend",
            "-c",
            "s.yaml",
            "--format",
            "json",
            "--overwrite",
            "--jobs",
            jobs,
        ];
        for set in sets {
            args.extend(["--set", set]);
        }
        succeed(directory.path(), &args)
    };
    let one = run("1");
    assert_eq!(one, run("4"));
    let found: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(found["trials"]["total"], 7);
}

#[test]
fn parts_put_together_are_the_sweep_in_one() {
    let directory = directory();
    let at = directory.path();
    let whole = ["recommend", "-c", "s.yaml", "--format", "json", "--output-dir", "whole"];
    let whole = succeed(at, &whole);
    for part in ["0/3", "1/3", "2/3"] {
        let said = succeed(
            at,
            &["recommend", "-c", "s.yaml", "--output-dir", "parts", "--shard", part],
        );
        assert!(said.starts_with("4 trials saved to: parts"), "{said}");
    }
    let merge = [
        "recommend",
        "-c",
        "s.yaml",
        "--output-dir",
        "merged",
        "--merge",
        "parts",
        "--format",
        "json",
    ];
    assert_eq!(succeed(at, &merge), whole);
    refuse(at, &merge, 2, &["merged", "is there already"]);

    let again = [
        "recommend",
        "-c",
        "s.yaml",
        "--output-dir",
        "other",
        "--merge",
        "parts/shard-0-of-3.json",
    ];
    refuse(
        at,
        &again,
        2,
        &["parts are missing: shard-1-of-3.json, shard-2-of-3.json"],
    );
    let other = [&again[..], &["--set", "traffic.stop.requests=21"]].concat();
    refuse(at, &other, 2, &["belongs to another configuration"]);
    let twice = [&again[..], &["parts/shard-0-of-3.json"]].concat();
    refuse(at, &twice, 2, &["are the same part, 0"]);
    std::fs::write(at.join("bad.json"), "{}").unwrap();
    let bad = [
        "recommend",
        "-c",
        "s.yaml",
        "--output-dir",
        "other",
        "--merge",
        "bad.json",
    ];
    refuse(at, &bad, 2, &["bad.json: missing field `version`"]);
    for part in ["3/3", "1", "x/2"] {
        refuse(at, &["recommend", "-c", "s.yaml", "--shard", part], 2, &["is not I/N"]);
    }
}

#[test]
fn parts_of_a_search_by_chance_are_that_search() {
    let directory = directory();
    let at = directory.path();
    let sweep = [
        "recommend",
        "-c",
        "s.yaml",
        "--set",
        "optimizer={algorithm: random, max_trials: 7}",
        "--set",
        "optimization.target=ttft",
        "--format",
        "json",
    ];
    let whole = succeed(at, &[&sweep[..], &["--output-dir", "whole"]].concat());
    for part in ["0/2", "1/2"] {
        succeed(at, &[&sweep[..], &["--output-dir", "parts", "--shard", part]].concat());
    }
    let merged = succeed(
        at,
        &[&sweep[..], &["--output-dir", "merged", "--merge", "parts"]].concat(),
    );
    assert_eq!(merged, whole);
}

#[test]
fn a_part_that_has_not_its_own_trials_is_refused() {
    let directory = directory();
    let at = directory.path();
    for algorithm in ["grid", "random", "bayesian"] {
        let set = format!("optimizer.algorithm={algorithm}");
        let sweep = ["recommend", "-c", "s.yaml", "--overwrite", "--set", &set];
        for part in ["0/2", "1/2"] {
            succeed(at, &[&sweep[..], &["--output-dir", "parts", "--shard", part]].concat());
        }
        let merge = [&sweep[..], &["--output-dir", "merged", "--merge", "parts"]].concat();
        succeed(at, &merge);
        let file = |part: usize| at.join(format!("parts/shard-{part}-of-2.json"));
        let part = json(&file(0));
        let write = |changed: &Value| std::fs::write(file(0), changed.to_string()).unwrap();

        let mut changed = part.clone();
        changed["trials"] = Value::Array(Vec::new());
        write(&changed);
        refuse(
            at,
            &merge,
            2,
            &[
                "shard-0-of-2.json: 0 of the 6 trials of part 0 of 2",
                "without the mark of an interruption",
            ],
        );
        changed["partial_of"] = 6.into();
        write(&changed);
        let said = succeed(at, &merge);
        assert!(said.starts_with("Partial: interrupted after 6 of 12 trials"), "{said}");
        changed["partial_of"] = 5.into();
        write(&changed);
        refuse(at, &merge, 2, &["partial_of is 5, but part 0 of 2 has 6 trials"]);

        let mut changed = part.clone();
        changed["trials"] = json(&file(1))["trials"].clone();
        write(&changed);
        refuse(at, &merge, 2, &["is none of those that part 0 of 2 tries"]);

        let mut changed = part.clone();
        changed["trials"][1] = changed["trials"][0].clone();
        write(&changed);
        refuse(at, &merge, 2, &["is there twice"]);

        let mut changed = part;
        changed["index"] = 7.into();
        write(&changed);
        refuse(at, &merge, 2, &["there is no part 7 of 2"]);
    }
}

#[test]
fn a_share_of_the_cache_is_recommended_as_the_number_that_it_is() {
    let directory = directory();
    let at = directory.path();
    // 4 workers with 64 blocks of 64 tokens hold 78 requests of 210 tokens.
    let load = "traffic.load={type: kv_capacity_fraction, fraction: {choices: [0.1, 0.5]}}";
    let one = "engine.workers.aggregated.parallelism={replicas: 4}";
    let sets = [
        "--set",
        load,
        "--set",
        one,
        "--set",
        "traffic.stop={requests_per_load_unit: 1}",
    ];
    let args = [
        "recommend",
        "-c",
        "s.yaml",
        "--output-dir",
        "out",
        "--set",
        "optimization.target=ttft",
    ];
    succeed(at, &[&args[..], &sets].concat());
    let found = json(&at.join("out/recommendation.json"));
    let counts = found["recommendations"].as_array().unwrap().iter().map(|entry| {
        let config = format!("out/{}", entry["config"].as_str().unwrap());
        let args = ["predict", "-c", &config, "--format", "json", "--overwrite"];
        let prediction: Value = serde_json::from_str(&succeed(at, &args)).unwrap();
        let (share, count) = (
            entry["settings"]["traffic.load.fraction"].as_f64().unwrap(),
            prediction["summary"]["completed_requests"].as_u64().unwrap(),
        );
        assert_eq!(count, entry["metrics"]["completed_requests"].as_u64().unwrap());
        (share, count)
    });
    let mut counts: Vec<(f64, u64)> = counts.collect();
    counts.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(counts, [(0.1, 8), (0.5, 39)]);
}

#[test]
fn bounds_that_nothing_keeps_are_told() {
    let directory = directory();
    let run = |ttft: &str| {
        Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
            .current_dir(directory.path())
            .args(["recommend", "-c", "s.yaml", "--overwrite", "--output-dir", "out"])
            .args(["--set", "optimization.target=goodput", "--set"])
            .arg(format!("evaluation.sla.ttft_ms={ttft}"))
            .output()
            .unwrap()
    };
    let within = || json(&directory.path().join("out/recommendation.json"))["trials"]["within_sla"].clone();
    let output = run("0.001");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("warning: no candidate served a request within evaluation.sla"),
        "{said}"
    );
    assert_eq!(within(), 0);
    let output = run("10000");
    assert!(output.stderr.is_empty(), "{output:?}");
    assert_eq!(within(), 10);
}

#[test]
fn values_that_are_no_domain_are_told_in_the_words_of_the_file() {
    let directory = directory();
    for (set, words) in [
        (
            "optimization.target=null",
            "optimization: target is null, expected a string",
        ),
        ("traffic={choices: [{}, {}]}", "traffic: {} is there twice"),
        (
            "traffic.load={concurrency: {range: {min: 2, max: 1}}}",
            "traffic.load.concurrency: range from 2 to 1, expected finite numbers in order",
        ),
        ("engine.context_length=0", "engine.context_length 0 must be at least 1"),
        (
            "traffic.load={type: kv_capacity_fraction, fraction: -0.5}",
            "traffic.load.fraction is -0.5, expected a finite number above 0",
        ),
    ] {
        let one = [
            "--set",
            "engine.workers.aggregated.parallelism={}",
            "--set",
            "traffic.load={}",
        ];
        let args = [&["recommend", "-c", "s.yaml"], &one[..], &["--set", set]].concat();
        refuse(directory.path(), &args, 2, &[words]);
    }
}

#[test]
fn an_interrupted_search_writes_what_it_has_and_marks_it() {
    let directory = directory();
    let at = directory.path();
    // One trial that would take minutes.
    let long = ["--set", "traffic.stop.requests=10000000", "--jobs", "1"];
    for (output, part, file) in [
        ("whole", None, "whole/recommendation.json"),
        ("parts", Some("0/2"), "parts/shard-0-of-2.json"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
        command
            .current_dir(at)
            .args(["recommend", "-c", "s.yaml", "--output-dir", output]);
        command.args(long).stdout(Stdio::null()).stderr(Stdio::piped());
        command.args(part.into_iter().flat_map(|part| ["--shard", part]));
        let process = command.spawn().unwrap();
        // The directory is there from when signals are heard.
        while !at.join(output).is_dir() {
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&process), Signal::INT).unwrap();
        let ended = process.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{said}");
        assert!(
            said.contains(file) && said.contains("is a partial result, of 0 of"),
            "{said}"
        );
        let found = json(&at.join(file));
        let marked = if part.is_some() {
            &found["partial_of"]
        } else {
            &found["trials"]["planned"]
        };
        assert_eq!(marked.as_u64(), Some(if part.is_some() { 6 } else { 12 }), "{found}");
    }
}

#[test]
fn goodput_counts_requests_within_the_bounds_only() {
    let directory = directory();
    let run = |ttft: &str| {
        let bound = format!("evaluation.sla.ttft_ms={ttft}");
        let args = ["recommend", "-c", "s.yaml", "--format", "json", "--overwrite", "--set"];
        let load = "traffic.load={type: poisson, requests_per_second: 60}";
        let one = "engine.workers.aggregated.parallelism={}";
        let more = [
            "optimization.target=goodput",
            "--set",
            &bound,
            "--set",
            load,
            "--set",
            one,
        ];
        let found: Value = serde_json::from_str(&succeed(directory.path(), &[&args[..], &more].concat())).unwrap();
        found["recommendations"][0]["metrics"]["goodput"].as_f64().unwrap()
    };
    let (loose, tight) = (run("10000"), run("25"));
    assert!(loose > tight && tight > 0.0, "{loose} {tight}");
}

#[test]
fn a_sweep_without_a_candidate_that_works_says_why_the_first_did_not() {
    let directory = directory();
    let args = [
        "recommend",
        "-c",
        "s.yaml",
        "--set",
        "optimization.constraints.max_candidate_gpus=0",
    ];
    let args = [&args[..], &["--set", "optimization.constraints.min_candidate_gpus=0"]].concat();
    let stack = ["recommend", "-c", "s.yaml", "--set", "router={policy: round_robin}"];
    refuse(
        directory.path(),
        &stack,
        2,
        &["router and planner belong to --stack dynamo"],
    );
    refuse(
        directory.path(),
        &args,
        1,
        &["no candidate can be recommended", "GPUs, expected 0 to 0"],
    );
}

#[test]
fn results_that_would_take_the_configuration_or_a_trace_away_are_refused() {
    let directory = directory();
    let at = directory.path();
    std::fs::create_dir_all(at.join("out/recommendations")).unwrap();
    std::fs::write(at.join("out/recommendations/0001.yaml"), SWEEP).unwrap();
    let own = "out/recommendations/0001.yaml";
    let args = ["recommend", "-c", own, "--output-dir", "out", "--overwrite"];
    refuse(
        at,
        &args,
        2,
        &[
            "the directory out/recommendations is replaced",
            "--config (out/recommendations/0001.yaml)",
        ],
    );
    let trace = "traffic.source={type: trace, paths: {choices: [[a.jsonl], [out/recommendation.csv]]}}";
    std::fs::write(at.join("out/recommendation.csv"), "kept").unwrap();
    let args = [
        "recommend",
        "-c",
        "s.yaml",
        "--output-dir",
        "out",
        "--overwrite",
        "--set",
        trace,
    ];
    refuse(
        at,
        &args,
        2,
        &["the result out/recommendation.csv is the same file as the trace"],
    );
    assert_eq!(std::fs::read_to_string(at.join(own)).unwrap(), SWEEP);
    assert_eq!(
        std::fs::read_to_string(at.join("out/recommendation.csv")).unwrap(),
        "kept"
    );
}
