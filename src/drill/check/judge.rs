//! Decides checks.

use serde::Serialize;

use super::measure::View;
use super::{Check, Quantity, Unit, Value};
use crate::drill::record::Record;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It holds.
    Pass,
    /// It does not hold, or cannot be told to hold.
    Fail,
    /// It does not apply.
    Skipped,
}

/// A check, decided.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// Name of the check.
    pub name: String,
    /// Its expression.
    pub expect: String,
    /// What it would mean if it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// How it ended.
    pub status: Status,
    /// The number that decided: seconds, a share, a count.
    pub measured: Option<f64>,
    /// What it was compared with.
    pub limit: Option<f64>,
    /// In words.
    pub evidence: String,
    /// The stretch of the drill that was looked at, seconds.
    pub window: Option<(f64, f64)>,
}

/// Decides a check.
pub fn judge(check: &Check, record: &Record) -> Judgement {
    let mut judgement = Judgement {
        name: check.name.clone(),
        expect: check.expect.clone(),
        why: check.why.clone(),
        status: Status::Fail,
        measured: None,
        limit: None,
        evidence: String::new(),
        window: None,
    };
    if let Some(why) = does_not_apply(check, record) {
        judgement.status = Status::Skipped;
        why.clone_into(&mut judgement.evidence);
        return judgement;
    }
    let load = check.load.as_ref();
    let view = View {
        record,
        load: load.and_then(|load| record.loads.iter().position(|name| name == load)),
        condition: &check.condition,
        over_by: None,
    };
    if let Err(why) = decide(&view, &mut judgement) {
        judgement.evidence = why;
    }
    judgement
}

fn does_not_apply(check: &Check, record: &Record) -> Option<&'static str> {
    let is_drift = check.condition.quantity == Quantity::IndexDrift;
    let asks_router = check.condition.quantity.is_of_a_router() && !(is_drift && record.witness.is_standalone);
    if (check.needs_frontend || asks_router) && !record.has_frontend {
        return Some("there is no frontend: the load chose the workers itself");
    }
    if is_drift && record.drift.is_empty() && !record.witness.is_named {
        return Some("the router's index cannot be asked");
    }
    None
}

fn decide(view: &View<'_>, judgement: &mut Judgement) -> Result<(), String> {
    let condition = view.condition;
    let unit = condition.quantity.unit();
    let window = view.window()?;
    judgement.window = Some((window.from, window.until));
    let (limit, of) = match condition.value {
        Value::Number(limit) => (limit, String::new()),
        Value::Baseline(times) => {
            let base = view.baseline()?;
            (times * base, format!(" ({times}x the baseline of {})", say(base, unit)))
        }
    };
    judgement.limit = Some(limit);
    let wanted = format!("wanted {} {}{of}", condition.relation.sign(), say(limit, unit));
    if let Some(within) = condition.within {
        let holds = |value| condition.relation.holds(value, limit);
        let since = view.holds_from(window, condition.over.0, unit, holds);
        let since = since.map_err(|why| format!("{why}; {wanted} within {within}"))? - window.from;
        judgement.measured = Some(since);
        judgement.evidence = format!("holds from {since:.2} s on; {wanted} within {within}");
        if since <= within.0 {
            judgement.status = Status::Pass;
        }
        return Ok(());
    }
    // A sum of nothing is -0, which is 0.
    let value = view.measure(window)? + 0.0;
    judgement.measured = Some(value);
    judgement.evidence = format!("{}; {wanted}", say(value, unit));
    if condition.relation.holds(value, limit) {
        judgement.status = Status::Pass;
    }
    Ok(())
}

