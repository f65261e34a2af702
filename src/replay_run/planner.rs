//! `--planner-config`: a script, an outside program that is spoken to in lines of JSON, or the configuration of Dynamo's
//! planner, whose part is taken here. The keys tell which: `ticks`, `command`, or neither.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::replay::dynamo_planner::{PlannerConfig, Spelling};
use crate::replay::{Decision, Planner, PlannerError, Script, Snapshot};

use super::RunError;
use super::decisions::{Checked, check_script, object};
use super::destination;
use super::outside::{Outside, Program};
use super::pools::Engines;

/// The policy that a path or a text names, for a fleet of these engines; each tick goes to `log` too.
pub(super) fn build(config: &str, log: Option<&Path>, engines: Engines) -> Result<Box<dyn Planner>, RunError> {
    let sides = engines.sides();
    let wrong = |what: &dyn std::fmt::Display| RunError::Invalid(format!("--planner-config: {what}"));
    let document = read(config).map_err(|error| wrong(&error))?;
    let keys = document.as_object();
    let has = |key: &str| keys.is_some_and(|keys| keys.contains_key(key));
    let planner: Box<dyn Planner> = if has("command") {
        let program: Program = object(document).map_err(|error| wrong(&error))?;
        Box::new(Outside::start(program).map_err(|error| wrong(&error))?)
    } else if has("ticks") || has("initial_tick_ms") {
        check_script(&document, sides).map_err(|error| wrong(&error))?;
        Box::new(object::<Script>(document).map_err(|error| wrong(&error))?)
    } else if keys.is_some() {
        let read = PlannerConfig::read(document, sides.disaggregated, Spelling::Document);
        Box::new(engines.planner(read.map_err(|error| wrong(&error))?))
    } else {
        return Err(wrong(
            &"neither a file nor a script (key ticks), a program (key command) or a configuration of Dynamo's planner; \
              see --help",
        ));
    };
    let planner = Box::new(Checked { planner, sides });
    let Some(path) = log else { return Ok(planner) };
    Ok(Box::new(Logged {
        planner,
        out: destination::create(path)?,
    }))
}

/// The document that a path or a text names.
fn read(config: &str) -> Result<Value, String> {
    let path = Path::new(config);
    let text = if path.is_file() {
        std::fs::read_to_string(path).map_err(|error| error.to_string())?
    } else {
        config.to_owned()
    };
    serde_norway::from_str(&text).map_err(|error| error.to_string())
}

/// Files that the command of a program names, where the configuration is one.
pub(super) fn files_of_program(config: &str) -> Vec<PathBuf> {
    let program = read(config).and_then(object::<Program>);
    program.map_or_else(|_| Vec::new(), |program| program.files().collect())
}

/// Writes down what a policy saw and said.
struct Logged {
    planner: Box<dyn Planner>,
    out: BufWriter<File>,
}

impl Planner for Logged {
    fn initial_tick_ms(&mut self) -> Result<Option<f64>, PlannerError> {
        self.planner.initial_tick_ms()
    }

    fn on_tick(&mut self, snapshot: &Snapshot) -> Result<Decision, PlannerError> {
        let decision = self.planner.on_tick(snapshot)?;
        let line = json!({"snapshot": snapshot, "decision": decision});
        let written = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        written.map_err(|error| PlannerError::Failed(format!("cannot write the planner log: {error}")))?;
        Ok(decision)
    }
}
