//! Single passes against what the wheel's own Python interface says (`aiconfigurator-core` 0.12.0).

use ghostfleet::aic::{AicModel, Backend, DatabaseMode};

use crate::data::{decode, model, prefill, timing};

const QWEN: &str = "Qwen/Qwen3-32B";

fn assert_ms(found: f64, expected: f64, what: &str) {
    assert!(
        (found - expected).abs() < 6e-7,
        "{what}: {found:.6}, expected {expected:.6}"
    );
}

/// Prefill of one prompt by its length, then of four with 1024 new tokens and a prefix of 0 and 512; decode by sequences and
/// their length.
fn check(model: &AicModel, prompts: &[(u32, f64)], four: [f64; 2], steps: &[(u32, u32, f64)]) {
    let of = format!(
        "{} on {} with {:?}",
        model.model_path.display(),
        model.system,
        model.backend
    );
    let timing = timing(model);
    for &(isl, ms) in prompts {
        assert_ms(prefill(&*timing, 1, isl, 0), ms, &format!("{of}, prefill of {isl}"));
    }
    assert_ms(prefill(&*timing, 4, 1024, 0), four[0], &format!("{of}, four prompts"));
    assert_ms(
        prefill(&*timing, 4, 1024 + 512, 512),
        four[1],
        &format!("{of}, four with a prefix"),
    );
    for &(sequences, context, ms) in steps {
        let what = format!("{of}, decode of {sequences} x {context}");
        assert_ms(decode(&*timing, sequences, context), ms, &what);
    }
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_dense_model_takes_the_measured_times() {
    check(
        &model(QWEN, "h200_sxm", Backend::Vllm),
        &[
            (1, 20.671_909),
            (16, 22.597_323),
            (512, 47.747_158),
            (4000, 392.988_037),
            (32_000, 4_474.548_881),
        ],
        [378.991_653, 386.783_610],
        &[
            (1, 128, 18.136_047),
            (2, 1024, 19.698_167),
            // More sequences may take less time: so it was measured.
            (4, 128, 19.536_501),
            (8, 128, 18.972_058),
            (64, 4096, 36.266_320),
            (256, 16_384, 275.454_368),
        ],
    );
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn tensor_parallelism_and_smaller_models_are_other_columns() {
    let four = AicModel {
        tp: 4,
        ..model(QWEN, "h200_sxm", Backend::Vllm)
    };
    check(
        &four,
        &[(1, 9.399_487), (1000, 33.935_947), (16_000, 584.401_131)],
        [125.693_087, 127.798_924],
        &[(1, 128, 6.877_318), (64, 1024, 9.130_146), (256, 16_384, 74.937_839)],
    );
    check(
        &model("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", Backend::Vllm),
        &[(1, 5.220_131), (2000, 42.373_869), (8192, 198.871_816)],
        [88.127_894, 90.196_659],
        &[(1, 128, 4.799_961), (64, 4096, 13.614_355), (256, 1024, 15.348_220)],
    );
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn each_backend_and_gpu_has_its_own_measurements() {
    check(
        &model(QWEN, "h200_sxm", Backend::Sglang),
        &[(128, 24.062_254), (4096, 418.947_596)],
        [399.334_885, 407.139_699],
        &[(1, 16_384, 19.391_246), (256, 128, 32.696_735)],
    );
    check(
        &model(QWEN, "h200_sxm", Backend::Trtllm),
        &[(128, 23.053_918), (4096, 385.993_162)],
        [363.077_242, 372.692_866],
        &[(1, 16_384, 19.964_895), (256, 128, 33.891_560)],
    );
    check(
        &model(QWEN, "b200_sxm", Backend::Vllm),
        &[(128, 15.954_118), (4096, 189.388_037)],
        [179.587_968, 183.507_726],
        &[(1, 16_384, 13.169_687), (256, 128, 17.019_843)],
    );
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_plan_that_was_made_elsewhere_takes_the_same_times() {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("plan.json");
    let model = model(QWEN, "h200_sxm", Backend::Vllm);
    let mut plan = ghostfleet::aic::plan(&model).unwrap();
    // Its directory is that of where it was made.
    plan["engine"]["systems_path"] = "/nowhere".into();
    std::fs::write(&path, plan.to_string()).unwrap();
    let planned = AicModel {
        plan: Some(path.clone()),
        ..model.clone()
    };
    assert_ms(prefill(&*timing(&planned), 1, 4000, 0), 392.988_037, "by the plan");
    plan["generation_ops"][0] = serde_json::json!({"Teleport": {}});
    std::fs::write(&path, plan.to_string()).unwrap();
    let reach = ghostfleet::aic::Reach {
        max_num_batched_tokens: 8192,
        max_num_seqs: 256,
        max_model_len: 8192,
    };
    let error = ghostfleet::aic::timing(&planned, reach).unwrap_err().to_string();
    for words in ["plan.json", "the plan is not understood", "Teleport"] {
        assert!(error.contains(words), "{words} is missing in {error}");
    }
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_step_with_drafts_has_as_many_more_sequences_and_layers() {
    let plain = model(QWEN, "h200_sxm", Backend::Vllm);
    let drafts = AicModel {
        nextn: 3,
        ..plain.clone()
    };
    // Each of three drafts takes a layer beside the 64 of the model.
    let expected = decode(&*timing(&plain), 128, 1024) * 67.0 / 64.0;
    assert_ms(
        decode(&*timing(&drafts), 32, 1024),
        expected,
        "32 sequences with 3 drafts each",
    );
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_pass_without_a_time_takes_that_of_the_last_one_of_its_rank() {
    let model = model(QWEN, "h200_sxm", Backend::Vllm);
    let (one, other) = (timing(&model), timing(&model));
    // The evaluator has no time for a prompt without new tokens.
    let nothing = |timing: &dyn ghostfleet::engine::PassTiming| prefill(timing, 1, 100, 100);
    assert_ms(nothing(&*one), 20.671_909, "before any pass, the shortest one");
    assert_ms(prefill(&*one, 1, 4000, 0), 392.988_037, "a pass");
    assert_ms(nothing(&*one), 392.988_037, "after it");
    assert_ms(nothing(&*other), 20.671_909, "another rank has seen no pass");
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn a_model_of_experts_takes_the_measured_times() {
    let experts = AicModel {
        tp: 2,
        moe_tp: Some(1),
        moe_ep: Some(2),
        ..model("Qwen/Qwen3-30B-A3B", "h200_sxm", Backend::Vllm)
    };
    check(
        &experts,
        &[(1, 5.650_259), (512, 16.391_539), (8000, 99.479_215)],
        [49.205_198, 50.784_576],
        &[(1, 128, 3.837_337), (64, 1024, 11.525_958), (256, 16_384, 60.473_717)],
    );
}

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn estimates_and_limits_are_other_numbers_than_measurements() {
    for (mode, prompt, one, many) in [
        (DatabaseMode::Hybrid, 392.988, 18.136, 45.286),
        (DatabaseMode::Empirical, 397.600, 18.190, 46.773),
        (DatabaseMode::Sol, 282.281, 13.340, 31.791),
    ] {
        let timing = timing(&AicModel {
            database_mode: mode,
            ..model(QWEN, "h200_sxm", Backend::Vllm)
        });
        let found = [
            prefill(&*timing, 1, 4000, 0),
            decode(&*timing, 1, 128),
            decode(&*timing, 256, 1024),
        ];
        for (found, expected) in found.into_iter().zip([prompt, one, many]) {
            assert!(
                (found - expected).abs() < 6e-4,
                "{mode:?}: {found}, expected {expected}"
            );
        }
    }
}
