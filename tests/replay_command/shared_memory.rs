//! Workers whose copies from host memory that they share take each other's room.

use serde_json::json;

use super::{replay, report, text};

/// Copies for requests that wait may take up all GPU memory of a worker, so that none of them can go on. Dynamo 1.6.1 ends on
/// this load; here the last of them gives its memory up when no worker has anything left to do.
#[test]
fn requests_whose_copies_fill_the_gpu_do_not_wait_for_each_other_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let engine = json!({"engine": {
        "num_gpu_blocks": 50, "block_size": 16, "kv_cache_bytes_per_token": 327_680,
        "native_host_offload": {"num_host_blocks": 200, "scope": "cluster_shared", "kv_layout_id": "x"},
    }});
    let load = "--input-tokens 500 --output-tokens 32 --request-count 300 --replay-concurrency 24 --num-workers 2 \
                --shared-prefix-ratio 0.3 --num-prefix-groups 30 --extra-engine-args";
    let engine = engine.to_string();
    let flags: Vec<&str> = load.split_whitespace().chain([engine.as_str()]).collect();
    let output = replay(directory.path(), &flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = report(directory.path());
    assert_eq!(report["completed_requests"], 300);
    assert_eq!(report["g2_domains"][0]["capacity_blocks"], 200);
}
