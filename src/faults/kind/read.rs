//! From a name and its parameters, as they are written, to a kind.

use serde_json::{Map, Value};

use super::{EventFault, Kind, KindInfo, Layer, RequestFault, ResponseFault, catalogue};

/// A kind that is not in the catalogue, or parameters that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KindError {
    /// No such kind.
    #[error("there is no fault kind `{kind}`{}{hint}", layer.map_or_else(String::new, |layer| format!(" in layer {layer}")))]
    Unknown {
        /// As asked for.
        layer: Option<Layer>,
        /// As asked for.
        kind: String,
        /// Where to go from here.
        hint: String,
    },
    /// Several layers have it.
    #[error("fault kind `{kind}` is in several layers; say {choices}")]
    Ambiguous {
        /// As asked for.
        kind: String,
        /// All of them.
        choices: String,
    },
    /// A parameter that the kind does not have.
    #[error("fault kind {kind} has no parameter `{param}`; it has {known}")]
    Param {
        /// With its layer.
        kind: String,
        /// As given.
        param: String,
        /// Those that it has.
        known: String,
    },
    /// A value that the parameter cannot have.
    #[error("fault kind {kind}: {why}")]
    Value {
        /// With its layer.
        kind: String,
        /// What is wrong.
        why: String,
    },
}

impl Kind {
    /// Looks a kind up and checks its parameters. Without a layer the name has to be one that only one layer has.
    ///
    /// # Errors
    /// [`KindError`] names the kind, the parameter, and what there is instead.
    pub fn read(layer: Option<Layer>, word: &str, mut params: Map<String, Value>) -> Result<Self, KindError> {
        let info = find(layer, word)?;
        let name = || format!("{}.{}", info.layer, info.kind);
        let names = info.params.iter().map(|param| param.name).collect::<Vec<_>>();
        if let Some(param) = params.keys().find(|key| !names.contains(&key.as_str())) {
            return Err(KindError::Param {
                kind: name(),
                param: param.clone(),
                known: if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                },
            });
        }
        let wrong = |why: String| KindError::Value { kind: name(), why };
        for param in info.params {
            match params.get_mut(param.name) {
                Some(value) => *value = param.values.read(param.name, value).map_err(wrong)?,
                None if param.required => {
                    let example = param.values.example(param.name);
                    return Err(wrong(format!("it needs {}, as in {example}", param.name)));
                }
                None => {}
            }
        }
        params.insert("kind".to_owned(), info.kind.into());
        let kind = Self::from_object(info, Value::Object(params)).map_err(|error| wrong(error.to_string()))?;
        kind.check().map_err(|why| wrong(why.to_owned()))?;
        Ok(kind)
    }

    /// What holds for its parameters together.
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Life(fault) => fault.check(),
            Self::Pass(fault) => fault.check(),
            Self::Capacity(fault) => fault.check(),
            Self::Purge(fault) => fault.check(),
            Self::Metrics(fault) => fault.check(),
            Self::Request(RequestFault::Latency { ms, jitter_ms })
            | Self::Response(ResponseFault::Latency { ms, jitter_ms })
            | Self::Event(EventFault::Delay { ms, jitter_ms })
                if ms + jitter_ms <= 0.0 =>
            {
                Err("ms and jitter_ms cannot both be 0")
            }
            Self::Condition(_)
            | Self::Door(_)
            | Self::Admission(_)
            | Self::Request(_)
            | Self::Answer(_)
            | Self::Response(_)
            | Self::Event(_)
            | Self::Storm(_)
            | Self::Recovery(_)
            | Self::Discovery(_)
            | Self::Rendezvous(_) => Ok(()),
        }
    }
}

