//! `profile convert` and `--planner-profile-data` as a user meets them.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn profile(directory: &Path) {
    let prefill = r#"{"prefill_isl": [100, 1000, 4000], "prefill_ttft": [20, 60, 200]}"#;
    let decode = r#"{"x_kv_usage": [0.1, 0.5, 0.9, 0.2], "y_context_length": [100, 100, 900, 900],
        "z_itl": [5, 8, 12, 6], "max_kv_tokens": 20000}"#;
    std::fs::write(directory.join("prefill_raw_data.json"), prefill).unwrap();
    std::fs::write(directory.join("decode_raw_data.json"), decode).unwrap();
}

fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

#[test]
fn a_directory_is_converted_and_the_result_is_said() {
    let directory = TempDir::new().unwrap();
    profile(directory.path());
    let out = directory.path().join("perf.npz");
    let (input, output) = (directory.path().to_str().unwrap(), out.to_str().unwrap());
    let ran = run(&["profile", "convert", input, "-o", output]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(said.contains("100 points from 100 to 4000"), "{said}");
    assert!(said.contains("100 points from 0 to 18000"), "{said}");
    assert_refused(&run(&["profile", "convert", output, "-o", output]), 2, &[output]);
    let copy = directory.path().join("copy.npz");
    let copy = copy.to_str().unwrap();
    let again = run(&["profile", "convert", output, "-o", copy]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(String::from_utf8_lossy(&again.stdout).replace(copy, output), said);
}

#[test]
fn unusable_input_and_output_end_with_their_own_codes() {
    let directory = TempDir::new().unwrap();
    let input = directory.path().to_str().unwrap();
    assert_refused(
        &run(&["profile", "convert", input, "-o", "out.npz"]),
        2,
        &[input, "prefill_raw_data.json"],
    );
    assert_refused(&run(&["profile", "convert", input]), 2, &["--output"]);
    profile(directory.path());
    let nowhere = directory.path().join("absent/out.npz");
    let nowhere = nowhere.to_str().unwrap();
    assert_refused(
        &run(&["profile", "convert", input, "-o", nowhere]),
        1,
        &["cannot write", nowhere],
    );
}

#[test]
fn serve_refuses_an_unusable_profile_before_it_starts() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
    let serve = |flags: &[&str]| {
        let base = [
            "serve",
            "--model-path",
            model.to_str().unwrap(),
            "--discovery-backend",
            "file",
            "--print-config",
        ];
        run(&[&base, flags].concat())
    };
    assert_refused(
        &serve(&["--planner-profile-data", "/nowhere/perf.npz"]),
        2,
        &["--planner-profile-data", "/nowhere/perf.npz"],
    );
    assert_refused(&serve(&["--step-jitter-ms=-1"]), 2, &["--step-jitter-ms -1"]);
    let directory = TempDir::new().unwrap();
    profile(directory.path());
    let said = serve(&["--planner-profile-data", directory.path().to_str().unwrap()]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}
