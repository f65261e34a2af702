//! Drives the crate `kvbm-logical` through seeded operation sequences and writes down what it evicted.
//!
//! One file per eviction backend and kind of workload. The seeds do not depend on the backend, so that the backends are
//! given the same choices and differ in what they make of them.

mod driver;
mod rng;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use driver::{Backend, Driver};
use rng::Rng;
use workload::Workload;

/// Sequences per file.
const SEQUENCES: u64 = 14;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: record-kvbm-logical DIRECTORY");
        return ExitCode::from(2);
    };
    for backend in Backend::ALL {
        for workload in Workload::ALL {
            if let Err(error) = record(&directory, backend, workload) {
                eprintln!("{}: {error}", directory.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn record(directory: &Path, backend: Backend, workload: Workload) -> std::io::Result<()> {
    let mut text = format!(
        "{{\"source\":\"kvbm-logical 1.6.1\",\"backend\":\"{}\",\"workload\":\"{}\",\"sequences\":[",
        backend.name(),
        workload.name()
    );
    let mut evicted = 0;
    for number in 0..SEQUENCES {
        let seed = 1000 * workload as u64 + number;
        let mut rng = Rng::new(seed);
        let (capacity, forest) = workload.forest(&mut rng);
        let mut driver = Driver::new(backend, capacity, &forest);
        workload.run(&mut driver, &mut rng);
        let sequence = json!({"seed": seed, "capacity": capacity, "nodes": forest.rows(), "ops": driver.operations()});
        evicted += driver.evicted();
        text += if number == 0 { "\n" } else { ",\n" };
        text += &sequence.to_string();
    }
    text += "\n]}\n";
    let path = directory.join(format!("{}-{}.json", backend.name(), workload.name()));
    println!(
        "{}: {SEQUENCES} sequences, {evicted} evictions, {} bytes",
        path.display(),
        text.len()
    );
    std::fs::write(path, text)
}
