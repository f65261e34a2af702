//! Terminal and files.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cli::ReplayArgs;
use crate::distinct_files::DistinctFiles;
use crate::replay::{Control, NamedReport, Progress, Report, render_html, render_table};

use super::destination;
use super::idle;
use super::inputs::inputs;
use super::interrupt::Interrupt;
use super::progress::Meter;
use super::{RunError, execute};

/// Replays, shows progress, writes the report and prints the table. Ctrl-C ends the run early with a report marked as
/// partial; a second one ends the process.
///
/// # Errors
/// As [`execute`], files that cannot be written, and [`RunError::Interrupted`] after a partial report.
pub fn run(args: &ReplayArgs) -> Result<(), RunError> {
    run_with(args, |args, observe| execute(args, observe))
}

/// Like [`run`], with a replay of any kind.
///
/// # Errors
/// As the replay, and files that cannot be written.
pub fn run_with(
    args: &ReplayArgs,
    replay: impl FnOnce(&ReplayArgs, &mut dyn FnMut(Progress) -> Control) -> Result<Report, RunError>,
) -> Result<(), RunError> {
    let (path, named) = report_path(args.report_json.as_deref());
    check_outputs(args, &path)?;
    let mut runs = compared(&args.html_compare)?;
    for warning in idle::flags(args) {
        // Who does not read this gets the same report.
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    let interrupt = Interrupt::new()?;
    let mut meter = Meter::new();
    let result = replay(args, &mut |progress| {
        meter.show(progress);
        if interrupt.is_wanted() {
            Control::Stop
        } else {
            Control::Continue
        }
    });
    meter.finish();
    let report = result?;
    let wall_ms = meter.elapsed().as_secs_f64() * 1e3;
    let summary = report.to_json(wall_ms);
    let fill = |out: &mut BufWriter<File>| {
        serde_json::to_writer_pretty(&mut *out, &summary)?;
        out.write_all(b"\n")
    };
    let path = if named {
        destination::write(&path, fill).map(|()| path)?
    } else {
        // Runs of one second do not take each other's place.
        destination::write_new(&path, fill)?
    };
    for records in [&args.report_jsonl, &args.request_records].into_iter().flatten() {
        write_records(records, &report)?;
    }
    if let Some(html) = &args.html {
        runs.push(summary);
        let paths: Vec<&Path> = args.html_compare.iter().chain([&path]).map(PathBuf::as_path).collect();
        let named = names(&paths).into_iter().zip(runs);
        let runs: Vec<NamedReport> = named.map(|(name, report)| NamedReport { name, report }).collect();
        let page = render_html("ghostfleet replay", &runs);
        destination::write(html, |out| out.write_all(page.as_bytes()))?;
    }
    let shown = format!(
        "{}{}Token Gap p50, p99, p99.9, max (ms): {:.2}, {:.2}, {:.2}, {:.2}\nWall Time (ms): {wall_ms:.2}\nPrefix Cache Reused Ratio: {:.4}\nFirst Admission Prefix Cache Reused Ratio: \
         {:.4}\nSaved full report to: {}\n{}",
        scaling_events(&report),
        render_table(&report),
        report.itl.median,
        report.itl.p99,
        report.token_gaps.p999,
        report.itl.max,
        report.reused_ratio.0,
        report.reused_ratio.1,
        path.display(),
        planner_ticks(&report),
    );
    let mut stdout = std::io::stdout().lock();
    let printed = stdout.write_all(shown.as_bytes()).and_then(|()| stdout.flush());
    printed.map_err(|error| RunError::Write("standard output".into(), error))?;
    if report.partial {
        return Err(RunError::Interrupted(path.display().to_string()));
    }
    tell_rejections(&report);
    Ok(())
}

/// Whether everything that the replay writes can be written, and takes the place of nothing that it reads or writes besides.
fn check_outputs(args: &ReplayArgs, report: &PathBuf) -> Result<(), RunError> {
    let mut files = DistinctFiles::default();
    inputs(args, &mut files);
    for (flag, path) in [
        ("--report-json", Some(report)),
        ("--report-jsonl", args.report_jsonl.as_ref()),
        ("--request-records", args.request_records.as_ref()),
        ("--planner-log", args.planner_log.as_ref()),
        ("--html", args.html.as_ref()),
    ] {
        let Some(path) = path else { continue };
        destination::check(path)?;
        destination::distinct(path, |path| files.writes(flag, path))?;
    }
    Ok(())
}

/// What to say about requests that no worker could take.
pub(crate) fn rejections(report: &Report) -> Option<String> {
    let (rejected, all) = (report.rejected_requests, report.num_requests);
    (rejected > 0).then(|| {
        format!(
            "{rejected} of {all} requests were rejected: they need more than a worker has; look at num_gpu_blocks, \
             max_model_len, without chunked prefill at max_num_batched_tokens, with sglang at its max_prefill_tokens and \
             chunked_prefill_size"
        )
    })
}

/// Says on standard error that requests were rejected. No error even when all were: the peer's replay ends well, and the
/// report says it.
pub(crate) fn tell_rejections(report: &Report) {
    if let Some(what) = rejections(report) {
        // The run is done; who does not read this has the report.
        let _ = writeln!(std::io::stderr(), "warning: {what}");
    }
}

/// What a policy that scales did, event by event.
pub(crate) fn scaling_events(report: &Report) -> String {
    let events = report.scaling.iter().flat_map(|log| &log.events);
    let mut text = String::new();
    for event in events {
        if text.is_empty() {
            text.push_str("\nScaling events:\n");
        }
        let (seconds, pool, from, to, way) = (event.at_ms / 1e3, event.pool, event.from, event.to, event.way());
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  t={seconds:.1}s [{pool}]: {from} -> {to} workers ({way})");
    }
    text
}

/// How often a policy was asked.
pub(crate) fn planner_ticks(report: &Report) -> String {
    let ticks = report
        .scaling
        .as_ref()
        .map(|log| format!("Planner ticks: {}\n", log.ticks));
    ticks.unwrap_or_default()
}

/// Reports of other runs, which come first on a page.
fn compared(others: &[PathBuf]) -> Result<Vec<Value>, RunError> {
    let mut runs = Vec::new();
    for other in others {
        let failed = |error: &dyn std::fmt::Display| RunError::Invalid(format!("{}: {error}", other.display()));
        let text = std::fs::read(other).map_err(|error| failed(&error))?;
        let report: Value = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
        if report.get("completed_requests").is_none() {
            return Err(failed(&"expected a JSON report of replay"));
        }
        runs.push(report);
    }
    Ok(runs)
}

/// Names of reports: the files' without their endings, or the whole paths where that does not tell them apart.
fn names(paths: &[&Path]) -> Vec<String> {
    let stem = |path: &&Path| {
        path.file_stem()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned()
    };
    let stems: Vec<String> = paths.iter().map(stem).collect();
    let alike = |at: usize| stems.iter().filter(|other| **other == stems[at]).count() > 1;
    if (0..stems.len()).any(alike) {
        return paths.iter().map(|path| path.display().to_string()).collect();
    }
    stems
}

fn write_records(path: &Path, report: &Report) -> Result<(), RunError> {
    destination::write(path, |out| {
        for record in report.records.iter().flatten() {
            serde_json::to_writer(&mut *out, record)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    })
}

/// Where the report goes, and whether its name was given: the given file, or a file with the time in its name in the given
/// or current directory.
fn report_path(given: Option<&Path>) -> (PathBuf, bool) {
    match given {
        // One that is not there yet may still be named as a directory.
        Some(path) if !path.is_dir() && !path.as_os_str().as_bytes().ends_with(b"/") => (path.to_owned(), true),
        directory => {
            let seconds = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            let name = format!("dynamo_replay_report_{}.json", stamp(seconds));
            let path = directory.map_or_else(|| PathBuf::from(&name), |directory| directory.join(&name));
            (path, false)
        }
    }
}

/// `YYYYMMDD_HHMMSS` of a Unix time, UTC.
fn stamp(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Civil date from days since 1970-01-01, in eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}_{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{names, stamp};

    #[test]
    fn reports_are_told_apart_by_as_little_as_does() {
        assert_eq!(names(&[Path::new("a/one.json"), Path::new("two.json")]), ["one", "two"]);
        let alike = [Path::new("a/r.json"), Path::new("b/r.json")];
        assert_eq!(names(&alike), ["a/r.json", "b/r.json"]);
    }

    #[test]
    fn the_time_in_a_name_is_the_civil_date() {
        assert_eq!(stamp(0), "19700101_000000");
        assert_eq!(stamp(951_782_399), "20000228_235959");
        assert_eq!(stamp(951_782_400), "20000229_000000");
        assert_eq!(stamp(4_102_444_799), "20991231_235959");
    }
}
