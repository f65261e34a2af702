//! The verdict as XML in the form of `JUnit`: a suite per drill, a case per check.

use std::fmt::Write;

use super::{Report, Verdict};
use crate::drill::check::Status;

/// The document. Writing to a string cannot fail, so results of `write!` are dropped.
pub fn junit(reports: &[Report]) -> String {
    let mut xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for report in reports {
        let many = |status| {
            report
                .judgements
                .iter()
                .filter(|judgement| judgement.status == status)
                .count()
        };
        let (never, broken) = match report.verdict {
            Verdict::NotRun => (1, 0),
            Verdict::Error | Verdict::Pass | Verdict::Fail => (0, usize::from(report.error.is_some())),
        };
        let errors = report.errors().count() + broken;
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{errors}\" skipped=\"{}\" time=\"{:.3}\">",
            escaped(&report.name),
            report.judgements.len() + errors + never,
            many(Status::Fail),
            many(Status::Skipped) + never,
            report.took.as_secs_f64(),
        );
        for judgement in &report.judgements {
            let _ = write!(
                xml,
                "    <testcase classname=\"{}\" name=\"{}\">",
                escaped(&report.name),
                escaped(&judgement.name)
            );
            let evidence = escaped(&judgement.evidence);
            match judgement.status {
                Status::Pass => {
                    let _ = write!(xml, "<system-out>{evidence}</system-out>");
                }
                Status::Fail => {
                    let expect = escaped(&judgement.expect);
                    let _ = write!(
                        xml,
                        "<failure message=\"{evidence}\">{expect}\n{evidence}\n{}</failure>",
                        escaped(&judgement.why)
                    );
                }
                Status::Skipped => {
                    let _ = write!(xml, "<skipped message=\"{evidence}\"/>");
                }
            }
            xml.push_str("</testcase>\n");
        }
        if let Some(error) = &report.error {
            let (class, text) = (escaped(&report.name), escaped(error));
            let first = text.lines().next().unwrap_or_default();
            let _ = write!(xml, "    <testcase classname=\"{class}\" name=\"runs to its end\">");
            let _ = if never > 0 {
                write!(xml, "<skipped message=\"{first}\"/>")
            } else {
                write!(xml, "<error message=\"{first}\">{text}</error>")
            };
            xml.push_str("</testcase>\n");
        }
        for (mark, error) in report.errors() {
            let _ = writeln!(
                xml,
                "    <testcase classname=\"{}\" name=\"step {}\"><error message=\"{}\"/></testcase>",
                escaped(&report.name),
                escaped(mark),
                escaped(error)
            );
        }
        if !report.record.notes.is_empty() {
            let notes = escaped(&report.record.notes.join("\n"));
            let _ = writeln!(xml, "    <system-out>{notes}</system-out>");
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

/// Text within XML, which has no place for most control characters at all.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(letter),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}
