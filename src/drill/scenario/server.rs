//! A server that a drill asks, as it is written: the router under test, an indexer.

use std::collections::BTreeMap;

use super::span::Span;
use super::words::{Words, split_words};

/// How it is had.
#[derive(Debug, Clone, PartialEq)]
pub enum Server {
    /// It runs already.
    Url {
        /// `http://host:port`.
        url: String,
        /// Longest wait until it is ready.
        ready_within: Span,
    },
    /// The drill starts it and ends it.
    Command(Command),
}

/// A server that the drill starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Program and arguments, with the placeholders `{port}`, `{discovery}`, `{namespace}` and `{model}`.
    pub words: Vec<String>,
    /// Its environment, beside what leads it to the fleet's discovery; the same placeholders.
    pub env: BTreeMap<String, String>,
    /// Longest wait until it is ready; a router, until it serves the model with all workers.
    pub ready_within: Span,
}

/// Patience with one of which nothing else is said.
const READY_WITHIN: Span = Span(60.0);

/// A table that says how a server is had, besides keys of its own. A flattened struct would let unknown keys pass.
macro_rules! server_table {
    ($(#[doc = $doc:literal])+ $table:ident { $($own:ident: $ty:ty),* }) => {
        $(#[doc = $doc])+
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(in crate::drill::scenario) struct $table {
            $($own: Option<$ty>,)*
            url: Option<String>,
            command: Option<$crate::drill::scenario::words::Words>,
            #[serde(default)]
            env: std::collections::BTreeMap<String, String>,
            ready_within: Option<$crate::drill::scenario::span::Span>,
        }

        impl $table {
            /// `None`: neither a url nor a command is said.
            pub(in crate::drill::scenario) fn server(
                self,
            ) -> Result<Option<$crate::drill::scenario::server::Server>, String> {
                $crate::drill::scenario::server::of((self.url, self.command), self.env, self.ready_within)
            }
        }
    };
}

pub(super) use server_table;

server_table! {
    /// `[frontend]`, which has no keys of its own.
    Written {}
}

/// `None`: neither a url nor a command is said.
pub(super) fn of(
    (url, command_words): (Option<String>, Option<Words>),
    env: BTreeMap<String, String>,
    ready_within: Option<Span>,
) -> Result<Option<Server>, String> {
    if command_words.is_none() && !env.is_empty() {
        return Err("env goes with command".to_owned());
    }
    let patience = ready_within.unwrap_or(READY_WITHIN);
    match (url, command_words) {
        (Some(_), Some(_)) => Err("url and command exclude each other".to_owned()),
        (Some(url), None) => at(&url, patience).map(Some),
        (None, Some(words)) => command(words.split()?, env, patience).map(|command| Some(Server::Command(command))),
        (None, None) if ready_within.is_some() => Err("ready_within goes with url or command".to_owned()),
        (None, None) => Ok(None),
    }
}

fn command(words: Vec<String>, env: BTreeMap<String, String>, ready_within: Span) -> Result<Command, String> {
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

fn at(url: &str, ready_within: Span) -> Result<Server, String> {
    let url = url.trim_end_matches('/').to_owned();
    let rest = url.strip_prefix("http://");
    match rest.filter(|rest| !rest.is_empty() && !rest.contains('/')) {
        Some(_) => Ok(Server::Url { url, ready_within }),
        None => Err(format!("{url:?} is no address; use http://host:port")),
    }
}

impl Server {
    /// From an address, as of `--frontend`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_url(url: &str) -> Result<Self, String> {
        at(url, READY_WITHIN)
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
        let Ok(Server::Command(command)) =
            Server::from_line("A=1 B='x y' python -m router --port {port} --name \"a b\" ''")
        else {
            panic!("a command");
        };
        assert_eq!(
            command.words,
            ["python", "-m", "router", "--port", "{port}", "--name", "a b", ""]
        );
        assert_eq!(command.env["B"], "x y");
        assert!(Server::from_line("python 'x {port}").unwrap_err().contains("quote"));
        assert!(Server::from_line("python").unwrap_err().contains("{port}"));
        assert!(Server::from_line("PORT={port}").unwrap_err().contains("no program"));
    }

    #[test]
    fn a_table_says_url_or_command_and_what_goes_with_it() {
        let read = |text: &str| {
            let written = toml::from_str::<Written>(text).map_err(|error| error.to_string())?;
            written.server()
        };
        assert_eq!(read(""), Ok(None));
        let at = |ready_within| Server::Url {
            url: "http://127.0.0.1:8000".to_owned(),
            ready_within: Span(ready_within),
        };
        assert_eq!(read("url = \"http://127.0.0.1:8000/\""), Ok(Some(at(60.0))));
        let patient = "url = \"http://127.0.0.1:8000\"\nready_within = \"90s\"";
        assert_eq!(read(patient), Ok(Some(at(90.0))));
        for (text, words) in [
            ("url = \"http://a:1\"\ncommand = \"x {port}\"", "exclude each other"),
            ("url = \"http://a:1\"\nenv = { A = \"1\" }", "goes with command"),
            ("env = { A = \"1\" }", "goes with command"),
            ("ready_within = \"3s\"", "goes with url or command"),
            ("command = \"x\"", "{port}"),
            ("port = 8000", "unknown field"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_url_is_a_host_and_a_port() {
        assert_eq!(
            Server::from_url("http://127.0.0.1:8000/"),
            Ok(Server::Url {
                url: "http://127.0.0.1:8000".into(),
                ready_within: READY_WITHIN,
            })
        );
        for url in ["https://x:1", "127.0.0.1:8000", "http://", "http://a/b"] {
            assert!(Server::from_url(url).is_err(), "{url}");
        }
    }
}
