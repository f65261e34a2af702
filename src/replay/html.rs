//! Reports as one self-contained page: tables and inline SVG, no script, nothing to load.
//!
//! Works on the JSON of reports, so that runs of today and of last week stand side by side. Curves need the keys
//! `time_series` and `latency_cdf`; a report without them still has its column in the table.

use std::fmt::Write;

use serde_json::Value;

const PAGE_STYLE: &str = "
:root{--bg:#fff;--fg:#1b1f24;--dim:#667;--line:#d8dce2;--cold:#eef3f8}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e8eb;--dim:#9aa3ad;--line:#353b43;--cold:#20262d}}
body{background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .8rem;border-bottom:1px solid var(--line);text-align:right}
th:first-child,td:first-child{text-align:left}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:600;font-size:.9rem}figcaption span{color:var(--dim);font-weight:400}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:11px}
.axis{stroke:var(--line);stroke-width:1}
.key{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.4em;vertical-align:-.1em}
.note{color:var(--dim)}";

/// Told apart by people with any colour vision; runs beyond start again.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7f5fb0", "#888888",
];

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 58.0;
const BOTTOM: f64 = 30.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 12.0;
/// Cells of a load picture: rows and columns at most.
const CELLS: (usize, usize) = (64, 96);

/// A report with the name that it has on the page.
#[derive(Debug, Clone)]
pub struct NamedReport {
    /// Name.
    pub name: String,
    /// Report as JSON.
    pub report: Value,
}

impl NamedReport {
    /// The run was interrupted.
    fn is_partial(&self) -> bool {
        self.report["partial"] == Value::Bool(true)
    }
}

const METRICS: [(&str, &str); 23] = [
    ("Completed requests", "completed_requests"),
    ("Duration (ms)", "duration_ms"),
    ("Request throughput (requests/s)", "request_throughput_rps"),
    ("Output throughput (tokens/s)", "output_throughput_tok_s"),
    ("Total throughput (tokens/s)", "total_throughput_tok_s"),
    ("Goodput (requests/s)", "goodput_request_throughput_rps"),
    ("TTFT mean (ms)", "mean_ttft_ms"),
    ("TTFT p50 (ms)", "median_ttft_ms"),
    ("TTFT p90 (ms)", "p90_ttft_ms"),
    ("TTFT p99 (ms)", "p99_ttft_ms"),
    ("Token gap mean (ms)", "mean_itl_ms"),
    ("Token gap p50 (ms)", "median_itl_ms"),
    ("Token gap p99 (ms)", "p99_itl_ms"),
    ("Token gap max (ms)", "max_itl_ms"),
    ("ITL per request p50 (ms)", "median_tpot_ms"),
    ("ITL per request p99 (ms)", "p99_tpot_ms"),
    ("Request latency mean (ms)", "mean_e2e_latency_ms"),
    ("Request latency p99 (ms)", "p99_e2e_latency_ms"),
    ("Prefix cache reuse", "prefix_cache_reused_ratio"),
    ("Prefill worker seconds", "prefill_worker_seconds"),
    ("Decode worker seconds", "decode_worker_seconds"),
    ("GPU hours", "gpu_hours"),
    ("Requests", "num_requests"),
];

