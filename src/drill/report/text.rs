//! The verdict for a terminal.

use std::fmt::Write;

use super::series::summaries;
use super::{Report, Verdict, short};
use crate::drill::check::Status;
use crate::drill::record::ProgramRun;

/// The table. Writing to a string cannot fail, so results of `write!` are dropped.
pub(super) fn table(report: &Report) -> String {
    let record = &report.record;
    let mut text = format!("{}: {}", report.name, report.verdict.word().to_uppercase());
    let _ = writeln!(text, "  (seed {}, {:.1} s)", record.seed, report.took.as_secs_f64());
    if let Some(error) = &report.error {
        let _ = writeln!(text, "  {error}");
    }
    for moment in &record.moments {
        let victims: Vec<String> = moment
            .victims
            .iter()
            .take(8)
            .map(|worker| format!("w{worker}"))
            .collect();
        let more = moment.victims.len().saturating_sub(victims.len());
        let _ = write!(text, "  {:>6.2} s  {:<12} {}", moment.at, moment.mark, moment.told());
        if !victims.is_empty() {
            let _ = write!(text, "  -> {}", victims.join(" "));
        }
        if more > 0 {
            let _ = write!(text, " and {more} more");
        }
        text.push('\n');
        for error in &moment.errors {
            let _ = writeln!(text, "            not done: {error}");
        }
    }
    for summary in summaries(record) {
        let or_dash = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
        let _ = write!(
            text,
            "  load {}: {} requests, {} completed, {} migrated; ttft p50 {} p99 {} ms, itl p50 {} p99 {} ms",
            summary.load,
            summary.requests,
            summary.completed,
            summary.migrated,
            or_dash(summary.ttft_p50_ms),
            or_dash(summary.ttft_p99_ms),
            or_dash(summary.itl_p50_ms),
            or_dash(summary.itl_p99_ms),
        );
        for (kind, many) in &summary.failed {
            let _ = write!(text, "; {kind}: {many}");
        }
        text.push('\n');
    }
    for program in &record.programs {
        programs_line(&mut text, program);
    }
    let width = report
        .judgements
        .iter()
        .map(|judgement| judgement.name.chars().count())
        .max()
        .unwrap_or(0);
    for judgement in &report.judgements {
        let word = match judgement.status {
            Status::Pass => "pass",
            Status::Fail => "FAIL",
            Status::Skipped => "skip",
        };
        let _ = writeln!(text, "  {word}  {:<width$}  {}", judgement.name, judgement.evidence);
        if judgement.status == Status::Fail {
            if judgement.name != judgement.expect {
                let _ = writeln!(text, "        expected: {}", judgement.expect);
            }
            if !judgement.why.is_empty() {
                let _ = writeln!(text, "        {}", judgement.why);
            }
        }
    }
    for note in &record.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    let failures = record
        .requests
        .iter()
        .filter_map(|request| Some((request.sent, request.failure.as_ref()?)));
    for (sent, failure) in failures.take(5) {
        let _ = writeln!(
            text,
            "  a request of {sent:.2} s failed: {}: {}",
            failure.kind, failure.detail
        );
    }
    if report.verdict == Verdict::Fail && !record.router_log.is_empty() {
        let _ = writeln!(text, "  the end of the frontend's log:");
        for line in record.router_log.lines() {
            let _ = writeln!(text, "    {}", line.chars().take(300).collect::<String>());
        }
    }
    text
}

/// Figures of a program that a terminal shows.
const FIGURES: usize = 40;

fn programs_line(text: &mut String, program: &ProgramRun) {
    let word = if program.failed { "FAILED: " } else { "" };
    let took = program.ended - program.started;
    let _ = writeln!(text, "  load {}: {word}{} ({took:.1} s)", program.name, program.how);
    let figures: Vec<String> = program
        .figures(FIGURES)
        .into_iter()
        .map(|(name, value)| format!("{name} {}", short(value)))
        .collect();
    for line in figures.chunks(5) {
        let _ = writeln!(text, "    {}", line.join(", "));
    }
    if program.failed {
        for line in program.output.lines() {
            let _ = writeln!(text, "    | {}", line.chars().take(300).collect::<String>());
        }
    }
}
