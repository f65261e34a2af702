//! A checked sweep: what varies, what is best, how to look.

use std::path::PathBuf;

use serde::Deserialize;
use serde_norway::Value;

use crate::cli::{RecommendArgs, Stack};
use crate::plain_words::number;
use crate::predict::{self, PredictError, document::SlaBounds, yaml};

use super::objective::Target;
use super::presets;
use super::search::{Algorithm, Search};
use super::space::Space;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Optimization {
    #[serde(default)]
    target: Target,
    /// Hardware of every candidate, where the engine section does not vary it.
    hardware: Option<String>,
    #[serde(default)]
    constraints: Constraints,
}

/// What a candidate may cost.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Constraints {
    min_candidate_gpus: u32,
    max_candidate_gpus: u32,
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            min_candidate_gpus: 1,
            max_candidate_gpus: 32,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Optimizer {
    algorithm: Algorithm,
    max_trials: u64,
    parallelism: usize,
    candidate_timeout_seconds: f64,
    seed: u64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            max_trials: 320,
            parallelism: 16,
            candidate_timeout_seconds: 600.0,
            seed: 42,
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Plan {
    /// What varies.
    pub(super) space: Space,
    /// Sections that candidates may have.
    pub(super) stack: Stack,
    /// What is best.
    pub(super) target: Target,
    /// GPUs that a candidate may take.
    pub(super) gpus: std::ops::RangeInclusive<u32>,
    /// How to look.
    pub(super) algorithm: Algorithm,
    /// Candidates to try.
    pub(super) trials: u64,
    /// Candidates that are chosen at once.
    pub(super) batch: usize,
    /// Longest replay of one candidate, s of real time.
    pub(super) timeout_seconds: f64,
    /// Of the search.
    pub(super) seed: u64,
    /// BLAKE3 of everything above, so that parts of different sweeps are not put together.
    pub(super) digest: String,
    /// Files and directories of the traces that candidates play.
    pub(super) traces: Vec<PathBuf>,
}

impl Plan {
    /// Reads the file that the flags name.
    ///
    /// # Errors
    /// [`PredictError::Config`] names the key at fault.
    pub(super) fn new(args: &RecommendArgs) -> Result<Self, PredictError> {
        let document = yaml::load(&args.shared.config, &args.shared.overrides)?;
        Self::of(document, args.shared.stack)
    }

    /// The search of part `part.0` of `part.1`.
    pub(super) fn search(&self, part: (u32, u32)) -> Search<'_> {
        Search::new(&self.space, self.algorithm, (self.trials, self.batch), self.seed, part)
    }

    pub(super) fn of(mut document: Value, stack: Stack) -> Result<Self, PredictError> {
        let text = serde_json::to_string(&document).map_err(|error| PredictError::Config(error.to_string()))?;
        let digest = blake3::hash(format!("{stack:?} {text}").as_bytes())
            .to_hex()
            .to_string();
        let optimization = take(&mut document, "optimization");
        let optimization =
            optimization.ok_or_else(|| PredictError::Config("optimization is missing; it says what is best".into()))?;
        let optimization: Optimization = named("optimization", optimization)?;
        let optimizer = take(&mut document, "optimizer").map(|found| named("optimizer", found));
        let optimizer: Optimizer = optimizer.transpose()?.unwrap_or_default();
        check(&optimization, &optimizer)?;
        if let Some(hardware) = &optimization.hardware
            && yaml::get(&document, "engine.hardware").is_none()
        {
            yaml::set(&mut document, "engine.hardware", hardware.as_str().into()).map_err(PredictError::Config)?;
        }
        let sla = yaml::get(&document, "evaluation.sla").cloned();
        let sla: Option<SlaBounds> = sla.map(|sla| named("evaluation.sla", sla)).transpose()?;
        if optimization.target.needs_sla() && sla.is_none_or(|sla| sla == SlaBounds::default()) {
            return Err(PredictError::Config(
                "optimization.target: goodput needs bounds in evaluation.sla".into(),
            ));
        }
        let gpus = optimization.constraints.min_candidate_gpus..=optimization.constraints.max_candidate_gpus;
        presets::expand(&mut document, &gpus)?;
        let mut traces = Vec::new();
        texts(yaml::get(&document, "traffic.source.paths"), &mut traces);
        let space = Space::new(document)?;
        if optimizer.algorithm == Algorithm::Grid && space.len() > optimizer.max_trials {
            return Err(PredictError::Config(format!(
                "the grid has {} candidates, more than optimizer.max_trials, {}; raise it or use algorithm bayesian or random",
                space.len(),
                optimizer.max_trials
            )));
        }
        // A key that no candidate can have would make all of them fail one by one.
        let first = predict::read(space.document(0))?;
        predict::check_stack(&first, stack)?;
        if space.len() == 1 {
            predict::lower(&first, stack)?;
        }
        Ok(Self {
            space,
            stack,
            target: optimization.target,
            gpus,
            algorithm: optimizer.algorithm,
            trials: optimizer.max_trials,
            batch: optimizer.parallelism,
            timeout_seconds: optimizer.candidate_timeout_seconds,
            seed: optimizer.seed,
            digest,
            traces,
        })
    }
}

