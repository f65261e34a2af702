//! `--planner-config`: a script, an outside program that is spoken to in lines of JSON, or the configuration of Dynamo's
//! planner, whose part is taken here. The keys tell which: `ticks`, `command`, or neither.
//!
//! | We write | It answers |
//! |---|---|
//! | `{"type":"start","version":1,"config":...}` | `{"initial_tick_ms":500.0}`; null: never |
//! | `{"type":"tick","snapshot":{...}}` | `{"target_prefill":null,"target_decode":3,"next_tick_ms":1000.0}` |
//! | `{"type":"end"}`, then end of file | nothing; it should end |

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::replay::dynamo_planner::{PlannerConfig, Spelling};
use crate::replay::{Decision, Planner, PlannerError, Script, Snapshot};

use super::RunError;
use super::decisions::{Checked, check_script, object};
use super::destination;
use super::pools::Engines;

/// Longest answer, bytes.
const MAX_LINE: u64 = 1 << 20;
/// How long a program may take to answer unless it is said otherwise, s.
const TIMEOUT_S: f64 = 60.0;
/// How long it may take to end.
const FAREWELL: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    command: Vec<String>,
    #[serde(default)]
    config: Value,
    timeout_seconds: Option<f64>,
}

/// The policy that a path or a text names, for a fleet of these engines; each tick goes to `log` too.
pub(super) fn build(config: &str, log: Option<&Path>, engines: Engines) -> Result<Box<dyn Planner>, RunError> {
    let sides = engines.sides();
    let wrong = |what: &dyn std::fmt::Display| RunError::Invalid(format!("--planner-config: {what}"));
    let path = Path::new(config);
    let text = if path.is_file() {
        std::fs::read_to_string(path).map_err(|error| wrong(&error))?
    } else {
        config.to_owned()
    };
    let document: Value = serde_norway::from_str(&text).map_err(|error| wrong(&error))?;
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
        written.map_err(|error| PlannerError(format!("cannot write the planner log: {error}")))?;
        Ok(decision)
    }
}

/// A program outside.
struct Outside {
    name: String,
    child: Child,
    /// `None` once it was told to end.
    input: Option<ChildStdin>,
    answers: Receiver<std::io::Result<String>>,
    timeout: Duration,
    config: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    initial_tick_ms: Option<f64>,
}

impl Outside {
    fn start(program: Program) -> Result<Self, String> {
        let Some((name, arguments)) = program.command.split_first() else {
            return Err("command is empty, expected a program and its arguments".into());
        };
        let timeout = program.timeout_seconds.unwrap_or(TIMEOUT_S);
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|_| format!("timeout_seconds is {timeout}, expected a number from 0 on"))?;
        let mut child = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the replay, which tells the program to end when it has written its report.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, answers) = crossbeam_channel::bounded(1);
        if let Some(output) = output {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(output);
                loop {
                    let mut line = String::new();
                    let read = lines.by_ref().take(MAX_LINE).read_line(&mut line);
                    let over = !matches!(read, Ok(1..));
                    if over && read.is_ok() {
                        return;
                    }
                    if sender.send(read.map(|_| line)).is_err() || over {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            name: name.clone(),
            child,
            input,
            answers,
            timeout,
            config: program.config,
        })
    }

    fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T, PlannerError> {
        Err(PlannerError(format!("{}: {what}", self.name)))
    }

    fn tell(&mut self, message: &Value) -> std::io::Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        writeln!(input, "{message}").and_then(|()| input.flush())
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, message: &Value) -> Result<T, PlannerError> {
        if let Err(error) = self.tell(message) {
            return self.wrong(format_args!("cannot be spoken to: {error}"));
        }
        let line = match self.answers.recv_timeout(self.timeout) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return self.wrong(format_args!("cannot be heard: {error}")),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = self.timeout.as_secs_f64();
                return self.wrong(format_args!("no answer within {seconds} s; raise timeout_seconds"));
            }
            Err(RecvTimeoutError::Disconnected) => return self.wrong("ended before its answer"),
        };
        if line.len() as u64 == MAX_LINE {
            return self.wrong(format_args!("an answer is longer than {MAX_LINE} bytes"));
        }
        let answer = serde_json::from_str::<Value>(&line).map_err(|error| format!("not JSON: {error}"));
        answer.and_then(object).or_else(|error| {
            let shown: String = line.trim_end().chars().take(200).collect();
            self.wrong(format_args!("wrong answer {shown:?}: {error}"))
        })
    }
}

impl Planner for Outside {
    fn initial_tick_ms(&mut self) -> Result<Option<f64>, PlannerError> {
        let start = json!({"type": "start", "version": 1, "config": self.config});
        let answer: Start = self.ask(&start)?;
        Ok(answer.initial_tick_ms)
    }

    fn on_tick(&mut self, snapshot: &Snapshot) -> Result<Decision, PlannerError> {
        self.ask(&json!({"type": "tick", "snapshot": snapshot}))
    }
}

impl Drop for Outside {
    /// Tells the program to end, and ends it when it does not.
    fn drop(&mut self) {
        // A program that is gone already needs no farewell.
        let _ = self.tell(&json!({"type": "end"}));
        self.input = None;
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return,
            }
            if let Err(RecvTimeoutError::Timeout) = self.answers.recv_timeout(Duration::from_millis(10)) {
                continue;
            }
            std::thread::yield_now();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