/// A number with its unit.
pub(in crate::drill) fn say(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Time if value.abs() < 1.0 => format!("{:.1} ms", value * 1e3),
        Unit::Time => format!("{value:.2} s"),
        Unit::Share => format!("{:.2}%", value * 100.0),
        Unit::Count => format!("{value:.0}"),
        Unit::Number => format!("{value:.2}"),
        Unit::Plain => format!("{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Names, Written};
    use super::*;
    use crate::drill::record::tests::{arrival, failed, record, request};
    use crate::drill::record::{Drift, Held, ProgramRun, Request, Sample};
    use crate::drill::scenario::load::Target;
    use crate::drill::scenario::program::Program;
    use crate::drill::scenario::span::Span;

    fn decided(expect: &str, record: &Record) -> Judgement {
        let written: Written = toml::from_str(&format!("expect = {expect:?}")).unwrap();
        let words = ["p", "{url}", "{report}"].map(str::to_owned).to_vec();
        let programs = [Program {
            name: "aiperf".into(),
            words,
            env: std::collections::BTreeMap::new(),
            start: Span(0.0),
            stop: None,
            wait: Span(1.0),
            target: Target::Router,
            model: None,
        }];
        let names = Names {
            marks: &["crash"],
            loads: &["probe"],
            programs: &programs,
        };
        judge(&written.read(names).unwrap(), record)
    }

    fn status(expect: &str, record: &Record) -> Status {
        let judgement = decided(expect, record);
        assert!(!judgement.evidence.is_empty());
        judgement.status
    }

    /// Ten requests a second; after the crash at 4 s those of two seconds are ten times slower, and one in five fails.
    fn disturbed() -> Record {
        let mut record = record();
        record.requests = (0..100)
            .map(|n| {
                let sent = f64::from(n) / 10.0;
                match sent {
                    4.0..6.0 if n % 5 == 0 => failed(sent, "http_503", 0.2),
                    4.0..6.0 => request(sent, 0.5),
                    _ => request(sent, 0.05),
                }
            })
            .collect();
        record
    }

    #[test]
    fn counts_and_rates_follow_the_window() {
        let record = disturbed();
        for (expect, status_wanted) in [
            ("requests == 100", Status::Pass),
            ("completed == 96", Status::Pass),
            ("failed == 4", Status::Pass),
            ("failed == 3", Status::Fail),
            ("failed(http_503) == 4", Status::Pass),
            ("failed(reset) == 0", Status::Pass),
            ("error_rate < 5%", Status::Pass),
            ("error_rate < 4%", Status::Fail),
            ("error_rate == 0 until crash", Status::Pass),
            ("error_rate >= 20% after crash until 6s", Status::Pass),
            ("error_rate == 0 after crash + 2s", Status::Pass),
            ("error_rate == 0 after crash + 1s", Status::Fail),
            ("error_rate == 0 after 9.95s", Status::Fail),
        ] {
            assert_eq!(
                status(expect, &record),
                status_wanted,
                "{expect}: {:?}",
                decided(expect, &record)
            );
        }
        let nothing = decided("throughput > 0 after 9950ms", &record);
        assert!(nothing.evidence.starts_with("0.00; wanted > 0.00"), "{nothing:?}");
    }

    #[test]
    fn latencies_are_compared_with_limits_and_with_the_baseline() {
        let record = disturbed();
        assert_eq!(status("p99 ttft < 100ms until crash", &record), Status::Pass);
        assert_eq!(status("p99 ttft < 2x", &record), Status::Fail);
        assert_eq!(status("p50 ttft < 1.1x", &record), Status::Pass);
        assert_eq!(status("max itl <= 11ms", &record), Status::Pass);
        assert_eq!(status("max gap < 5ms", &record), Status::Fail);
        let judgement = decided("p99 ttft < 2x", &record);
        assert!(
            judgement.limit.is_some_and(|limit| (limit - 0.1).abs() < 1e-6),
            "{judgement:?}"
        );
        assert!(
            judgement.evidence.contains("500.0 ms") && judgement.evidence.contains("50.0 ms"),
            "{judgement:?}"
        );
    }

    #[test]
    fn a_deadline_is_met_when_it_holds_from_early_enough_to_the_end() {
        let record = disturbed();
        let judgement = decided("p99 ttft back under 2x within 3s", &record);
        assert_eq!((judgement.status, judgement.measured), (Status::Pass, Some(2.0)));
        assert_eq!(status("p99 ttft back under 2x within 1s", &record), Status::Fail);
        // A relapse counts.
        let mut relapse = record.clone();
        relapse
            .requests
            .extend((0..5).map(|n| request(9.0 + f64::from(n) / 10.0, 0.5)));
        assert_eq!(status("p99 ttft back under 2x within 3s", &relapse), Status::Fail);
        // Nobody asks any more: nothing has recovered.
        let mut silent = record;
        silent.requests.retain(|request| request.sent < 7.0);
        assert_eq!(status("p99 ttft back under 2x within 3s", &silent), Status::Fail);
    }

    #[test]
    fn a_client_that_waits_in_vain_has_a_long_ttft() {
        let mut record = disturbed();
        record.requests.push(failed(8.0, "first_token_timeout", 1.9));
        assert_eq!(status("max ttft < 1s", &record), Status::Fail);
    }

    #[test]
    fn requests_that_reach_a_victim_are_counted_at_the_fleet() {
        let mut record = disturbed();
        record.arrivals = vec![arrival(3.0, 1, "a"), arrival(4.4, 1, "b")];
        record
            .arrivals
            .extend((0..5).map(|n| arrival(5.0 + f64::from(n), 2, "c")));
        assert_eq!(status("no request reaches w1 500ms after crash", &record), Status::Pass);
        assert_eq!(status("no request reaches victim after crash", &record), Status::Fail);
        assert_eq!(status("requests reaching w0-w3 == 7", &record), Status::Pass);
        assert_eq!(status("time_to_detect < 500ms", &record), Status::Pass);
        assert_eq!(status("time_to_detect < 300ms", &record), Status::Fail);
        record.arrivals.push(arrival(9.5, 1, "d"));
        let never = decided("time_to_detect < 9s", &record);
        assert_eq!(never.status, Status::Fail);
        assert!(never.evidence.contains("to the last"), "{never:?}");
        assert_eq!(status("no request reaches w9", &record), Status::Fail);
        record.arrivals_lost = 1;
        assert_eq!(
            status("no request reaches w0", &record),
            Status::Fail,
            "nobody can tell"
        );
    }

    #[test]
    fn a_victim_that_nobody_reaches_is_left_alone_only_by_a_router_that_reaches_others() {
        let nothing = |record: &Record| {
            for expect in [
                "time_to_detect < 500ms",
                "no request reaches victim after crash",
                "requests reaching w1 <= 3 after crash",
            ] {
                let judgement = decided(expect, record);
                assert_eq!(judgement.status, Status::Fail, "{expect}");
                assert!(
                    judgement.evidence.contains("no request reached a worker"),
                    "{judgement:?}"
                );
            }
        };
        let mut record = disturbed();
        nothing(&record);
        // Neither those before the crash count, nor those to nobody.
        record.arrivals = vec![arrival(3.0, 2, "a"), arrival(5.0, 2, "b")];
        record.arrivals[1].worker = None;
        nothing(&record);
        record.arrivals[1].worker = Some(2);
        assert_eq!(status("time_to_detect < 500ms", &record), Status::Pass);
        assert_eq!(status("no request reaches victim after crash", &record), Status::Pass);
        // With all workers struck there is nobody else to reach.
        record.arrivals.pop();
        record.moments[0].victims = vec![0, 1, 2, 3];
        assert_eq!(status("time_to_detect < 500ms", &record), Status::Pass);
        assert_eq!(status("no request reaches victim after crash", &record), Status::Pass);
        record.arrivals.clear();
        assert_eq!(status("no request reaches * after crash", &record), Status::Fail);
    }

    #[test]
    fn recovery_is_no_failure_and_a_first_token_in_time() {
        let record = disturbed();
        let judgement = decided("time_to_recover < 3s", &record);
        assert_eq!(judgement.status, Status::Pass, "{judgement:?}");
        assert!(
            judgement.measured.is_some_and(|t| (1.5..2.1).contains(&t)),
            "{judgement:?}"
        );
        assert_eq!(status("time_to_recover < 1s", &record), Status::Fail);
    }

    #[test]
    fn migrations_spread_leaks_and_caches_are_told() {
        let mut record = record();
        record.requests = vec![Request {
            workers: vec![1, 2],
            believed_hit: Some(0.5),
            ..request(5.0, 0.1)
        }];
        record.arrivals = vec![
            arrival(5.0, 1, "a"),
            arrival(5.1, 2, "a"),
            arrival(5.2, 2, "b"),
            arrival(5.3, 2, "c"),
        ];
        assert_eq!(status("migrations == 1", &record), Status::Pass);
        assert_eq!(status("spread <= 3", &record), Status::Pass);
        assert_eq!(status("spread < 3", &record), Status::Fail);
        assert_eq!(status("leaked anything == 0", &record), Status::Pass);
        record.held = Held {
            blocks: 3,
            ..Held::default()
        };
        assert_eq!(status("leaked streams == 0", &record), Status::Pass);
        assert_eq!(status("leaked blocks == 0", &record), Status::Fail);
        assert_eq!(status("leaked anything == 0", &record), Status::Fail);
        let sample = |at, cached_tokens, prompt_tokens| Sample {
            at,
            ready: 4,
            held: Held::default(),
            prompt_tokens,
            cached_tokens,
            tokens: 0,
            recoveries: cached_tokens,
            load: Vec::new(),
        };
        record.samples = vec![sample(0.0, 0, 0), sample(10.0, 20, 100)];
        assert_eq!(status("hit_rate == 20%", &record), Status::Pass);
        assert_eq!(status("overcredit < 31%", &record), Status::Pass);
        assert_eq!(status("overcredit < 29%", &record), Status::Fail);
        assert_eq!(status("recoveries <= 20", &record), Status::Pass);
        assert_eq!(status("recoveries < 20", &record), Status::Fail);
        assert_eq!(status("victims == 1", &record), Status::Pass);
    }

    #[test]
    fn figures_of_a_program_are_looked_up_in_its_report() {
        let mut record = record();
        assert_eq!(
            status("aiperf.requests.errors == 0", &record),
            Status::Fail,
            "it never ran"
        );
        record.programs = vec![ProgramRun {
            name: "aiperf".into(),
            how: "exit status: 0".into(),
            report: Some(serde_json::json!({
                "requests": {"errors": 1, "error_rate": 0.005}, "ttft_ms": {"p99": 420.5}, "itl_ms": null, "url": "x",
            })),
            ..ProgramRun::default()
        }];
        for (expect, wanted) in [
            ("aiperf.requests.errors == 1", Status::Pass),
            ("aiperf.requests.errors == 0", Status::Fail),
            ("aiperf.requests.error_rate < 1%", Status::Pass),
            ("aiperf.ttft_ms.p99 < 500ms", Status::Pass),
            ("aiperf.ttft_ms.p99 < 420ms", Status::Fail),
            ("aiperf.itl_ms.p99 < 1s", Status::Fail),
            ("aiperf.url < 1", Status::Fail),
        ] {
            assert_eq!(
                status(expect, &record),
                wanted,
                "{expect}: {:?}",
                decided(expect, &record)
            );
        }
        let missing = decided("aiperf.requests.erors == 0", &record);
        assert!(missing.evidence.contains("error_rate, errors"), "{missing:?}");
        assert!(
            decided("aiperf.itl_ms.p99 < 1s", &record)
                .evidence
                .contains("nothing was measured")
        );
        record.programs[0].report = None;
        let none = decided("aiperf.requests.errors == 0", &record);
        assert!(none.evidence.contains("exit status: 0"), "{none:?}");
    }

    #[test]
    fn what_does_not_apply_is_skipped_and_what_cannot_be_told_fails() {
        let mut record = disturbed();
        assert_eq!(status("index_drift < 1%", &record), Status::Skipped);
        record.drift = vec![Drift {
            at: 5.0,
            missing: 1,
            phantom: 1,
            cached: 9,
        }];
        assert_eq!(status("index_drift < 1%", &record), Status::Fail);
        assert_eq!(status("index_drift <= 20%", &record), Status::Pass);
        record.has_frontend = false;
        assert_eq!(status("no request reaches w1", &record), Status::Skipped);
        assert_eq!(status("error_rate < 5%", &record), Status::Pass);
        record.moments.clear();
        assert_eq!(status("p99 ttft < 2x", &record), Status::Fail, "no baseline");
        assert_eq!(
            status("error_rate == 0 after crash", &record),
            Status::Fail,
            "the mark never came"
        );
        record.requests.clear();
        assert_eq!(status("error_rate == 0", &record), Status::Fail, "no request");
    }
}
