//! Settings as a user meets them: who wins, where each value came from, and how every unusable input ends the command with
//! exit code 2 and words that name the place and the way out.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

struct Scene {
    directory: TempDir,
    environment: Vec<(String, String)>,
}

impl Scene {
    fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            environment: Vec::new(),
        }
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// `serve --print-config` with flags, without the caller's own settings.
    fn run(&self, flags: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["DYN_", "ETCD_", "GHOSTFLEET_", "HF_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
        command
            .args(["serve", "--print-config", "--model-path"])
            .arg(model)
            .args(flags);
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn with_file(&self, text: &str, flags: &[&str]) -> Output {
        let path = self.file("fleet.toml", text);
        self.run(&[&["--config", path.to_str().unwrap()], flags].concat())
    }

    /// What is printed for flags that are usable.
    fn printed(&self, flags: &[&str]) -> String {
        said(&self.run(flags))
    }
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn line<'a>(printed: &'a str, key: &str) -> &'a str {
    let found = printed.lines().find(|line| line.starts_with(&format!("{key} = ")));
    found.unwrap_or_else(|| panic!("no {key} in: {printed}"))
}

fn assert_refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_defaults() {
    let text = "max_num_seqs = 11\nblock_size = 16\nseed = 3\n";
    let scene = Scene::new()
        .set("GHOSTFLEET_MAX_NUM_SEQS", "22")
        .set("GHOSTFLEET_SEED", "5");
    let printed = said(&scene.with_file(text, &["--max-num-seqs", "33"]));
    assert_eq!(line(&printed, "max_num_seqs"), "max_num_seqs = 33  # flag");
    assert_eq!(line(&printed, "seed"), "seed = 5  # environment GHOSTFLEET_SEED");
    assert!(
        line(&printed, "block_size").starts_with("block_size = 16  # ")
            && line(&printed, "block_size").ends_with("fleet.toml")
    );
    assert_eq!(line(&printed, "num_workers"), "num_workers = 1  # default");
}

