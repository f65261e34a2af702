//! What a parameter may be: its type, unit and range, said once beside it in the catalogue. Whoever reads, checks or
//! documents parameters looks here.

use serde::{Serialize, Serializer};
use serde_json::{Map, Number, Value, json};

/// A parameter of a kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub about: &'static str,
    /// Whether the kind cannot be without it.
    pub required: bool,
    /// What it may be.
    pub values: Values,
}

/// What may be said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Any number of a range.
    Number(Range<f64>),
    /// A whole number of a range.
    Whole(Range<u64>),
    /// Yes or no.
    Flag,
    /// A text.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// Numbers from one to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range<N> {
    /// The smallest, or what it has to be above.
    pub least: N,
    /// Whether `least` is none of them.
    pub above: bool,
    /// The largest; `None`: whatever the type holds.
    pub most: Option<N>,
    /// What is counted; empty: nothing that has a name.
    pub unit: &'static str,
    /// One of them.
    pub example: N,
}

/// Longest time of a parameter in milliseconds: a day.
const MAX_MS: f64 = 86_400_000.0;

/// Most messages per second out of turn.
const MAX_PER_S: f64 = 100_000.0;

/// Most messages that a fault may hold back or multiply, and largest multiple.
const MAX_COUNT: u64 = 4096;

const fn number(least: f64, most: f64, unit: &'static str, example: f64) -> Range<f64> {
    Range {
        least,
        above: false,
        most: Some(most),
        unit,
        example,
    }
}

const fn whole(least: u64, most: u64, unit: &'static str, example: u64) -> Values {
    Values::Whole(Range {
        least,
        above: false,
        most: Some(most),
        unit,
        example,
    })
}

/// A time that may be none.
pub(super) const MS: Values = Values::Number(number(0.0, MAX_MS, "milliseconds", 20.0));

/// A time that is the fault: none would be no fault.
pub(super) const SOME_MS: Values = Values::Number(Range {
    above: true,
    ..number(0.0, MAX_MS, "milliseconds", 20.0)
});

/// Time between two rounds of what goes on and on.
pub(super) const PERIOD_MS: Values = Values::Number(number(1.0, MAX_MS, "milliseconds", 500.0));

/// Time alive or dead of a worker that flaps: a worker needs about so long to be built and listed.
pub(super) const BEAT_MS: Values = Values::Number(number(50.0, MAX_MS, "milliseconds", 500.0));

/// A multiple of a time; 0: no time at all.
pub(super) const TIMES: Values = Values::Number(number(0.0, 4096.0, "times", 4.0));

/// Some of a whole.
pub(super) const SHARE: Values = Values::Number(Range {
    above: true,
    ..number(0.0, 1.0, "share", 0.5)
});

/// Messages out of turn.
pub(super) const PER_S: Values = Values::Number(Range {
    above: true,
    ..number(0.0, MAX_PER_S, "per second", 100.0)
});

/// A rate.
pub(super) const BYTES_PER_S: Values = Values::Number(Range {
    least: 0.0,
    above: true,
    most: None,
    unit: "bytes per second",
    example: 1000.0,
});

/// Tokens that go before.
pub(super) const TOKENS: Values = whole(0, u32::MAX as u64, "tokens", 8);

/// A rank's number.
pub(super) const RANK: Values = whole(0, u32::MAX as u64, "rank", 1);

/// KV blocks that are taken away.
pub(super) const SOME_BLOCKS: Values = whole(1, u32::MAX as u64, "blocks", 100);

/// A figure in KV blocks.
pub(super) const BLOCKS: Values = whole(0, u64::MAX, "blocks", 100);

/// Bytes of a piece, or before an end.
pub(super) const SOME_BYTES: Values = whole(1, u64::MAX, "bytes", 100);

/// Copies beside the message itself.
pub(super) const COPIES: Values = whole(1, MAX_COUNT, "messages", 1);

/// Messages that change places: one alone cannot.
pub(super) const WINDOW: Values = whole(2, MAX_COUNT, "messages", 8);

/// Parts that a block is announced as: one is the block itself.
pub(super) const PARTS: Values = whole(2, MAX_COUNT, "blocks", 2);

/// Number of an event.
pub(super) const EVENT_ID: Values = whole(0, u64::MAX, "event id", 8);

/// Numbers of events that are left out.
pub(super) const SOME_IDS: Values = whole(1, u64::MAX, "event ids", 8);

