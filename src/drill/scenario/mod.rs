//! Scenarios: what a drill's file says. Pure: reading a file named in it is left to who runs it.
//!
//! ```toml
//! [scenario]
//! name = "crash"
//! description = "A good router does not let clients see it."
//! seed = 7
//! duration = "12s"
//!
//! [fleet]                       # the keys of a serve config, or config = "file"
//! model_path = "../tiny-model"
//! num_workers = 4
//!
//! [frontend]                    # url = .. | command = [..] | nothing: straight at the workers
//! command = ["python", "-m", "dynamo.frontend", "--http-port", "{port}", "--discovery-backend", "file"]
//!
//! [index]                       # whom index_drift asks; without: the frontend's own index, if it serves it
//! by = "choices"                # or "served"; or the url or command of a standalone indexer
//!
//! [[load]]
//! name = "probe"
//! rate = 20
//!
//! [[at]]
//! at = "4s"
//! mark = "crash"
//! do = "hottest crash"
//!
//! [[check]]
//! expect = "error_rate < 1%"
//! ```

mod idle;
pub mod index;
pub mod load;
pub mod program;
pub mod server;
pub mod span;
pub mod step;
pub mod words;

use std::path::{Path, PathBuf};

use serde::Deserialize;

use self::index::Index;
use self::load::Load;
use self::program::Program;
use self::server::Server;
use self::span::Span;
use self::step::{Action, Step};
use crate::config::layers::unknown_of;
use crate::drill::check::{Check, Names, Plan};

/// A scenario that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ScenarioError {
    /// Its file.
    pub path: PathBuf,
    /// What is wrong, and where.
    pub problem: String,
}

/// A drill, described.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The file that it stands in; paths of the fleet are taken from its directory.
    pub path: PathBuf,
    /// Name.
    pub name: String,
    /// What it shows, and what a good router does.
    pub description: String,
    /// Seed of every choice.
    pub seed: u64,
    /// How long loads and timeline last.
    pub duration: Span,
    /// Requests sent before count for nothing: routers and caches are cold.
    pub warmup: Span,
    /// Longest wait, after the end, for what requests hold to be free again.
    pub settle: Span,
    /// The fleet.
    pub fleet: Fleet,
    /// The router; `None`: loads go straight at the workers.
    pub frontend: Option<Server>,
    /// Whom `index_drift` asks.
    pub index: Index,
    /// Loads of the drill's own.
    pub loads: Vec<Load>,
    /// Loads that are programs.
    pub programs: Vec<Program>,
    /// Timeline, in order.
    pub steps: Vec<Step>,
    /// What has to hold.
    pub checks: Vec<Check>,
}

/// The fleet's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    /// A serve config beside the scenario.
    pub config: Option<PathBuf>,
    /// Keys of a serve config; they win over `config`.
    pub keys: toml::Table,
    /// Text of the scenario, for errors that name lines.
    pub text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    scenario: Head,
    #[serde(default)]
    fleet: toml::Table,
    frontend: Option<server::Written>,
    index: Option<index::Written>,
    #[serde(default)]
    load: Vec<Load>,
    #[serde(default)]
    at: Vec<step::Written>,
    #[serde(default)]
    check: Vec<crate::drill::check::Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    seed: u64,
    duration: Span,
    #[serde(default)]
    warmup: Span,
    #[serde(default = "five_seconds")]
    settle: Span,
}

fn five_seconds() -> Span {
    Span(5.0)
}

