//! `predict`, `recommend`, `trace` and `replay --html` as a user meets them, and the examples of the README.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod examples;
mod predict;
mod recommend;
mod traces;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Parser;
use ghostfleet::cli::{Cli, Command};
use serde_json::Value;

/// The working directory belongs to the whole process.
static DIRECTORY: Mutex<()> = Mutex::new(());

/// What a command printed, or its exit code and message. Commands run in this process, as `main` runs them.
fn run(directory: &Path, arguments: &[&str]) -> Result<String, (u8, String)> {
    let cli = Cli::try_parse_from([&["ghostfleet"], arguments].concat());
    let cli = cli.map_err(|error| (u8::try_from(error.exit_code()).unwrap(), error.to_string()))?;
    let _alone = DIRECTORY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    std::env::set_current_dir(directory).unwrap();
    let mut out = Vec::new();
    let ran = match &cli.command {
        Command::Replay(args) => {
            ghostfleet::replay_run::run(args).map_err(|error| (error.exit_code(), error.to_string()))
        }
        Command::Predict(args) => {
            ghostfleet::predict::run(args, &mut out).map_err(|error| (error.exit_code(), error.to_string()))
        }
        Command::Recommend(args) => {
            ghostfleet::recommend::run(args, &mut out).map_err(|error| (error.exit_code(), error.to_string()))
        }
        Command::Trace(command) => {
            ghostfleet::traces::run(command, &mut out).map_err(|error| (error.exit_code(), error.to_string()))
        }
        other => panic!("not a command of these tests: {other:?}"),
    };
    ran.map(|()| String::from_utf8(out).unwrap())
}

/// As [`run`], and it has to end well; what it printed.
fn succeed(directory: &Path, arguments: &[&str]) -> String {
    run(directory, arguments).unwrap_or_else(|(_, said)| panic!("{arguments:?}: {said}"))
}

/// As [`run`], and it has to end with this code and these words.
fn refuse(directory: &Path, arguments: &[&str], code: u8, words: &[&str]) {
    let Err((found, said)) = run(directory, arguments) else {
        panic!("{arguments:?} was accepted");
    };
    assert_eq!(found, code, "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A report without what depends on how fast this machine is.
fn timeless(mut report: Value) -> Value {
    let keys = [
        "wall_time_ms",
        "processed_tokens_per_s",
        "processed_output_tokens_per_s",
    ];
    let map = report.as_object_mut().unwrap();
    for key in keys {
        assert!(map.remove(key).is_some(), "{key}");
    }
    report
}
