//! `profile export`.

use tempfile::TempDir;

use crate::data::systems;
use crate::process::{ghostfleet, run};

#[test]
#[ignore = "needs the measurements that scripts/setup unpacks"]
fn an_exported_profile_has_the_measured_times_at_its_points() {
    let directory = TempDir::new().unwrap();
    let out = directory.path().join("qwen.npz");
    let mut command = ghostfleet();
    command.args(["profile", "export", "--extra-engine-args"]);
    command.arg(r#"{"aic_backend": "vllm", "aic_model_path": "Qwen/Qwen3-32B"}"#);
    command.arg("--aic-systems-path").arg(systems()).arg("-o").arg(&out);
    let ran = run(&mut command);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let points = ghostfleet::profile::load(&out).unwrap().points();
    let at = |axis: &[f64], value: f64| axis.iter().position(|point| (point - value).abs() < 1e-9).unwrap();
    let prompt = points.prefill_ttft_ms[at(&points.prefill_isl, 1024.0)];
    assert!((prompt - 93.190_548).abs() < 6e-7, "{prompt}");
    let row = at(&points.decode_active_kv_tokens, 65_536.0);
    let column = at(&points.decode_context_length, 1024.0);
    let step = points.decode_itl[row * points.decode_context_length.len() + column];
    assert!((step - 25.415_569).abs() < 6e-7, "{step}");
    // As far as 3904 blocks of 64 tokens go.
    assert!((points.decode_active_kv_tokens.last().unwrap() - 131_072.0).abs() < 1e-9);
}
