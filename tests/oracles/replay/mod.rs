//! Offline replay of the peer: reports and request records.

mod compare;
mod form;
mod refusals;

use std::path::{Path, PathBuf};

use clap::Parser;
use ghostfleet::cli::ReplayArgs;
use ghostfleet::replay::{Control, Report};
use ghostfleet::replay_run::{RunError, execute};
use serde_json::Value;

use form::{Case, Recorded};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    replay: ReplayArgs,
}

fn parse(flags: &[String]) -> Result<ReplayArgs, clap::Error> {
    let program = ["replay".to_owned()];
    Command::try_parse_from(program.iter().chain(flags)).map(|command| command.replay)
}

/// Flags of `replay` for a recorded run.
fn flags(case: &Case, recorded: &Recorded, release: &str, directory: &Path) -> Vec<String> {
    let records = directory.join("records.jsonl").display().to_string();
    let own = ["--semantics", release, "--request-records", &records].map(str::to_owned);
    let mut flags = [case.workload_flags(directory), recorded.flags(), own.to_vec()].concat();
    for flag in &mut flags {
        *flag = flag.replace("<beside>", &directory.display().to_string());
    }
    if let Some(script) = &case.scaling_script {
        let log = planner_log(directory).display().to_string();
        flags.extend([
            "--planner-config".into(),
            script.to_string(),
            "--planner-log".into(),
            log,
        ]);
    }
    flags
}

fn replay(flags: &[String]) -> Result<Report, RunError> {
    execute(&parse(flags).unwrap(), |_| Control::Continue)
}

fn planner_log(directory: &Path) -> PathBuf {
    directory.join("planner.jsonl")
}

#[test]
fn replay_1_6_1() {
    check("1.6.1", |case| case.dynamo_1_6_1.as_ref());
}

#[test]
fn replay_1_4_2() {
    check("1.4.2", |case| case.dynamo_1_4_2.as_ref());
}

fn check(release: &str, of: fn(&Case) -> Option<&Recorded>) {
    let mut failed = Vec::new();
    super::cases::run("replay", |name, text: Value| {
        let Ok(case) = serde_json::from_value::<Case>(text) else {
            assert!(name.starts_with("cli-refusals"), "{name} is not a case");
            return;
        };
        let Some(recorded) = of(&case) else { return };
        let directory = tempfile::tempdir().unwrap();
        case.write_files(directory.path());
        let flags = flags(&case, recorded, release, directory.path());
        let differences = match (&recorded.report, replay(&flags)) {
            (Some(expected), Ok(report)) => {
                let mut found = compare::differences(expected, recorded, &report, &flags, &replay);
                if let Some(scaling) = &recorded.scaling {
                    found.extend(compare::scaling(scaling, &report));
                }
                if let Some(snapshots) = &recorded.scaling_snapshots {
                    found.extend(compare::ticks(snapshots, &planner_log(directory.path())));
                }
                found
            }
            (None, Err(_)) => Vec::new(),
            (Some(_), Err(error)) => vec![format!("refused: {error}")],
            (None, Ok(_)) => vec![format!("accepted, but the peer says {:?}", recorded.error)],
        };
        println!("{name}: {}", if differences.is_empty() { "equal" } else { "DIFFERENT" });
        failed.extend(differences.iter().map(|difference| format!("{name}: {difference}")));
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A file name inside a directory.
fn inside(directory: &Path, name: &str) -> PathBuf {
    let name = Path::new(name).file_name().unwrap();
    directory.join(name)
}
