//! What happened over time, in bounded memory: a fixed number of buckets that double their width as the run grows.
//!
//! Fed once per completed request with the moments of its life, so nothing is paid per token or pass; requests that did
//! not complete do not count.

use serde_json::{Value, json};

use crate::types::SimTime;

use super::flight::Flight;

/// Buckets of a track.
const BUCKETS: usize = 256;
/// Width of a bucket at first, ns.
const FIRST_WIDTH: u64 = 1_000_000;
/// Rows of per-worker load; workers beyond share rows.
const WORKER_ROWS: usize = 256;

/// A quantity over time, as its integral in each bucket.
#[derive(Debug, Clone)]
struct Track {
    parts: Vec<f64>,
    /// Change of the weight of whole buckets, at each bucket.
    changes: Vec<f64>,
}

impl Default for Track {
    fn default() -> Self {
        Self {
            parts: vec![0.0; BUCKETS],
            changes: vec![0.0; BUCKETS + 1],
        }
    }
}

#[allow(clippy::cast_precision_loss)]
impl Track {
    fn point(&mut self, bucket: usize, value: f64) {
        self.parts[bucket] += value;
    }

    /// Adds `weight` for each ns from `from` to `to`.
    fn span(&mut self, width: u64, from: u64, to: u64, weight: f64) {
        let bucket = |at: u64| usize::try_from(at / width).unwrap_or(BUCKETS - 1).min(BUCKETS - 1);
        let (first, last) = (bucket(from), bucket(to));
        if first == last {
            self.parts[first] += (to - from) as f64 * weight;
            return;
        }
        self.parts[first] += ((first as u64 + 1) * width - from) as f64 * weight;
        self.parts[last] += (to - last as u64 * width) as f64 * weight;
        self.changes[first + 1] += weight;
        self.changes[last] -= weight;
    }

    /// The integral in each bucket.
    fn values(&self, width: u64) -> Vec<f64> {
        let mut weight = 0.0;
        let value = |(part, change): (&f64, &f64)| {
            weight += change;
            part + weight * width as f64
        };
        self.parts.iter().zip(&self.changes).map(value).collect()
    }

    /// Makes one bucket of every two.
    fn fold(&mut self, width: u64) {
        let values = self.values(width);
        self.parts.fill(0.0);
        self.changes.fill(0.0);
        for (pair, part) in values.chunks(2).zip(&mut self.parts) {
            *part = pair.iter().sum();
        }
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Series {
    width: u64,
    last: u64,
    waiting: Track,
    running: Track,
    output: Track,
    completed: Track,
    prompt: Track,
    reused: Track,
    workers: Vec<Track>,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            width: FIRST_WIDTH,
            last: 0,
            waiting: Track::default(),
            running: Track::default(),
            output: Track::default(),
            completed: Track::default(),
            prompt: Track::default(),
            reused: Track::default(),
            workers: Vec::new(),
        }
    }
}

#[allow(clippy::cast_precision_loss)]
impl Series {
    /// Takes in a request that completed at `now`.
    pub(crate) fn completed(&mut self, flight: &Flight, now: SimTime) {
        let Some(admitted) = flight.first_admit else { return };
        self.reach(now.as_nanos());
        let width = self.width;
        let bucket = |at: u64| usize::try_from(at / width).unwrap_or(BUCKETS - 1).min(BUCKETS - 1);
        let arrival = flight.arrival.min(admitted).as_nanos();
        let (admitted, now) = (admitted.as_nanos(), now.as_nanos());
        self.waiting.span(width, arrival, admitted, 1.0);
        self.running.span(width, admitted, now, 1.0);
        self.completed.point(bucket(now), 1.0);
        self.prompt.point(bucket(admitted), f64::from(flight.turn.input_tokens));
        self.reused.point(bucket(admitted), f64::from(flight.first_reused));
        if let Some(first) = flight.first_token {
            let later = f64::from(flight.tokens.saturating_sub(1));
            let (first, last) = (first.as_nanos(), flight.last_token.as_nanos());
            self.output.point(bucket(first), f64::from(flight.tokens.min(1)));
            if last > first {
                self.output.span(width, first, last, later / (last - first) as f64);
            } else {
                self.output.point(bucket(last), later);
            }
        }
        if let Some(target) = flight.route.target {
            let row = target.worker as usize % WORKER_ROWS;
            if self.workers.len() <= row {
                self.workers.resize_with(row + 1, Track::default);
            }
            let since = flight
                .dispatched
                .map_or(admitted, |dispatched| dispatched.as_nanos().min(now));
            self.workers[row].span(width, since, now, 1.0);
        }
    }

    /// Widens the buckets until they reach to `at`.
    fn reach(&mut self, at: u64) {
        self.last = self.last.max(at);
        while at / self.width >= BUCKETS as u64 {
            let width = self.width;
            let tracks = [
                &mut self.waiting,
                &mut self.running,
                &mut self.output,
                &mut self.completed,
                &mut self.prompt,
                &mut self.reused,
            ];
            tracks
                .into_iter()
                .chain(&mut self.workers)
                .for_each(|track| track.fold(width));
            self.width *= 2;
        }
    }

