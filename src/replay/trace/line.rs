//! Lines of JSON and what is wrong with them.

use std::io::{self, BufRead, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::place::Rewind;

/// Longest line, bytes.
const MAX_LINE: u64 = 64 << 20;

/// Longest prompt or answer, tokens: more than any model takes, and less than memory.
pub(crate) const MAX_TOKENS: u32 = 1 << 26;

/// Farthest time stamp from 0, and longest wait, ms: Unix time of this century and any wait before its end. The span
/// between two such time stamps fits the virtual clock.
pub(crate) const MAX_MS: f64 = 4e12;

/// What a file may begin with before its first character.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

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

/// Kind of a field's value, for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A whole number from 0 on, below 2^32.
    Count,
    /// Any number.
    Number,
    Text,
    /// Whole numbers from 0 on.
    Ids,
    /// Whole numbers from 0 on, below 2^32.
    Counts,
    /// A whole number of 32 bits with a sign.
    Signed,
    /// Texts.
    Texts,
    /// Numbers.
    Numbers,
}

impl Kind {
    fn expected(self) -> &'static str {
        match self {
            Self::Count => "a whole number from 0 to 4294967295",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::Ids => "an array of whole numbers from 0 on",
            Self::Counts => "an array of whole numbers from 0 to 4294967295",
            Self::Signed => "a whole number of 32 bits",
            Self::Texts => "an array of strings",
            Self::Numbers => "an array of numbers",
        }
    }

    fn fits(self, value: &Value) -> bool {
        let count = |value: &Value| value.as_u64().is_some_and(|count| u32::try_from(count).is_ok());
        let all = |test: fn(&Value) -> bool| value.as_array().is_some_and(|items| items.iter().all(test));
        value.is_null()
            || match self {
                Self::Count => count(value),
                Self::Number => value.is_number(),
                Self::Text => value.is_string(),
                Self::Ids => all(Value::is_u64),
                Self::Counts => all(count),
                Self::Signed => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
                Self::Texts => all(Value::is_string),
                Self::Numbers => all(Value::is_number),
            }
    }
}

/// What is wrong, without the place within the text.
pub(super) fn placeless(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}

/// The non-blank lines of a file, with their numbers.
#[derive(Debug)]
pub struct Lines<R> {
    file: String,
    reader: R,
    number: u64,
    /// Byte at which the line begins, and the one behind it.
    begin: u64,
    end: u64,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Lines of `reader`; `file` is its name in messages.
    pub fn new(file: impl Into<String>, reader: R) -> Self {
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

    /// The line as a `T`; `fields` are the fields that it reads and what each has to be.
    pub(crate) fn parse<T: DeserializeOwned>(&self, fields: &[(&str, Kind)]) -> Result<T, TraceError> {
        // An array would pass as a struct, field by field.
        if self.text.trim_ascii_start().first() == Some(&b'[') {
            return Err(self.wrong("expected a JSON object"));
        }
        serde_json::from_slice(&self.text).map_err(|error| self.diagnose(fields, &error))
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
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let syntax = error.inner().is_syntax() || error.inner().is_eof();
            self.wrong(if syntax {
                format!("not JSON: {error}")
            } else {
                error.to_string()
            })
        })?;
        json.end().map_err(|error| self.wrong(format!("not JSON: {error}")))?;
        Ok(value)
    }

    fn diagnose(&self, fields: &[(&str, Kind)], error: &serde_json::Error) -> TraceError {
        let Ok(value) = serde_json::from_slice::<Value>(&self.text) else {
            return self.wrong(format!("not JSON: {error}"));
        };
        let Value::Object(row) = value else {
            return self.wrong("expected a JSON object");
        };
        for (field, kind) in fields {
            if let Some(found) = row.get(*field).filter(|found| !kind.fits(found)) {
                let mut found = found.to_string();
                if let Some((end, _)) = found.char_indices().nth(60) {
                    found.truncate(end);
                    found.push_str("...");
                }
                return self.wrong(format!("{field} is {found}, expected {}", kind.expected()));
            }
        }
        self.wrong(placeless(error))
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
        Err(self.wrong(format!("{field} is {ms}, expected ms from -{MAX_MS:e} to {MAX_MS:e}")))
    }

    /// Whether a wait, in ms, is one that can be waited for.
    pub(crate) fn check_wait(&self, field: &str, ms: f64) -> Result<(), TraceError> {
        if (0.0..=MAX_MS).contains(&ms) {
            return Ok(());
        }
        Err(self.wrong(format!("{field} is {ms}, expected ms from 0 to {MAX_MS:e}")))
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
        if packed && damaged.contains(&source.kind()) {
            return self.wrong_file(format!(
                "it is no whole gzip file ({source} after line {}), as its name ends in .gz; rename it if it is not packed",
                self.number
            ));
        }
        TraceError::Io {
            file: self.file.clone(),
            source,
        }
    }

    /// An error at this line.
    pub(crate) fn wrong(&self, what: impl Into<String>) -> TraceError {
        TraceError::Line {
            file: self.file.clone(),
            line: self.number,
            what: what.into(),
        }
    }

    /// An error of the whole file.
    pub(crate) fn wrong_file(&self, what: impl Into<String>) -> TraceError {
        TraceError::File {
            file: self.file.clone(),
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
            #[serde(rename = "input_length")]
            _input_length: u32,
        }
        let mut lines = Lines::new("t.jsonl", &b"\n{\"input_length\": -3}\n[1]\n{"[..]);
        let fields = [("input_length", Kind::Count)];
        let mut error = || {
            assert!(lines.advance().unwrap());
            lines.parse::<Row>(&fields).unwrap_err().to_string()
        };
        assert_eq!(
            error(),
            "t.jsonl, line 2: input_length is -3, expected a whole number from 0 to 4294967295"
        );
        assert_eq!(error(), "t.jsonl, line 3: expected a JSON object");
        assert!(error().starts_with("t.jsonl, line 4: not JSON: "));
        assert!(!lines.advance().unwrap());
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
