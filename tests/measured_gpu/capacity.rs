//! KV blocks of a rank, as the wheel's Python interface counts them (`aiconfigurator-core` 0.12.0).

use ghostfleet::aic::{AicError, AicModel, Backend, KvEstimate, MemoryQuery, kv_blocks};

use crate::data::model;

const QWEN: &str = "Qwen/Qwen3-32B";

fn estimate(model: &AicModel, fraction: f64, block_size: u32) -> Result<KvEstimate, AicError> {
    kv_blocks(
        model,
        &MemoryQuery {
            fraction,
            max_num_batched_tokens: 8192,
            block_size,
        },
    )
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn blocks_are_what_weights_and_activations_leave() {
    let qwen = model(QWEN, "h200_sxm", Backend::Vllm);
    let llama = model("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", Backend::Vllm);
    let four = AicModel { tp: 4, ..qwen.clone() };
    for (model, fraction, block_size, blocks) in [
        (&qwen, 0.9, 64, 3904),
        (&qwen, 0.9, 16, 15_616),
        (&four, 0.9, 64, 27_426),
        (&llama, 0.9, 64, 13_792),
        (&llama, 0.5, 64, 6573),
        (&model_of(Backend::Sglang, "h200_sxm"), 0.88, 1, 232_835),
        (&model_of(Backend::Trtllm, "h200_sxm"), 0.9, 32, 8651),
        (&model_of(Backend::Vllm, "h100_sxm"), 0.9, 64, 390),
    ] {
        let found = estimate(model, fraction, block_size).unwrap();
        assert_eq!(found.blocks, blocks, "{model:?}");
    }
    let found = estimate(&qwen, 0.9, 64).unwrap();
    assert_eq!((found.weights, found.non_kv), (65_522_892_800, 70_757_384_192));
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_gpu_that_is_too_small_is_refused_with_the_bytes() {
    let error = estimate(&model_of(Backend::Vllm, "l40s"), 0.9, 64)
        .unwrap_err()
        .to_string();
    for words in ["no KV budget", "70757384192", "48305799168"] {
        assert!(error.contains(words), "{words} is missing in {error}");
    }
}

fn model_of(backend: Backend, system: &str) -> AicModel {
    model(QWEN, system, backend)
}