/// Every text in a value, be it a list, a domain or both.
fn texts(value: Option<&Value>, found: &mut Vec<PathBuf>) {
    match value {
        Some(Value::String(text)) => found.push(text.into()),
        Some(Value::Sequence(items)) => items.iter().for_each(|item| texts(Some(item), found)),
        Some(Value::Mapping(map)) => map.iter().for_each(|(_, item)| texts(Some(item), found)),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Tagged(_)) | None => {}
    }
}

fn take(document: &mut Value, section: &str) -> Option<Value> {
    document.as_mapping_mut()?.shift_remove(section)
}

/// A section, with its name in front of the path of a key at fault.
fn named<T: serde::de::DeserializeOwned>(section: &str, value: Value) -> Result<T, PredictError> {
    yaml::read(value).map_err(|error| PredictError::Config(format!("{section}: {error}")))
}

fn check(optimization: &Optimization, optimizer: &Optimizer) -> Result<(), PredictError> {
    let wrong = |what: String| Err(PredictError::Config(what));
    let Constraints {
        min_candidate_gpus: min,
        max_candidate_gpus: max,
    } = optimization.constraints;
    if min > max {
        return wrong(format!(
            "optimization.constraints: min_candidate_gpus {min} is above max_candidate_gpus {max}"
        ));
    }
    if optimizer.max_trials == 0 || optimizer.parallelism == 0 {
        return wrong("optimizer: max_trials and parallelism must be at least 1".into());
    }
    let timeout = optimizer.candidate_timeout_seconds;
    if !timeout.is_finite() || timeout <= 0.0 {
        return wrong(format!(
            "optimizer.candidate_timeout_seconds is {}, expected seconds above 0",
            number(timeout)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Plan, PredictError> {
        Plan::of(serde_norway::from_str(text).unwrap(), Stack::Dynamo)
    }

    #[test]
    fn what_makes_no_sense_is_said_before_any_replay() {
        let engine = "engine: {model: m, hardware: h}";
        for (text, expected) in [
            (engine.to_owned(), "optimization is missing"),
            (
                format!("{engine}\noptimization: {{target: speed}}"),
                "optimization: target is \"speed\", expected one of ",
            ),
            (
                format!("{engine}\noptimization: {{target: goodput}}"),
                "optimization.target: goodput needs bounds",
            ),
            (
                format!("{engine}\noptimization: {{target: ttft}}\noptimizer: {{algorithm: grid, max_trials: 0}}"),
                "optimizer: max_trials and parallelism",
            ),
            (
                format!("{engine}\noptimization: {{target: ttft}}\nrouter: {{policy: kv_router, heat: 1}}"),
                "router.heat is not known",
            ),
            (
                format!(
                    "{engine}\noptimization: {{target: ttft}}\noptimizer: {{algorithm: grid, max_trials: 3}}\n\
                     traffic: {{load: {{concurrency: {{choices: [1, 2, 3, 4]}}}}}}"
                ),
                "the grid has 4 candidates",
            ),
        ] {
            let error = plan(&text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let found = plan(&format!("{engine}\noptimization: {{target: pareto}}")).unwrap();
        assert_eq!(
            (found.trials, found.batch, found.seed, found.algorithm),
            (320, 16, 42, Algorithm::Bayesian)
        );
        assert_eq!(found.gpus, 1..=32);
    }
}
