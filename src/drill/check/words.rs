//! Reads the one-line form of checks.

use super::{Condition, Figure, Held, Latency, Names, Point, Quantity, Relation, STRETCH, Stat, Unit, Value, Whom};
use crate::config::layers::unknown_of;
use crate::drill::record::Failure;
use crate::drill::scenario::span::Span;
use crate::faults::Selector;

/// Names of quantities, for "did you mean".
const QUANTITIES: [&str; 21] = [
    "requests",
    "completed",
    "failed",
    "error_rate",
    "p99 ttft",
    "p50 ttft",
    "mean itl",
    "p99 itl",
    "max gap",
    "p99 latency",
    "throughput",
    "requests reaching",
    "spread",
    "migrations",
    "leaked anything",
    "time_to_detect",
    "time_to_recover",
    "hit_rate",
    "recoveries",
    "index_drift",
    "victims",
];

/// Reads a check.
pub(super) fn read(text: &str, names: Names<'_>) -> Result<Condition, String> {
    let words = text.split_whitespace().map(str::to_owned).collect();
    let mut reader = Reader { words, at: 0, names };
    let condition = reader.condition()?;
    match reader.peek() {
        None => Ok(condition),
        Some(word) => Err(format!(
            "{word:?} is not expected here; a check ends with after, until, within, over, or a time after a mark"
        )),
    }
}

