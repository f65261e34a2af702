//! Lines of JSON and what is wrong with them.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::super::agentic::Place;
use super::place::Rewind;
use crate::plain_words::{no_word, number, plain};

/// Longest line, bytes.
const MAX_LINE: u64 = 64 << 20;

/// Longest prompt or answer, tokens: more than any model takes, and less than memory.
pub(crate) const MAX_TOKENS: u32 = 1 << 26;

/// Farthest time stamp from 0, and longest wait, ms: Unix time of this century and any wait before its end. The span
/// between two such time stamps fits the virtual clock.
pub(crate) const MAX_MS: f64 = 4e12;

/// What a file may begin with before its first character.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What text in UTF-16 begins with.
const UTF_16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// Why a trace cannot be replayed. Names file and line.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// File.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Something is wrong in a line.
    #[error("{file}, line {line}: {what}")]
    Line {
        /// File.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Field, what was found and what was expected.
        what: String,
    },
    /// Something is wrong with the file as a whole.
    #[error("{file}: {what}")]
    File {
        /// File.
        file: String,
        /// What.
        what: String,
    },
}

impl TraceError {
    /// Something is wrong with what stands at a place.
    pub(crate) fn at(place: &Place, what: String) -> Self {
        Self::Line {
            file: place.file.to_string(),
            line: place.line,
            what,
        }
    }
}

/// The value at a path of a row.
fn at_path<'a>(row: &'a Value, path: &serde_path_to_error::Path) -> Option<&'a Value> {
    path.iter().try_fold(row, |value, segment| match segment {
        Segment::Seq { index } => value.get(index),
        Segment::Map { key } => value.get(key),
        Segment::Enum { .. } => Some(value),
        Segment::Unknown => None,
    })
}

/// The non-blank lines of a file, with their numbers.
#[derive(Debug)]
pub struct Lines<R> {
    file: Arc<str>,
    reader: R,
    number: u64,
    /// Byte at which the line begins, and the one behind it.
    begin: u64,
    end: u64,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Lines of `reader`; `file` is its name in messages.
    pub fn new(file: impl Into<Arc<str>>, reader: R) -> Self {
        Self {
            file: file.into(),
            reader,
            number: 0,
            begin: 0,
            end: 0,
            text: Vec::new(),
        }
    }

    /// Name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Number of the line read last, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Where the line read last is.
    pub(crate) fn place(&self) -> Place {
        Place {
            file: Arc::clone(&self.file),
            line: self.number,
        }
    }

