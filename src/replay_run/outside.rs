//! A program outside that plans: it is spoken to in lines of JSON.
//!
//! | We write | It answers |
//! |---|---|
//! | `{"type":"start","version":1,"config":...}` | `{"initial_tick_ms":500.0}`; null: never |
//! | `{"type":"tick","snapshot":{...}}` | `{"target_prefill":null,"target_decode":3,"next_tick_ms":1000.0}` |
//! | `{"type":"end"}`, then end of file | nothing; it should end |
//!
//! It runs in a process group of its own. What is left of the group ends with the replay, also when a signal ends that.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::plain_words::number;
use crate::replay::{Decision, Planner, PlannerError, Snapshot};

use super::decisions::object;
use super::interrupt;

/// Longest answer, bytes.
const MAX_LINE: u64 = 1 << 20;
/// How long a program may take to answer unless it is said otherwise, s.
const TIMEOUT_S: f64 = 60.0;
/// Longest: 11 days, which the clock can be wound on by.
const MAX_TIMEOUT: Duration = Duration::from_secs(1_000_000);
/// How long it may take to end.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long it may take when it did not answer and a signal came.
const SHORT_FAREWELL: Duration = Duration::from_millis(300);
/// Between two looks at whether a signal came.
const LOOK: Duration = Duration::from_millis(20);

/// Process groups of programs that run. Signals are the process's, and so is this.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<i32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_group(group: i32) {
    if let Some(group) = Pid::from_raw(group) {
        // One that is gone already is as good.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Ends all programs at once: the process ends.
pub(super) fn end_all() {
    for group in running().iter() {
        end_group(*group);
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Program {
    command: Vec<String>,
    #[serde(default)]
    config: Value,
    timeout_seconds: Option<f64>,
}

impl Program {
    /// Files that the command names.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.command.iter().map(PathBuf::from).filter(|path| path.is_file())
    }
}

/// What a program wrote.
struct Answer {
    line: String,
    /// It wrote on without being asked.
    more: bool,
}

/// A program that runs.
pub(super) struct Outside {
    name: String,
    child: Child,
    /// `None` once it was told to end.
    input: Option<ChildStdin>,
    answers: Receiver<std::io::Result<Answer>>,
    /// A signal came while it was asked.
    given_up: bool,
    timeout: Duration,
    config: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    initial_tick_ms: Option<f64>,
}

impl Outside {
    pub(super) fn start(program: Program) -> Result<Self, String> {
        let Some((name, arguments)) = program.command.split_first() else {
            return Err("command is empty, expected a program and its arguments".into());
        };
        let timeout = program.timeout_seconds.unwrap_or(TIMEOUT_S);
        let timeout = Duration::try_from_secs_f64(timeout)
            .ok()
            .filter(|timeout| *timeout <= MAX_TIMEOUT)
            .ok_or_else(|| {
                let (found, most) = (number(timeout), MAX_TIMEOUT.as_secs());
                format!("timeout_seconds is {found}, expected a number from 0 to {most}")
            })?;
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
                    let more = !lines.buffer().is_empty();
                    if sender.send(read.map(|_| Answer { line, more })).is_err() || over {
                        return;
                    }
                }
            });
        }
        running().insert(group(&child));
        Ok(Self {
            name: name.clone(),
            given_up: false,
            child,
            input,
            answers,
            timeout,
            config: program.config,
        })
    }

    fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T, PlannerError> {
        Err(PlannerError::Failed(format!("{}: {what}", self.name)))
    }

    fn tell(&mut self, message: &Value) -> std::io::Result<()> {
        let Some(input) = &mut self.input else { return Ok(()) };
        writeln!(input, "{message}").and_then(|()| input.flush())
    }

    fn ask<T: serde::de::DeserializeOwned>(&mut self, message: &Value) -> Result<T, PlannerError> {
        if let Ok(Ok(early)) = self.answers.try_recv() {
            return self.unasked(&early.line);
        }
        if let Err(error) = self.tell(message) {
            return self.wrong(format_args!("cannot be spoken to: {error}"));
        }
        let until = Instant::now() + self.timeout;
        let answer = loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Err(RecvTimeoutError::Timeout) if interrupt::is_wanted() => {
                    self.given_up = true;
                    return Err(PlannerError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if left > LOOK => {}
                answer => break answer,
            }
        };
        let line = match answer {
            Ok(Ok(answer)) if answer.more => return self.unasked(&answer.line),
            Ok(Ok(answer)) => answer.line,
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
        answer
            .and_then(object)
            .or_else(|error| self.wrong(format_args!("wrong answer {:?}: {error}", shown(&line))))
    }

    fn unasked<T>(&self, line: &str) -> Result<T, PlannerError> {
        self.wrong(format_args!(
            "wrote more than one line for one that it was asked, from {:?} on; write one line per message, and all else to \
             standard error",
            shown(line)
        ))
    }
}

fn shown(line: &str) -> String {
    line.trim_end().chars().take(200).collect()
}

/// The group of a process that leads one.
fn group(child: &Child) -> i32 {
    Pid::from_child(child).as_raw_nonzero().get()
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
        let farewell = if self.given_up { SHORT_FAREWELL } else { FAREWELL };
        let until = Instant::now() + farewell;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
            if let Err(RecvTimeoutError::Timeout) = self.answers.recv_timeout(Duration::from_millis(10)) {
                continue;
            }
            std::thread::yield_now();
        }
        let group = group(&self.child);
        running().remove(&group);
        end_group(group);
        let _ = self.child.wait();
    }
}
