//! Settings of prefill and decode workers, and lists of ports.

use crate::scene::{Scene, assert_refused, line, said};

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
            vec!["--is-decode-worker", "--bootstrap-ports", "9000,9001"],
            vec!["--bootstrap-ports 9000,9001", "--disaggregation-mode prefill"],
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
    assert_refused(
        &pools(meet, meet),
        &[
            "group d: bootstrap_ports = \"0\"",
            "give it in the [[group]] of those that it is for",
        ],
    );
}

#[test]
fn ports_are_listed_one_per_worker() {
    let scene = Scene::new();
    assert_refused(
        &scene.run(&["--is-prefill-worker", "--bootstrap-ports", "9000,9001"]),
        &[
            "--bootstrap-ports 9000,9001",
            "lists 2 ports for the 1 worker; give one port per worker",
        ],
    );
    assert_refused(
        &scene.run(&["--is-prefill-worker", "--bootstrap-ports", "x"]),
        &["--bootstrap-ports x", "comma separated"],
    );
    assert_refused(
        &scene.run(&["--is-prefill-worker", "--bootstrap-ports", ""]),
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
        ("bootstrap_ports = [9000, 9000]", &[], "port 9000 is wanted twice"),
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
