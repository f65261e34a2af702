//! Command lines that the peer accepts or refuses.

use std::path::{Path, PathBuf};

use ghostfleet::replay::Control;
use ghostfleet::replay_run::execute;
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
struct Refusals {
    cases: Vec<Line>,
}

#[derive(Debug, Deserialize)]
struct Line {
    case: String,
    argv: Vec<Argument>,
    outcome: String,
    report_counts: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Argument {
    Text(String),
    File { trace_lines: Vec<String> },
}

impl Line {
    fn flags(&self, directory: &Path) -> Vec<String> {
        let argument = |(at, argument): (usize, &Argument)| match argument {
            Argument::Text(text) if text == "<missing>" => directory.join("missing").display().to_string(),
            Argument::Text(text) => text.clone(),
            Argument::File { trace_lines } => {
                let path: PathBuf = directory.join(format!("trace{at}.jsonl"));
                std::fs::write(&path, trace_lines.join("\n")).unwrap();
                path.display().to_string()
            }
        };
        self.argv.iter().enumerate().map(argument).collect()
    }

    /// Exit code that the peer had.
    fn code(&self) -> u8 {
        match self.outcome.as_str() {
            "accepted" => 0,
            "usage error, exit 2" => 2,
            "error, exit 1" => 1,
            other => panic!("{}: unknown outcome {other}", self.case),
        }
    }
}

#[test]
fn replay_refusals_1_4_2() {
    let mut wrong = Vec::new();
    let mut left_out = Vec::new();
    super::super::cases::run("replay", |name, text: Value| {
        if !name.starts_with("cli-refusals") {
            return;
        }
        let refusals: Refusals = serde_json::from_value(text).unwrap();
        for line in &refusals.cases {
            let directory = tempfile::tempdir().unwrap();
            let mut flags = line.flags(directory.path());
            flags.extend(["--semantics", "1.4.2"].map(str::to_owned));
            let case = &line.case;
            let args = super::parse(&flags).unwrap_or_else(|error| panic!("{case}: {error}"));
            let (code, text) = match execute(&args, |_| Control::Continue) {
                Ok(report) => (0, counts(line, &report.to_json(1.0))),
                Err(error) => (error.exit_code(), error.to_string()),
            };
            let missing = text.contains("build");
            if code != line.code() && missing {
                left_out.push(format!("{case}: {text}"));
            } else if code != line.code() || (code == 0 && !text.is_empty()) {
                wrong.push(format!("{case}: {text} (code {code}), recorded {}", line.outcome));
            }
        }
    });
    for case in &left_out {
        println!("left out: {case}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Counts that differ from the recorded ones.
fn counts(line: &Line, report: &Value) -> String {
    let expected = line.report_counts.iter().flatten();
    let different = expected.filter(|(key, value)| report.get(key) != Some(value));
    let different: Vec<_> = different
        .map(|(key, value)| format!("{key} should be {value}"))
        .collect();
    different.join(" ")
}
