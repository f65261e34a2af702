//! Values that are taken and values that are refused.

use crate::scene::{Scene, assert_refused, line};

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
            ["--max-num-seqs", "4294967296"],
            ["'4294967296'", "limit is 4294967295"],
        ),
        (
            ["--max-num-batched-tokens", "99999999999999999999"],
            ["too large", "4294967295"],
        ),
        (["--max-num-batched-tokens=-1", "--seed=1"], ["'-1'", "whole number"]),
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
    let quic = ["--response-plane", "quic"];
    assert_refused(&scene.run(&quic), &[&quic.join(" "), "this build does not have"]);
    for flags in [
        ["--gpu-memory-utilization", "0.8"],
        ["--aic-system", "h200_sxm"],
        ["--aic-perf-model", ""],
        ["--ais-perf-config", "{}"],
    ] {
        let flags = flags.into_iter().filter(|flag| !flag.is_empty()).collect::<Vec<_>>();
        let run = scene.run(&flags);
        match (cfg!(feature = "aic"), flags[0]) {
            (false, flag) => assert_refused(&run, &[flag, "this build has no AIC support", "--features aic"]),
            (true, "--aic-perf-model" | "--ais-perf-config") => {
                assert_refused(&run, &[flags[0], "needs measurements", "--aic-systems-path"]);
            }
            // Told, as what has no effect.
            (true, _) => assert!(run.status.success()),
        }
    }
}

#[test]
fn memory_below_the_gpu_needs_the_size_of_a_block_and_a_prefix_cache() {
    let scene = Scene::new();
    let tiers = ["--num-g2-blocks", "100", "--kv-bytes-per-token", "1000"];
    scene.printed(&tiers);
    scene.printed(&[&tiers[..], &["--num-g3-blocks", "5", "--enable-g4-storage"]].concat());
    scene.printed(&["--num-g2-blocks", "0", "--semantics", "1.6.1"]);
    scene.printed(&[&tiers[..], &["--offload-batch-size", "0", "--g1-backend", "kvbm"]].concat());
    assert_refused(
        &scene.run(&[&tiers[..], &["--g1-backend", "native"]].concat()),
        &["--g1-backend native", "cannot be combined with --num-g2-blocks"],
    );
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
    let shared = [&host[..], &["--host-offload-scope", "cluster_shared"]].concat();
    assert_refused(
        &scene.run(&shared),
        &["--host-offload-scope cluster_shared", "requires --kv-layout-id"],
    );
    assert_refused(
        &scene.run(&[&shared[..], &["--kv-layout-id", " "]].concat()),
        &["requires --kv-layout-id"],
    );
    let named = [&shared[..], &["--kv-layout-id", "tp1"]].concat();
    assert!(
        scene
            .printed(&named)
            .contains("host_offload_shared_d2h_bandwidth_gbps = 80.0")
    );
    let disk = [&host[..], &["--g3-scope", "cluster_shared"]].concat();
    assert_refused(
        &scene.run(&disk),
        &["--g3-scope cluster_shared", "requires --num-g3-blocks"],
    );
    scene.printed(
        &[
            &disk[..],
            &["--num-g3-blocks", "5", "--g3-shared-read-bandwidth-gbps", "0"],
        ]
        .concat(),
    );
    assert_refused(
        &scene.run(&[&tiers[..], &["--kv-layout-id", "x"]].concat()),
        &["--kv-layout-id x", "requires --num-host-blocks"],
    );
    assert_refused(
        &scene.run(&["--host-offload-h2d-bandwidth-gbps", "3"]),
        &["requires --num-host-blocks"],
    );
    // What the flag of 1.4.2 needs the model says; that of 1.6.1 wants to be told.
    scene.printed(&tiers[..2]);
    scene.printed(&[&tiers[..2], &["--offload-batch-size", "0"]].concat());
    assert_refused(
        &scene.run(&host[..2]),
        &["--num-host-blocks 100", "requires --kv-bytes-per-token"],
    );
    assert_refused(
        &scene.run(&[&tiers[..], &["--g1-backend", "native"]].concat()),
        &["--g1-backend native", "leave it out or set kvbm"],
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
    assert_refused(
        &scene.run(&["--engine-type", "trtllm", "--block-size", "1"]),
        &["--block-size 1", "at least 2"],
    );
    scene.printed(&["--block-size", "1"]);
    scene.printed(&["--engine-type", "sglang", "--block-size", "1"]);
}

#[test]
fn addresses_that_nobody_can_connect_to_are_refused_at_once() {
    for (name, value, words) in [
        (
            "ETCD_ENDPOINTS",
            "ftp://127.0.0.1:1",
            ["ETCD_ENDPOINTS", "ftp://127.0.0.1:1", "http://host:2379"],
        ),
        (
            "ETCD_ENDPOINTS",
            "127.0.0.1:99999",
            ["ETCD_ENDPOINTS", "127.0.0.1:99999", "http://host:2379"],
        ),
        (
            "DYN_ZMQ_BROKER_URL",
            "xsub=tcp://a:1,xpub=tcp://b:2,xpub=tcp://c:3",
            ["DYN_ZMQ_BROKER_URL", "xpub=tcp://c:3", "has not the form"],
        ),
    ] {
        let scene = Scene::new().set(name, value).set("DYN_DISCOVERY_BACKEND", "etcd");
        assert_refused(&scene.run(&[]), &words);
    }
}

#[test]
fn the_number_of_nats_connections_has_a_short_name_in_files() {
    let printed = Scene::new().with_file("connections = \"per-worker\"\n", &[]);
    let printed = crate::scene::said(&printed);
    assert!(printed.contains("nats_connections = \"per-worker\"  # "), "{printed}");
}
