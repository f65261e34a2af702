//! Recorded answers that requests may ask for by name (response replay).
//!
//! One JSON object per line; other keys than these are skipped:
//!
//! | Key | Meaning |
//! |---|---|
//! | `output_length` (`output_tokens`) | tokens of the answer |
//! | `output_token_ids` | the tokens; a row without them counts as a turn and records nothing |
//! | `request_id` | name of the answer; else `session_id` and the turn, as `session:0`; else `line:` and the index of the line |
//!
//! A request picks an answer with the annotation `output_replay_id:<name>` and gets exactly its tokens.
//! Source: Dynamo 1.6.1 and 1.4.2.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::Deserialize;

use crate::types::{Token, Tokens};

/// What an annotation that names an answer begins with.
const ANNOTATION: &str = "output_replay_id:";

/// Longest line, bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Answers by name.
#[derive(Debug, Default)]
pub struct RecordedAnswers {
    answers: BTreeMap<String, Tokens>,
}

/// A recording that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct RecordingError {
    /// From 1.
    line: usize,
    what: String,
}

#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default, alias = "output_tokens")]
    output_length: Option<u64>,
    #[serde(default)]
    output_token_ids: Option<Vec<Token>>,
}

impl RecordedAnswers {
    /// Reads a recording.
    ///
    /// # Errors
    /// [`RecordingError`] names the line: not JSON, no length, one that is not that of the tokens, a name used twice.
    pub fn read(mut recording: impl BufRead) -> Result<Self, RecordingError> {
        let mut answers = BTreeMap::new();
        let mut turns: BTreeMap<String, u32> = BTreeMap::new();
        let mut text = Vec::new();
        for index in 0.. {
            text.clear();
            let wrong = |what: String| RecordingError { line: index + 1, what };
            let read = std::io::Read::take(&mut recording, MAX_LINE_BYTES).read_until(b'\n', &mut text);
            match read.map_err(|error| wrong(error.to_string()))? {
                0 => break,
                bytes if bytes as u64 == MAX_LINE_BYTES => {
                    return Err(wrong(format!("longer than {MAX_LINE_BYTES} bytes")));
                }
                _ if text.trim_ascii().is_empty() => continue,
                _ => {}
            }
            let row: Row = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
            let filled = |name: Option<String>| name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
            let turn = filled(row.session_id).map(|session| {
                let next = turns.entry(session.clone()).or_default();
                let turn = format!("{session}:{next}");
                *next += 1;
                turn
            });
            let Some(length) = row.output_length else {
                return Err(wrong("output_length is missing".to_owned()));
            };
            let Some(tokens) = row.output_token_ids else { continue };
            if tokens.len() as u64 != length {
                let count = tokens.len();
                return Err(wrong(format!(
                    "output_length is {length}, but output_token_ids has {count} ids"
                )));
            }
            let name = filled(row.request_id)
                .or(turn)
                .unwrap_or_else(|| format!("line:{index}"));
            if answers.insert(name.clone(), tokens.into()).is_some() {
                return Err(wrong(format!("the answer {name:?} is there twice")));
            }
        }
        Ok(Self { answers })
    }

    /// The answer of that name.
    pub fn get(&self, name: &str) -> Option<&Tokens> {
        self.answers.get(name)
    }

    /// How many answers.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Tokens that generated ids may not exceed, so that every answer can be told: one above the largest id.
    pub fn ids_below(&self) -> u64 {
        let largest = self.answers.values().flat_map(|tokens| tokens.iter()).max();
        largest.map_or(0, |&largest| u64::from(largest) + 1)
    }
}

/// Name of the answer that a request's annotations ask for.
pub fn wanted<'a>(annotations: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names = annotations.into_iter().filter_map(|text| text.strip_prefix(ANNOTATION));
    names.map(str::trim).find(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Result<RecordedAnswers, String> {
        RecordedAnswers::read(lines.join("\n").as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn answers_are_named_by_request_then_session_and_turn_then_line() {
        let recorded = read(&[
            r#"{"request_id": " a ", "session_id": "s", "output_length": 2, "output_token_ids": [5, 6], "timestamp": 3}"#,
            r#"{"session_id": "s", "output_length": 9}"#,
            r#"{"session_id": "s", "output_tokens": 1, "output_token_ids": [7]}"#,
            "",
            r#"{"output_length": 1, "output_token_ids": [8]}"#,
            r#"{"output_length": 0, "output_token_ids": [], "request_id": "nothing"}"#,
        ])
        .unwrap();
        let get = |name| recorded.get(name).map(|tokens| tokens.to_vec());
        assert_eq!(get("a"), Some(vec![5, 6]));
        assert_eq!((get("s:0"), get("s:1")), (None, None));
        assert_eq!((get("s:2"), get("line:4")), (Some(vec![7]), Some(vec![8])));
        assert_eq!((get("nothing"), recorded.len()), (Some(vec![]), 4));
        assert_eq!(recorded.ids_below(), 9);
    }

    #[test]
    fn an_unusable_recording_names_the_line() {
        let good = r#"{"request_id": "a", "output_length": 1, "output_token_ids": [5]}"#;
        for (bad, words) in [
            ("{", "line 2: EOF"),
            (r#"{"output_token_ids": [1]}"#, "line 2: output_length is missing"),
            (r#"{"output_length": 2, "output_token_ids": [1]}"#, "has 1 ids"),
            (
                r#"{"output_length": 1, "output_token_ids": [-1]}"#,
                "line 2: invalid value",
            ),
            (good, "line 2: the answer \"a\" is there twice"),
        ] {
            let error = read(&[good, bad]).unwrap_err();
            assert!(error.contains(words), "{bad}: {error}");
        }
    }

    #[test]
    fn an_annotation_picks_the_answer() {
        assert_eq!(wanted(["request_id", "output_replay_id: s:1 "]), Some("s:1"));
        assert_eq!(wanted(["output_replay_id:", "token_ids"]), None);
    }
}
