//! The verdict as one page without outside parts: no script, nothing to load.
//!
//! Curves stand below each other on one axis of time, and every moment of the timeline crosses all of them.

use std::fmt::Write;

use super::series::{Series, Slice};
use super::{Report, Verdict, short};
use crate::drill::check::Status;
use crate::drill::record::Record;
use crate::replay::html::escaped;

const STYLE: &str = "
:root{--bg:#fff;--fg:#1b1f24;--dim:#667;--line:#d8dce2;--cold:#eef3f8;--bad:#c0392b;--good:#1e7d4f}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e8eb;--dim:#9aa3ad;--line:#353b43;--cold:#20262d;--bad:#ff7b6b;--good:#5fd39a}}
body{background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin:2.5rem 0 .5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.pass{color:var(--good)}.fail,.error{color:var(--bad);font-weight:600}.skipped,.note{color:var(--dim)}
figure{margin:.6rem 0}figcaption{font-size:.9rem;font-weight:600}figcaption span{color:var(--dim);font-weight:400}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:11px}
.axis{stroke:var(--line)}.mark{stroke:var(--bad);stroke-dasharray:3 3}.calm{stroke:var(--dim);stroke-dasharray:3 3}
pre{white-space:pre-wrap;font-size:.85rem}";

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 130.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 18.0;

/// Workers that have a row of their own in the picture of arrivals; more share rows.
const ROWS: usize = 64;

const FIRST: &str = "#0072b2";
const SECOND: &str = "#d55e00";

/// The page for these drills. Writing to a string cannot fail, so results of `write!` are dropped here.
pub fn page(reports: &[Report]) -> String {
    let many = |verdict| reports.iter().filter(|report| report.verdict == verdict).count();
    let (failed, broken) = (many(Verdict::Fail), many(Verdict::Error) + many(Verdict::NotRun));
    let title = match reports {
        [one] => format!("Drill {}", one.name),
        all if broken > 0 => format!("{} drills, {failed} failed, {broken} without a verdict", all.len()),
        all => format!("{} drills, {failed} failed", all.len()),
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n",
        title = escaped(&title)
    );
    for report in reports {
        section(&mut page, report);
    }
    page.push_str("</body></html>\n");
    page
}

#[expect(clippy::too_many_lines, reason = "one section, told from top to bottom")]
fn section(page: &mut String, report: &Report) {
    let record = &report.record;
    let word = report.verdict.word();
    let _ = write!(
        page,
        "<h2 class=\"{word}\">{}: {word}</h2>\n<p>{}</p>\n<p class=\"note\">seed {}, {} workers, {}, {:.1} s in all</p>\n",
        escaped(&report.name),
        escaped(&report.description),
        record.seed,
        record.workers.len(),
        if record.has_frontend {
            "behind a router"
        } else {
            "without a router"
        },
        report.took.as_secs_f64()
    );
    if let Some(error) = &report.error {
        let _ = writeln!(page, "<pre class=\"error\">{}</pre>", escaped(error));
    }
    if record.duration <= 0.0 {
        // It never began: there is nothing to draw.
        return;
    }
    checks(page, report);
    moments(page, record);
    programs(page, record);
    let series = Series::of(record);
    let frame = Frame {
        record,
        slice: series.slice,
    };
    curve(
        page,
        &frame,
        "Requests per second",
        "sent, and failed",
        &[
            (
                FIRST,
                points(&series, |slice| Some(f64::from(slice.sent) / series.slice)),
            ),
            (
                SECOND,
                points(&series, |slice| Some(f64::from(slice.failed) / series.slice)),
            ),
        ],
    );
    curve(
        page,
        &frame,
        "Time to first token, ms",
        "p50, and p99",
        &[
            (FIRST, points(&series, |slice| slice.ttft_p50_ms)),
            (SECOND, points(&series, |slice| slice.ttft_p99_ms)),
        ],
    );
    curve(
        page,
        &frame,
        "Time per token, ms",
        "p50, and the longest silence",
        &[
            (FIRST, points(&series, |slice| slice.itl_p50_ms)),
            (SECOND, points(&series, |slice| slice.gap_max_ms)),
        ],
    );
    let ready = record
        .samples
        .iter()
        .map(|sample| (sample.at, f64::from(sample.ready)))
        .collect();
    #[allow(clippy::cast_precision_loss)]
    let streams = record
        .samples
        .iter()
        .map(|sample| (sample.at, sample.held.streams as f64))
        .collect();
    curve(
        page,
        &frame,
        "Workers and streams",
        "workers that serve, and streams under way",
        &[(FIRST, ready), (SECOND, streams)],
    );
    if !record.drift.is_empty() {
        let drift = record
            .drift
            .iter()
            .map(|drift| (drift.at, drift.share() * 100.0))
            .collect();
        curve(
            page,
            &frame,
            "Index drift, %",
            "blocks that the router has wrong",
            &[(SECOND, drift)],
        );
    }
    arrivals(page, &frame, &series);
    if report.verdict == Verdict::Fail && !record.router_log.is_empty() {
        let _ = writeln!(
            page,
            "<p>The end of the frontend's log:</p><pre>{}</pre>",
            escaped(&record.router_log)
        );
    }
}

fn checks(page: &mut String, report: &Report) {
    page.push_str("<table><tr><th></th><th>Check</th><th>Evidence</th></tr>\n");
    for judgement in &report.judgements {
        let word = match judgement.status {
            Status::Pass => "pass",
            Status::Fail => "fail",
            Status::Skipped => "skipped",
        };
        let expect = if judgement.name == judgement.expect {
            String::new()
        } else {
            format!("<br><span class=\"note\">{}</span>", escaped(&judgement.expect))
        };
        let why = match judgement.status {
            Status::Fail if !judgement.why.is_empty() => format!("<br>{}", escaped(&judgement.why)),
            Status::Fail | Status::Pass | Status::Skipped => String::new(),
        };
        let _ = writeln!(
            page,
            "<tr><td class=\"{word}\">{word}</td><td>{}{expect}</td><td>{}{why}</td></tr>",
            escaped(&judgement.name),
            escaped(&judgement.evidence)
        );
    }
    page.push_str("</table>\n");
}

fn moments(page: &mut String, record: &Record) {
    page.push_str("<table><tr><th>At</th><th>Mark</th><th>What</th><th>Workers</th></tr>\n");
    for moment in &record.moments {
        let victims: Vec<String> = moment.victims.iter().map(|worker| format!("w{worker}")).collect();
        let mut errors = String::new();
        for error in &moment.errors {
            let _ = write!(errors, "<br><span class=\"fail\">{}</span>", escaped(error));
        }
        let _ = writeln!(
            page,
            "<tr><td>{:.2} s</td><td>{}</td><td>{}{errors}</td><td>{}</td></tr>",
            moment.at,
            escaped(&moment.mark),
            escaped(&moment.told()),
            victims.join(" ")
        );
    }
    page.push_str("</table>\n");
    for note in &record.notes {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escaped(note));
    }
}

