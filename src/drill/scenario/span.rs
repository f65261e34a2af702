//! Spans of time in a scenario: `"5s"`, `"250ms"`, `"2m"`, or a number of seconds.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::faults::line::read_seconds;

/// Longest span in a scenario: a day.
const MAX_SECONDS: f64 = 86_400.0;

/// A span of time, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub struct Span(pub f64);

impl Span {
    /// Reads one.
    pub fn read(text: &str) -> Option<Self> {
        Self::checked(read_seconds(text)?)
    }

    fn checked(seconds: f64) -> Option<Self> {
        (0.0..=MAX_SECONDS).contains(&seconds).then_some(Self(seconds))
    }

    /// As a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0).unwrap_or(Duration::ZERO)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0.0 && self.0 < 1.0 {
            write!(f, "{}ms", self.0 * 1e3)
        } else {
            write!(f, "{}s", self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        const FORM: &str = "a time from 0 to a day, as in \"250ms\", \"10s\" or \"2m\"";
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(FORM)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
                Span::read(text).ok_or_else(|| E::custom(format!("{text:?} must be {FORM}")))
            }
            fn visit_f64<E: Error>(self, seconds: f64) -> Result<Span, E> {
                Span::checked(seconds).ok_or_else(|| E::custom(format!("{seconds} must be {FORM}")))
            }
            #[allow(clippy::cast_precision_loss)]
            fn visit_i64<E: Error>(self, seconds: i64) -> Result<Span, E> {
                self.visit_f64(seconds as f64)
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_units_or_as_seconds() {
        #[derive(serde::Deserialize)]
        struct Spans {
            all: Vec<Span>,
        }
        let read = |text: &str| toml::from_str::<Spans>(text).map(|spans| spans.all);
        let spans = read("all = [\"250ms\", \"3s\", \"2m\", 4, 0.5]").unwrap();
        assert_eq!(spans, [0.25, 3.0, 120.0, 4.0, 0.5].map(Span));
        assert_eq!(
            (Span(0.25).to_string(), Span(3.0).to_string()),
            ("250ms".into(), "3s".into())
        );
        for text in ["all = [\"soon\"]", "all = [-1]", "all = [\"-1s\"]", "all = [1e9]"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("250ms"), "{text}: {error}");
        }
    }
}
