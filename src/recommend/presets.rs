//! Lists of parallel shapes by name: `preset` under the parallelism of a pool.
//!
//! | `preset` | Shapes |
//! |---|---|
//! | a list | these, each with all six numbers |
//! | `default` | workers of 1, 2, 4, 8 and 16 GPUs, as many of each as the GPUs of a candidate allow |
//! | `false`, `{}` | none: each number is a value or a domain of its own |
//!
//! A worker of so many GPUs is tensor parallel where the model is dense. A mixture of experts is tensor parallel or data
//! parallel in its attention, with its experts spread over the GPUs or cut across them; on one GPU all of that is one
//! shape. Here no shape is left out because a model does not fit it: nothing is known of weights and memories.
//! Source: aisimulate 0.13.0, `recommend`.

use std::ops::RangeInclusive;
use std::path::Path;

use serde_norway::{Mapping, Value};

use crate::model;
use crate::predict::{PredictError, yaml};

/// Pools that may have a preset.
const POOLS: [&str; 3] = ["aggregated", "prefill", "decode"];
/// Numbers of a shape, in the order of a document.
pub(super) const KEYS: [&str; 6] = [
    "replicas",
    "tensor",
    "pipeline",
    "attention_data",
    "moe_tensor",
    "moe_expert",
];
/// GPUs of a worker.
const WIDTHS: [u32; 5] = [1, 2, 4, 8, 16];

