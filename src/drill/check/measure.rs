//! Numbers out of a record.

use super::judge::say;
use super::{Condition, Figure, Held, Latency, Point, Quantity, Relation, Stat, Unit, Whom};
use crate::drill::record::{Record, Request, Sample};
use crate::faults::draw::Dice;

/// A number, or why there is none.
pub(super) type Measured = Result<f64, String>;

/// A stretch of time, seconds; the end does not belong to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    pub(super) from: f64,
    pub(super) until: f64,
}

impl Window {
    fn holds(self, at: f64) -> bool {
        self.from <= at && at < self.until
    }
}

/// What one check looks at.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) record: &'a Record,
    pub(super) load: Option<usize>,
    pub(super) condition: &'a Condition,
    /// Only requests that were over by then.
    pub(super) over_by: Option<f64>,
}

/// Requests that are enough to compare with.
const BASELINE_REQUESTS: usize = 10;

/// Stretches that recovery is told by.
const RECOVERY_STRETCH: f64 = 1.0;

/// A victim that gets no request for so long has been noticed.
const QUIET: f64 = 1.0;

impl<'a> View<'a> {
    /// When a point is; `Err` names a mark that never came.
    pub(super) fn when(&self, point: &Point) -> Measured {
        match point {
            Point::At(at) => Ok(*at),
            Point::End => Ok(self.record.duration),
            Point::After(mark, more) => match self.record.moment(mark) {
                Some(moment) => Ok(moment.at + more),
                None => Err(format!("{mark} never came")),
            },
        }
    }

    /// The window of the check. One that has a deadline begins with what it is a deadline for.
    pub(super) fn window(&self) -> Result<Window, String> {
        let condition = self.condition;
        let from = match (&condition.after, condition.within) {
            (Some(point), _) => self.when(point)?,
            (None, Some(_)) => self.disturbance()?.0,
            (None, None) => self.record.warmup,
        };
        let until = condition
            .until
            .as_ref()
            .map_or(Ok(self.record.duration), |point| self.when(point))?;
        if until <= from {
            return Err(format!(
                "its window is empty: it begins at {from:.1} s and ends at {until:.1} s"
            ));
        }
        Ok(Window { from, until })
    }

    /// When the disturbance came that the check is about, and whom it struck.
    fn disturbance(&self) -> Result<(f64, &'a [u32]), String> {
        let named = match &self.condition.after {
            Some(Point::After(mark, _)) => self.record.moment(mark),
            Some(Point::At(_) | Point::End) | None => None,
        };
        let moment = named.or_else(|| self.record.first_disturbance());
        let moment = moment.ok_or("nothing disturbs the fleet in this drill")?;
        Ok((moment.at, &moment.victims))
    }

    fn workers(&self, whom: &Whom) -> Result<Vec<u32>, String> {
        match whom {
            Whom::Named(select) => {
                let chosen = select.choose(&self.record.workers, Dice::new(0, 0));
                if chosen.is_empty() {
                    return Err(format!("{select} names no worker of this fleet"));
                }
                Ok(chosen.into_iter().map(|worker| worker.0).collect())
            }
            Whom::Victims(mark) => {
                let victims = match mark {
                    Some(mark) => {
                        let moment = self.record.moment(mark);
                        &moment.ok_or_else(|| format!("{mark} never came"))?.victims[..]
                    }
                    None => self.disturbance()?.1,
                };
                if victims.is_empty() {
                    return Err("the disturbance has struck no worker".to_owned());
                }
                Ok(victims.to_vec())
            }
        }
    }

