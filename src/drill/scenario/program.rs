//! A load that is a program: AIPerf, or any other that is told an address and leaves its figures in a file.

use std::collections::BTreeMap;

use super::load::{Load, Target};
use super::span::Span;
use super::words::Words;

/// Patience with a program that still runs at the drill's end.
pub const WAIT: Span = Span(30.0);

/// Placeholders of a program's words.
const PLACES: [&str; 6] = ["{url}", "{model}", "{report}", "{seed}", "{name}", "{dir}"];

/// A program that loads router or workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Name in checks and reports.
    pub name: String,
    /// Program and arguments, with the placeholders `{url}` (`http://host:port` of whom it asks), `{model}`, `{report}` (the
    /// file that it leaves a JSON object in), `{seed}`, `{name}` and `{dir}` (the scenario's directory). It runs in the
    /// directory that the drill runs in.
    pub words: Vec<String>,
    /// Its environment, beside the drill's own; the same placeholders.
    pub env: BTreeMap<String, String>,
    /// Start, from the drill's start.
    pub start: Span,
    /// When it is ended at the latest; without, `wait` after the drill's end.
    pub stop: Option<Span>,
    /// Longest wait, after the drill's end, for it to end by itself.
    pub wait: Span,
    /// Whom it asks: the router, or the first worker that has an HTTP face when it starts.
    pub target: Target,
    /// Model it is told; the fleet's without.
    pub model: Option<String>,
}

impl Program {
    /// Out of a `[[load]]` that has a `command`.
    pub(super) fn of(load: Load, command: Words) -> Result<Self, String> {
        let words = command.split()?;
        if words.first().is_none_or(String::is_empty) {
            return Err("command names no program".to_owned());
        }
        // What else can be said of a load says what the drill itself would ask.
        let probe = Load {
            name: load.name.clone(),
            env: load.env.clone(),
            start: load.start,
            stop: load.stop,
            wait: load.wait,
            target: load.target,
            model: load.model.clone(),
            ..Load::default()
        };
        if load != probe {
            return Err(
                "command goes with env, start, stop, wait, target and model; what it asks is told in its words"
                    .to_owned(),
            );
        }
        if let Some(stop) = load.stop
            && stop <= load.start
        {
            return Err(format!("stop {stop} must be later than start {}", load.start));
        }
        if load.stop.is_some() && load.wait.is_some() {
            return Err("stop and wait exclude each other: wait counts from the drill's end".to_owned());
        }
        if !words.iter().chain(load.env.values()).any(|word| word.contains("{url}")) {
            return Err("the program has to be told whom to ask: put {url} into the command or its env".to_owned());
        }
        Ok(Self {
            name: load.name,
            words,
            env: load.env,
            start: load.start,
            stop: load.stop,
            wait: load.wait.unwrap_or(WAIT),
            target: load.target,
            model: load.model,
        })
    }

    /// Whether it is told where its figures go.
    pub fn reports(&self) -> bool {
        self.words
            .iter()
            .chain(self.env.values())
            .any(|word| word.contains("{report}"))
    }
}

/// What placeholders stand for.
#[derive(Debug, Clone, Default)]
pub(in crate::drill) struct Places {
    /// In the order of `PLACES`.
    pub(in crate::drill) values: [String; 6],
}

impl Places {
    /// A word with its placeholders filled in. Values are not looked at again: one that looks like a placeholder stays.
    pub(in crate::drill) fn fill(&self, word: &str) -> String {
        let mut filled = String::with_capacity(word.len());
        let mut rest = word;
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let place = PLACES
                .iter()
                .zip(&self.values)
                .find(|(place, _)| rest.starts_with(**place));
            let taken = if let Some((place, value)) = place {
                filled.push_str(value);
                place.len()
            } else {
                filled.push('{');
                1
            };
            rest = &rest[taken..];
        }
        filled.push_str(rest);
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Program, String> {
        let mut load: Load = toml::from_str(text).map_err(|error| error.to_string())?;
        let command = load.command.take().ok_or("no command")?;
        Program::of(load, command)
    }

    #[test]
    fn a_program_is_a_load_with_a_command() {
        let program =
            read("command = \"p 'a b' --url {url} -o {report}\"\nstart = \"1s\"\nenv = { A = \"{seed}\" }").unwrap();
        assert_eq!(program.words, ["p", "a b", "--url", "{url}", "-o", "{report}"]);
        assert!(program.reports() && program.wait == WAIT);
        assert!(!read("command = [\"p\", \"{url}\"]").unwrap().reports());
        for (text, words) in [
            ("command = [\"p\"]", "{url}"),
            ("command = []", "no program"),
            ("command = \"p '{url}\"", "quote"),
            ("command = \"p {url}\"\nrate = 3", "in its words"),
            ("command = \"p {url}\"\nstop = \"0s\"", "later than"),
            ("command = \"p {url}\"\nstop = \"1s\"\nwait = \"1s\"", "exclude"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn placeholders_are_filled_once() {
        let values = ["http://h:1", "{seed}", "/r", "7", "n", "/d"].map(str::to_owned);
        let places = Places { values };
        assert_eq!(
            places.fill("{url}/v1 {model} {x} {{seed}} {"),
            "http://h:1/v1 {seed} {x} {7} {"
        );
        assert_eq!(places.fill("{dir}/{name}:{report}"), "/d/n:/r");
    }
}
