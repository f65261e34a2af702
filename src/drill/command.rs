//! The `drill` command.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use super::error::DrillError;
use super::report::{Report, Verdict, documents, junit, page};
use super::run::{Front, Options, run};
use super::scenario::Scenario;
use super::scenario::frontend::Frontend;
use crate::cli::DrillArgs;

/// Runs the scenarios that the flags name and prints each verdict as it comes.
///
/// # Errors
/// [`DrillError`] of the first drill that did not run to its end.
pub fn command(args: &DrillArgs, out: &mut impl Write) -> Result<Verdict, DrillError> {
    let instead = match (&args.frontend, &args.frontend_command) {
        (Some(url), _) => Some(Frontend::from_url(url).map_err(DrillError::Input)?),
        (None, Some(line)) => Some(Frontend::from_line(line).map_err(DrillError::Input)?),
        (None, None) => args.no_frontend.then_some(Frontend::None),
    };
    // All of them are read before the first one runs.
    let scenarios = args
        .scenarios
        .iter()
        .map(|path| Scenario::read(path, |path| std::fs::read_to_string(path)));
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    for path in [&args.json, &args.junit, &args.html].into_iter().flatten() {
        write(path, "")?;
    }
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let mut reports = Vec::new();
    let outcome: Result<(), DrillError> = scenarios.iter().try_for_each(|scenario| {
        let name = scenario.name.clone();
        let report = run(
            scenario,
            Options {
                seed: args.seed,
                front: instead.clone().map_or(Front::AsWritten, Front::Instead),
                environment: environment.clone(),
                heed_signals: true,
                truth: None,
                progress: Some(Box::new(move |phase| tracing::info!(drill = name, "{phase}"))),
            },
        )?;
        say(out, &report.text())?;
        reports.push(report);
        Ok(())
    });
    // What has a verdict is told, whatever became of the rest.
    write_all(args, &reports)?;
    outcome?;
    let failed = reports.iter().any(|report| report.verdict == Verdict::Fail);
    Ok(if failed { Verdict::Fail } else { Verdict::Pass })
}

fn write_all(args: &DrillArgs, reports: &[Report]) -> Result<(), DrillError> {
    if let Some(path) = &args.json {
        write(path, &format!("{}\n", documents(reports)))?;
    }
    if let Some(path) = &args.junit {
        write(path, &junit(reports))?;
    }
    if let Some(path) = &args.html {
        write(path, &page(reports))?;
    }
    Ok(())
}

fn say(out: &mut impl Write, text: &str) -> Result<(), DrillError> {
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is the reader's choice; the exit code tells the verdict.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| DrillError::Io("write to standard output".into(), error)),
    }
}

fn write(path: &Path, text: &str) -> Result<(), DrillError> {
    std::fs::write(path, text).map_err(|source| DrillError::Write {
        path: path.to_owned(),
        source,
    })
}
