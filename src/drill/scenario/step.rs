//! The timeline: what is done when.

use serde::Deserialize;

use super::load;
use super::span::Span;
use crate::faults::{Fault, Selector};

/// Something done to the fleet or to the load.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A fault is added.
    Fault(Fault),
    /// A command to the workers that a selector means at that moment.
    Order(Order, Selector),
    /// Every fault is removed.
    ClearFaults,
    /// A load changes.
    Load {
        /// Which one.
        name: String,
        /// How.
        change: Change,
    },
}

/// Lifecycle commands, as `ctl` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// No goodbye.
    Kill,
    /// Unlist, finish, leave.
    Drain,
    /// Start again; crashed first when alive.
    Restart {
        /// Under the former instance id.
        same_id: bool,
    },
    /// Take faults off, start again what is dead.
    Heal {
        /// Under the former instance id.
        same_id: bool,
    },
    /// Drop unused cached blocks, and say so.
    ClearCache,
}

impl Order {
    /// Whether it makes anything worse.
    pub fn disturbs(self) -> bool {
        match self {
            Self::Kill | Self::Drain | Self::Restart { .. } | Self::ClearCache => true,
            Self::Heal { .. } => false,
        }
    }
}

/// A change of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Requests per second of an open loop.
    Rate(f64),
    /// Clients of a closed loop.
    Concurrency(u32),
    /// No further requests.
    Stop,
    /// Requests again.
    Start,
}

/// One entry of the timeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When, from the drill's start.
    pub at: Span,
    /// Name of the moment in checks and reports.
    pub mark: String,
    /// What, with the line that it was written as.
    pub actions: Vec<(String, Action)>,
    /// The drill says something also if a fault of it never happens.
    pub may_miss: bool,
}

/// What the names of the drill's own steps begin with; no mark of a file can.
pub const OWN: &str = "#";

impl Step {
    /// A load begins or ends.
    pub(in crate::drill) fn own(at: Span, name: &str, change: Change) -> Self {
        let action = Action::Load {
            name: name.to_owned(),
            change,
        };
        Self {
            at,
            mark: format!("{OWN}{name}"),
            actions: vec![(String::new(), action)],
            may_miss: false,
        }
    }

    /// Whether it disturbs the fleet: what a baseline must be free of.
    pub fn disturbs(&self) -> bool {
        self.actions.iter().any(|(_, action)| match action {
            Action::Fault(_) => true,
            Action::Order(order, _) => order.disturbs(),
            Action::ClearFaults | Action::Load { .. } => false,
        })
    }
}

/// As it stands in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    at: Span,
    #[serde(rename = "do")]
    act: Option<Lines>,
    mark: Option<String>,
    #[serde(default)]
    may_miss: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Lines {
    One(String),
    Many(Vec<String>),
}

impl Written {
    /// The step; one without a name is called after its place on the timeline.
    pub(super) fn read(self, index: usize) -> Result<Step, String> {
        let lines = match self.act {
            None => Vec::new(),
            Some(Lines::One(line)) => vec![line],
            Some(Lines::Many(lines)) => lines,
        };
        if lines.is_empty() && self.mark.is_none() {
            return Err("say what happens (do) or what the moment is called (mark)".to_owned());
        }
        let mark = self.mark.unwrap_or_else(|| format!("step{index}"));
        if !is_name(&mark) {
            return Err(format!(
                "mark {mark:?} must be one word of letters, digits, - and _ that does not begin with a digit, and not start or end"
            ));
        }
        let actions = lines.into_iter().map(|line| {
            let action = read_action(&line)?;
            Ok((line, action))
        });
        let actions: Vec<(String, Action)> = actions.collect::<Result<_, String>>()?;
        let has_faults = actions.iter().any(|(_, action)| matches!(action, Action::Fault(_)));
        if self.may_miss && !has_faults {
            return Err("may_miss is of faults, and this step has none".to_owned());
        }
        Ok(Step {
            at: self.at,
            mark,
            actions,
            may_miss: self.may_miss,
        })
    }
}