/// Figures of a program that a page shows.
const FIGURES: usize = 200;

fn programs(page: &mut String, record: &Record) {
    for program in &record.programs {
        let word = if program.failed { "fail" } else { "note" };
        let _ = writeln!(
            page,
            "<p>Load {}, {:.1} s to {:.1} s: <span class=\"{word}\">{}</span></p>",
            escaped(&program.name),
            program.started,
            program.ended,
            escaped(&program.how)
        );
        let figures = program.figures(FIGURES);
        if !figures.is_empty() {
            let _ = writeln!(page, "<details><summary>Its figures</summary><table>");
            for (name, value) in figures {
                let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escaped(&name), short(value));
            }
            page.push_str("</table></details>\n");
        }
        if program.failed && !program.output.is_empty() {
            let _ = writeln!(page, "<pre>{}</pre>", escaped(&program.output));
        }
    }
}

/// What all pictures of a drill share.
struct Frame<'a> {
    record: &'a Record,
    slice: f64,
}

fn open(page: &mut String, name: &str, note: &str, height: f64) {
    let _ = write!(
        page,
        "<figure><figcaption>{name} <span>{note}</span></figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{name}\">"
    );
}

impl Frame<'_> {
    fn x(&self, at: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (at / self.record.duration).clamp(0.0, 1.0)
    }

    fn close(&self, page: &mut String, height: f64) {
        for moment in &self.record.moments {
            let class = if moment.disturbs { "mark" } else { "calm" };
            let x = self.x(moment.at);
            let _ = write!(
                page,
                "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/><text x=\"{:.1}\" y=\"11\">{}</text>",
                height - BOTTOM,
                x + 2.0,
                escaped(&moment.mark)
            );
        }
        for quarter in 0..=4 {
            let at = self.record.duration * f64::from(quarter) / 4.0;
            let anchor = if quarter == 4 { "end" } else { "start" };
            let _ = write!(
                page,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{at:.1} s</text>",
                self.x(at),
                height - 4.0
            );
        }
        page.push_str("</svg></figure>\n");
    }
}