fn find(layer: Option<Layer>, word: &str) -> Result<&'static KindInfo, KindError> {
    let found: Vec<&KindInfo> = catalogue()
        .filter(|info| info.kind == word && layer.is_none_or(|layer| info.layer == layer))
        .collect();
    match found[..] {
        [info] => Ok(info),
        [] => {
            let nearest = catalogue()
                .filter(|info| layer.is_none_or(|layer| info.layer == layer))
                .map(|info| (strsim::jaro_winkler(word, info.kind), info))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .filter(|(score, _)| *score > 0.7);
            Err(KindError::Unknown {
                layer,
                kind: word.chars().take(40).collect(),
                hint: match nearest {
                    Some((_, info)) => format!("; did you mean `{}`?", info.kind),
                    None => "; `ghostfleet ctl faults kinds` lists all".to_owned(),
                },
            })
        }
        _ => Err(KindError::Ambiguous {
            kind: word.to_owned(),
            choices: found
                .iter()
                .map(|info| format!("{}.{}", info.layer, info.kind))
                .collect::<Vec<_>>()
                .join(" or "),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Fault;
    use crate::faults::kind::param::{Param, Values};

    /// A value that the schema of a parameter allows.
    fn allowed(param: &Param) -> Value {
        match param.values {
            Values::Number(range) => range.example.into(),
            Values::Whole(range) => range.example.into(),
            Values::Flag => true.into(),
            Values::Text => "kv".into(),
            Values::Word(words) => words[words.len() - 1].into(),
        }
    }

    /// Every parameter, or of those that exclude each other the last.
    fn filled(info: &KindInfo) -> Map<String, Value> {
        let either = |param: &Param| info.kind == "lose_capacity" && param.name == "share";
        let params = info.params.iter().filter(|param| !either(param));
        params.map(|param| (param.name.to_owned(), allowed(param))).collect()
    }

    #[test]
    fn every_kind_reads_back_what_it_writes() {
        for info in catalogue() {
            let kind = Kind::read(Some(info.layer), info.kind, filled(info)).unwrap();
            assert_eq!(kind.info(), info);
            let again = Kind::read(Some(kind.layer()), kind.word(), kind.params());
            assert_eq!(again, Ok(kind));
        }
    }

    #[test]
    fn every_parameter_holds_what_its_schema_allows_and_refuses_the_rest() {
        let mut refused = 0;
        for info in catalogue() {
            for param in info.params {
                let read = |value: Value| {
                    let mut params = filled(info);
                    params.remove(if param.name == "share" { "blocks" } else { "" });
                    params.insert(param.name.to_owned(), value);
                    Kind::read(Some(info.layer), info.kind, params)
                };
                let (mut good, mut bad) = (vec![allowed(param)], vec![Value::Null]);
                match param.values {
                    Values::Number(range) => {
                        good.extend(range.most.map(Value::from));
                        bad.extend(range.most.map(|most| (most + 1.0).into()));
                        bad.extend([(-1.0).into(), "much".into()]);
                        if range.above { &mut bad } else { &mut good }.push(range.least.into());
                    }
                    Values::Whole(range) => {
                        good.push(range.least.into());
                        // `low` may not be above `high`, which stays what it was.
                        good.extend(range.most.filter(|_| param.name != "low").map(Value::from));
                        bad.extend(range.most.and_then(|most| most.checked_add(1)).map(Value::from));
                        bad.extend([(-1).into(), 2.5.into(), "many".into()]);
                        bad.extend(range.least.checked_sub(1).map(Value::from));
                    }
                    Values::Flag => bad.extend([1.into(), "yes".into()]),
                    Values::Text => bad.push(5.into()),
                    Values::Word(words) => {
                        good.extend(words.iter().map(|word| Value::from(*word)));
                        bad.push("other".into());
                    }
                }
                for value in good {
                    // Together with the others it may still make no sense.
                    match read(value.clone()) {
                        Ok(_) => {}
                        Err(KindError::Value { why, .. }) if why.contains(" high") || why.contains("late_ms goes") => {}
                        Err(error) => panic!("{}.{} {}: {error}", info.layer, info.kind, param.name),
                    }
                }
                for value in bad {
                    let error = read(value.clone()).unwrap_err().to_string();
                    assert!(
                        error.contains(&format!("{} {value} must be", param.name)),
                        "{value}: {error}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn faults_that_would_do_nothing_are_refused() {
        for line in [
            "w0 wrong_block_size factor=0",
            "w0 wrong_block_size factor=1",
            "w0 stall ms=0",
            "w0 jitter ms=0",
            "w0 slow_start ms=0",
            "w0 gap ids=0",
            "w0 duplicate copies=0",
            "w0 reorder window=1",
            "w0 lose_capacity share=0",
            "w0 lose_capacity blocks=0",
            "w0 storm per_s=0",
            "w0 stale ms=0",
            "w0 rendezvous.late ms=0",
            "w0 slow_close ms=0",
            "w0 bandwidth bytes_per_s=0",
            "w0 limit_data bytes=0",
            "w0 slicer bytes=0",
            "w0 card_churn period_ms=0",
            "w0 registration_storm period_ms=0",
            "w0 response.latency ms=0",
            "w0 request.latency ms=0 jitter_ms=0",
            "w0 delay ms=0",
            "w0 lying low=9 high=3",
            "w0 clear_cache event=without late_ms=5",
            "w0 slow factor=1",
            "w0 crash same_id=true",
            "w0 drain same_id=true",
            "w0 hang p=0",
        ] {
            assert!(line.parse::<Fault>().is_err(), "{line}");
        }
        for line in [
            "w0 request.latency ms=0 jitter_ms=5",
            "w0 cut tokens=0",
            "w0 slow factor=0",
            "w0 crash same_id=true restart_after_ms=0",
            "w0 renumber first=0",
        ] {
            assert!(line.parse::<Fault>().is_ok(), "{line}");
        }
    }
}