    /// Means and rates per bucket, up to the last completion.
    pub(crate) fn to_json(&self) -> Value {
        let used = usize::try_from(self.last / self.width).map_or(BUCKETS, |bucket| (bucket + 1).min(BUCKETS));
        let width_ns = self.width as f64;
        // The run ends within the last bucket; a very short rest would make a peak of whatever ended in it.
        let rest = self.last - (used as u64 - 1) * self.width;
        let last_ns = rest.max(self.width / 2) as f64;
        let scaled = |track: &Track, unit: f64| -> Vec<f64> {
            let values = track.values(self.width);
            let values = values[..used].iter().enumerate();
            let span = |at| if at + 1 == used { last_ns } else { width_ns };
            values.map(|(at, value)| round(value * unit / span(at))).collect()
        };
        let prompt = self.prompt.values(self.width);
        let reused = self.reused.values(self.width);
        let hits = prompt[..used].iter().zip(&reused);
        let hits = hits.map(|(prompt, reused)| (*prompt > 0.0).then(|| round(reused / prompt)));
        let workers = self.workers.iter().map(|track| scaled(track, 1.0));
        json!({
            "bucket_ms": width_ns / 1e6,
            "last_bucket_ms": last_ns / 1e6,
            "waiting_requests": scaled(&self.waiting, 1.0),
            "running_requests": scaled(&self.running, 1.0),
            "output_throughput_tok_s": scaled(&self.output, 1e9),
            "request_throughput_rps": scaled(&self.completed, 1e9),
            "prefix_cache_reused_ratio": hits.collect::<Vec<_>>(),
            "worker_requests": workers.collect::<Vec<_>>(),
        })
    }
}

/// Four decimals are more than a picture shows.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use crate::router::Target;

    use super::super::source::Turn;
    use super::*;

    const MS: u64 = 1_000_000;

    fn flight(arrival: u64, admit: u64, first: u64, last: u64, worker: u32) -> Flight {
        let turn = Turn {
            tag: 0,
            session: 0,
            turn: 0,
            arrival: SimTime::of_nanos(arrival),
            input_tokens: 10,
            output_tokens: 5,
            planned: None,
            priority: 0,
            strict_priority: 0,
            policy_class: None,
        };
        let mut flight = Flight::new(turn, SimTime::of_nanos(arrival), SimTime::of_nanos(arrival));
        flight.dispatched = Some(SimTime::of_nanos(arrival));
        flight.first_admit = Some(SimTime::of_nanos(admit));
        flight.first_token = Some(SimTime::of_nanos(first));
        flight.last_token = SimTime::of_nanos(last);
        flight.tokens = 5;
        flight.first_reused = 4;
        flight.route.target = Some(Target { worker, rank: 0 });
        flight
    }

    fn sum(values: &Value) -> f64 {
        values.as_array().unwrap().iter().filter_map(Value::as_f64).sum()
    }

    #[test]
    fn a_life_is_spread_over_the_buckets_it_spans() {
        let mut series = Series::default();
        let life = flight(MS / 2, 2 * MS + MS / 2, 3 * MS + MS / 2, 5 * MS + MS / 2, 1);
        series.completed(&life, SimTime::of_nanos(5 * MS + MS / 2));
        let json = series.to_json();
        assert_eq!(json["waiting_requests"], json!([0.5, 1.0, 0.5, 0.0, 0.0, 0.0]));
        assert_eq!(json["running_requests"], json!([0.0, 0.0, 0.5, 1.0, 1.0, 1.0]));
        assert_eq!(
            json["output_throughput_tok_s"],
            json!([0.0, 0.0, 0.0, 2000.0, 2000.0, 2000.0])
        );
        assert_eq!(json["request_throughput_rps"], json!([0.0, 0.0, 0.0, 0.0, 0.0, 2000.0]));
        assert_eq!(
            json["prefix_cache_reused_ratio"],
            json!([null, null, 0.4, null, null, null])
        );
        assert_eq!(json["worker_requests"][1], json!([0.5, 1.0, 1.0, 1.0, 1.0, 1.0]));
        assert!(sum(&json["worker_requests"][0]).abs() < 1e-9);
    }

    #[test]
    fn a_long_run_keeps_its_totals_in_as_many_buckets() {
        let mut series = Series::default();
        for at in 0..5000 {
            let start = at * 7 * MS;
            series.completed(
                &flight(start, start + MS, start + 2 * MS, start + 9 * MS, 0),
                SimTime::of_nanos(start + 9 * MS),
            );
        }
        let json = series.to_json();
        let seconds = |key: &str| json[key].as_f64().unwrap() / 1e3;
        let sum = |values: &Value| {
            let values: Vec<f64> = values.as_array().unwrap().iter().filter_map(Value::as_f64).collect();
            let (last, others) = values.split_last().unwrap();
            others.iter().sum::<f64>() * seconds("bucket_ms") + last * seconds("last_bucket_ms")
        };
        assert!(json["waiting_requests"].as_array().unwrap().len() <= BUCKETS);
        assert!((sum(&json["request_throughput_rps"]) - 5000.0).abs() < 1.0);
        assert!((sum(&json["output_throughput_tok_s"]) - 25_000.0).abs() < 1.0);
        assert!((sum(&json["waiting_requests"]) - 5.0).abs() < 0.01);
        assert!((sum(&json["running_requests"]) - 40.0).abs() < 0.01);
    }
}