/// Whether checks can tell it from their own words.
pub(super) fn is_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(word) && !matches!(text, "start" | "end")
}

fn read_action(line: &str) -> Result<Action, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let order = |order: fn(bool) -> Order| match words[1..] {
        [select] => select_of(select).map(|select| Action::Order(order(false), select)),
        [select, "same_id"] => match order(true) {
            order @ (Order::Restart { .. } | Order::Heal { .. }) => {
                select_of(select).map(|select| Action::Order(order, select))
            }
            Order::Kill | Order::Drain | Order::ClearCache => {
                Err(format!("{line:?}: only restart and heal take same_id"))
            }
        },
        _ => Err(format!("{line:?}: name the workers, as in `{} w3`", words[0])),
    };
    match words.first().copied() {
        Some("kill") => order(|_| Order::Kill),
        Some("drain") => order(|_| Order::Drain),
        Some("restart") => order(|same_id| Order::Restart { same_id }),
        Some("heal") => order(|same_id| Order::Heal { same_id }),
        Some("clear-cache") => order(|_| Order::ClearCache),
        Some("faults") => match words[1..] {
            ["clear"] => Ok(Action::ClearFaults),
            _ => Err(format!("{line:?}: use `faults clear`")),
        },
        Some("load") => read_change(line, &words),
        Some(_) | None => line.parse().map(Action::Fault).map_err(|error: crate::faults::FaultError| {
            format!(
                "{error} (a step is a fault, as for `ctl faults add`, or kill, drain, restart, heal or clear-cache with \
                 workers, `faults clear`, or `load <name> ..`)"
            )
        }),
    }
}

fn select_of(text: &str) -> Result<Selector, String> {
    text.parse()
        .map_err(|error: crate::faults::SelectorError| error.to_string())
}

fn read_change(line: &str, words: &[&str]) -> Result<Action, String> {
    let form = || format!("{line:?}: use `load <name> rate=<n>`, `concurrency=<n>`, `start` or `stop`");
    let [_, name, change] = words else {
        return Err(form());
    };
    let change = match change.split_once('=') {
        None if *change == "stop" => Change::Stop,
        None if *change == "start" => Change::Start,
        Some(("rate", rate)) => {
            let asked = load::rate(rate.parse().map_err(|_| form())?);
            Change::Rate(asked.map_err(|why| format!("{line:?}: {why}"))?)
        }
        Some(("concurrency", clients)) => {
            let asked = load::clients(clients.parse().map_err(|_| form())?);
            Change::Concurrency(asked.map_err(|why| format!("{line:?}: {why}"))?)
        }
        _ => return Err(form()),
    };
    Ok(Action::Load {
        name: (*name).to_owned(),
        change,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_a_fault_or_a_command_or_a_change_of_load() {
        let fault: Fault = "w3 slow factor=4".parse().unwrap();
        for (line, action) in [
            ("w3 slow factor=4", Action::Fault(fault)),
            ("kill hottest", Action::Order(Order::Kill, "hottest".parse().unwrap())),
            (
                "restart w1-w2 same_id",
                Action::Order(Order::Restart { same_id: true }, "w1-w2".parse().unwrap()),
            ),
            ("heal *", Action::Order(Order::Heal { same_id: false }, Selector::all())),
            ("faults clear", Action::ClearFaults),
            (
                "load probe rate=2.5",
                Action::Load {
                    name: "probe".into(),
                    change: Change::Rate(2.5),
                },
            ),
        ] {
            assert_eq!(read_action(line), Ok(action), "{line}");
        }
        for (line, words) in [
            ("kill", "name the workers"),
            ("kill w1 same_id", "only restart and heal"),
            ("kill nobody", "no selector"),
            ("w3 slowly", "did you mean"),
            ("load probe faster", "rate=<n>"),
            ("load probe rate=-1", "rate -1 must be above 0"),
            ("load probe rate=much", "rate=<n>"),
            ("load probe concurrency=0", "concurrency 0 must be between 1 and 16384"),
            ("faults", "faults clear"),
        ] {
            let error = read_action(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
