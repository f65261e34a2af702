//! Scenarios of the tests' own.

use std::path::{Path, PathBuf};

use ghostfleet::drill::{Options, Report, Scenario, run};

/// Where scenarios of this project stand.
pub(crate) fn drills() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/drills")
}

/// A scenario of two seconds with four quick workers and one load, and what is added to it.
pub(crate) fn scenario(load: &str, rest: &str) -> Scenario {
    let text = format!(
        r#"
        [scenario]
        name = "test"
        duration = "2s"
        settle = "5s"
        [fleet]
        model_path = "../tiny-model"
        model_name = "tiny"
        num_workers = 4
        block_size = 16
        discovery_backend = "mem"
        timing_model = {{ type = "fixed", prefill_ms = 1.0, decode_ms = 2.0 }}
        [[load]]
        {load}
        {rest}
        "#
    );
    Scenario::parse(&drills().join("test.toml"), &text).unwrap()
}

/// Runs it with this seed.
pub(crate) fn run_with(scenario: &Scenario, seed: u64) -> Report {
    let options = Options {
        seed: Some(seed),
        ..Options::default()
    };
    run(scenario, options).unwrap()
}