/// Puts the shapes in the place of presets, as the choices of a domain. Candidates may take `gpus` GPUs.
///
/// # Errors
/// [`PredictError::Config`] names the key that makes no sense.
pub(super) fn expand(document: &mut Value, gpus: &RangeInclusive<u32>) -> Result<(), PredictError> {
    for pool in POOLS {
        let path = format!("engine.workers.{pool}.parallelism");
        let Some(found) = yaml::get(document, &path).and_then(Value::as_mapping) else {
            continue;
        };
        let Some(preset) = found.get("preset") else { continue };
        let wrong = |what: &str| PredictError::Config(format!("{path}.{what}"));
        let others: Vec<&str> = found
            .keys()
            .filter_map(Value::as_str)
            .filter(|key| *key != "preset")
            .collect();
        let none = *preset == Value::Bool(false) || preset.as_mapping().is_some_and(Mapping::is_empty);
        if none {
            let mut rest = found.clone();
            rest.shift_remove("preset");
            yaml::set(document, &path, Value::Mapping(rest)).map_err(|error| wrong(&error))?;
            continue;
        }
        if !others.is_empty() {
            let others = others.join(", ");
            return Err(wrong(&format!(
                "preset stands alone; leave out {others}, or use preset: false"
            )));
        }
        let shapes = match preset {
            Value::Sequence(shapes) => shapes.clone(),
            Value::String(name) if name == "default" => {
                let experts = has_experts(document).map_err(|error| wrong(&error))?;
                // The other pool takes one GPU at least.
                let most = gpus.end().saturating_sub(u32::from(pool != "aggregated"));
                let least = if pool == "aggregated" { *gpus.start() } else { 1 };
                defaults(experts, &(least..=most))
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Mapping(_)
            | Value::Tagged(_) => {
                return Err(wrong("preset: expected default, false or a list of shapes"));
            }
        };
        for (at, shape) in shapes.iter().enumerate() {
            check(shape).map_err(|what| wrong(&format!("preset: shape {at}{what}")))?;
        }
        let domain = Mapping::from_iter([("choices".into(), Value::Sequence(shapes))]);
        yaml::set(document, &path, Value::Mapping(domain)).map_err(|error| wrong(&error))?;
    }
    Ok(())
}

/// A shape says each of its numbers.
fn check(shape: &Value) -> Result<(), String> {
    let Value::Mapping(shape) = shape else {
        return Err(", expected a mapping".into());
    };
    if let Some(key) = KEYS.iter().find(|key| shape.get(**key).is_none()) {
        return Err(format!(": {key} is missing; a shape says all of {}", KEYS.join(", ")));
    }
    let unknown = shape
        .keys()
        .find(|key| !key.as_str().is_some_and(|key| KEYS.contains(&key)));
    if let Some(key) = unknown {
        return Err(format!(": unknown key {}", key.as_str().unwrap_or("that is no text")));
    }
    let wrong = shape
        .iter()
        .find(|(_, value)| value.as_u64().is_none_or(|number| number == 0));
    match wrong {
        Some((key, _)) => Err(format!(
            ": {} has to be a whole number above 0",
            key.as_str().unwrap_or("?")
        )),
        None => Ok(()),
    }
}

/// Whether the model is a mixture of experts.
fn has_experts(document: &Value) -> Result<bool, String> {
    let model = yaml::get(document, "engine.model").and_then(Value::as_str);
    let Some(directory) = model.map(Path::new).filter(|path| path.is_dir()) else {
        return Err(
            "preset: default needs to know whether the model has experts; give engine.model as a directory with its \
             config.json, or list the shapes"
                .into(),
        );
    };
    model::has_experts(directory).map_err(|error| format!("preset: {}/config.json: {error}", directory.display()))
}

/// The shapes of `default` that take a number of GPUs within `gpus`.
fn defaults(experts: bool, gpus: &RangeInclusive<u32>) -> Vec<Value> {
    let mut shapes = Vec::new();
    for width in WIDTHS.into_iter().filter(|width| width <= gpus.end()) {
        for shape in worker_shapes(experts, width) {
            for replicas in 1..=gpus.end() / width {
                if gpus.contains(&(replicas * width)) {
                    let [tensor, attention_data, moe_tensor, moe_expert] = shape;
                    let numbers = [replicas, tensor, 1, attention_data, moe_tensor, moe_expert];
                    let pairs = KEYS
                        .into_iter()
                        .zip(numbers)
                        .map(|(key, number)| (key.into(), number.into()));
                    shapes.push(Value::Mapping(pairs.collect()));
                }
            }
        }
    }
    shapes
}

/// Tensor, attention data, expert tensor and expert parallelism of a worker of `gpus` GPUs.
fn worker_shapes(experts: bool, gpus: u32) -> Vec<[u32; 4]> {
    if !experts || gpus == 1 {
        return vec![[gpus, 1, 1, 1]];
    }
    let attentions = [[1, gpus], [gpus, 1]];
    let of_experts = [[1, gpus], [gpus, 1]];
    let pairs = attentions
        .iter()
        .flat_map(|&[tensor, data]| of_experts.iter().map(move |&[cut, spread]| [tensor, data, cut, spread]));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str, gpus: RangeInclusive<u32>) -> Result<Value, PredictError> {
        let mut document = serde_norway::from_str(text).unwrap();
        expand(&mut document, &gpus)?;
        Ok(document)
    }

    /// The numbers of each shape of a pool.
    fn shapes(document: &Value, pool: &str) -> Vec<Vec<u64>> {
        let choices = yaml::get(document, &format!("engine.workers.{pool}.parallelism.choices")).unwrap();
        let numbers = |shape: &Value| KEYS.iter().map(|key| shape[*key].as_u64().unwrap()).collect();
        choices.as_sequence().unwrap().iter().map(numbers).collect()
    }

    #[test]
    fn default_shapes_are_those_of_the_peer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let text = format!("engine: {{model: {path}, workers: {{aggregated: {{parallelism: {{preset: default}}}}}}}}");
        std::fs::write(directory.path().join("config.json"), "{}").unwrap();
        let dense = expanded(&text, 3..=4).unwrap();
        assert_eq!(
            shapes(&dense, "aggregated"),
            [
                [3, 1, 1, 1, 1, 1],
                [4, 1, 1, 1, 1, 1],
                [2, 2, 1, 1, 1, 1],
                [1, 4, 1, 1, 1, 1]
            ]
        );
        std::fs::write(directory.path().join("config.json"), r#"{"num_experts": 8}"#).unwrap();
        let experts = expanded(&text, 1..=2).unwrap();
        assert_eq!(
            shapes(&experts, "aggregated"),
            [
                [1, 1, 1, 1, 1, 1],
                [2, 1, 1, 1, 1, 1],
                [1, 1, 1, 2, 1, 2],
                [1, 1, 1, 2, 2, 1],
                [1, 2, 1, 1, 1, 2],
                [1, 2, 1, 1, 2, 1]
            ]
        );
        // 1, 2, 4, 8 and 16 GPUs: 1 + 4 shapes in replicas of 32, 16, 8, 4 and 2.
        assert_eq!(
            shapes(&expanded(&text, 1..=32).unwrap(), "aggregated").len(),
            32 + 4 * (16 + 8 + 4 + 2)
        );
        let side = text.replace("aggregated", "decode");
        assert_eq!(shapes(&expanded(&side, 1..=2).unwrap(), "decode"), [[1, 1, 1, 1, 1, 1]]);
    }

    #[test]
    fn listed_shapes_are_choices_and_no_preset_is_nothing() {
        let one = "{replicas: 2, tensor: 4, pipeline: 1, attention_data: 1, moe_tensor: 1, moe_expert: 1}";
        let text = format!("engine: {{workers: {{prefill: {{parallelism: {{preset: [{one}]}}}}}}}}");
        assert_eq!(
            shapes(&expanded(&text, 1..=32).unwrap(), "prefill"),
            [[2, 4, 1, 1, 1, 1]]
        );
        for none in ["false", "{}"] {
            let text = format!("engine: {{workers: {{decode: {{parallelism: {{preset: {none}, tensor: 2}}}}}}}}");
            let document = expanded(&text, 1..=32).unwrap();
            let rest = yaml::get(&document, "engine.workers.decode.parallelism").unwrap();
            assert_eq!(serde_norway::to_string(rest).unwrap(), "tensor: 2\n");
        }
    }

    #[test]
    fn presets_that_make_no_sense_name_their_key() {
        let shape = "replicas: 2, tensor: 4, pipeline: 1, attention_data: 1, moe_tensor: 1";
        for (preset, expected) in [
            ("preset: list".to_owned(), "preset: expected default"),
            (
                "preset: default, tensor: 2".into(),
                "preset stands alone; leave out tensor",
            ),
            (
                "preset: default".into(),
                "preset: default needs to know whether the model has experts",
            ),
            ("preset: [3]".into(), "preset: shape 0, expected a mapping"),
            (
                format!("preset: [{{{shape}}}]"),
                "preset: shape 0: moe_expert is missing",
            ),
            (
                format!("preset: [{{{shape}, moe_expert: 0}}]"),
                "preset: shape 0: moe_expert has to be",
            ),
            (
                format!("preset: [{{{shape}, moe_expert: 1, x: 1}}]"),
                "preset: shape 0: unknown key x",
            ),
        ] {
            let text = format!("engine: {{model: m, workers: {{aggregated: {{parallelism: {{{preset}}}}}}}}}");
            let error = expanded(&text, 1..=32).unwrap_err().to_string();
            let expected = format!("engine.workers.aggregated.parallelism.{expected}");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
