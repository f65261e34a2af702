//! The one-line form: `<workers> [<layer>.]<kind> [<parameter>=<value> ..] [p=<chance>] [from=<time>] [to=<time>] [seed=<n>]`.
//!
//! Times are seconds, or have a unit: `250ms`, `10s`, `2m`. `for=<time>` is an end told from the start. A text with blanks
//! stands in double quotes, as in JSON: `message="no room"`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::{Fault, FaultError, Written};
use crate::faults::kind::Layer;

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(line: &str) -> Result<Self, FaultError> {
        let mut words = split_words(line)?.into_iter();
        let (Some(select), Some(kind)) = (words.next(), words.next()) else {
            return Err(FaultError::Line(format!(
                "{line:?} is no fault; say whom and what, as in `w3 slow factor=4` or `* response.latency ms=20 to=30s`"
            )));
        };
        let (layer, kind) = match kind.split_once('.') {
            Some((layer, kind)) => (Some(read_layer(layer)?), kind),
            None => (None, kind),
        };
        let mut written = Written {
            select: select.parse()?,
            layer,
            kind: kind.to_owned(),
            params: Map::new(),
            probability: 1.0,
            from: 0.0,
            to: None,
            seed: 0,
        };
        let mut lasts = None;
        let mut seen = BTreeSet::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(FaultError::Line(format!(
                    "{word:?} is no parameter; use <name>=<value>, and double quotes around a value of several words"
                )));
            };
            // Two names of one thing.
            let key = if key == "probability" { "p" } else { key };
            if !seen.insert(key) {
                return Err(FaultError::Line(format!("{key} is given twice; say it once")));
            }
            match key {
                "p" => written.probability = number(key, value)?,
                "from" => written.from = seconds(key, value)?,
                "to" => written.to = Some(seconds(key, value)?),
                "for" => lasts = Some(seconds(key, value)?),
                "seed" => {
                    written.seed = value
                        .parse()
                        .map_err(|_| FaultError::Line(format!("seed={value} must be a whole number, 0 or greater")))?;
                }
                param => {
                    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
                    written.params.insert(param.to_owned(), value);
                }
            }
        }
        if let Some(lasts) = lasts {
            if written.to.is_some() {
                return Err(FaultError::Line(
                    "to and for both say when it ends; to counts from now, for from its start: use one of them"
                        .to_owned(),
                ));
            }
            written.to = Some(written.from + lasts);
        }
        written.try_into()
    }
}

/// Words of a line; what stands in double quotes is kept together, backslashes in it as they are.
fn split_words(line: &str) -> Result<Vec<&str>, FaultError> {
    let mut words = Vec::new();
    let (mut begin, mut is_quoted, mut is_escaped) = (None, false, false);
    for (at, letter) in line.char_indices() {
        if letter.is_whitespace() && !is_quoted {
            words.extend(begin.take().map(|begin| &line[begin..at]));
            continue;
        }
        begin.get_or_insert(at);
        if letter == '"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = is_quoted && letter == '\\' && !is_escaped;
    }
    if is_quoted {
        return Err(FaultError::Line(format!("{line:?} has a quote that does not end")));
    }
    words.extend(begin.map(|begin| &line[begin..]));
    Ok(words)
}

fn read_layer(text: &str) -> Result<Layer, FaultError> {
    serde_json::from_value(Value::from(text)).map_err(|_| {
        FaultError::Line(format!(
            "there is no layer `{text}`; use life, engine, request, response, events, discovery, metrics or rendezvous"
        ))
    })
}

fn number(key: &str, value: &str) -> Result<f64, FaultError> {
    value
        .parse()
        .map_err(|_| FaultError::Line(format!("{key}={value} must be a number")))
}

fn seconds(key: &str, value: &str) -> Result<f64, FaultError> {
    read_seconds(value).ok_or_else(|| FaultError::Line(format!("{key}={value} must be a time, as in 250ms, 10s or 2m")))
}

