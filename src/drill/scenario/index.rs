//! Whom `index_drift` asks what is believed of the workers' caches.

use serde::Deserialize;

use super::server::{Server, server_table};

/// Who is asked, and what it means that nobody answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Index {
    /// Who.
    pub way: Way,
    /// Drift that cannot be asked is not judged; otherwise its checks fail.
    pub is_optional: bool,
}

/// How it is found out what is believed.
#[derive(Debug, Clone, PartialEq)]
pub enum Way {
    /// The frontend's own index, which it serves.
    Served,
    /// What the frontend says of prompts that it is sent.
    Choices,
    /// Dynamo's standalone indexer, which reads the workers' native streams.
    Indexer(Server),
}

/// Where the scenario names nobody: the frontend's own index, if it serves it.
impl Default for Index {
    fn default() -> Self {
        Self {
            way: Way::Served,
            is_optional: true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    Served,
    Indexer,
    Choices,
}

server_table! {
    /// `[index]`: a way, or how an indexer is had.
    Written { by: By }
}

impl Written {
    pub(super) fn read(self) -> Result<Index, String> {
        let way = match (self.by, self.server()?) {
            (Some(By::Served | By::Choices), Some(_)) => {
                return Err("url and command are of an indexer: say by = \"indexer\", or leave them out".to_owned());
            }
            (Some(By::Served), None) => Way::Served,
            (Some(By::Choices), None) => Way::Choices,
            (Some(By::Indexer), None) => return Err("an indexer needs url or command".to_owned()),
            (Some(By::Indexer) | None, Some(server)) => Way::Indexer(server),
            (None, None) => {
                return Err("say by = \"served\" or \"choices\", or the url or command of an indexer".to_owned());
            }
        };
        Ok(Index {
            way,
            is_optional: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Way, String> {
        let written = toml::from_str::<Written>(text).map_err(|error| error.to_string())?;
        let index = written.read()?;
        assert!(!index.is_optional, "a witness that is named has to answer");
        Ok(index.way)
    }

    #[test]
    fn an_index_is_served_or_inferred_or_of_an_indexer() {
        assert_eq!(read("by = \"served\""), Ok(Way::Served));
        assert_eq!(read("by = \"choices\""), Ok(Way::Choices));
        let url = Server::from_url("http://127.0.0.1:8090").unwrap();
        assert_eq!(read("url = \"http://127.0.0.1:8090/\""), Ok(Way::Indexer(url)));
        let Ok(Way::Indexer(Server::Command(command))) = read("command = \"indexer --port {port}\"") else {
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
            ("by = \"served\"\nport = 1", "unknown field"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