#[allow(clippy::cast_precision_loss)]
fn points(series: &Series, value: impl Fn(&Slice) -> Option<f64>) -> Vec<(f64, f64)> {
    let at = |index: usize| (index as f64 + 0.5) * series.slice;
    let slices = series.slices.iter().enumerate();
    slices
        .filter_map(|(index, slice)| Some((at(index), value(slice)?)))
        .collect()
}

fn curve(page: &mut String, frame: &Frame<'_>, name: &str, note: &str, lines: &[(&str, Vec<(f64, f64)>)]) {
    // `first, and second`: each in its colour.
    let parts = note.split(", and ").zip(lines);
    let parts: Vec<String> = parts
        .map(|(part, (colour, _))| format!("<i style=\"color:{colour}\">&#9632;</i> {part}"))
        .collect();
    let note = parts.join(", ");
    let most = lines
        .iter()
        .flat_map(|(_, points)| points)
        .map(|point| point.1)
        .fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / most);
    open(page, name, &note, HEIGHT);
    for value in [0.0, most / 2.0, most] {
        let _ = write!(
            page,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            short(value),
            y = y(value)
        );
    }
    for (colour, points) in lines {
        let path: Vec<String> = points
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", frame.x(*at), y(*value)))
            .collect();
        let _ = write!(
            page,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>",
            path.join(" ")
        );
    }
    frame.close(page, HEIGHT);
}

/// Requests that came to each worker over time: a row per worker, darker where more came.
#[allow(clippy::cast_precision_loss)]
fn arrivals(page: &mut String, frame: &Frame<'_>, series: &Series) {
    let share = series.arrivals.len().div_ceil(ROWS).max(1);
    let rows: Vec<Vec<u32>> = series
        .arrivals
        .chunks(share)
        .map(|workers| {
            let slices = workers.first().map_or(0, Vec::len);
            (0..slices)
                .map(|slice| workers.iter().map(|row| row[slice]).sum())
                .collect()
        })
        .collect();
    let most = rows.iter().flatten().copied().max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let tall = (240.0 / rows.len() as f64).clamp(4.0, 16.0);
    let height = TOP + BOTTOM + tall * rows.len() as f64;
    open(page, "Requests that came to each worker", "darker: more", height);
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + tall * index as f64;
        if index % (rows.len().div_ceil(16)) == 0 {
            let _ = write!(
                page,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">w{}</text>",
                LEFT - 6.0,
                top + tall.min(11.0),
                index * share
            );
        }
        for (slice, count) in row.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (from, until) = (slice as f64 * frame.slice, (slice + 1) as f64 * frame.slice);
            let dark = 0.15 + 0.85 * f64::from(*count) / f64::from(most);
            let _ = write!(
                page,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{FIRST}\" fill-opacity=\"{dark:.2}\"/>",
                frame.x(from),
                frame.x(until) - frame.x(from),
                tall - 1.0
            );
        }
    }
    frame.close(page, height);
}
