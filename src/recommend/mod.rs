//! `ghostfleet recommend`: variants of a document, tried on all cores, and the best of them.
//!
//! A sweep larger than one machine runs in parts (`--shard I/N`), for instance as an Indexed Job of Kubernetes, and is put
//! together with `--merge`. The result does not depend on how many replays run at a time.

mod objective;
mod output;
mod parts;
mod plan;
mod presets;
mod search;
mod space;
mod trials;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::cli::{PredictionFormat, RecommendArgs};
use crate::distinct_files::DistinctFiles;
use crate::predict::{PredictError, Results, print, stop_flag};

use output::Recommendation;
use parts::Part;
use plan::Plan;

/// Time between two lines of progress.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Searches, or merges what parts found, writes the recommendations and prints the best to `out`. Ctrl-C ends the search
/// early with results marked as partial.
///
/// # Errors
/// [`PredictError`] names the key at fault, or says why no candidate can be recommended; [`PredictError::Interrupted`]
/// after partial results.
pub fn run(args: &RecommendArgs, out: &mut dyn Write) -> Result<(), PredictError> {
    let shared = &args.shared;
    if args.jobs == Some(0) {
        return Err(PredictError::Config("--jobs is 0, expected at least 1".into()));
    }
    let plan = Plan::new(args)?;
    let part_file = args.shard.map(|(index, count)| Part::file(index, count));
    let files = match &part_file {
        Some(file) => vec![file.as_str()],
        None => vec!["recommendation.json", "recommendation.csv", "recommendations"],
    };
    let merges = !args.merge.is_empty();
    let stop = if merges { None } else { Some(stop_flag()?) };
    let mut known = DistinctFiles::default();
    known.reads("--config", &shared.config);
    for trace in &plan.traces {
        known.reads("the trace", trace);
    }
    for part in parts::files(&args.merge)? {
        known.reads("the part", &part);
    }
    let results = Results::new(&shared.output_dir, &files, shared.overwrite, &mut known)?;
    let found = if let Some(stop) = &stop {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = args.jobs.unwrap_or(cores);
        trials::run(&plan, args.shard.unwrap_or((0, 1)), jobs, stop, progress())?
    } else {
        parts::merge(&plan, &args.merge)?
    };
    let interrupted = |file: &str| {
        let (done, planned) = (found.trials.len(), found.planned);
        let path = results.path(file).display().to_string();
        (found.partial && !merges).then_some(PredictError::Interrupted { path, done, planned })
    };
    if let (Some(file), Some(part)) = (&part_file, args.shard) {
        let (count, interrupted) = (found.trials.len(), interrupted(file));
        let part = serde_json::to_value(Part::new(&plan, part, found));
        let part = part.map_err(|error| PredictError::Config(error.to_string()))?;
        results.write_json(file, &part)?;
        print(
            out,
            &format!("{count} trials saved to: {}\n", results.path(file).display()),
        )?;
        return interrupted.map_or(Ok(()), Err);
    }
    let recommendation = Recommendation::new(&plan, &found);
    let whole = recommendation.to_json();
    recommendation.write(&results, &whole)?;
    match shared.format {
        PredictionFormat::Json => print(out, &format!("{whole:#}\n"))?,
        PredictionFormat::Table => {
            let path = results.path("recommendations");
            let table = recommendation.table();
            print(out, &format!("{table}Saved recommendations to: {}\n", path.display()))?;
        }
    }
    if let Some(interrupted) = interrupted("recommendation.json") {
        return Err(interrupted);
    }
    if found.partial {
        // The parts are put together; who does not read this has the mark in the files.
        let (done, planned) = (found.trials.len(), found.planned);
        let _ = writeln!(
            std::io::stderr(),
            "warning: parts were interrupted: {done} of {planned} trials; run them again for the rest"
        );
    }
    if recommendation.is_beyond_sla() {
        let _ = writeln!(
            std::io::stderr(),
            "warning: no candidate served a request within evaluation.sla; what is recommended is best by other measures at most"
        );
    }
    if recommendation.is_empty() {
        let reason = recommendation.first_failure().unwrap_or("there was no trial");
        return Err(PredictError::NoCandidate(reason.to_owned()));
    }
    Ok(())
}

/// A line on stderr now and then.
fn progress() -> impl FnMut(u64, u64) {
    let started = Instant::now();
    let mut last = started;
    let every = if std::io::stderr().is_terminal() {
        Duration::from_secs(1)
    } else {
        LINE_EVERY
    };
    move |done, total| {
        if last.elapsed() < every {
            return;
        }
        last = Instant::now();
        #[allow(clippy::cast_precision_loss)]
        let left = started.elapsed().as_secs_f64() / done.max(1) as f64 * (total - done.min(total)) as f64;
        eprintln!("{done}/{total} trials, ETA {left:.0} s");
    }
}
