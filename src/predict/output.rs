//! Files and terminal of a prediction.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use crate::cli::{PredictArgs, PredictionFormat};
use crate::distinct_files::{Clash, DistinctFiles};
use crate::replay::{Control, NamedReport, Report, ScalingLog, render_html, render_table};
use crate::replay_run::{Interrupt, RunError, destination, inputs, planner_ticks, scaling_events, tell_rejections};

use super::document::Load;
use super::{PredictError, lower, predict, read, yaml};

/// A directory of results that are not written over by accident.
#[derive(Debug)]
pub struct Results {
    directory: PathBuf,
}

impl Results {
    /// The directory, made where it is missing; `files` are what the run will write, `known` what it reads and writes
    /// besides.
    ///
    /// # Errors
    /// [`PredictError::Config`] when one of them is there and may not be replaced, or is a file of the run already.
    pub(crate) fn new(
        directory: &Path,
        files: &[&str],
        overwrite: bool,
        known: &mut DistinctFiles,
    ) -> Result<Self, PredictError> {
        let present = files.iter().map(|file| directory.join(file)).find(|path| path.exists());
        if let Some(path) = present.filter(|_| !overwrite) {
            let path = path.display();
            return Err(PredictError::Config(format!(
                "{path} is there already; use --overwrite or another --output-dir"
            )));
        }
        for file in files {
            let path = directory.join(file);
            distinct(&path, |path| {
                if path.is_dir() {
                    known.replaces("the directory", path)
                } else {
                    known.writes("the result", path)
                }
            })?;
        }
        let results = Self {
            directory: directory.to_owned(),
        };
        fs::create_dir_all(directory).map_err(|error| results.failed("", error))?;
        Ok(results)
    }

    fn failed(&self, file: &str, error: std::io::Error) -> PredictError {
        PredictError::Write(self.directory.join(file).display().to_string(), error)
    }

    /// Writes a file whole: it appears under its name when it is complete.
    ///
    /// # Errors
    /// [`PredictError::Write`].
    pub fn write(
        &self,
        file: &str,
        content: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> Result<(), PredictError> {
        let create = || -> std::io::Result<()> {
            let path = self.directory.join(file);
            if let Some(above) = path.parent() {
                fs::create_dir_all(above)?;
            }
            let partial = path.with_extension("partial");
            let mut out = BufWriter::new(File::create(&partial)?);
            content(&mut out)?;
            out.into_inner()
                .map_err(std::io::IntoInnerError::into_error)?
                .sync_all()?;
            fs::rename(partial, path)
        };
        create().map_err(|error| self.failed(file, error))
    }

    /// Writes JSON for people.
    ///
    /// # Errors
    /// [`PredictError::Write`].
    pub fn write_json(&self, file: &str, value: &Value) -> Result<(), PredictError> {
        self.write(file, |out| {
            serde_json::to_writer_pretty(&mut *out, value)?;
            out.write_all(b"\n")
        })
    }

    /// Removes what an earlier run left under `file`, a file or a directory.
    ///
    /// # Errors
    /// [`PredictError::Write`].
    pub fn clear(&self, file: &str) -> Result<(), PredictError> {
        let path = self.directory.join(file);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else if path.exists() {
            fs::remove_file(&path)
        } else {
            Ok(())
        };
        removed.map_err(|error| self.failed(file, error))
    }

    /// Where a file is.
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }
}

/// Takes in a file of the run; an error where it is one already.
fn distinct(path: &Path, take: impl FnOnce(&Path) -> Result<(), Clash>) -> Result<(), PredictError> {
    take(path).map_err(|clash| match clash {
        Clash::Taken(what) => PredictError::Config(what),
        Clash::Io(error) => PredictError::Write(path.display().to_string(), error),
    })
}

/// Prints to where the terminal is.
pub(crate) fn print(out: &mut dyn Write, text: &str) -> Result<(), PredictError> {
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|error| PredictError::Write("standard output".into(), error))
}

/// Predicts, writes `prediction.json` and, where wanted, `requests.jsonl`, and prints the result to `out`. Ctrl-C ends the
/// run early with results marked as partial.
///
/// # Errors
/// As [`predict`], files that cannot be written, and [`RunError::Interrupted`] after partial results.
pub fn run(args: &PredictArgs, out: &mut dyn Write) -> Result<(), PredictError> {
    let shared = &args.shared;
    let document = read(yaml::load(&shared.config, &shared.overrides)?)?;
    if matches!(document.traffic.load, Load::KvCapacityFraction { .. }) {
        return Err(PredictError::Config(
            "traffic.load: type kv_capacity_fraction is for recommend, which says how many at a time it is; use type \
             concurrency"
                .into(),
        ));
    }
    let mut lowered = lower(&document, shared.stack)?;
    let mut files = DistinctFiles::default();
    files.reads("--config", &shared.config);
    inputs(&lowered.args, &mut files);
    if let Some(html) = &args.html {
        destination::check(html)?;
        distinct(html, |html| files.writes("--html", html))?;
    }
    let interrupt = Interrupt::new()?;
    let names = ["prediction.json", "requests.jsonl"];
    let results = Results::new(&shared.output_dir, &names, shared.overwrite, &mut files)?;
    lowered.args.request_records = args.capture_per_request.then(|| results.path("requests.jsonl"));
    lowered.args.html.clone_from(&args.html);
    let started = Instant::now();
    let observe = |_| {
        if interrupt.is_wanted() {
            Control::Stop
        } else {
            Control::Continue
        }
    };
    let report = predict(&lowered, observe)?;
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    let found = prediction(&report, wall_ms, args.capture_per_request);
    results.clear("requests.jsonl")?;
    results.write_json("prediction.json", &found)?;
    if args.capture_per_request {
        results.write("requests.jsonl", |out| {
            for record in report.records.iter().flatten() {
                serde_json::to_writer(&mut *out, record)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        })?;
    }
    if let Some(path) = &args.html {
        let run = NamedReport {
            name: shared.config.display().to_string(),
            report: found["summary"].clone(),
        };
        let page = render_html("ghostfleet predict", &[run]);
        destination::write(path, |out| out.write_all(page.as_bytes()))?;
    }
    match shared.format {
        PredictionFormat::Json => print(out, &format!("{found:#}\n"))?,
        PredictionFormat::Table => print(
            out,
            &format!(
                "{}{}Saved prediction to: {}\n{}",
                scaling_events(&report),
                render_table(&report),
                results.path("prediction.json").display(),
                planner_ticks(&report),
            ),
        )?,
    }
    if report.partial {
        let path = results.path("prediction.json").display().to_string();
        return Err(RunError::Interrupted(path).into());
    }
    tell_rejections(&report);
    Ok(())
}

/// A report in the nested form of Dynamo 1.6.1.
fn prediction(report: &Report, wall_ms: f64, captured: bool) -> Value {
    let records = report.records.as_ref().filter(|_| captured);
    json!({
        "summary": report.to_json(wall_ms),
        "per_request": null,
        "coverage": {
            "capture_per_request": captured,
            "capture_planner_details": false,
            "per_request_records": records.map_or(0, Vec::len),
        },
        "planner": report.scaling.as_ref().map(ScalingLog::to_json),
    })
}