    /// Byte at which the line read last begins.
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// Goes to the next line that is not blank; whether there is one.
    pub(crate) fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            self.text.clear();
            let mut bounded = self.reader.by_ref().take(MAX_LINE);
            let read = bounded.read_until(b'\n', &mut self.text);
            let read = read.map_err(|source| self.unreadable(source))?;
            if read == 0 {
                return Ok(false);
            }
            self.number += 1;
            self.begin = self.end;
            self.end += read as u64;
            if self.begin == 0 && UTF_16_MARKS.iter().any(|mark| self.text.starts_with(mark)) {
                return Err(self.wrong("text in UTF-16, expected UTF-8; convert the file first"));
            }
            if self.begin == 0 && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            if read as u64 == MAX_LINE && self.text.last() != Some(&b'\n') {
                return Err(self.wrong(format!("longer than {MAX_LINE} bytes")));
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The line as a `T`; `aliases` are fields that have two names.
    pub(crate) fn parse<T: DeserializeOwned>(&self, aliases: &[(&str, &str)]) -> Result<T, TraceError> {
        // An array would pass as a struct, field by field.
        if self.text.trim_ascii_start().first() == Some(&b'[') {
            return Err(self.wrong("expected a JSON object"));
        }
        serde_json::from_slice(&self.text).map_err(|error| self.diagnose::<T>(aliases, &error))
    }

    /// Whether the line, which has to be JSON, is an object.
    pub(crate) fn is_object(&self) -> Result<bool, TraceError> {
        if self.text.trim_ascii_start().first() == Some(&b'{') {
            return Ok(true);
        }
        let any: Result<IgnoredAny, _> = serde_json::from_slice(&self.text);
        any.map(|_| false)
            .map_err(|error| self.wrong(format!("not JSON: {error}")))
    }

    /// The line as a `T` of objects within objects; errors name the path of the field.
    pub(crate) fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, TraceError> {
        let text = std::str::from_utf8(&self.text).map_err(|error| self.wrong(format!("not JSON: {error}")))?;
        self.read_part(text)
    }

    /// A part of the line as a `T`; errors name the path of the field within it.
    pub(crate) fn read_part<'a, T: Deserialize<'a>>(&self, part: &'a str) -> Result<T, TraceError> {
        let mut json = serde_json::Deserializer::from_str(part);
        let value =
            serde_path_to_error::deserialize(&mut json).map_err(|error| self.misfit(part.as_bytes(), &error))?;
        json.end().map_err(|error| self.wrong(format!("not JSON: {error}")))?;
        Ok(value)
    }

    /// What is wrong with a line that is no `T`: read once more, now with an eye on the path.
    fn diagnose<T: DeserializeOwned>(&self, aliases: &[(&str, &str)], error: &serde_json::Error) -> TraceError {
        let row: Value = serde_json::from_slice(&self.text).unwrap_or_default();
        let twice = aliases
            .iter()
            .find(|(name, alias)| row.get(name).is_some() && row.get(alias).is_some());
        if let Some((name, alias)) = twice {
            return self.wrong(format!(
                "{name} and {alias} are two names of one field; give one of them"
            ));
        }
        let mut json = serde_json::Deserializer::from_slice(&self.text);
        match serde_path_to_error::deserialize::<_, T>(&mut json) {
            Err(error) => self.misfit(&self.text, &error),
            // What is wrong stands behind it.
            Ok(_) => self.wrong(format!("not JSON: {error}")),
        }
    }

    fn misfit(&self, text: &[u8], error: &serde_path_to_error::Error<serde_json::Error>) -> TraceError {
        let inner = error.inner();
        if !inner.is_syntax() && !inner.is_eof() {
            return self.wrong(plain(&error.path().to_string(), &inner.to_string()));
        }
        // Where a word is expected, anything else counts as bad syntax.
        let row: Option<Value> = serde_json::from_slice(text).ok();
        let found = row.as_ref().and_then(|row| at_path(row, error.path()));
        self.wrong(match found {
            Some(found) => no_word(&error.path().to_string(), found),
            None => format!("not JSON: {inner}"),
        })
    }

    /// Whether a length in tokens is one that can be replayed.
    pub(crate) fn check_tokens(&self, field: &str, tokens: u32) -> Result<(), TraceError> {
        if tokens <= MAX_TOKENS {
            return Ok(());
        }
        Err(self.wrong(format!("{field} is {tokens}, expected at most {MAX_TOKENS} tokens")))
    }

    /// Whether a time stamp, in ms, is one that the virtual clock can count from.
    pub(crate) fn check_time(&self, field: &str, ms: f64) -> Result<(), TraceError> {
        if ms.abs() <= MAX_MS {
            return Ok(());
        }
        Err(self.wrong(format!(
            "{field} is {}, expected ms from -{MAX_MS:e} to {MAX_MS:e}",
            number(ms)
        )))
    }

    /// Whether a wait, in ms, is one that can be waited for.
    pub(crate) fn check_wait(&self, field: impl fmt::Display, ms: f64) -> Result<(), TraceError> {
        if (0.0..=MAX_MS).contains(&ms) {
            return Ok(());
        }
        Err(self.wrong(format!("{field} is {}, expected ms from 0 to {MAX_MS:e}", number(ms))))
    }

    /// The line that was read last is not the one that was there before.
    pub(crate) fn changed(&self) -> TraceError {
        self.wrong("the file changed while it was replayed; replay a copy that nobody writes to")
    }

    /// The file cannot be read on. What a decompressor says does not name itself.
    fn unreadable(&self, source: io::Error) -> TraceError {
        let packed = Path::new(&self.file[..]).extension().is_some_and(|end| end == "gz");
        let damaged = [
            io::ErrorKind::InvalidInput,
            io::ErrorKind::InvalidData,
            io::ErrorKind::UnexpectedEof,
        ];
        if damaged.contains(&source.kind()) {
            let why = if packed {
                "its name ends in .gz; rename it if it is not packed"
            } else {
                "its first bytes say"
            };
            return self.wrong_file(format!(
                "it is no whole gzip file ({source} after line {}), as {why}",
                self.number
            ));
        }
        TraceError::Io {
            file: self.file.to_string(),
            source,
        }
    }

    /// An error at this line.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> TraceError {
        TraceError::Line {
            file: self.file.to_string(),
            line: self.number,
            what: what.into(),
        }
    }

