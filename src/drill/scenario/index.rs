//! Whom `index_drift` asks what is believed of the workers' caches.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::frontend::{Command, READY_WITHIN, check_url, command};
use super::span::Span;
use super::words::Words;

/// The witness.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Index {
    /// The frontend's own index where it serves it; elsewhere the drift is not judged.
    #[default]
    Any,
    /// The frontend's own index, which it serves.
    Served,
    /// What the frontend says of prompts that it is sent.
    Choices,
    /// Dynamo's standalone indexer, which reads the workers' native streams.
    Indexer(Indexer),
}

/// How a standalone indexer is had.
#[derive(Debug, Clone, PartialEq)]
pub enum Indexer {
    /// It runs already.
    Url(String),
    /// The drill starts it and ends it.
    Command(Command),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    Served,
    Indexer,
    Choices,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    by: Option<Way>,
    url: Option<String>,
    command: Option<Words>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    ready_within: Option<Span>,
}

impl Written {
    pub(super) fn read(self) -> Result<Index, String> {
        let has_address = self.url.is_some() || self.command.is_some();
        match (self.by, has_address) {
            (Some(Way::Served | Way::Choices), true) => {
                Err("url and command are of an indexer: say by = \"indexer\", or leave them out".to_owned())
            }
            (Some(Way::Served), false) => Ok(Index::Served),
            (Some(Way::Choices), false) => Ok(Index::Choices),
            (Some(Way::Indexer), false) => Err("an indexer needs url or command".to_owned()),
            (None, false) => Err("say by = \"served\" or \"choices\", or the url or command of an indexer".to_owned()),
            (Some(Way::Indexer) | None, true) => match (self.url, self.command) {
                (Some(_), Some(_)) => Err("url and command exclude each other".to_owned()),
                (Some(url), None) => check_url(&url).map(|url| Index::Indexer(Indexer::Url(url))),
                (None, words) => {
                    let words = words.map_or_else(|| Ok(Vec::new()), Words::split)?;
                    let ready_within = self.ready_within.unwrap_or(READY_WITHIN);
                    command(words, self.env, ready_within).map(|command| Index::Indexer(Indexer::Command(command)))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Index, String> {
        toml::from_str::<Written>(text)
            .map_err(|error| error.to_string())?
            .read()
    }

    #[test]
    fn an_index_is_served_or_inferred_or_of_an_indexer() {
        assert_eq!(read("by = \"served\""), Ok(Index::Served));
        assert_eq!(read("by = \"choices\""), Ok(Index::Choices));
        let url = Indexer::Url("http://127.0.0.1:8090".to_owned());
        assert_eq!(read("url = \"http://127.0.0.1:8090/\""), Ok(Index::Indexer(url)));
        let Ok(Index::Indexer(Indexer::Command(command))) = read("command = \"indexer --port {port}\"") else {
            panic!("a command");
        };
        assert_eq!(command.words, ["indexer", "--port", "{port}"]);
        for (text, words) in [
            ("", "say by"),
            ("by = \"indexer\"", "needs url or command"),
            ("by = \"choices\"\nurl = \"http://a:1\"", "are of an indexer"),
            ("url = \"http://a:1\"\ncommand = \"x {port}\"", "exclude each other"),
            ("command = \"x\"", "{port}"),
            ("by = \"dump\"", "unknown variant"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