impl Values {
    /// The value as its parameter takes it: whole numbers may be written as `3.0`.
    ///
    /// # Errors
    /// What is wrong with it, and what it has to be.
    pub(super) fn read(&self, name: &str, value: &Value) -> Result<Value, String> {
        let wrong = |what: &str| Err(format!("{name} {value} must be {what}"));
        match self {
            Self::Flag if !value.is_boolean() => wrong("true or false"),
            Self::Text if !value.is_string() => wrong("a text"),
            Self::Word(words) if !value.as_str().is_some_and(|word| words.contains(&word)) => {
                wrong(&format!("one of {}", words.join(", ")))
            }
            Self::Flag | Self::Text | Self::Word(_) => Ok(value.clone()),
            Self::Number(range) => match value.as_f64() {
                None => wrong(&format!("a number, {}", range.says())),
                Some(number) if range.holds(number) => Ok(value.clone()),
                Some(_) => wrong(&range.says()),
            },
            Self::Whole(range) => match as_whole(value) {
                Some(number) if range.holds(number) => Ok(number.into()),
                Some(_) => wrong(&range.says()),
                None => wrong(&format!("a whole number, {}", range.says())),
            },
        }
    }

    /// How it is written, as `ms=20 (milliseconds)`.
    pub(super) fn example(&self, name: &str) -> String {
        match self {
            Self::Number(range) => format!("{name}={} ({})", range.example, range.unit),
            Self::Whole(range) => format!("{name}={} ({})", range.example, range.unit),
            Self::Flag => format!("{name}=true"),
            Self::Text => format!("{name}=\"some text\""),
            Self::Word(words) => format!("{name}={}", words.first().copied().unwrap_or_default()),
        }
    }

    /// As a JSON schema; units stand under `x-unit`.
    pub fn schema(&self) -> Map<String, Value> {
        let schema = match self {
            Self::Number(range) => range.schema("number", Number::from_f64),
            Self::Whole(range) => range.schema("integer", |number| Some(number.into())),
            Self::Flag => json!({"type": "boolean"}),
            Self::Text => json!({"type": "string"}),
            Self::Word(words) => json!({"enum": words}),
        };
        match schema {
            Value::Object(schema) => schema,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
        }
    }
}

/// A number without a fraction, 0 or greater.
fn as_whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        // Beyond 2^53 a number with a point has no exact value.
        let number = value
            .as_f64()
            .filter(|number| (0.0..9e15).contains(number) && number.fract() == 0.0)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(number as u64)
    })
}

impl<N: Copy + PartialOrd + Default + std::fmt::Display> Range<N> {
    fn holds(&self, number: N) -> bool {
        let is_enough = if self.above {
            number > self.least
        } else {
            number >= self.least
        };
        is_enough && self.most.is_none_or(|most| number <= most)
    }

    /// The range in words.
    fn says(&self) -> String {
        let least = self.least;
        let lower = match (self.above, least == N::default()) {
            (true, _) => format!("greater than {least}"),
            (false, true) => "0 or greater".to_owned(),
            (false, false) => format!("at least {least}"),
        };
        match self.most {
            Some(most) => format!("{lower}, at most {most}"),
            None => lower,
        }
    }

    fn schema(&self, kind: &str, number: impl Fn(N) -> Option<Number>) -> Value {
        let lower = if self.above { "exclusiveMinimum" } else { "minimum" };
        let mut schema = json!({"type": kind});
        if !self.unit.is_empty() {
            schema["x-unit"] = self.unit.into();
        }
        schema[lower] = number(self.least).into();
        if let Some(most) = self.most.and_then(number) {
            schema["maximum"] = most.into();
        }
        schema
    }
}

impl Param {
    /// What it says, in one sentence.
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }

    /// As a JSON schema.
    pub fn schema(&self) -> Value {
        let mut schema = self.values.schema();
        schema.insert("description".to_owned(), self.about().into());
        schema.into()
    }
}

/// Its schema, with its name and whether it is required.
impl Serialize for Param {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut told = self.schema();
        told["name"] = self.name.into();
        told["required"] = self.required.into();
        told.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_taken_within_its_range_and_refused_outside() {
        let read = |values: Values, value: Value| values.read("x", &value);
        assert_eq!(read(WINDOW, json!(2.0)), Ok(json!(2)));
        assert_eq!(read(SHARE, json!(1)), Ok(json!(1)));
        for (values, value, words) in [
            (SHARE, json!(0), "x 0 must be greater than 0, at most 1"),
            (
                TIMES,
                json!("fast"),
                "x \"fast\" must be a number, 0 or greater, at most 4096",
            ),
            (WINDOW, json!(1), "x 1 must be at least 2, at most 4096"),
            (
                WINDOW,
                json!(2.5),
                "x 2.5 must be a whole number, at least 2, at most 4096",
            ),
            (TOKENS, json!(-1), "x -1 must be a whole number, 0 or greater"),
            (BYTES_PER_S, json!(null), "x null must be a number, greater than 0"),
            (Values::Flag, json!("yes"), "true or false"),
            (Values::Word(&["a", "b"]), json!("c"), "x \"c\" must be one of a, b"),
        ] {
            let error = read(values, value).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_schema_says_type_range_and_unit() {
        let schema = Value::from(SHARE.schema());
        let wanted = json!({"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0, "x-unit": "share"});
        assert_eq!(schema, wanted);
        let schema = Value::from(WINDOW.schema());
        assert_eq!(
            schema,
            json!({"type": "integer", "minimum": 2, "maximum": 4096, "x-unit": "messages"})
        );
    }
}
