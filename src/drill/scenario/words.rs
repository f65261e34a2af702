//! Commands in a scenario: a list of words, or a line that is split as a shell does it.

use serde::Deserialize;

/// A command as written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Words {
    /// To be split.
    Line(String),
    /// Word by word.
    List(Vec<String>),
}

impl Words {
    /// Its words.
    pub(super) fn split(self) -> Result<Vec<String>, String> {
        match self {
            Self::Line(line) => split_words(&line),
            Self::List(words) => Ok(words),
        }
    }
}

/// Words of a line; quotes, single or double, keep blanks together.
pub(super) fn split_words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (Some(_) | None, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(format!("{line:?} has a quote that does not end"));
    }
    words.extend(word);
    Ok(words)
}