#[test]
fn an_engine_document_lies_just_below_the_place_that_names_it() {
    let document = r#"{"block_size": 32, "max_num_seqs": 44, "dp_size": 2, "max_num_batched_tokens": null}"#;
    let scene = Scene::new().set("GHOSTFLEET_MAX_NUM_SEQS", "22");
    let printed = scene.printed(&["--extra-engine-args", document, "--data-parallel-size", "3"]);
    assert_eq!(line(&printed, "data_parallel_size"), "data_parallel_size = 3  # flag");
    assert_eq!(
        line(&printed, "block_size"),
        "block_size = 32  # block_size in extra_engine_args, flag"
    );
    assert_eq!(
        line(&printed, "max_num_seqs"),
        "max_num_seqs = 44  # max_num_seqs in extra_engine_args, flag"
    );
    assert!(line(&printed, "max_num_batched_tokens").starts_with("max_num_batched_tokens = \"unlimited\""));
    // Named in the file, it loses to the environment too; its path counts from the file's directory.
    scene.file("engine.json", r#"{"engine": {"block_size": 8, "max_num_seqs": 44}}"#);
    let printed = said(&scene.with_file("extra_engine_args = \"engine.json\"\n", &[]));
    assert_eq!(
        line(&printed, "max_num_seqs"),
        "max_num_seqs = 22  # environment GHOSTFLEET_MAX_NUM_SEQS"
    );
    assert!(line(&printed, "block_size").starts_with("block_size = 8  # engine.block_size in extra_engine_args, "));
    assert_refused(
        &Scene::new().run(&["--extra-engine-args", r#"{"engine": {"speedup_ratio": -1}}"#]),
        &["--extra-engine-args: `engine.speedup_ratio` -1", "0 or greater"],
    );
}

#[test]
fn unusable_engine_documents_name_the_path_and_the_nearest_key() {
    let scene = Scene::new();
    let refused =
        |document: &str, words: &[&str]| assert_refused(&scene.run(&["--extra-engine-args", document]), words);
    refused(r#"{"blok_size": 64}"#, &["`blok_size`", "did you mean `block_size`"]);
    refused(
        r#"{"engine": {"max_num_seq": 64}}"#,
        &["`engine.max_num_seq`", "`engine.max_num_seqs`"],
    );
    refused(
        r#"{"engine": {"block_size": "x"}}"#,
        &["`engine.block_size`", "invalid type"],
    );
    refused(r#"{"block_size": 64}}"#, &["trailing characters"]);
    refused("absent.json", &["absent.json", "or the JSON object itself"]);
    refused(
        r#"{"engine_type": "vllm", "dp_size": 0}"#,
        &["--extra-engine-args: `dp_size` 0", "at least 1"],
    );
    refused(
        r#"{"is_prefill": true, "is_decode": true}"#,
        &["--is-decode-worker", "exclude each other"],
    );
    refused(
        r#"{"engine_type": "sglang", "block_size": 64, "sglang": {"page_size": 16}}"#,
        &["`sglang.page_size` 16", "64"],
    );
    refused(
        r#"{"engine": {"backend": "sglang", "block_size": 64, "sglang": {"chunked_prefill_size": 100}}}"#,
        &["`engine.sglang.chunked_prefill_size` 100", "divisible"],
    );
    refused(
        r#"{"engine": {"backend": "sglang", "enable_chunked_prefill": false}}"#,
        &["`engine.enable_chunked_prefill` false", "sglang"],
    );
    refused(r#"{"engine": {"aic_nextn": 6}}"#, &["`engine.aic_nextn` 6", "1..=5"]);
    refused(
        r#"{"aic_nextn": 2, "decode_speedup_ratio": 2.0}"#,
        &["`aic_nextn` 2", "--decode-speedup-ratio 1.0"],
    );
    refused(
        r#"{"aic_nextn_accept_rates": "0.5"}"#,
        &["`aic_nextn_accept_rates` 0.5", "requires --aic-nextn"],
    );
    refused(
        r#"{"num_g3_blocks": 5}"#,
        &["`num_g3_blocks` 5", "requires --num-g2-blocks or --num-host-blocks"],
    );
    refused(
        r#"{"gpu_memory_utilization": 1.5}"#,
        &["`gpu_memory_utilization` 1.5", "between 0 and 1"],
    );
    refused(
        r#"{"dynamo": {"handoff_session_timeout_ms": 0}}"#,
        &["`dynamo.handoff_session_timeout_ms` 0", "at least 1"],
    );
}

#[test]
fn the_block_size_follows_the_engine_unless_given() {
    let scene = Scene::new();
    for (engine, size) in [("vllm", 64), ("sglang", 1), ("trtllm", 32)] {
        let output = scene.run(&["--engine-type", engine]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(line(&printed, "block_size"), format!("block_size = {size}  # default"));
    }
    let printed = scene.run(&["--engine-type", "sglang", "--sglang-page-size", "16"]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert_eq!(line(&printed, "block_size"), "block_size = 16  # default");
}

#[test]
fn groups_take_their_own_keys_and_fall_back_to_the_fleets() {
    let scene = Scene::new();
    let text = "max_num_seqs = 9\n[[group]]\nname = \"a\"\nspeedup_ratio = 2.0\n[[group]]\nname = \"b\"\nmax_num_seqs = 7\n\
                extra_engine_args = '{\"speedup_ratio\": 4.0}'\n";
    let printed = said(&scene.with_file(text, &[]));
    let groups: Vec<&str> = printed.split("[[group]]").collect();
    assert_eq!(groups.len(), 3);
    assert!(line(groups[1], "max_num_seqs").starts_with("max_num_seqs = 9  # "));
    assert!(line(groups[1], "speedup_ratio").starts_with("speedup_ratio = 2.0  # "));
    assert!(line(groups[2], "max_num_seqs").starts_with("max_num_seqs = 7  # "));
    assert!(line(groups[2], "speedup_ratio").starts_with("speedup_ratio = 4.0  # speedup_ratio in extra_engine_args"));
    // A flag speaks for every group.
    let printed = said(&scene.with_file(text, &["--max-num-seqs", "5"]));
    assert_eq!(printed.matches("max_num_seqs = 5  # flag").count(), 3);
    assert_refused(
        &scene.with_file("[[group]]\nseed = 1\n", &[]),
        &["`seed` in [[group]] 0", "whole fleet"],
    );
    assert_refused(&scene.with_file("group = 3\n", &[]), &["write [[group]]"]);
    assert_refused(
        &scene.with_file("[[group]]\nnum_workers = 0\n", &[]),
        &["fleet.toml, group 0: num_workers = 0", "at least 1"],
    );
}

#[test]
fn what_is_printed_is_a_config_file() {
    let scene = Scene::new();
    let flags = [
        "--timing-model",
        r#"{"type": "fixed", "prefill_ms": 7, "decode_ms": 2.5}"#,
        "--max-num-seqs",
        "unlimited",
    ];
    let printed = scene.printed(&flags);
    assert!(line(&printed, "timing_model").contains("type = \"fixed\""));
    let path = scene.file("again.toml", &printed);
    let again = scene.printed(&["--config", path.to_str().unwrap()]);
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split("  # ").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(values(&again), values(&printed));
}

#[test]
fn unknown_keys_and_flags_name_the_nearest_one() {
    let scene = Scene::new();
    assert_refused(
        &scene.with_file("seed = 1\nmax_num_seq = 3\n", &[]),
        &["fleet.toml", "line 2", "`max_num_seq`", "`max_num_seqs`"],
    );
    assert_refused(
        &scene.with_file("[[group]]\nblocksize = 3\n", &[]),
        &["line 2", "`blocksize`", "`block_size`"],
    );
    assert_refused(
        &scene.run(&["--max-num-seq", "3"]),
        &["--max-num-seq", "--max-num-seqs"],
    );
    assert_refused(&scene.with_file("seed = = 1\n", &[]), &["fleet.toml", "line 1"]);
    assert_refused(&scene.run(&["--config", "absent.toml"]), &["cannot read absent.toml"]);
}

#[test]
fn wrong_types_name_the_line_and_the_key() {
    let scene = Scene::new();
    for (text, words) in [
        (
            "seed = 1\nblock_size = \"big\"\n",
            ["line 2", "`block_size`", "invalid type"],
        ),
        ("speedup_ratio = true\n", ["line 1", "`speedup_ratio`", "invalid type"]),
        ("speedup_ratio = nan\n", ["line 1", "`speedup_ratio`", "finite"]),
        ("watermark = inf\n", ["line 1", "`watermark`", "finite"]),
        ("max_num_seqs = -1\n", ["line 1", "`max_num_seqs`", "whole number"]),
        ("block_size = -1\n", ["line 1", "`block_size`", "u32"]),
        ("engine_type = \"llama\"\n", ["line 1", "`engine_type`", "`trtllm`"]),
        (
            "enable_prefix_caching = 1\n",
            ["line 1", "`enable_prefix_caching`", "boolean"],
        ),
        (
            "timing_model = { type = \"fixed\" }\n",
            ["line 1", "`timing_model`", "prefill_ms"],
        ),
    ] {
        assert_refused(&scene.with_file(text, &[]), &words);
    }
    let environment = Scene::new().set("GHOSTFLEET_BLOCK_SIZE", "big");
    assert_refused(&environment.run(&[]), &["GHOSTFLEET_BLOCK_SIZE=big", "invalid type"]);
    let environment = Scene::new().set("DYN_DISCOVERY_BACKEND", "carrier-pigeon");
    assert_refused(
        &environment.run(&[]),
        &["DYN_DISCOVERY_BACKEND=carrier-pigeon", "use etcd or file"],
    );
}

#[test]
fn values_out_of_range_are_refused() {
    let scene = Scene::new();
    for (flags, words) in [
        (["--block-size", "0"], ["--block-size 0", "at least 1"]),
        (["--num-workers", "0"], ["--num-workers 0", "at least 1"]),
        (["--num-workers", "70000"], ["70000", "65536"]),
        (["--num-workers", "many"], ["'many'", "--num-workers"]),
        (["--data-parallel-size", "0"], ["--data-parallel-size 0", "at least 1"]),
        (["--data-parallel-size", "5000"], ["--data-parallel-size 5000", "1024"]),
        (
            ["--num-gpu-blocks-override", "0"],
            ["--num-gpu-blocks-override 0", "at least 1"],
        ),
        (
            ["--num-gpu-blocks-override", "1"],
            ["--num-gpu-blocks-override 1", "at least 2"],
        ),
        (["--max-model-len", "0"], ["--max-model-len 0", "at least 1"]),
        (["--max-num-seqs", "0"], ["--max-num-seqs 0", "at least 1"]),
        (
            ["--max-num-batched-tokens", "0"],
            ["--max-num-batched-tokens 0", "at least 1"],
        ),
        (
            ["--speedup-ratio=-1", "--seed=1"],
            ["--speedup-ratio -1", "0 or greater"],
        ),
        (["--speedup-ratio", "NaN"], ["'NaN'", "finite"]),
        (["--decode-speedup-ratio", "inf"], ["'inf'", "finite"]),
        (
            ["--decode-speedup-ratio=-0.5", "--seed=1"],
            ["--decode-speedup-ratio -0.5", "0 or greater"],
        ),
        (["--startup-time=-3", "--seed=1"], ["--startup-time -3", "0 or greater"]),
        (["--stagger-delay", "-2"], ["--stagger-delay -2", "-1"]),
        (["--step-overhead-ms", "NaN"], ["'NaN'", "finite"]),
        (["--watermark", "1"], ["--watermark 1", "below 1"]),
        (["--lease-ttl", "0"], ["--lease-ttl 0", "at least 1"]),
        (["--preemption-mode", "random"], ["'random'", "--preemption-mode"]),
        (["--scheduler-fidelity", "half"], ["'half'", "--scheduler-fidelity"]),
        (["--engine-type", "llama"], ["'llama'", "sglang"]),
        (
            ["--timing-model", "{\"type\":\"fixed\"}"],
            ["--timing-model", "prefill_ms"],
        ),
        (["--reasoning", "{}"], ["--reasoning", "start_thinking_token_id"]),
    ] {
        assert_refused(&scene.run(&flags), &words);
    }
}

#[test]
fn what_this_build_does_not_have_is_refused_and_not_ignored() {
    let scene = Scene::new();
    for flags in [
        ["--gpu-memory-utilization", "0.8"],
        ["--aic-system", "h200_sxm"],
        ["--response-plane", "quic"],
    ] {
        assert_refused(&scene.run(&flags), &[&flags.join(" "), "this build does not have"]);
    }
}

#[test]
fn memory_below_the_gpu_needs_the_bytes_of_a_token_and_a_prefix_cache() {
    let scene = Scene::new();
    let tiers = ["--num-g2-blocks", "100", "--kv-bytes-per-token", "1000"];
    scene.printed(&tiers);
    scene.printed(&[&tiers[..], &["--num-g3-blocks", "5", "--enable-g4-storage"]].concat());
    scene.printed(&["--num-g2-blocks", "0", "--semantics", "1.6.1"]);
    let host = ["--num-host-blocks", "100", "--kv-bytes-per-token", "1000"];
    scene.printed(
        &[
            &host[..],
            &["--host-offload-d2h-bandwidth-gbps", "0", "--num-g3-blocks", "5"],
        ]
        .concat(),
    );
    for (flags, words) in [
        (["--num-g2-blocks", "3"], "use one of them"),
        (["--eviction-backend", "lru"], "native KV pool"),
        (["--offload-batch-size", "3"], "requires --num-g2-blocks"),
    ] {
        assert_refused(&scene.run(&[&host[..], &flags].concat()), &[words]);
    }
    assert_refused(
        &scene.run(&["--host-offload-h2d-bandwidth-gbps", "3"]),
        &["requires --num-host-blocks"],
    );
    assert_refused(
        &scene.run(&tiers[..2]),
        &["--num-g2-blocks 100", "requires --kv-bytes-per-token"],
    );
    for (flags, words) in [
        (["--offload-batch-size", "3"], "requires --num-g2-blocks"),
        (["--bandwidth-g2-to-g1-gbps", "9"], "requires --num-g2-blocks"),
    ] {
        assert_refused(&scene.run(&flags), &[&flags.join(" "), words]);
    }
    for (flags, words) in [
        (["--no-enable-prefix-caching", "--seed=1"], "prefix caching"),
        (["--engine-type", "sglang"], "engine_type vllm"),
        (["--aic-nextn", "2"], "aic_nextn"),
    ] {
        assert_refused(&scene.run(&[&tiers[..], &flags].concat()), &[words]);
    }
}

#[test]
fn settings_of_disaggregated_workers_fit_their_role() {
    let scene = Scene::new();
    scene.printed(&["--disaggregation-mode", "prefill", "--bootstrap-ports", "9000"]);
    scene.printed(&["--is-decode-worker", "--kv-cache-dtype", "fp8_e4m3"]);
    for (flags, words) in [
        (
            vec!["--bootstrap-ports", "9000"],
            vec!["--bootstrap-ports 9000", "--disaggregation-mode prefill"],
        ),
        (
            vec![
                "--is-prefill-worker",
                "--engine-type",
                "trtllm",
                "--bootstrap-ports",
                "9000",
            ],
            vec!["--bootstrap-ports 9000", "vllm or sglang"],
        ),
        (
            vec!["--is-prefill-worker", "--is-decode-worker"],
            vec!["--is-prefill-worker", "exclude each other"],
        ),
        (
            vec!["--is-prefill-worker", "--disaggregation-mode", "decode"],
            vec!["--disaggregation-mode decode", "contradicts"],
        ),
        (
            vec!["--decode-local-prefill"],
            vec!["--decode-local-prefill", "--disaggregation-mode decode"],
        ),
        (
            vec!["--kv-cache-dtype", "int3"],
            vec!["--kv-cache-dtype int3", "fp8_e4m3"],
        ),
        (
            vec!["--kv-transfer-bandwidth=-1"],
            vec!["--kv-transfer-bandwidth -1", "0 or greater"],
        ),
    ] {
        assert_refused(&scene.run(&flags), &words);
    }
}

#[test]
fn pools_that_hand_kv_to_each_other_have_one_engine() {
    let scene = Scene::new();
    let pools = |prefill: &str, decode: &str| {
        let text = format!(
            "block_size = 16\n[[group]]\nname = \"p\"\ndisaggregation_mode = \"prefill\"\n{prefill}\n\
             [[group]]\nname = \"d\"\ndisaggregation_mode = \"decode\"\n{decode}\n"
        );
        scene.with_file(&text, &[])
    };
    let meet = "bootstrap_ports = [0]";
    assert_refused(
        &pools(meet, "engine_type = \"sglang\""),
        &[
            "group p",
            "group d",
            "vllm in one and sglang in the other",
            "namespace of its own",
        ],
    );
    // Pools that never meet, by their namespace or for lack of a rendezvous, may differ.
    said(&pools(
        meet,
        "engine_type = \"sglang\"\nendpoint = \"dyn://other.backend.generate\"",
    ));
    said(&pools("", "engine_type = \"sglang\""));
    said(&pools(meet, "block_size = 32"));
}

#[test]
fn settings_of_the_scheduler_are_accepted() {
    let scene = Scene::new();
    let flags = [
        "--scheduler-fidelity",
        "mocker",
        "--scheduling-policy",
        "priority",
        "--watermark",
        "0.01",
        "--long-prefill-token-threshold",
        "512",
        "--no-scheduler-reserve-full-isl",
        "--max-model-len",
        "100",
    ];
    let printed = scene.printed(&flags);
    assert_eq!(
        line(&printed, "scheduler_reserve_full_isl"),
        "scheduler_reserve_full_isl = false  # flag"
    );
    assert_eq!(
        line(&printed, "scheduling_policy"),
        "scheduling_policy = \"priority\"  # flag"
    );
    assert_refused(
        &scene.run(&["--scheduler-fidelity", "mocker", "--block-size", "1"]),
        &["--block-size 1", "at least 2"],
    );
}

#[test]
fn ports_are_listed_one_per_worker() {
    let scene = Scene::new();
    assert_refused(
        &scene.run(&["--bootstrap-ports", "9000,9001"]),
        &[
            "--bootstrap-ports 9000,9001",
            "lists 2 ports for the 1 worker; give one port per worker",
        ],
    );
    assert_refused(
        &scene.run(&["--bootstrap-ports", "x"]),
        &["--bootstrap-ports x", "comma separated"],
    );
    assert_refused(
        &scene.run(&["--bootstrap-ports", ""]),
        &["--bootstrap-ports", "is an empty list"],
    );
    let prefill = "[[group]]\nname = \"p\"\ndisaggregation_mode = \"prefill\"\nnum_workers = 2\n";
    let with = |ports: &str, flags: &[&str]| scene.with_file(&format!("{prefill}{ports}\n"), flags);
    let printed = said(&with("bootstrap_ports = [9000, 0]", &[]));
    assert!(line(&printed, "bootstrap_ports").starts_with("bootstrap_ports = \"9000,0\"  # "));
    said(&with("bootstrap_ports = [0, 0]", &[]));
    said(&with("zmq_kv_events_ports = [9000, 9010]", &[]));
    for (ports, flags, words) in [
        (
            "bootstrap_ports = [9000]",
            &[][..],
            "lists 1 port for the 2 workers of group p",
        ),
        (
            "",
            &["--bootstrap-ports", "1,2,3"],
            "--bootstrap-ports 1,2,3 lists 3 ports for the 2 workers of group p",
        ),
        ("bootstrap_ports = [9000, 9000]", &[], "lists port 9000 twice"),
        ("bootstrap_ports = []", &[], "is an empty list"),
        ("bootstrap_ports = [true]", &[], "expected ports"),
        (
            "bootstrap_ports = [70000, 1]",
            &[],
            "must be port numbers from 0 to 65535",
        ),
    ] {
        assert_refused(&with(ports, flags), &[words]);
    }
    assert_refused(
        &scene.run(&["--zmq-replay-ports", "9000"]),
        &["requires --zmq-kv-events-ports"],
    );
}

#[test]
fn errors_name_the_place_that_holds_the_value() {
    let from = |name: &str, value: &str| Scene::new().set(name, value).run(&[]);
    assert_refused(&from("DYN_NAMESPACE", "a.b"), &["DYN_NAMESPACE=a.b"]);
    assert_refused(&from("ETCD_LEASE_TTL", "0"), &["ETCD_LEASE_TTL=0", "at least 1"]);
    assert_refused(
        &from("DYN_TCP_RPC_HOST", "nowhere0"),
        &["DYN_TCP_RPC_HOST=nowhere0", "network interface"],
    );
    assert_refused(
        &from("GHOSTFLEET_STAGGER_DELAY", "-2"),
        &["GHOSTFLEET_STAGGER_DELAY=-2", "by fleet size"],
    );
    assert_refused(
        &from("GHOSTFLEET_EXTRA_ENGINE_ARGS", r#"{"dp_size": 0}"#),
        &["GHOSTFLEET_EXTRA_ENGINE_ARGS: `dp_size` 0", "at least 1"],
    );
    let scene = Scene::new();
    for (text, place) in [
        ("lease_ttl = 0\n", "fleet.toml: lease_ttl = 0 must be"),
        ("max_message_size = 5\n", "fleet.toml: max_message_size = 5 must be"),
        ("endpoint = \"x\"\n", "fleet.toml: endpoint = \"x\" cannot be"),
        (
            "[[group]]\n[[group]]\nname = \"slow\"\nspeedup_ratio = -1\n",
            "fleet.toml, group slow: speedup_ratio = -1.0 must be",
        ),
        (
            "[[group]]\nname = \"slow\"\nextra_engine_args = '{\"blok_size\": 1}'\n",
            "fleet.toml, group slow: extra_engine_args: unknown key `blok_size`",
        ),
        (
            "planner_profile_data = \"absent.npz\"\n",
            "fleet.toml: planner_profile_data = ",
        ),
    ] {
        assert_refused(&scene.with_file(text, &[]), &[place]);
    }
    assert_refused(
        &scene.run(&["--tcp-host", "nowhere0"]),
        &["--tcp-host nowhere0 is neither"],
    );
}
