//! Who wins, and where a value came from.

use crate::scene::{Scene, assert_refused, line, said};

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
        &["`seed` in group 0", "whole fleet"],
    );
    assert_refused(
        &scene.with_file("[[group]]\n[[group]]\nname = \"slow\"\nhttp_port = 1\n", &[]),
        &["`http_port` in group slow", "whole fleet"],
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
fn defaults_that_follow_from_other_settings_are_printed_where_they_count() {
    let scene = Scene::new();
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split("  # ").next().unwrap().to_owned())
            .collect()
    };
    for (flags, there, absent) in [
        (
            &["--engine-type", "sglang"][..],
            &[
                "sglang_schedule_policy = \"fcfs\"",
                "sglang_max_prefill_tokens = 16384",
                "sglang_chunked_prefill_size = 8192",
                "sglang_clip_max_new_tokens = 4096",
                "sglang_schedule_conservativeness = 1.0",
                "sglang_radix_eviction_policy = \"lru\"",
                "sglang_prefill_decode_interval = 0",
                "eviction_backend = \"native\"",
            ][..],
            &[
                "sglang_tlru",
                "trtllm_",
                "aic_",
                "host_offload",
                "prefill_schedule_interval",
            ][..],
        ),
        (
            &["--aic-nextn", "2", "--data-parallel-size", "2"],
            &[
                "aic_mtp_seed = 42",
                "aic_nextn_accept_rates = \"0.85,0.3,0,0,0\"",
                "prefill_schedule_interval = 1",
            ],
            &["sglang_"],
        ),
        (
            &["--engine-type", "trtllm", "--disaggregation-mode", "prefill"],
            &[
                "trtllm_capacity_scheduler_policy = \"guaranteed_no_evict\"",
                "handoff_pairing_timeout_ms = 30000",
            ],
            &["sglang_"],
        ),
        (
            &[
                "--num-host-blocks",
                "9",
                "--kv-bytes-per-token",
                "7",
                "--num-g3-blocks",
                "5",
            ],
            &[
                "host_offload_d2h_bandwidth_gbps = 32.0",
                "host_offload_h2d_bandwidth_gbps = 32.0",
                "host_offload_latency_ms = 0.0",
                "bandwidth_g2_to_g3_gbps = 10.0",
                "g3_latency_ms = 0.1",
            ],
            &["offload_batch_size", "bandwidth_g1", "bandwidth_g2_to_g4"],
        ),
        (
            &[
                "--num-g2-blocks",
                "9",
                "--offload-batch-size",
                "0",
                "--enable-g4-storage",
            ],
            &[
                "eviction_backend = \"lineage\"",
                "offload_batch_size = 0",
                "bandwidth_g1_to_g2_gbps = 14.0",
                "bandwidth_g4_to_g2_gbps = 4.0",
            ],
            &["host_offload", "bandwidth_g2_to_g3"],
        ),
    ] {
        let output = scene.run(flags);
        let printed = said(&output);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{flags:?}");
        for wanted in there {
            assert!(
                values(&printed).iter().any(|line| line == wanted),
                "{wanted} in {printed}"
            );
        }
        for absent in absent {
            assert!(
                !printed.lines().any(|line| line.starts_with(absent)),
                "{absent} in {printed}"
            );
        }
        // Whatever is shown can be said, and says nothing new.
        let path = scene.file("again.toml", &printed);
        let again = scene.run(&["--config", path.to_str().unwrap()]);
        assert_eq!(values(&said(&again)), values(&printed));
        assert_eq!(String::from_utf8_lossy(&again.stderr), "", "{flags:?}");
    }
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
    assert_eq!(line(&printed, "block_size"), "block_size = 16  # flag");
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