struct Reader<'a> {
    words: Vec<String>,
    at: usize,
    names: Names<'a>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Option<String> {
        let word = self.words.get(self.at).cloned();
        self.at += 1;
        word
    }

    fn need(&mut self, what: &str) -> Result<String, String> {
        self.next().ok_or_else(|| format!("ends where {what} is expected"))
    }

    /// Takes these words if they come next.
    fn takes(&mut self, wanted: &[&str]) -> bool {
        let next = self.words.get(self.at..self.at + wanted.len());
        let comes = next.is_some_and(|next| next.iter().zip(wanted).all(|(a, b)| a == b));
        if comes {
            self.at += wanted.len();
        }
        comes
    }

    fn condition(&mut self) -> Result<Condition, String> {
        if self.takes(&["no", "request", "reaches"]) || self.takes(&["no", "requests", "reach"]) {
            let whom = self.whom()?;
            return self.clauses(Quantity::Reaching(whom), Relation::Equal, Value::Number(0.0));
        }
        let quantity = self.quantity()?;
        for filler in ["is", "stays", "back", "are"] {
            self.takes(&[filler]);
        }
        let relation = self.relation()?;
        let value = self.value(quantity.unit())?;
        if matches!(value, Value::Baseline(_)) && quantity.is_of_the_whole() {
            return Err("there is no baseline for what is one number for the whole drill".to_owned());
        }
        self.clauses(quantity, relation, value)
    }

    fn quantity(&mut self) -> Result<Quantity, String> {
        let first = self.need("a quantity")?;
        if let Some(figure) = self.figure(&first)? {
            return Ok(Quantity::Figure(figure));
        }
        // `p99_ttft` is `p99 ttft`.
        let parts: Vec<String> = first
            .split('_')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        self.at -= 1;
        if !first.contains('(') {
            self.words.splice(self.at..=self.at, parts);
        }
        for (words, quantity) in [
            (&["error", "rate"][..], Quantity::ErrorRate),
            (&["time", "to", "detect"], Quantity::TimeToDetect),
            (&["time", "to", "recover"], Quantity::TimeToRecover),
            (&["believed", "hit", "rate"], Quantity::BelievedHitRate),
            (&["hit", "rate"], Quantity::HitRate),
            (&["index", "drift"], Quantity::IndexDrift),
            (&["drift"], Quantity::IndexDrift),
            (&["overcredit"], Quantity::Overcredit),
            (&["completed"], Quantity::Completed),
            (&["throughput"], Quantity::Throughput),
            (&["spread"], Quantity::Spread),
            (&["migrations"], Quantity::Migrations),
            (&["recoveries"], Quantity::Recoveries),
            (&["victims"], Quantity::Victims),
            (&["failed"], Quantity::Failed(None)),
        ] {
            if self.takes(words) {
                return Ok(quantity);
            }
        }
        if self.takes(&["requests", "reaching"]) || self.takes(&["reaching"]) {
            return self.whom().map(Quantity::Reaching);
        }
        if self.takes(&["requests"]) {
            return Ok(Quantity::Requests);
        }
        if self.takes(&["leaked"]) {
            return self.held().map(Quantity::Leaked);
        }
        let word = self.need("a quantity")?;
        if let Some(kind) = word.strip_prefix("failed(").and_then(|rest| rest.strip_suffix(')')) {
            return failure_kind(kind).map(|kind| Quantity::Failed(Some(kind)));
        }
        match read_stat(&word) {
            Some(stat) => self.latency().map(|latency| Quantity::Latency(stat, latency)),
            None => Err(unknown_of(&first, &QUANTITIES)
                .replace("known keys", "known quantities")
                .replace("key", "quantity")),
        }
    }

    /// `<program>.<key>..`; a word with a point in it may also be a percentile.
    fn figure(&self, word: &str) -> Result<Option<Figure>, String> {
        let Some((name, path)) = word.split_once('.').filter(|_| read_stat(word).is_none()) else {
            return Ok(None);
        };
        let programs = self.names.programs;
        let Some(program) = programs.iter().find(|program| program.name == name) else {
            let known: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            };
            return Err(format!(
                "{name:?} is no program that loads anything; there are: {known}"
            ));
        };
        if !program.reports() {
            return Err(format!(
                "{name} is not told where its figures go: put {{report}} into its command"
            ));
        }
        let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
        if keys.iter().any(String::is_empty) {
            return Err(format!("{word:?} has an empty key"));
        }
        Ok(Some(Figure {
            program: name.to_owned(),
            keys,
        }))
    }

    fn held(&mut self) -> Result<Held, String> {
        match self.need("what may leak")?.as_str() {
            "streams" => Ok(Held::Streams),
            "sequences" | "slots" => Ok(Held::Sequences),
            "blocks" => Ok(Held::Blocks),
            "rooms" => Ok(Held::Rooms),
            "anything" => Ok(Held::Anything),
            other => Err(format!(
                "{other:?} cannot leak; use streams, sequences, blocks, rooms or anything"
            )),
        }
    }

    fn latency(&mut self) -> Result<Latency, String> {
        match self.need("a time of requests")?.as_str() {
            "ttft" => Ok(Latency::Ttft),
            "itl" => Ok(Latency::Itl),
            "gap" => Ok(Latency::Gap),
            "latency" => Ok(Latency::Whole),
            other => Err(format!(
                "{other:?} is no time of a request; use ttft, itl, gap or latency"
            )),
        }
    }

    fn whom(&mut self) -> Result<Whom, String> {
        let text = self.need("workers")?;
        if matches!(text.as_str(), "victim" | "victims") {
            return Ok(Whom::Victims(None));
        }
        let of = ["victim(", "victims("]
            .iter()
            .find_map(|lead| text.strip_prefix(lead)?.strip_suffix(')'));
        if let Some(mark) = of {
            self.known(mark)?;
            return Ok(Whom::Victims(Some(mark.to_owned())));
        }
        let select: Selector = text.parse().map_err(|error| format!("{error}, or victim"))?;
        if select.is_rule() {
            return Err(format!(
                "{text} chooses at some moment; name workers, or say victim for those that a fault has chosen"
            ));
        }
        Ok(Whom::Named(select))
    }

    fn relation(&mut self) -> Result<Relation, String> {
        if self.takes(&["at", "most"]) {
            return Ok(Relation::AtMost);
        }
        if self.takes(&["at", "least"]) {
            return Ok(Relation::AtLeast);
        }
        match self.need("a relation")?.as_str() {
            "<" | "under" | "below" => Ok(Relation::Less),
            "<=" => Ok(Relation::AtMost),
            ">" | "above" => Ok(Relation::Greater),
            ">=" => Ok(Relation::AtLeast),
            "==" | "=" => Ok(Relation::Equal),
            "!=" => Ok(Relation::NotEqual),
            other => Err(format!("{other:?} is no relation; use <, <=, >, >=, == or !=")),
        }
    }

    fn value(&mut self, unit: Unit) -> Result<Value, String> {
        let text = self.need("a value")?;
        let bad = |form: &str| format!("{text:?} is no value for this quantity; use {form}");
        let number = |digits: &str| digits.parse::<f64>().ok().filter(|number| number.is_finite());
        if let Some(times) = text.strip_suffix('x') {
            return number(times)
                .map(Value::Baseline)
                .ok_or_else(|| bad("a number before the x"));
        }
        match unit {
            Unit::Time => {
                let has_unit = text.ends_with('s') || text.ends_with('m');
                let span = Span::read(&text).filter(|_| has_unit);
                span.map(|span| Value::Number(span.0))
                    .ok_or_else(|| bad("a time with its unit, as in 20ms or 3s, or 2x"))
            }
            Unit::Share | Unit::Plain => match text.strip_suffix('%') {
                Some(percent) => number(percent).map(|percent| percent / 100.0),
                None => number(&text),
            }
            .map(Value::Number)
            .ok_or_else(|| match unit {
                Unit::Plain => bad("a number, or a share as in 1%"),
                Unit::Share | Unit::Time | Unit::Count | Unit::Number => bad("a share, as in 1% or 0.01, or 2x"),
            }),
            Unit::Count | Unit::Number => number(&text).map(Value::Number).ok_or_else(|| bad("a number, or 2x")),
        }
    }

    fn clauses(&mut self, quantity: Quantity, relation: Relation, value: Value) -> Result<Condition, String> {
        let mut condition = Condition {
            quantity,
            relation,
            value,
            after: None,
            until: None,
            within: None,
            over: STRETCH,
        };
        let mut has_stretch = false;
        while let Some(word) = self.next() {
            match word.as_str() {
                "after" | "from" => condition.after = Some(self.point()?),
                "until" | "before" => condition.until = Some(self.point()?),
                "within" => {
                    condition.within = Some(self.span()?);
                    if self.takes(&["of"]) {
                        condition.after = Some(self.point()?);
                    }
                }
                "over" => {
                    (condition.over, has_stretch) = (self.span()?, true);
                    if condition.over.0 < 0.1 {
                        return Err("a stretch shorter than 100ms says nothing".to_owned());
                    }
                }
                // `3s after crash`
                text if Span::read(text).is_some() => {
                    self.at -= 1;
                    condition.after = Some(self.point()?);
                }
                other => {
                    let known = ["after", "until", "within", "over"];
                    return Err(unknown_of(other, &known).replace("key", "word"));
                }
            }
        }
        if matches!(condition.quantity, Quantity::Figure(_)) && (condition.after.is_some() || condition.until.is_some())
        {
            return Err("after and until make no sense for a figure of a program: it is of its whole run".to_owned());
        }
        if condition.within.is_some() && condition.quantity.is_of_the_whole() {
            return Err("within makes no sense for what is one number for the whole drill".to_owned());
        }
        if has_stretch && condition.within.is_none() {
            return Err(
                "over does nothing without within: the check is decided once, over its whole window (after, until)"
                    .to_owned(),
            );
        }
        Ok(condition)
    }

    fn span(&mut self) -> Result<Span, String> {
        let text = self.need("a time")?;
        Span::read(&text).ok_or_else(|| format!("{text:?} is no time; use 250ms, 10s or 2m"))
    }

    fn point(&mut self) -> Result<Point, String> {
        for filler in ["the", "its"] {
            self.takes(&[filler]);
        }
        let text = self.need("a moment")?;
        let point = match text.as_str() {
            "start" => return Ok(Point::At(0.0)),
            "end" => return Ok(Point::End),
            text => match Span::read(text) {
                Some(Span(seconds)) if self.takes(&["after"]) => {
                    let Point::After(mark, more) = self.point()? else {
                        return Err("say the mark that it comes after".to_owned());
                    };
                    return Ok(Point::After(mark, more + seconds));
                }
                Some(Span(seconds)) => return Ok(Point::At(seconds)),
                None => {
                    self.known(text)?;
                    text.to_owned()
                }
            },
        };
        let more = if self.takes(&["+"]) { self.span()?.0 } else { 0.0 };
        Ok(Point::After(point, more))
    }

    fn known(&self, mark: &str) -> Result<(), String> {
        if self.names.marks.contains(&mark) {
            return Ok(());
        }
        Err(format!(
            "{mark:?} is no moment; use start, end, a time, or a mark of the timeline ({})",
            self.names.marks.join(", ")
        ))
    }
}