/// The page for these runs.
pub fn render(title: &str, runs: &[NamedReport]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{PAGE_STYLE}</style></head><body>\n<h1>{title}</h1>\n",
        title = escaped(title)
    );
    for run in runs.iter().filter(|run| run.is_partial()) {
        let _ = writeln!(
            page,
            "<p class=\"note\"><b>{} is partial</b>: the run was interrupted, and its numbers cover the requests that had \
             completed.</p>",
            escaped(&run.name)
        );
    }
    table(&mut page, runs);
    page.push_str("<h2>Latency distributions</h2>\n<div class=\"charts\">\n");
    for (name, key) in [
        ("Time to first token", "ttft_ms"),
        ("Token gap", "itl_ms"),
        ("Inter token latency per request", "tpot_ms"),
        ("Request latency", "e2e_latency_ms"),
    ] {
        distribution(&mut page, name, key, runs);
    }
    page.push_str("</div>\n<h2>Over time</h2>\n<div class=\"charts\">\n");
    for (name, unit, key) in [
        ("Output throughput", "tokens/s", "output_throughput_tok_s"),
        ("Request throughput", "requests/s", "request_throughput_rps"),
        ("Waiting requests", "mean", "waiting_requests"),
        ("Running requests", "mean", "running_requests"),
        (
            "KV hit rate",
            "reused share of admitted prompt tokens",
            "prefix_cache_reused_ratio",
        ),
    ] {
        over_time(&mut page, name, unit, key, runs);
    }
    page.push_str("</div>\n<h2>Load of each worker</h2>\n<div class=\"charts\">\n");
    // One scale for all runs, or the pictures could not be compared.
    let grids: Vec<Vec<Vec<f64>>> = runs.iter().map(|run| grid(&run.report)).collect();
    let most = grids.iter().flatten().flatten().copied().fold(0.0, f64::max);
    for (run, grid) in runs.iter().zip(&grids) {
        load(&mut page, run, grid, most);
    }
    page.push_str("</div>\n</body></html>\n");
    page
}

/// Text within a page.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            letter => out.push(letter),
        }
    }
    out
}

// Writing to a string cannot fail, so results of `write!` are dropped below.

