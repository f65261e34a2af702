//! Settings that nothing reads are told and not refused.

use crate::scene::{Scene, said};

/// The warnings of a usable config.
fn told(scene: &Scene, file: &str, flags: &[&str]) -> Vec<String> {
    let output = scene.with_file(file, flags);
    said(&output);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    told.lines()
        .filter(|line| line.contains("WARN"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn flags_that_the_chosen_scheduler_does_not_read_are_told() {
    let scene = Scene::new();
    for (chosen, unread, words) in [
        (
            &["--engine-type", "sglang"][..],
            &[
                "--watermark 0.1",
                "--scheduling-policy priority",
                "--preemption-mode fifo",
                "--max-num-batched-tokens 10",
                "--trtllm-capacity-scheduler-policy max_utilization",
            ][..],
            "it needs --engine-type",
        ),
        (
            &["--engine-type", "trtllm"],
            &[
                "--watermark 0.1",
                "--scheduling-policy priority",
                "--preemption-mode fifo",
            ],
            "it needs --engine-type vllm",
        ),
        (
            &["--engine-type", "vllm"],
            &[
                "--sglang-schedule-policy lpm",
                "--sglang-page-size 64",
                "--sglang-max-prefill-tokens 77",
                "--sglang-chunked-prefill-size 77",
                "--sglang-clip-max-new-tokens 77",
                "--sglang-schedule-conservativeness 0.5",
                "--sglang-prefill-decode-interval 7",
            ],
            "it needs --engine-type sglang",
        ),
        (
            &["--scheduler-fidelity", "mocker"],
            &[
                "--watermark 0.1",
                "--scheduling-policy priority",
                "--long-prefill-token-threshold 7",
            ],
            "--scheduler-fidelity real",
        ),
        (
            &["--engine-type", "sglang"],
            &["--sglang-tlru-threshold 7"],
            "it needs --sglang-radix-eviction-policy tlru",
        ),
        (&[], &["--aic-mtp-seed 7"], "it needs --aic-nextn"),
        (&[], &["--prefill-schedule-interval 7"], "--data-parallel-size 2"),
        (&[], &["--kv-transfer-bandwidth 7.0"], "--disaggregation-mode prefill"),
    ] {
        let flags = unread.iter().flat_map(|flag| flag.split(' '));
        let flags: Vec<&str> = chosen.iter().copied().chain(flags).collect();
        let told = told(&scene, "", &flags);
        assert_eq!(told.len(), unread.len(), "{flags:?}: {told:#?}");
        for flag in unread {
            let said = told
                .iter()
                .filter(|line| line.contains(&format!(" {flag} has no effect")) && line.contains(words));
            assert_eq!(said.count(), 1, "{flag} in {told:#?}");
        }
    }
}

#[test]
fn what_is_read_and_what_says_the_default_is_not_told() {
    let scene = Scene::new();
    for flags in [
        "--watermark 0.1 --scheduling-policy priority --long-prefill-token-threshold 7",
        "--engine-type sglang --sglang-schedule-policy lpm --sglang-radix-eviction-policy tlru --sglang-tlru-threshold 9",
        "--engine-type trtllm --trtllm-capacity-scheduler-policy max_utilization --preemption-mode fifo",
        "--engine-type sglang --scheduling-policy fcfs --watermark 0 --preemption-mode lifo --max-num-batched-tokens 8192",
        "--sglang-schedule-policy fcfs --sglang-clip-max-new-tokens 4096 --aic-mtp-seed 42 --prefill-schedule-interval 1",
        "--disaggregation-mode decode --kv-transfer-bandwidth 7",
    ] {
        let flags: Vec<&str> = flags.split(' ').collect();
        assert_eq!(told(&scene, "", &flags), Vec::<String>::new(), "{flags:?}");
    }
}

#[test]
fn a_mixed_fleet_is_told_of_what_no_group_reads_and_of_what_a_group_says_for_itself() {
    let scene = Scene::new();
    let mixed = "watermark = 0.1\nsglang_clip_max_new_tokens = 7\n\
                 [[group]]\nname = \"a\"\nendpoint = \"dyn://one.backend.generate\"\n\
                 [[group]]\nname = \"b\"\nendpoint = \"dyn://two.backend.generate\"\nengine_type = \"sglang\"\n";
    assert_eq!(told(&scene, mixed, &[]), Vec::<String>::new());
    // What is printed says in each group what the fleet says.
    let printed = said(&scene.with_file(mixed, &[]));
    assert_eq!(told(&scene, &printed, &[]), Vec::<String>::new());
    let flags = ["--long-prefill-token-threshold", "7", "--scheduler-fidelity", "mocker"];
    let none = told(&scene, mixed, &flags);
    assert_eq!(none.len(), 2, "{none:#?}");
    assert!(
        none[0].contains("fleet.toml: watermark = 0.1 has no effect"),
        "{none:#?}"
    );
    assert!(
        none[1].contains("--long-prefill-token-threshold 7 has no effect"),
        "{none:#?}"
    );
    let own = told(&scene, &format!("{mixed}watermark = 0.2\n"), &[]);
    assert_eq!(own.len(), 1, "{own:#?}");
    assert!(
        own[0].contains("fleet.toml, group b: watermark = 0.2 has no effect"),
        "{own:#?}"
    );
    let document = "extra_engine_args = '{\"router_queue_policy\": \"fcfs\"}'\n";
    let own = told(&scene, &format!("{mixed}{document}"), &[]);
    assert_eq!(own.len(), 1, "{own:#?}");
    assert!(
        own[0].contains("group b: extra_engine_args: `router_queue_policy` fcfs has no effect"),
        "{own:#?}"
    );
}

#[test]
fn a_switch_that_is_neither_on_nor_off_is_off_and_told() {
    for (value, on, warned) in [
        ("1", true, false),
        ("TRUE", true, false),
        ("yes", true, false),
        ("on", true, false),
        ("0", false, false),
        ("off", false, false),
        ("banana", false, true),
        ("2", false, true),
    ] {
        let scene = Scene::new().set("DYN_MOCKER_KV_CACHE_TRACE", value);
        let printed = scene.printed(&[]);
        assert!(
            printed.contains(&format!("kv_cache_trace = {on}  # ")),
            "{value}: {printed}"
        );
        let told = told(&scene, "", &[]);
        assert_eq!(told.len(), usize::from(warned), "{value}: {told:?}");
        assert!(told.iter().all(|line| line.contains("counts as off")), "{told:?}");
    }
    let brokers = Scene::new().set("DYN_ZMQ_BROKER_ENABLED", "banana");
    assert!(brokers.printed(&[]).contains("zmq_broker_enabled = false  # "));
    let told = told(&brokers, "", &[]);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains("DYN_ZMQ_BROKER_ENABLED=banana counts as off"),
        "{told:?}"
    );
}
