//! Loads that are programs, and what became of them.

use serde::Serialize;

/// A load that is a program, run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ProgramRun {
    /// Name of the load.
    pub name: String,
    /// Its words, filled in.
    pub words: Vec<String>,
    /// When it was started.
    pub started: f64,
    /// When it was over.
    pub ended: f64,
    /// How it ended, in words.
    pub how: String,
    /// It did not do its part: it could not be started, or ended badly by itself.
    pub failed: bool,
    /// What it has reported.
    pub report: Option<serde_json::Value>,
    /// The end of what it has printed.
    pub output: String,
}

impl ProgramRun {
    /// Numbers of its report with their keys, in the report's order, at most so many.
    pub fn figures(&self, most: usize) -> Vec<(String, f64)> {
        fn collect(path: &str, value: &serde_json::Value, most: usize, figures: &mut Vec<(String, f64)>) {
            if figures.len() >= most {
                return;
            }
            if let Some(object) = value.as_object() {
                for (key, value) in object {
                    let path = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    collect(&path, value, most, figures);
                }
            } else if let Some(number) = value.as_f64() {
                figures.push((path.to_owned(), number));
            }
        }
        let mut figures = Vec::new();
        if let Some(report) = &self.report {
            collect("", report, most, &mut figures);
        }
        figures
    }
}
