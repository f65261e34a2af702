//! The `drill` command.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use super::error::{DrillError, Unfinished};
use super::outputs;
use super::record::Record;
use super::report::{Report, Verdict};
use super::run::{Front, Options, attempt};
use super::scenario::Scenario;
use super::scenario::server::Server;
use super::stop::Stop;
use crate::cli::DrillArgs;

/// Runs the scenarios that the flags name and prints each verdict as it comes. One that does not run to its end does not
/// keep the others from running; after a signal those that are left are reported as not run.
///
/// # Errors
/// [`DrillError::Unfinished`] names the drills without a verdict, once all reports are written; others when nothing ran.
pub fn command(args: &DrillArgs, out: &mut impl Write) -> Result<Verdict, DrillError> {
    let instead = match (&args.frontend, &args.frontend_command) {
        (Some(url), _) => Some(Some(Server::from_url(url).map_err(DrillError::Input)?)),
        (None, Some(line)) => Some(Some(Server::from_line(line).map_err(DrillError::Input)?)),
        (None, None) => args.no_frontend.then_some(None),
    };
    // All of them are read before the first one runs.
    let scenarios = args
        .scenarios
        .iter()
        .map(|path| Scenario::read(path, |path| std::fs::read_to_string(path)));
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    outputs::prepare(args)?;
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let stop = Stop::on_signals().map_err(|error| DrillError::Io("listen for signals".into(), error))?;
    let mut reports = Vec::new();
    let mut codes = Vec::new();
    for scenario in &scenarios {
        let seed = args.seed.unwrap_or(scenario.seed);
        let report = if let Some(reason) = stop.reason() {
            Report::not_run(scenario, seed, &reason.to_string())
        } else {
            let name = scenario.name.clone();
            let options = Options {
                seed: args.seed,
                front: instead.clone().map_or(Front::AsWritten, Front::Instead),
                environment: environment.clone(),
                stop: stop.clone(),
                truth: None,
                progress: Some(Box::new(move |phase| tracing::info!(drill = name, "{phase}"))),
            };
            let begun = Instant::now();
            attempt(scenario, options).unwrap_or_else(|Unfinished { error, record }| {
                codes.push(error.exit_code());
                let record = record.map_or_else(|| Record::unseen(seed), |record| *record);
                Report::unfinished(scenario, record, error.to_string(), begun.elapsed())
            })
        };
        let said = say(out, &report.text());
        reports.push(report);
        if let Err(error) = said {
            outputs::write_all(args, &reports)?;
            return Err(error);
        }
    }
    outputs::write_all(args, &reports)?;
    let problems: Vec<String> = reports
        .iter()
        .filter_map(|report| Some(format!("{}: {}", report.name, report.problem()?)))
        .collect();
    if !problems.is_empty() {
        let problems = problems.join("\n");
        // A signal first, then a run that failed: bad input only when that is all there was.
        codes.extend(
            reports
                .iter()
                .filter(|report| report.error.is_none() && report.verdict == Verdict::Error)
                .map(|report| report.verdict.exit_code()),
        );
        codes.extend(stop.reason().map(|reason| reason.exit_code()));
        let exit_code = [130, 1, 2].into_iter().find(|code| codes.contains(code)).unwrap_or(1);
        return Err(DrillError::Unfinished { problems, exit_code });
    }
    let failed = reports.iter().any(|report| report.verdict == Verdict::Fail);
    Ok(if failed { Verdict::Fail } else { Verdict::Pass })
}

fn say(out: &mut impl Write, text: &str) -> Result<(), DrillError> {
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        // A closed pipe (`| head`) is the reader's choice; the exit code tells the verdict.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| DrillError::Io("write to standard output".into(), error)),
    }
}