fn table(page: &mut String, runs: &[NamedReport]) {
    page.push_str("<table><tr><th>Metric</th>");
    for (at, run) in runs.iter().enumerate() {
        let _ = write!(
            page,
            "<th><span class=\"key\" style=\"background:{}\"></span>{}{}</th>",
            colour(at),
            escaped(&run.name),
            if run.is_partial() { " (partial)" } else { "" }
        );
    }
    page.push_str("</tr>\n");
    for (name, key) in METRICS {
        if runs.iter().all(|run| run.report[key].as_f64().is_none()) {
            continue;
        }
        let _ = write!(page, "<tr><td>{name}</td>");
        for run in runs {
            let cell = run.report[key].as_f64().map_or_else(|| "-".into(), short);
            let _ = write!(page, "<td>{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn colour(at: usize) -> &'static str {
    COLOURS[at % COLOURS.len()]
}

/// A number with four digits that count.
fn short(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        format!("{value:.3e}")
    } else if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

/// One line of a chart.
struct Line {
    colour: &'static str,
    points: Vec<(f64, f64)>,
}

fn distribution(page: &mut String, name: &str, key: &str, runs: &[NamedReport]) {
    let mut lines = Vec::new();
    // Beyond the 99th percentile one outlier would squeeze everything else to the left.
    let mut end: f64 = 0.0;
    for (at, run) in runs.iter().enumerate() {
        let Some(values) = run.report["latency_cdf"][key]
            .as_array()
            .filter(|values| values.len() > 1)
        else {
            continue;
        };
        let last = values.len() - 1;
        #[allow(clippy::cast_precision_loss)]
        let points = values
            .iter()
            .enumerate()
            .filter_map(|(rank, value)| Some((value.as_f64()?, 100.0 * rank as f64 / last as f64)));
        lines.push(Line {
            colour: colour(at),
            points: points.collect(),
        });
        end = end.max(run.report[format!("p99_{key}")].as_f64().unwrap_or(0.0));
    }
    chart(
        page,
        name,
        "% of samples within so many ms, up to p99",
        (end * 1.02, 100.0),
        &lines,
    );
}

fn over_time(page: &mut String, name: &str, unit: &str, key: &str, runs: &[NamedReport]) {
    let mut lines = Vec::new();
    let mut end: (f64, f64) = (0.0, 0.0);
    for (at, run) in runs.iter().enumerate() {
        let series = &run.report["time_series"];
        let (Some(width), Some(values)) = (series["bucket_ms"].as_f64(), series[key].as_array()) else {
            continue;
        };
        #[allow(clippy::cast_precision_loss)]
        let points = values
            .iter()
            .enumerate()
            .filter_map(|(bucket, value)| Some(((bucket as f64 + 0.5) * width / 1e3, value.as_f64()?)));
        let points: Vec<(f64, f64)> = points.collect();
        for (x, y) in &points {
            end = (end.0.max(*x), end.1.max(*y));
        }
        lines.push(Line {
            colour: colour(at),
            points,
        });
    }
    chart(
        page,
        name,
        &format!("{unit}; virtual time in s"),
        (end.0, end.1 * 1.05),
        &lines,
    );
}

fn chart(page: &mut String, name: &str, about: &str, (x_end, y_end): (f64, f64), lines: &[Line]) {
    let _ = writeln!(page, "<figure><figcaption>{name} <span>{about}</span></figcaption>");
    let (x_end, y_end) = (x_end.max(1e-9), y_end.max(1e-9));
    let x_of = |x: f64| LEFT + (x / x_end).min(1.0) * (WIDTH - LEFT - RIGHT);
    let y_of = |y: f64| HEIGHT - BOTTOM - (y / y_end).min(1.0) * (HEIGHT - BOTTOM - TOP);
    let _ = write!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\">"
    );
    for tick in ticks(y_end) {
        let y = y_of(tick);
        let _ = write!(
            page,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            short(tick)
        );
    }
    for tick in ticks(x_end) {
        let _ = write!(
            page,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x_of(tick),
            HEIGHT - 10.0,
            short(tick)
        );
    }
    for line in lines {
        let _ = write!(
            page,
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"",
            line.colour
        );
        for (x, y) in line.points.iter().take_while(|(x, _)| *x <= x_end) {
            let _ = write!(page, "{:.1},{:.1} ", x_of(*x), y_of(*y));
        }
        page.push_str("\"/>");
    }
    page.push_str("</svg></figure>\n");
}

/// Round numbers from 0 to `end`, about five.
fn ticks(end: f64) -> impl Iterator<Item = f64> {
    let size = 10_f64.powf((end / 5.0).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * size);
    let step = steps.into_iter().find(|step| end / step <= 5.0).unwrap_or(end);
    (0..=5)
        .map(move |at| f64::from(at) * step)
        .take_while(move |tick| *tick <= end)
}

/// Mean requests of workers over time, with neighbours put together until it fits.
fn grid(report: &Value) -> Vec<Vec<f64>> {
    let rows = report["time_series"]["worker_requests"].as_array();
    let rows: Vec<Vec<f64>> = rows
        .into_iter()
        .flatten()
        .map(|row| {
            let row = row.as_array().into_iter().flatten();
            let row: Vec<f64> = row.filter_map(Value::as_f64).collect();
            let group = row.len().div_ceil(CELLS.1).max(1);
            row.chunks(group).map(mean).collect()
        })
        .collect();
    let group = rows.len().div_ceil(CELLS.0).max(1);
    let columns = rows.first().map_or(0, Vec::len);
    let merged = |rows: &[Vec<f64>]| -> Vec<f64> {
        let column = |at: usize| rows.iter().filter_map(move |row| row.get(at).copied());
        (0..columns).map(|at| mean(&column(at).collect::<Vec<_>>())).collect()
    };
    rows.chunks(group).map(merged).collect()
}

#[allow(clippy::cast_precision_loss)]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / (values.len().max(1)) as f64
}

#[allow(clippy::cast_precision_loss)]
fn load(page: &mut String, run: &NamedReport, grid: &[Vec<f64>], most: f64) {
    let columns = grid.first().map_or(0, Vec::len);
    if columns == 0 {
        return;
    }
    let workers = run.report["time_series"]["worker_requests"]
        .as_array()
        .map_or(0, Vec::len);
    let _ = writeln!(
        page,
        "<figure><figcaption>{} <span>{workers} workers from top to bottom, time from left to right; full colour: {} requests \
         in flight</span></figcaption>",
        escaped(&run.name),
        short(most)
    );
    let (cell, row) = (WIDTH / columns as f64, (HEIGHT / grid.len() as f64).min(24.0));
    let height = row * grid.len() as f64;
    let _ = write!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\" aria-label=\"load of each worker\"><rect width=\"{WIDTH}\" \
         height=\"{height:.1}\" fill=\"var(--cold)\"/>"
    );
    for (y, values) in grid.iter().enumerate() {
        for (x, value) in values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            let _ = write!(
                page,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#d55e00\" fill-opacity=\"{:.2}\"/>",
                x as f64 * cell,
                y as f64 * row,
                cell,
                (row - 0.5).max(0.5),
                (value / most.max(1e-9)).min(1.0)
            );
        }
    }
    page.push_str("</svg></figure>\n");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(name: &str, factor: f64) -> NamedReport {
        NamedReport {
            name: name.into(),
            report: json!({
                "completed_requests": 3,
                "mean_ttft_ms": 12.5 * factor,
                "p99_ttft_ms": 20.0 * factor,
                "latency_cdf": {"ttft_ms": [1.0 * factor, 10.0 * factor, 20.0 * factor]},
                "time_series": {
                    "bucket_ms": 1000.0,
                    "output_throughput_tok_s": [10.0 * factor, 20.0 * factor],
                    "waiting_requests": [0.0, 1.0],
                    "prefix_cache_reused_ratio": [null, 0.5],
                    "worker_requests": [[1.0, 2.0], [0.0, 4.0 * factor]],
                },
            }),
        }
    }

    #[test]
    fn runs_stand_side_by_side_and_the_page_needs_nothing_else() {
        let page = render("a < b", &[run("first", 1.0), run("<second>", 2.0)]);
        assert!(page.contains("<title>a &lt; b</title>") && page.contains("&lt;second&gt;"));
        assert!(page.contains("<td>12.50</td><td>25</td>"), "{page}");
        // Two lines in each chart that has data of both, in the colours of the table.
        for colour in &COLOURS[..2] {
            assert_eq!(page.matches(&format!("stroke=\"{colour}\"")).count(), 4);
            assert_eq!(page.matches(&format!("background:{colour}")).count(), 1);
        }
        for outside in ["http", "src=", "href=", "@import", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        let opened = page.matches("<svg").count();
        assert_eq!((opened, page.matches("</svg>").count()), (11, 11));
    }

    #[test]
    fn a_report_without_curves_still_has_its_column() {
        let plain = NamedReport {
            name: "plain".into(),
            report: json!({"completed_requests": 7, "partial": true}),
        };
        let page = render("t", &[run("full", 1.0), plain]);
        assert!(page.contains("<td>3</td><td>7</td>") && page.contains("<td>12.50</td><td>-</td>"));
        assert!(page.contains("<b>plain is partial</b>: the run was interrupted"));
        assert!(page.contains("plain (partial)</th>") && page.contains("</span>full</th>"));
    }

    #[test]
    fn axes_have_round_numbers() {
        let found = |end| ticks(end).collect::<Vec<_>>();
        assert_eq!(found(11_239.0), [0.0, 2500.0, 5000.0, 7500.0, 10_000.0]);
        assert_eq!(found(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(found(0.9).len(), 5);
    }

    #[test]
    fn many_workers_share_rows_and_keep_their_mean() {
        let rows: Vec<Vec<f64>> = (0..200).map(|_| vec![3.0; 250]).collect();
        let grid = grid(&json!({"time_series": {"worker_requests": rows}}));
        assert!(grid.len() <= CELLS.0 && grid[0].len() <= CELLS.1);
        assert!(grid.iter().flatten().all(|value| (value - 3.0).abs() < 1e-9));
    }
}
