//! Parts of a sweep that other processes ran, and how they become one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::predict::PredictError;

use super::plan::Plan;
use super::trials::{Found, Trial, ranked};

const VERSION: u32 = 1;
/// Times that numbers are written and read until they stay as they are; the second time they do.
const MAX_READS: u32 = 8;
/// Missing parts that a message names.
const MAX_NAMED: usize = 8;

/// What one part found.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    version: u32,
    /// Digest of the sweep.
    digest: String,
    /// From 0.
    index: u32,
    count: u32,
    /// Trials that were meant to be made, where a signal ended the part before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partial_of: Option<u64>,
    trials: Vec<Trial>,
}

impl Part {
    /// Name of the file of a part.
    pub(super) fn file(index: u32, count: u32) -> String {
        format!("shard-{index}-of-{count}.json")
    }

    /// Part `part.0` of `part.1` of a sweep.
    pub(super) fn new(plan: &Plan, part: (u32, u32), found: Found) -> Self {
        Self {
            version: VERSION,
            digest: plan.digest.clone(),
            index: part.0,
            count: part.1,
            partial_of: found.partial.then_some(found.planned),
            trials: found.trials,
        }
    }
}

/// Trials as a file would give them back, also when it is written again: reading may round the last bit of a number, and a
/// sweep in one has to come out as its parts put together do.
///
/// # Errors
/// [`PredictError::Config`] when a number is no number.
pub(super) fn as_read(mut trials: Vec<Trial>) -> Result<Vec<Trial>, PredictError> {
    for _ in 0..MAX_READS {
        let text = serde_json::to_vec(&trials);
        let read: Result<Vec<Trial>, _> = text.and_then(|text| serde_json::from_slice(&text));
        let read = read
            .map_err(|error| PredictError::Config(format!("a trial measured what cannot be written down: {error}")))?;
        let settled = read == trials;
        trials = read;
        if settled {
            break;
        }
    }
    Ok(trials)
}

/// The files of parts that paths name: files, or `shard-*.json` in directories.
///
/// # Errors
/// [`PredictError::Config`] when a directory cannot be read or has none.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, PredictError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let failed = |error: std::io::Error| PredictError::Config(format!("{}: {error}", path.display()));
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?.path();
            let is_json = entry.extension().is_some_and(|end| end == "json");
            let stem = entry.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            if is_json && stem.is_some_and(|stem| stem.starts_with("shard-")) {
                inside.push(entry);
            }
        }
        inside.sort();
        if inside.is_empty() {
            let path = path.display();
            return Err(PredictError::Config(format!(
                "{path}: no shard-I-of-N.json in it; run --shard first"
            )));
        }
        found.extend(inside);
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Part, PredictError> {
    let failed = |error: &dyn std::fmt::Display| PredictError::Config(format!("{}: {error}", path.display()));
    let text = fs::read(path).map_err(|error| failed(&error))?;
    serde_json::from_slice(&text).map_err(|error| failed(&error))
}

/// The trials of a part, each with its place among all that the part is to make. The search is gone through once more with
/// what the trials measured, so that a part has the trials of its own share of the sweep and all of them, unless a signal
/// ended it.
///
/// # Errors
/// What does not belong to the part, or what is missing.
fn shares(plan: &Plan, part: Part) -> Result<Vec<(u64, Trial)>, String> {
    let Part {
        index,
        count,
        partial_of,
        trials,
        ..
    } = part;
    if index >= count {
        return Err(format!("there is no part {index} of {count}"));
    }
    let mut search = plan.search((index, count));
    let planned = search.total();
    if let Some(meant) = partial_of.filter(|meant| *meant != planned) {
        return Err(format!(
            "partial_of is {meant}, but part {index} of {count} has {planned} trials"
        ));
    }
    let mut left = BTreeMap::new();
    for trial in trials {
        let candidate = trial.candidate;
        if left.insert(candidate, trial).is_some() {
            return Err(format!("candidate {candidate} is there twice"));
        }
    }
    let (mut found, mut places, mut place) = (Vec::new(), Vec::new(), 0);
    let mut whole = true;
    while whole {
        let batch = search.next(&ranked(&found, plan));
        if batch.is_empty() {
            break;
        }
        for candidate in batch {
            match left.remove(&candidate) {
                Some(trial) => {
                    found.push(trial);
                    places.push(place);
                }
                None => whole = false,
            }
            place += 1;
        }
    }
    if let Some(candidate) = left.keys().next() {
        return Err(format!(
            "candidate {candidate} is none of those that part {index} of {count} tries; run --shard again"
        ));
    }
    if !whole && partial_of.is_none() {
        return Err(format!(
            "{} of the {planned} trials of part {index} of {count} are there, without the mark of an interruption; run --shard again",
            found.len()
        ));
    }
    Ok(places.into_iter().zip(found).collect())
}

/// The trials of all parts of a sweep, in the order in which a search in one makes them; partial, if a part is.
///
/// # Errors
/// [`PredictError::Config`] when parts are missing, there twice, of another sweep, or have not their own trials.
pub(super) fn merge(plan: &Plan, paths: &[PathBuf]) -> Result<Found, PredictError> {
    let wrong = |what: String| Err(PredictError::Config(what));
    let mut count = None;
    let mut parts: BTreeMap<u32, PathBuf> = BTreeMap::new();
    let mut trials: BTreeMap<(u64, u32), Trial> = BTreeMap::new();
    let (mut planned, mut partial) = (0, false);
    for path in files(paths)? {
        let part = read(&path)?;
        let name = path.display();
        if part.version != VERSION {
            let version = part.version;
            return wrong(format!("{name}: version is {version}, expected {VERSION}"));
        }
        if part.digest != plan.digest {
            return wrong(format!(
                "{name} belongs to another configuration; merge with the file, --set and --stack that --shard had"
            ));
        }
        if *count.get_or_insert(part.count) != part.count {
            return wrong(format!(
                "{name} is one of {} parts, others are of {}",
                part.count,
                count.unwrap_or(0)
            ));
        }
        if let Some(other) = parts.insert(part.index, path.clone()) {
            let other = other.display();
            return wrong(format!("{name} and {other} are the same part, {}", part.index));
        }
        partial |= part.partial_of.is_some();
        planned += part.partial_of.unwrap_or(part.trials.len() as u64);
        let index = part.index;
        let own = shares(plan, part).map_err(|what| PredictError::Config(format!("{name}: {what}")))?;
        trials.extend(own.into_iter().map(|(place, trial)| ((place, index), trial)));
    }
    let count = count.unwrap_or(0);
    let lacking = (0..count).filter(|index| !parts.contains_key(index));
    let mut missing: Vec<String> = lacking.take(MAX_NAMED).map(|index| Part::file(index, count)).collect();
    if !missing.is_empty() {
        let more = (count as usize).saturating_sub(parts.len() + missing.len());
        if more > 0 {
            missing.push(format!("and {more} more"));
        }
        return wrong(format!("parts are missing: {}", missing.join(", ")));
    }
    Ok(Found {
        trials: trials.into_values().collect(),
        planned,
        partial,
    })
}