    /// An error of the whole file.
    pub(crate) fn wrong_file(&self, what: impl Into<String>) -> TraceError {
        TraceError::File {
            file: self.file.to_string(),
            what: what.into(),
        }
    }
}

/// The temporary file that a large trace leaves its hash ids in fails.
pub(crate) fn spooling(source: io::Error) -> TraceError {
    TraceError::Io {
        file: "the temporary file of the trace".into(),
        source,
    }
}

impl<R: Rewind> Lines<R> {
    /// Reads the line that begins at a byte once more; `number` is its own.
    pub(crate) fn read_again(&mut self, begin: u64, number: u64) -> Result<(), TraceError> {
        let gone = self.reader.go_to(self.end, begin);
        gone.map_err(|source| self.unreadable(source))?;
        self.end = begin;
        self.number = number - 1;
        if self.advance()? && self.begin == begin {
            return Ok(());
        }
        Err(self.changed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_line_names_file_line_field_and_what_was_expected() {
        #[derive(Debug, serde::Deserialize)]
        struct Row {
            #[serde(rename = "input_length", alias = "input_tokens")]
            _input_length: u32,
        }
        let mut lines = Lines::new(
            "t.jsonl",
            &b"\n{\"input_length\": -3}\n[1]\n{\"input_length\": 1, \"input_tokens\": 2}\n{\"input_length\": 1} x\n{"[..],
        );
        let aliases = [("input_length", "input_tokens")];
        let mut error = || {
            assert!(lines.advance().unwrap());
            lines.parse::<Row>(&aliases).unwrap_err().to_string()
        };
        assert_eq!(
            error(),
            "t.jsonl, line 2: input_length is -3, expected a whole number from 0 to 4294967295"
        );
        assert_eq!(error(), "t.jsonl, line 3: expected a JSON object");
        assert_eq!(
            error(),
            "t.jsonl, line 4: input_length and input_tokens are two names of one field; give one of them"
        );
        assert!(error().starts_with("t.jsonl, line 5: not JSON: trailing characters"));
        assert!(error().starts_with("t.jsonl, line 6: not JSON: "));
        assert!(!lines.advance().unwrap());
    }

    #[test]
    fn text_in_utf_16_is_called_by_its_name() {
        let text: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let error = Lines::new("t", &text[..]).advance().unwrap_err().to_string();
        assert_eq!(
            error,
            "t, line 1: text in UTF-16, expected UTF-8; convert the file first"
        );
    }

    #[test]
    fn a_byte_order_mark_before_the_first_line_does_not_count() {
        let text = b"\xef\xbb\xbf{\"a\": 1}\n{\"a\": 2}\n".to_vec();
        let reader = io::BufReader::new(io::Cursor::new(text));
        let mut lines = Lines::new("t", reader);
        let number = |lines: &Lines<_>| {
            let row: Value = lines.parse(&[]).unwrap();
            row["a"].as_u64()
        };
        assert!(lines.advance().unwrap());
        assert_eq!(number(&lines), Some(1));
        assert!(lines.advance().unwrap());
        assert_eq!((number(&lines), lines.begin()), (Some(2), 12));
        lines.read_again(0, 1).unwrap();
        assert_eq!(number(&lines), Some(1));
    }
}
