//! The report as a table for the terminal, in the form of AIPerf's.

use std::fmt::Write;

use super::report::Report;
use super::stats::Summary;

const COLUMNS: [&str; 8] = ["Metric", "avg", "min", "max", "p99", "p90", "p75", "std"];

/// The table with its title, ending in a line break.
#[allow(clippy::cast_precision_loss)]
pub fn render(report: &Report) -> String {
    let rows = [
        full("Time to First Token (ms)", &report.ttft),
        full("Time to Second Token (ms)", &report.ttst),
        full("Request Latency (ms)", &report.e2e),
        full("Inter Token Latency (ms)", &report.itl),
        full("Inter Token Latency Per Request (ms)", &report.tpot),
        full("Output Token Throughput Per User (tokens/sec/user)", &report.per_user),
        average("Output Token Throughput (tokens/sec)", report.output_throughput()),
        average("Request Throughput (requests/sec)", report.request_throughput()),
        average("Request Count (requests)", report.completed_requests as f64),
    ];
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([COLUMNS[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let title = if report.partial {
        "ghostfleet replay | LLM Metrics (partial: the run was interrupted)"
    } else {
        "ghostfleet replay | LLM Metrics"
    };
    let mut out = format!("{title}\n");
    rule(&mut out, &widths, ['┏', '┳', '┓']);
    line(&mut out, &widths, &COLUMNS.map(str::to_owned));
    rule(&mut out, &widths, ['┡', '╇', '┩']);
    for row in &rows {
        line(&mut out, &widths, row);
    }
    rule(&mut out, &widths, ['└', '┴', '┘']);
    out
}

fn full(name: &str, summary: &Summary) -> [String; 8] {
    let Summary {
        mean,
        min,
        max,
        p99,
        p90,
        p75,
        std,
        ..
    } = *summary;
    let numbers = [mean, min, max, p99, p90, p75, std].map(number);
    let mut cells = <[String; 8]>::default();
    name.clone_into(&mut cells[0]);
    cells[1..].clone_from_slice(&numbers);
    cells
}

fn average(name: &str, value: f64) -> [String; 8] {
    let none = || "N/A".to_owned();
    [
        name.to_owned(),
        number(value),
        none(),
        none(),
        none(),
        none(),
        none(),
        none(),
    ]
}

fn rule(out: &mut String, widths: &[usize], [left, middle, right]: [char; 3]) {
    out.push(left);
    for (at, width) in widths.iter().enumerate() {
        if at > 0 {
            out.push(middle);
        }
        out.extend(std::iter::repeat_n('━', width + 2));
    }
    out.push(right);
    out.push('\n');
}

fn line(out: &mut String, widths: &[usize], cells: &[String; 8]) {
    for (at, (cell, &width)) in cells.iter().zip(widths).enumerate() {
        // Writing to a string cannot fail.
        let _ = if at == 0 {
            write!(out, "┃ {cell:<width$} ")
        } else {
            write!(out, "┃ {cell:>width$} ")
        };
    }
    out.push_str("┃\n");
}

/// `1,234.50`.
fn number(value: f64) -> String {
    let plain = format!("{value:.2}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "00"));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}.{fraction}")
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn the_table_has_a_frame_and_one_line_per_metric() {
        let mut nothing: [f64; 0] = [];
        let summary = super::Summary::of(&mut nothing);
        let cells = super::full("Time to First Token (ms)", &summary);
        assert_eq!(cells[1..], ["0.00"; 7].map(str::to_owned));
        assert_eq!(super::average("Request Count (requests)", 3.0)[2], "N/A");
        let mut out = String::new();
        super::rule(&mut out, &[1, 2], ['┏', '┳', '┓']);
        assert_eq!(out, "┏━━━┳━━━━┓\n");
    }

    #[test]
    fn numbers_have_two_decimals_and_groups_of_three() {
        assert_eq!(
            [1234.5, 0.0, 999.999, 1e9].map(number),
            ["1,234.50", "0.00", "1,000.00", "1,000,000,000.00"]
        );
        assert_eq!(number(-1234.0), "-1,234.00");
    }
}