    fn sent(&self, window: Window) -> impl Iterator<Item = &'a Request> {
        let (load, over_by) = (self.load, self.over_by);
        let warmup = self.record.warmup;
        self.record.requests.iter().filter(move |request| {
            request.sent >= warmup
                && window.holds(request.sent)
                && load.is_none_or(|load| request.load == load)
                && over_by.is_none_or(|at| request.ended < at)
        })
    }

    /// The quantity in a window.
    pub(super) fn measure(&self, window: Window) -> Measured {
        let record = self.record;
        match &self.condition.quantity {
            Quantity::Requests => Ok(count(self.sent(window))),
            Quantity::Completed => Ok(count(self.sent(window).filter(|request| request.failure.is_none()))),
            Quantity::Failed(kind) => Ok(count(self.sent(window).filter(|request| {
                let failure = request.failure.as_ref();
                failure.is_some_and(|failure| kind.as_ref().is_none_or(|kind| failure.kind == *kind))
            }))),
            Quantity::ErrorRate => {
                let all = count(self.sent(window));
                let failed = count(self.sent(window).filter(|request| request.failure.is_some()));
                share(failed, all, "no request was sent")
            }
            Quantity::Latency(stat, latency) => self.latency(*stat, *latency, window),
            Quantity::Throughput => {
                let tokens: f64 = self.sent(window).map(|request| f64::from(request.tokens)).sum();
                Ok(tokens / (window.until - window.from))
            }
            Quantity::Reaching(whom) => {
                if record.arrivals_lost > 0 {
                    return Err(format!("{} arrivals were too many to keep", record.arrivals_lost));
                }
                let workers = self.workers(whom)?;
                // What is seen is enough of "at least", and says nothing of "at most".
                if !matches!(self.condition.relation, Relation::Greater | Relation::AtLeast) {
                    self.all_is_seen(&workers, window)?;
                    self.somebody_is_reached(&workers, self.window()?)?;
                }
                let reached = record.arrivals.iter().filter(|arrival| {
                    window.holds(arrival.at) && arrival.worker.is_some_and(|worker| workers.contains(&worker))
                });
                Ok(count(reached))
            }
            Quantity::Spread => self.spread(window),
            Quantity::Migrations => Ok(self
                .sent(window)
                .map(|request| request.workers.len().saturating_sub(1))
                .map(exact)
                .sum()),
            Quantity::Leaked(held) => Ok(exact(match held {
                Held::Streams => record.held.streams,
                Held::Sequences => record.held.sequences,
                Held::Blocks => record.held.blocks,
                Held::Rooms => record.held.rooms,
                Held::Anything => record.held.sum(),
            })),
            Quantity::TimeToDetect => self.time_to_detect(window.until),
            Quantity::TimeToRecover => self.time_to_recover(window.until),
            Quantity::HitRate => self.hit_rate(window),
            Quantity::BelievedHitRate => self.believed_hit_rate(window),
            Quantity::Overcredit => Ok((self.believed_hit_rate(window)? - self.hit_rate(window)?).max(0.0)),
            Quantity::Recoveries => {
                let (before, after) = self.around(window)?;
                Ok(exact(after.recoveries.saturating_sub(before.recoveries)))
            }
            Quantity::IndexDrift => {
                let drift = record.drift.iter().filter(|drift| window.holds(drift.at));
                drift
                    .map(crate::drill::record::Drift::share)
                    .reduce(f64::max)
                    .ok_or_else(|| match &record.witness.problem {
                        Some(why) => format!("the index was not looked at: {why}"),
                        None => "the index was not looked at".to_owned(),
                    })
            }
            Quantity::Victims => Ok(exact(self.disturbance()?.1.len())),
            Quantity::Figure(figure) => self.figure(figure),
        }
    }

    fn figure(&self, figure: &Figure) -> Measured {
        let name = &figure.program;
        let run = self.record.programs.iter().find(|run| run.name == *name);
        let run = run.ok_or_else(|| format!("{name} was never started"))?;
        let mut found = run
            .report
            .as_ref()
            .ok_or_else(|| format!("{name} has left no figures ({})", run.how))?;
        for key in &figure.keys {
            found = match found {
                serde_json::Value::Null => break,
                serde_json::Value::Object(object) => object.get(key).ok_or_else(|| {
                    let known: Vec<&str> = object.keys().take(20).map(String::as_str).collect();
                    format!("the report of {name} has no {key} there, but {}", known.join(", "))
                })?,
                other @ (serde_json::Value::Bool(_)
                | serde_json::Value::Number(_)
                | serde_json::Value::String(_)
                | serde_json::Value::Array(_)) => {
                    return Err(format!(
                        "the report of {name} has {} where {key} is looked for",
                        shortened(other)
                    ));
                }
            };
        }
        if found.is_null() {
            return Err(format!("{name} says null: nothing was measured"));
        }
        let number = found
            .as_f64()
            .ok_or_else(|| format!("{name} says {}, which is no number", shortened(found)))?;
        Ok(number * figure.scale().unwrap_or(1.0))
    }

    /// The quantity before the first disturbance, of requests that it did not touch.
    pub(super) fn baseline(&self) -> Measured {
        let moment = self.record.first_disturbance();
        let until = moment.ok_or("there is no baseline: nothing disturbs the fleet")?.at;
        let window = Window {
            from: self.record.warmup,
            until,
        };
        let calm = Self {
            over_by: Some(until),
            ..*self
        };
        let requests = calm.sent(window).count();
        if requests < BASELINE_REQUESTS {
            return Err(format!(
                "{requests} requests before the first disturbance are no baseline; let it come later"
            ));
        }
        calm.measure(window)
    }

    fn latency(&self, stat: Stat, latency: Latency, window: Window) -> Measured {
        let mut values: Vec<f64> = self
            .sent(window)
            .filter_map(|request| match latency {
                Latency::Ttft => request.ttft(),
                Latency::Itl => request.itl(),
                Latency::Gap => request.first.map(|_| request.gap),
                Latency::Whole => {
                    let whole = request
                        .failure
                        .as_ref()
                        .is_none_or(crate::drill::record::Failure::is_wait);
                    whole.then_some(request.ended - request.sent)
                }
            })
            .collect();
        if values.is_empty() {
            return Err("no request has it".to_owned());
        }
        values.sort_by(f64::total_cmp);
        Ok(match stat {
            Stat::Mean => values.iter().sum::<f64>() / exact(values.len()),
            Stat::Quantile(share) => quantile(&values, share),
        })
    }

    fn spread(&self, window: Window) -> Measured {
        let mut came = vec![0u32; self.record.workers.len()];
        for arrival in self.record.arrivals.iter().filter(|arrival| window.holds(arrival.at)) {
            if let Some(count) = arrival.worker.and_then(|worker| came.get_mut(worker as usize)) {
                *count += 1;
            }
        }
        let answering = came.iter().zip(&self.record.prefill).filter(|(_, prefill)| !**prefill);
        let counts: Vec<f64> = answering.map(|(count, _)| f64::from(*count)).collect();
        let all: f64 = counts.iter().sum();
        if all == 0.0 {
            return Err("no request came to any worker".to_owned());
        }
        Ok(counts.iter().copied().fold(0.0, f64::max) * exact(counts.len()) / all)
    }

    /// Whether every request that came to these workers has been seen, also while they were away.
    fn all_is_seen(&self, workers: &[u32], window: Window) -> Result<(), String> {
        let record = self.record;
        let unseen = |worker: &&u32| {
            let is_unseen = record.unseen_when_away.get(**worker as usize).copied().unwrap_or(false);
            is_unseen && record.is_away(**worker, window.from, window.until)
        };
        match workers.iter().find(unseen) {
            None => Ok(()),
            Some(worker) => Err(format!(
                "w{worker} was away, and nobody saw what came to its address meanwhile; give the fleet one TCP listener for \
                 all (request_plane = \"tcp\", ports = \"shared\")"
            )),
        }
    }

    /// Whether requests came to the fleet at all: that none came to these workers says something only then. Where these are
    /// all that there are, it is enough that some came to them at another time.
    fn somebody_is_reached(&self, workers: &[u32], window: Window) -> Result<(), String> {
        let answering = self.record.prefill.iter().zip(0..).filter(|(prefill, _)| !**prefill);
        let has_others = answering.into_iter().any(|(_, worker)| !workers.contains(&worker));
        let mut arrivals = self.record.arrivals.iter();
        let is_reached = arrivals.any(|arrival| arrival.worker.is_some() && (!has_others || window.holds(arrival.at)));
        if is_reached {
            Ok(())
        } else {
            Err("no request reached a worker: there is nothing to judge by".to_owned())
        }
    }

    fn time_to_detect(&self, until: f64) -> Measured {
        let (at, victims) = self.disturbance()?;
        if victims.is_empty() {
            return Err("the disturbance has struck no worker".to_owned());
        }
        let window = Window { from: at, until };
        self.all_is_seen(victims, window)?;
        self.somebody_is_reached(victims, window)?;
        let late = self.record.arrivals.iter().filter(|arrival| {
            arrival.at >= at
                && arrival.at < until
                && arrival.worker.is_some_and(|worker| {
                    victims.contains(&worker) && self.record.returned(worker, at).is_none_or(|back| arrival.at < back)
                })
        });
        let last = late.map(|arrival| arrival.at).reduce(f64::max).unwrap_or(at);
        if last > until - QUIET {
            return Err("never: requests came to its victims to the last".to_owned());
        }
        Ok(last - at)
    }

    fn time_to_recover(&self, until: f64) -> Measured {
        let (at, _) = self.disturbance()?;
        let window = Window { from: at, until };
        let healthy = |quantity: Quantity, most: f64| {
            let condition = Condition {
                quantity,
                relation: Relation::AtMost,
                ..self.condition.clone()
            };
            let view = View {
                condition: &condition,
                ..*self
            };
            let most = if most == 0.0 {
                Ok(0.0)
            } else {
                view.baseline().map(|base| base * most)
            }?;
            view.holds_from(window, RECOVERY_STRETCH, condition.quantity.unit(), |value| {
                value <= most
            })
        };
        let errors = healthy(Quantity::Failed(None), 0.0)?;
        let fast = healthy(Quantity::Latency(Stat::Quantile(0.99), Latency::Ttft), 2.0)?;
        Ok(errors.max(fast) - at)
    }

    /// From when on every stretch of the window holds; stretches without a measure do not.
    pub(super) fn holds_from(&self, window: Window, over: f64, unit: Unit, holds: impl Fn(f64) -> bool) -> Measured {
        let step = over / 4.0;
        let mut since = None;
        let mut why = "the window is shorter than a stretch".to_owned();
        let mut from = window.from;
        // Sums of steps differ from products in the last digit.
        while from + over <= window.until + 1e-9 {
            match self.measure(Window {
                from,
                until: from + over,
            }) {
                Ok(value) if holds(value) => since = since.or(Some(from)),
                other => {
                    since = None;
                    why = match other {
                        Ok(value) => format!("{} in the {over} s from {from:.1} s on", say(value, unit)),
                        Err(why) => format!("{why} in the {over} s from {from:.1} s on"),
                    };
                }
            }
            from += step;
        }
        since.ok_or_else(|| format!("never to the end: {why}"))
    }

    /// The last look before a window and the first after it.
    fn around(&self, window: Window) -> Result<(&'a Sample, &'a Sample), String> {
        let samples = &self.record.samples;
        let before = samples
            .iter()
            .rfind(|sample| sample.at <= window.from)
            .or(samples.first());
        let after = samples
            .iter()
            .find(|sample| sample.at >= window.until)
            .or(samples.last());
        before
            .zip(after)
            .ok_or_else(|| "the fleet was not looked at".to_owned())
    }

    fn hit_rate(&self, window: Window) -> Measured {
        let (before, after) = self.around(window)?;
        let cached = after.cached_tokens.saturating_sub(before.cached_tokens);
        let prompt = after.prompt_tokens.saturating_sub(before.prompt_tokens);
        share(exact(cached), exact(prompt), "no prompt was admitted")
    }

    fn believed_hit_rate(&self, window: Window) -> Measured {
        let believed: Vec<f64> = self.sent(window).filter_map(|request| request.believed_hit).collect();
        if believed.is_empty() {
            return Err("the router says nothing of it".to_owned());
        }
        Ok(believed.iter().sum::<f64>() / exact(believed.len()))
    }
}

fn shortened(value: &serde_json::Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// A count as a number; exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn exact(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}

fn count<T>(items: impl Iterator<Item = T>) -> f64 {
    exact(items.count())
}

fn share(part: f64, all: f64, why: &str) -> Measured {
    if all == 0.0 {
        Err(why.to_owned())
    } else {
        Ok(part / all)
    }
}

/// Nearest rank of sorted values.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(in crate::drill) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * exact(sorted.len())).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}
