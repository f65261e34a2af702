//! A plan made elsewhere, for models whose operations are not known here.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::formats::Field;
use super::{AicError, AicModel, DatabaseMode, PLAN_SCHEMA, files};

/// The oldest form that the evaluator reads as its own once the number is changed: what came later has a default.
const OLDEST_SCHEMA: u64 = 15;

/// Reads a plan and puts it into the evaluator's form.
///
/// # Errors
/// [`AicError`] names the file and the key: no plan, too old or too new, or of another deployment than the model's.
pub(super) fn read(path: &Path, model: &AicModel) -> Result<Value, AicError> {
    let mut plan = files::json_object(path)?;
    let wrong = |why: String| files::content(path, why);
    match plan.get("schema_version").and_then(Value::as_u64) {
        Some(OLDEST_SCHEMA..=PLAN_SCHEMA) => {}
        Some(other) => {
            return Err(wrong(format!(
                "schema_version {other} cannot be read; make the plan with a release that writes {OLDEST_SCHEMA} to \
                 {PLAN_SCHEMA}, as aiconfigurator-core 0.12.0"
            )));
        }
        None => {
            return Err(wrong(
                "schema_version is missing or no number; is this a plan?".to_owned(),
            ));
        }
    }
    for list in ["context_ops", "generation_ops"] {
        check_operations(list, plan.get(list)).map_err(wrong)?;
    }
    plan.insert("schema_version".to_owned(), json!(PLAN_SCHEMA));
    let Some(Value::Object(engine)) = plan.get_mut("engine") else {
        return Err(wrong("engine is missing or no object; is this a plan?".to_owned()));
    };
    check_deployment(engine, model).map_err(wrong)?;
    // The directory given for this run is the one that counts.
    engine.insert("systems_path".to_owned(), Value::Null);
    if model.database_mode != DatabaseMode::Silicon {
        engine.insert("database_mode".to_owned(), json!(model.database_mode.plan_name()));
        // Follows from the mode.
        engine.remove("enable_shared_layer");
    }
    Ok(Value::Object(plan))
}

fn check_operations(name: &str, list: Option<&Value>) -> Result<(), String> {
    let Some(Value::Array(operations)) = list else {
        return Err(format!("{name} is missing or no list; is this a plan?"));
    };
    if operations.is_empty() {
        return Err(format!("{name} is empty, so a pass would take no time"));
    }
    let tagged = |operation: &Value| {
        let fields = operation.as_object();
        fields.is_some_and(|tagged| tagged.len() == 1 && tagged.values().all(Value::is_object))
    };
    match operations.iter().position(|operation| !tagged(operation)) {
        None => Ok(()),
        Some(at) => Err(format!("{name}[{at}] is no object with one operation")),
    }
}

/// Whether a plan is of the deployment that the settings describe.
fn check_deployment(engine: &Map<String, Value>, model: &AicModel) -> Result<(), String> {
    let text = |key: &str| match engine.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text.as_str()),
        _ => Err(format!("engine.{key} is missing or no text")),
    };
    for (key, flag, given) in [
        ("system_name", "--aic-system", model.system.as_str()),
        ("backend", "--aic-backend", model.backend.name()),
    ] {
        let planned = text(key)?;
        if planned != given {
            return Err(format!(
                "the plan is for {planned}, not for {given}; give {flag} {planned}"
            ));
        }
    }
    let planned = text("backend_version")?;
    let given = model.backend_version.as_str();
    if !["current", "previous", planned].contains(&given) {
        return Err(format!(
            "the plan is for {} {planned}, not {given}; give --aic-backend-version {planned}",
            model.backend.name()
        ));
    }
    for (key, flag, given) in [
        ("tp_size", "--aic-tp-size", Some(model.tp)),
        ("attention_dp_size", "--aic-attention-dp-size", Some(model.attention_dp)),
        ("moe_tp_size", "--aic-moe-tp-size", model.moe_tp),
        ("moe_ep_size", "--aic-moe-ep-size", model.moe_ep),
        ("nextn", "--aic-nextn", Some(model.nextn)),
    ] {
        let planned = match engine.get(key) {
            None | Some(Value::Null) => u64::from(key != "nextn"),
            Some(value) => value
                .as_u64()
                .ok_or_else(|| format!("engine.{key} is no whole number"))?,
        };
        if given.is_some_and(|given| u64::from(given) != planned) {
            return Err(format!(
                "the plan has {key} {planned}; give {flag} {planned}, or leave it out where 0"
            ));
        }
    }
    let dtypes = &model.dtypes;
    for (field, given, flag) in [
        (Field::Gemm, &dtypes.gemm, "--aic-gemm-dtype"),
        (Field::Moe, &dtypes.moe, "--aic-moe-dtype"),
        (Field::Fmha, &dtypes.fmha, "--aic-fmha-dtype"),
        (Field::KvCache, &dtypes.kv_cache, "--aic-kv-cache-dtype"),
        (Field::Comm, &dtypes.comm, "--aic-comm-dtype"),
    ] {
        let chosen = field.chosen(given.as_deref()).map_err(|error| error.to_string())?;
        if chosen.is_some() {
            return Err(format!("{flag} does not change a ready plan; make the plan with it"));
        }
    }
    Ok(())
}
