//! The router under test.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::span::Span;
use super::words::{Words, split_words};

/// How the router is had.
#[derive(Debug, Clone, PartialEq)]
pub enum Frontend {
    /// Loads go straight at the workers.
    None,
    /// It runs already.
    Url(String),
    /// The drill starts it and ends it.
    Command(Command),
}

/// A router that the drill starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Program and arguments, with the placeholders `{port}`, `{discovery}`, `{namespace}` and `{model}`.
    pub words: Vec<String>,
    /// Its environment, beside what leads it to the fleet's discovery; the same placeholders.
    pub env: BTreeMap<String, String>,
    /// Longest wait until it serves the model with all workers.
    pub ready_within: Span,
}

/// Patience with a router that starts.
pub const READY_WITHIN: Span = Span(60.0);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    url: Option<String>,
    command: Option<Words>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    ready_within: Option<Span>,
}

impl Written {
    pub(super) fn read(self) -> Result<Frontend, String> {
        match (self.url, self.command) {
            (Some(_), Some(_)) => Err("url and command exclude each other".to_owned()),
            (Some(url), None) => check_url(&url).map(Frontend::Url),
            (None, Some(words)) => {
                command(words.split()?, self.env, self.ready_within.unwrap_or(READY_WITHIN)).map(Frontend::Command)
            }
            (None, None) => Ok(Frontend::None),
        }
    }
}

pub(super) fn command(
    words: Vec<String>,
    env: BTreeMap<String, String>,
    ready_within: Span,
) -> Result<Command, String> {
    if words.first().is_none_or(String::is_empty) {
        return Err("command names no program".to_owned());
    }
    if !words.iter().chain(env.values()).any(|word| word.contains("{port}")) {
        return Err("it has to be told its port: put {port} into the command or its env".to_owned());
    }
    Ok(Command {
        words,
        env,
        ready_within,
    })
}

pub(super) fn check_url(url: &str) -> Result<String, String> {
    let url = url.trim_end_matches('/');
    let rest = url.strip_prefix("http://");
    match rest.filter(|rest| !rest.is_empty() && !rest.contains('/')) {
        Some(_) => Ok(url.to_owned()),
        None => Err(format!("{url:?} is no address; use http://host:port")),
    }
}

impl Frontend {
    /// From `--frontend`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_url(url: &str) -> Result<Self, String> {
        check_url(url).map(Self::Url)
    }

    /// From `--frontend-command`: words as a shell splits them, after `NAME=value` words that set its environment.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_line(line: &str) -> Result<Self, String> {
        let mut words = split_words(line)?;
        let is_variable = |word: &String| {
            let name = word.split_once('=').map(|(name, _)| name);
            name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        };
        let program = words.iter().position(|word| !is_variable(word)).unwrap_or(words.len());
        let rest = words.split_off(program);
        let env = words.iter().filter_map(|word| word.split_once('='));
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        command(rest, env, READY_WITHIN).map(Self::Command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_as_a_shell_does_it() {
        let Ok(Frontend::Command(command)) =
            Frontend::from_line("A=1 B='x y' python -m router --port {port} --name \"a b\" ''")
        else {
            panic!("a command");
        };
        assert_eq!(
            command.words,
            ["python", "-m", "router", "--port", "{port}", "--name", "a b", ""]
        );
        assert_eq!(command.env["B"], "x y");
        assert!(Frontend::from_line("python 'x {port}").unwrap_err().contains("quote"));
        assert!(Frontend::from_line("python").unwrap_err().contains("{port}"));
        assert!(Frontend::from_line("PORT={port}").unwrap_err().contains("no program"));
    }

    #[test]
    fn a_url_is_a_host_and_a_port() {
        assert_eq!(
            Frontend::from_url("http://127.0.0.1:8000/"),
            Ok(Frontend::Url("http://127.0.0.1:8000".into()))
        );
        for url in ["https://x:1", "127.0.0.1:8000", "http://", "http://a/b"] {
            assert!(Frontend::from_url(url).is_err(), "{url}");
        }
    }
}