/// A time as people write it, in seconds: `250ms`, `10s`, `2m`, or a plain number of seconds.
pub fn read_seconds(text: &str) -> Option<f64> {
    let (digits, unit) = [("ms", 1e-3), ("s", 1.0), ("m", 60.0)]
        .into_iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)))
        .unwrap_or((text, 1.0));
    digits.trim().parse::<f64>().ok().map(|number| number * unit)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{}", self.select, self.kind.layer(), self.kind.word())?;
        for (name, value) in self.kind.params() {
            // What reads as something else, or as several words, stands in quotes.
            let is_word = |text: &&str| {
                let splits = |letter: char| letter.is_whitespace() || letter == '"' || letter == '\\';
                !text.contains(splits) && serde_json::from_str::<Value>(text).is_err()
            };
            match value.as_str().filter(is_word) {
                Some(text) => write!(f, " {name}={text}")?,
                None => write!(f, " {name}={value}")?,
            }
        }
        if self.probability < 1.0 {
            // Small ones in powers of ten.
            write!(f, " p={:?}", self.probability)?;
        }
        if !self.from.is_zero() {
            write!(f, " from={}s", self.from.as_secs_f64())?;
        }
        if let Some(to) = self.to {
            write!(f, " to={}s", to.as_secs_f64())?;
        }
        if self.seed != 0 {
            write!(f, " seed={}", self.seed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::faults::Selector;
    use crate::faults::kind::{AnswerFault, LifeFault, PassFault};

    #[test]
    fn a_line_reads_as_the_object_does() {
        let line: Fault = "w0-w3 response.cut tokens=5 p=0.25 from=500ms for=1m seed=9"
            .parse()
            .unwrap();
        let object: Fault = serde_json::from_str(
            r#"{"select": "w0-w3", "layer": "response", "kind": "cut", "params": {"tokens": 5},
                "probability": 0.25, "from": 0.5, "to": 60.5, "seed": 9}"#,
        )
        .unwrap();
        assert_eq!(line, object);
        assert_eq!(line.kind, AnswerFault::Cut { tokens: 5 }.into());
        assert_eq!(line.to, Some(Duration::from_millis(60_500)));
        assert_eq!(line.to_string().parse(), Ok(line));
        for message in [
            "out of \"memory\"",
            "no room",
            "a\\",
            "a \\\" b",
            "",
            "tab\tand\u{2003}line\n",
            "3",
        ] {
            let error = Fault::new(
                Selector::all(),
                AnswerFault::ErrorItem {
                    after_tokens: 1,
                    message: message.to_owned(),
                },
            );
            assert_eq!(error.to_string().parse(), Ok(error), "{message:?}");
        }
        let seldom: Fault = "* stall ms=1 p=1e-320".parse().unwrap();
        assert_eq!(seldom.to_string(), "* engine.stall ms=1.0 p=1e-320");
        assert_eq!(seldom.to_string().parse(), Ok(seldom));
        let quoted = r#"* response.error_item message="no room" after_tokens=2"#.parse::<Fault>().unwrap();
        assert_eq!(
            quoted.to_string(),
            r#"* response.error_item after_tokens=2 message="no room""#
        );
    }

    #[test]
    fn the_shortest_line_is_whom_and_what() {
        let crash = LifeFault::Crash {
            actor: None,
            restart_after_ms: None,
            same_id: false,
        };
        assert_eq!(
            "hottest crash".parse(),
            Ok(Fault::new("hottest".parse().unwrap(), crash))
        );
        assert_eq!(
            "* slow factor=2".parse(),
            Ok(Fault::new(Selector::all(), PassFault::Slow { factor: 2.0 }))
        );
    }

    #[test]
    fn wrong_lines_name_the_word() {
        for (line, words) in [
            ("", "say whom and what"),
            ("w3", "say whom and what"),
            ("w3 slow 4", "\"4\" is no parameter"),
            ("w3 slow factor=4 to=soon", "to=soon must be a time"),
            ("w3 motor.slow factor=4", "no layer `motor`"),
            ("w3 slow factor=fast", "\"fast\""),
            ("w3 slow factor=2 p=2", "between 0 and 1"),
            ("w3 slow", "needs factor, as in factor=4"),
            ("w3 request.latency", "needs ms, as in ms=20 (milliseconds)"),
            ("w3 response.cut tokens=8 tokens=9", "tokens is given twice"),
            ("w3 crash p=0.5 probability=0.5", "p is given twice"),
            ("w3 slow factor=2 to=5s for=5s", "use one of them"),
            ("w3 storm per_s=1e9", "at most 100000"),
            ("w3 reject message=\"no room", "a quote that does not end"),
        ] {
            let error = line.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