impl Scenario {
    /// Reads a scenario's text; `path` is where it stands, or would stand.
    ///
    /// # Errors
    /// [`ScenarioError`] names the key, the line and what there is instead.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ScenarioError> {
        let failed = |problem: String| ScenarioError {
            path: path.to_owned(),
            problem,
        };
        let written: Written = toml::from_str(text).map_err(|error| failed(explain(&error)))?;
        Self::build(path, written, text).map_err(failed)
    }

    fn build(path: &Path, written: Written, text: &str) -> Result<Self, String> {
        let Head {
            name,
            description,
            seed,
            duration,
            warmup,
            settle,
        } = written.scenario;
        if duration.0 <= 0.0 {
            return Err("scenario.duration must be above 0".to_owned());
        }
        if warmup >= duration {
            return Err(format!(
                "scenario.warmup {warmup} must be shorter than its duration {duration}"
            ));
        }
        let stem = path
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let mut keys = written.fleet;
        let config = match keys.remove("config") {
            None => None,
            Some(toml::Value::String(file)) => Some(path.parent().unwrap_or(Path::new(".")).join(file)),
            Some(_) => return Err("fleet.config must be the name of a file".to_owned()),
        };
        let frontend = written.frontend.map(server::Written::server).transpose();
        let frontend = frontend.map_err(|why| format!("[frontend]: {why}"))?.flatten();
        let index = written.index.map(index::Written::read).transpose();
        let index = index.map_err(|why| format!("[index]: {why}"))?.unwrap_or_default();
        let (loads, programs) = name_loads(written.load)?;
        let steps = written.at.into_iter().enumerate();
        let steps = steps.map(|(index, step)| step.read(index).map_err(|why| format!("[[at]] {index}: {why}")));
        let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
        steps.sort_by(|a, b| a.at.0.total_cmp(&b.at.0));
        check_steps(&steps, (&loads, &programs), duration)?;
        let drill = idle::Drill {
            loads: &loads,
            programs: &programs,
            duration,
        };
        drill.check(&steps)?;
        let marks: Vec<&str> = steps.iter().map(|step| step.mark.as_str()).collect();
        let load_names: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
        let names = Names {
            marks: &marks,
            loads: &load_names,
            programs: &programs,
        };
        let plan = Plan {
            steps: &steps,
            warmup,
            duration,
        };
        let checks = written.check.into_iter().enumerate().map(|(index, check)| {
            let check = check.read(names).and_then(|check| {
                let possible = check.is_possible(&plan);
                possible.map_err(|why| format!("{:?}: {why}", check.expect))?;
                Ok(check)
            });
            check.map_err(|why| format!("[[check]] {index}: {why}"))
        });
        let checks = checks.collect::<Result<Vec<_>, _>>()?;
        if checks.is_empty() {
            return Err("a drill without a [[check]] has no verdict; say what has to hold".to_owned());
        }
        Ok(Self {
            path: path.to_owned(),
            name: name.unwrap_or(stem),
            description,
            seed,
            duration,
            warmup,
            settle,
            fleet: Fleet {
                config,
                keys,
                text: text.to_owned(),
            },
            frontend,
            index,
            loads,
            programs,
            steps,
            checks,
        })
    }

    /// Reads a scenario's file.
    ///
    /// # Errors
    /// [`ScenarioError`], also when there is no such file.
    pub fn read(path: &Path, text: impl FnOnce(&Path) -> std::io::Result<String>) -> Result<Self, ScenarioError> {
        let text = text(path).map_err(|error| ScenarioError {
            path: path.to_owned(),
            problem: format!("cannot be read: {error}"),
        })?;
        Self::parse(path, &text)
    }

    /// When the fleet is disturbed for the first time.
    pub fn first_disturbance(&self) -> Option<Span> {
        self.steps.iter().find(|step| step.disturbs()).map(|step| step.at)
    }
}

/// Names what has no name, and tells the drill's own loads from programs.
fn name_loads(mut loads: Vec<Load>) -> Result<(Vec<Load>, Vec<Program>), String> {
    for (index, load) in loads.iter_mut().enumerate() {
        if load.name.is_empty() {
            load.name = if index == 0 {
                "load".to_owned()
            } else {
                format!("load{index}")
            };
        }
        if !step::is_name(&load.name) {
            return Err(format!("[[load]] {index}: name {:?} must be one word", load.name));
        }
    }
    for (index, load) in loads.iter().enumerate() {
        if loads[..index].iter().any(|other| other.name == load.name) {
            return Err(format!("two loads are called {}", load.name));
        }
    }
    let (mut own, mut programs) = (Vec::new(), Vec::new());
    for mut load in loads {
        let name = load.name.clone();
        let wrong = |why| format!("[[load]] {name}: {why}");
        if let Some(command) = load.command.take() {
            programs.push(Program::of(load, command).map_err(wrong)?);
        } else {
            load.check().map_err(wrong)?;
            own.push(load);
        }
    }
    Ok((own, programs))
}

