//! Documents of engine settings, in either dialect.

use crate::scene::{Scene, assert_refused, line, said};

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
fn documents_that_the_peers_take_are_taken() {
    let scene = Scene::new();
    for document in [
        r#"{"router_queue_policy": "fcfs"}"#,
        r#"{"engine": {}, "dynamo": {"router_queue_policy": "wspt"}}"#,
        r#"{"engine": {"emit_kv_events": false, "kv_cache_groups": []}}"#,
        r#"{"dp_size": 2, "tensor_parallel_size": 1}"#,
        r#"{"num_g2_blocks": 8, "offload_batch_size": 0}"#,
        r#"{"engine": {"native_host_offload": {"num_host_blocks": 8}, "kv_cache_bytes_per_token": 1,
            "g3_offload": {"scope": "worker_local", "num_g3_blocks": 8}}}"#,
    ] {
        scene.printed(&["--extra-engine-args", document]);
    }
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
    let tiers = |role: &str, bytes: u32| {
        format!(
            r#"{{"engine": {{"worker_type": "{role}", "kv_cache_bytes_per_token": {bytes},
                "native_host_offload": {{"num_host_blocks": 8}},
                "g3_offload": {{"scope": "worker_local", "num_g3_blocks": 8}}}}}}"#
        )
    };
    refused(&tiers("prefill", 1), &["g3_offload", "aggregated workers"]);
    refused(&tiers("decode", 1), &["g3_offload", "aggregated workers"]);
    refused(&tiers("aggregated", 0), &["kv_cache_bytes_per_token", "positive"]);
    refused(
        r#"{"engine": {"max_num_seqs": 4294967296}}"#,
        &["`engine.max_num_seqs`", "the largest limit is 4294967295"],
    );
    refused(
        r#"{"router_queue_policy": "sjf"}"#,
        &["`router_queue_policy` sjf", "`fcfs`, `lcfs`, `wspt`"],
    );
    refused(
        r#"{"g1_backend": "native", "num_g2_blocks": 8}"#,
        &["`g1_backend` native", "leave it out or set kvbm"],
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