/// A way to fail, as requests are counted.
fn failure_kind(word: &str) -> Result<String, String> {
    let status = word.strip_prefix("http_");
    let code = status
        .filter(|code| code.len() == 3)
        .and_then(|code| code.parse::<u16>().ok());
    if let Some(code) = code.filter(|code| (200..300).contains(code)) {
        return Err(format!(
            "no answer fails with {code}; a stream that goes wrong is reset, truncated, malformed or an error_event"
        ));
    }
    if code.is_some_and(|code| (300..600).contains(&code)) || Failure::KINDS.contains(&word) {
        return Ok(word.to_owned());
    }
    Err(unknown_of(word, &[&Failure::KINDS[..], &["http_503"]].concat()).replace("key", "failure"))
}

fn read_stat(word: &str) -> Option<Stat> {
    match word {
        "mean" => Some(Stat::Mean),
        "median" => Some(Stat::Quantile(0.5)),
        "max" => Some(Stat::Quantile(1.0)),
        "min" => Some(Stat::Quantile(0.0)),
        _ => {
            let percent: f64 = word.strip_prefix('p')?.parse().ok()?;
            (0.0..=100.0)
                .contains(&percent)
                .then_some(Stat::Quantile(percent / 100.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::drill::scenario::load::Target;
    use crate::drill::scenario::program::Program;

    fn marks<'a>(marks: &'a [&'a str]) -> Names<'a> {
        Names {
            marks,
            ..Names::default()
        }
    }

    fn parsed(text: &str) -> Condition {
        read(text, marks(&["crash", "back"])).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn checks_read_as_people_say_them() {
        let check = parsed("error_rate < 1%");
        assert_eq!(
            (check.quantity, check.value),
            (Quantity::ErrorRate, Value::Number(0.01))
        );
        let check = parsed("p99 ttft back under 2x within 20s");
        assert_eq!(check.quantity, Quantity::Latency(Stat::Quantile(0.99), Latency::Ttft));
        assert_eq!((check.relation, check.value), (Relation::Less, Value::Baseline(2.0)));
        assert_eq!((check.within, check.after), (Some(Span(20.0)), None));
        let check = parsed("no request reaches w17 3s after its crash");
        assert_eq!(check.quantity, Quantity::Reaching(Whom::Named("w17".parse().unwrap())));
        assert_eq!(check.after, Some(Point::After("crash".into(), 3.0)));
        let check = parsed("no request reaches victim(crash) after crash + 500ms until back");
        assert_eq!(check.quantity, Quantity::Reaching(Whom::Victims(Some("crash".into()))));
        assert_eq!(check.after, Some(Point::After("crash".into(), 0.5)));
        assert_eq!(check.until, Some(Point::After("back".into(), 0.0)));
        let check = parsed("index drift < 0.1% within 5s of back over 1s");
        assert_eq!(
            (check.over, check.after),
            (Span(1.0), Some(Point::After("back".into(), 0.0)))
        );
        assert_eq!(parsed("leaked streams == 0").quantity, Quantity::Leaked(Held::Streams));
        assert_eq!(parsed("time_to_detect <= 500ms").value, Value::Number(0.5));
        assert_eq!(
            parsed("failed(timeout) at most 3 after start until end").quantity,
            Quantity::Failed(Some("timeout".into()))
        );
        assert_eq!(
            parsed("p50_itl <= 20ms").quantity,
            parsed("median itl <= 20ms").quantity
        );
    }

    #[test]
    fn figures_of_programs_are_named_by_their_keys() {
        let words = |last: &str| ["p", "{url}", last].map(str::to_owned).to_vec();
        let program = |name: &str, last: &str| Program {
            name: name.to_owned(),
            words: words(last),
            env: BTreeMap::default(),
            start: Span(0.0),
            stop: None,
            wait: Span(1.0),
            target: Target::Router,
            model: None,
        };
        let programs = [program("aiperf", "{report}"), program("mute", "-q")];
        let names = Names {
            programs: &programs,
            ..Names::default()
        };
        let parsed = read("aiperf.ttft_ms.p99 < 500ms", names).unwrap();
        let figure = Figure {
            program: "aiperf".into(),
            keys: vec!["ttft_ms".into(), "p99".into()],
        };
        assert_eq!(
            (parsed.quantity, parsed.value),
            (Quantity::Figure(figure), Value::Number(0.5))
        );
        let value = |text| read(text, names).unwrap().value;
        assert_eq!(value("aiperf.requests.errors == 0"), Value::Number(0.0));
        assert_eq!(value("aiperf.requests.error_rate < 1%"), Value::Number(0.01));
        assert!(read("p99.9 ttft < 1s", names).is_ok());
        for (text, words) in [
            ("aiprf.requests.errors == 0", "there are: aiperf, mute"),
            ("mute.errors == 0", "{report}"),
            ("aiperf..errors == 0", "empty key"),
            ("aiperf.ttft_ms.p99 < 500", "with its unit"),
            ("aiperf.requests.errors < few", "a number"),
            ("aiperf.requests.errors < 2x", "no baseline"),
            ("aiperf.requests.errors == 0 after start", "whole run"),
            ("aiperf.requests.errors == 0 within 3s", "one number"),
        ] {
            let error = read(text, names).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn wrong_checks_name_the_word() {
        for (text, words) in [
            ("", "a quantity"),
            ("errer_rate < 1%", "did you mean `error_rate`"),
            ("error_rate", "a relation"),
            ("error_rate ~ 1", "no relation"),
            ("error_rate < soon", "1%"),
            ("p99 ttft < 20", "with its unit"),
            ("p99 tfft < 20ms", "use ttft"),
            ("p101 ttft < 20ms", "quantity"),
            ("leaked memory == 0", "cannot leak"),
            ("no request reaches hottest", "say victim"),
            ("no request reaches w1 after lunch", "no moment"),
            ("no request reaches victim(lunch)", "no moment"),
            ("error_rate < 1% sometimes", "unknown word"),
            ("failed(timout) == 0", "did you mean `timeout`"),
            ("failed(http503) == 0", "did you mean `http_503`"),
            ("failed(foo) == 0", "known failures: connect"),
            ("leaked streams == 0 within 3s", "one number"),
            ("victims < 2x", "no baseline"),
            ("error_rate < 1% over 1ms", "says nothing"),
            ("error_rate < 1% over 100s", "over does nothing without within"),
            ("failed(http_200) == 0", "no answer fails with 200"),
            ("failed(http_101) == 0", "unknown failure"),
        ] {
            let error = read(text, marks(&["crash"])).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