fn check_steps(steps: &[Step], (loads, programs): (&[Load], &[Program]), duration: Span) -> Result<(), String> {
    for (index, step) in steps.iter().enumerate() {
        if step.at > duration {
            return Err(format!("{} at {} comes after the end ({duration})", step.mark, step.at));
        }
        if steps[..index].iter().any(|other| other.mark == step.mark) {
            return Err(format!("two steps are marked {}", step.mark));
        }
        for (line, action) in &step.actions {
            let Action::Load { name, change } = action else {
                continue;
            };
            if programs.iter().any(|program| program.name == *name) {
                if matches!(change, step::Change::Rate(_) | step::Change::Concurrency(_)) {
                    return Err(format!("{line:?}: {name} is a program; it can be started and stopped"));
                }
                continue;
            }
            let load = loads.iter().find(|load| load.name == *name);
            let load = load.ok_or_else(|| format!("{line:?}: there is no load {name}"))?;
            match change {
                step::Change::Rate(_) if load.rate.is_none() => {
                    return Err(format!("{line:?}: {name} is a closed loop and has no rate"));
                }
                step::Change::Concurrency(_) if load.concurrency.is_none() => {
                    return Err(format!("{line:?}: {name} is an open loop and has no concurrency"));
                }
                step::Change::Rate(_) | step::Change::Concurrency(_) | step::Change::Stop | step::Change::Start => {}
            }
        }
    }
    Ok(())
}

/// A TOML error; one about an unknown key names the nearest known one, and keeps the place.
fn explain(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let mut quoted = error.message().split('`').skip(1).step_by(2);
    let (true, Some(key)) = (error.message().starts_with("unknown field"), quoted.next()) else {
        return text.trim_end().to_owned();
    };
    let known: Vec<&str> = quoted.collect();
    text.replace(error.message(), &unknown_of(key, &known))
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        [scenario]
        name = "crash"
        seed = 3
        duration = "10s"
        warmup = "1s"

        [fleet]
        model_path = "m"
        num_workers = 2
        [[fleet.group]]
        name = "a"

        [frontend]
        command = "router --port {port}"
        env = { A = "{discovery}" }

        [[load]]
        name = "probe"
        rate = 20

        [[at]]
        at = 6
        mark = "back"
        do = ["heal *", "load probe rate=5"]

        [[at]]
        at = "4s"
        mark = "crash"
        do = "hottest crash"

        [[check]]
        expect = "error_rate < 1%"
    "#;

    fn read(text: &str) -> Result<Scenario, String> {
        Scenario::parse(Path::new("dir/x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_scenario_is_read_whole_and_its_steps_are_in_order() {
        let scenario = read(WHOLE).unwrap();
        assert_eq!((scenario.name.as_str(), scenario.seed), ("crash", 3));
        let marks: Vec<_> = scenario.steps.iter().map(|step| step.mark.as_str()).collect();
        assert_eq!(marks, ["crash", "back"]);
        assert_eq!(scenario.first_disturbance(), Some(Span(4.0)));
        assert!(matches!(&scenario.frontend, Some(Server::Command(command)) if command.words.len() == 3));
        assert_eq!(scenario.fleet.keys.len(), 3);
    }

    #[test]
    fn what_is_wrong_is_named_with_the_way_out() {
        for (from, to, words) in [
            ("rate = 20", "rat = 20", "did you mean `rate`?"),
            ("seed = 3", "sede = 3", "did you mean `seed`?"),
            ("[[check]]", "[[chekc]]", "did you mean `check`?"),
            ("rate = 20", "", "say rate"),
            ("rate = 20", "rate = 20\nconcurrency = 3", "exclude each other"),
            ("rate = 20", "rate = 20\nprefix_groups = 3", "need each other"),
            ("duration = \"10s\"", "duration = \"3s\"", "comes after the end"),
            ("mark = \"back\"", "mark = \"crash\"", "two steps are marked crash"),
            ("mark = \"back\"", "mark = \"end\"", "must be one word"),
            ("load probe rate=5", "load other rate=5", "there is no load other"),
            ("load probe rate=5", "load probe concurrency=5", "is an open loop"),
            ("hottest crash", "hottest crahs", "did you mean `crash`"),
            ("rate = 20", "command = [\"p\", \"{url}\"]", "is a program; it can be"),
            ("rate = 20", "rate = 20\nwait = \"1s\"", "go with command"),
            ("error_rate < 1%\"", "probe.errors == 0\"", "no program"),
            ("expect = \"error_rate < 1%\"", "expect = \"error_rate\"", "[[check]] 0"),
            ("[[check]]\n        expect = \"error_rate < 1%\"", "", "no verdict"),
            ("{port}", "8000", "told its port"),
            ("[[load]]", "[index]\n[[load]]", "[index]: say by"),
        ] {
            let text = WHOLE.replace(from, to);
            assert_ne!(text, WHOLE, "{from}");
            let error = read(&text).unwrap_err();
            assert!(error.contains(words), "{to}: {error}");
            assert!(error.starts_with("dir/x.toml: "), "{error}");
        }
        let error = read(&WHOLE.replace("rate = 20", "rat = 20")).unwrap_err();
        assert!(error.contains("line 20"), "{error}");
    }
}
