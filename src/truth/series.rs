//! How long it took: until a router stopped using what is broken, and until clients were served as before.
//!
//! Both are read from the requests of a run. Times are seconds on one clock, that of the run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// One request of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// When it was sent.
    pub sent_s: f64,
    /// When it reached a worker; `None`: nobody knows, and the time of sending stands for it.
    #[serde(default)]
    pub arrived_s: Option<f64>,
    /// When it ended; `None`: it never did.
    pub ended_s: Option<f64>,
    /// Worker that it went to, by position; `None`: to none, or nobody knows.
    pub worker: Option<u32>,
    /// Whether it was answered in full.
    pub ok: bool,
    /// Time to the first token.
    #[serde(default)]
    pub ttft_s: Option<f64>,
}

impl Request {
    fn at(&self) -> f64 {
        self.arrived_s.unwrap_or(self.sent_s)
    }
}

/// Something was broken, or mended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub at_s: f64,
    /// Workers that it struck, by position.
    pub workers: BTreeSet<u32>,
}

/// How long a router went on using struck workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Detected {
    /// None reached them later than this after the mark; 0: none did at all.
    After {
        /// Seconds.
        seconds: f64,
        /// Requests that reached them after the mark.
        requests: u64,
    },
    /// They were in use to the end.
    Never {
        /// Requests that reached them after the mark.
        requests: u64,
    },
    /// Too few requests came after the mark to tell.
    Unknown,
}

/// Time to detect: from the mark to the last request that reached a struck worker. The router counts as having noticed
/// when at least `proof` requests were sent after that, all of them elsewhere.
pub fn time_to_detect(mark: &Mark, requests: &[Request], proof: usize) -> Detected {
    let after: Vec<&Request> = requests.iter().filter(|request| request.at() >= mark.at_s).collect();
    let is_struck = |request: &&&Request| request.worker.is_some_and(|worker| mark.workers.contains(&worker));
    let struck = after.iter().filter(is_struck);
    let last = struck.clone().map(|request| request.at()).fold(mark.at_s, f64::max);
    let count = struck.count() as u64;
    let later = after.iter().filter(|request| request.at() > last || count == 0).count();
    if later >= proof.max(1) {
        Detected::After {
            seconds: if count == 0 { 0.0 } else { last - mark.at_s },
            requests: count,
        }
    } else if count > 0 {
        Detected::Never { requests: count }
    } else {
        Detected::Unknown
    }
}

/// When clients are served well.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Well {
    /// Requests are looked at in windows of so long.
    pub window_s: f64,
    /// Highest share of requests in a window that may fail, 0 to 1.
    pub max_error_rate: f64,
    /// Highest TTFT of a window at `quantile`, as a multiple of that before the mark; `None`: any.
    pub max_ttft_factor: Option<f64>,
    /// As 0.99.
    pub quantile: f64,
}

/// How long clients suffered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Recovered {
    /// The last window in which they were not served well ended so long after the mark; 0: there was none.
    After {
        /// Seconds.
        seconds: f64,
    },
    /// Not by the end.
    Never,
    /// Too few requests came after the mark, or before it, to tell.
    Unknown,
}

/// Time to recover: from the mark to the end of the last window in which clients were not served well. `end_s` is when
/// the run ended; a window that it cuts counts. Requests belong to the window in which they were sent, so that one that
/// hangs is held against the time at which it was sent.
pub fn time_to_recover(mark: &Mark, requests: &[Request], well: &Well, end_s: f64) -> Recovered {
    let limit = match well.max_ttft_factor {
        None => f64::INFINITY,
        Some(factor) => {
            let before = requests.iter().filter(|request| request.sent_s < mark.at_s);
            match quantile(before.filter_map(|request| request.ttft_s).collect(), well.quantile) {
                Some(baseline) => baseline * factor,
                None => return Recovered::Unknown,
            }
        }
    };
    let is_after = |request: &&Request| request.sent_s >= mark.at_s && request.sent_s <= end_s;
    let after: Vec<&Request> = requests.iter().filter(is_after).collect();
    let width = well.window_s.max(1e-3);
    if after.is_empty() || end_s <= mark.at_s {
        return Recovered::Unknown;
    }
    let mut last_bad = None;
    let mut last_seen = 0;
    let mut by_window: std::collections::BTreeMap<u64, Vec<&Request>> = std::collections::BTreeMap::new();
    for request in after {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let window = ((request.sent_s - mark.at_s) / width) as u64;
        by_window.entry(window).or_default().push(request);
    }
    for (window, requests) in by_window {
        last_seen = window;
        if !is_well(&requests, well, limit) {
            last_bad = Some(window);
        }
    }
    #[allow(clippy::cast_precision_loss)]
    match last_bad {
        None => Recovered::After { seconds: 0.0 },
        Some(window) if window == last_seen => Recovered::Never,
        Some(window) => Recovered::After {
            seconds: (window + 1) as f64 * width,
        },
    }
}

#[allow(clippy::cast_precision_loss)]
fn is_well(requests: &[&Request], well: &Well, ttft_limit: f64) -> bool {
    let failed = requests.iter().filter(|request| !request.ok).count();
    let ttft = quantile(
        requests.iter().filter_map(|request| request.ttft_s).collect(),
        well.quantile,
    );
    failed as f64 / requests.len().max(1) as f64 <= well.max_error_rate && ttft.is_none_or(|ttft| ttft <= ttft_limit)
}

/// The value that a share of `quantile` is at or below.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
fn quantile(mut values: Vec<f64>, quantile: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * quantile.clamp(0.0, 1.0)).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sent_s: f64, worker: u32, ok: bool, ttft_s: f64) -> Request {
        Request {
            sent_s,
            arrived_s: None,
            ended_s: Some(sent_s + 1.0),
            worker: Some(worker),
            ok,
            ttft_s: Some(ttft_s),
        }
    }

    fn mark() -> Mark {
        Mark {
            at_s: 10.0,
            workers: BTreeSet::from([1]),
        }
    }

    fn every_tenth(from: u32, to: u32, make: impl Fn(f64) -> Request) -> Vec<Request> {
        (from * 10..to * 10)
            .map(|tenth| make(f64::from(tenth) / 10.0))
            .collect()
    }

    #[test]
    fn detection_is_the_last_request_that_still_went_there() {
        let run = |until: f64| every_tenth(0, 30, |at| request(at, u32::from(at < until), true, 0.1));
        assert_eq!(
            time_to_detect(&mark(), &run(12.55), 5),
            Detected::After {
                seconds: 2.5,
                requests: 26
            }
        );
        assert_eq!(
            time_to_detect(&mark(), &run(9.0), 5),
            Detected::After {
                seconds: 0.0,
                requests: 0
            }
        );
        assert_eq!(
            time_to_detect(&mark(), &run(40.0), 5),
            Detected::Never { requests: 200 }
        );
        assert_eq!(
            time_to_detect(&mark(), &run(29.85), 5),
            Detected::Never { requests: 199 },
            "one is no proof"
        );
        assert_eq!(time_to_detect(&mark(), &run(9.0)[..100], 5), Detected::Unknown);
    }

    #[test]
    fn a_request_that_was_sent_before_and_arrived_after_counts() {
        let mut run = every_tenth(0, 20, |at| request(at, 0, true, 0.1));
        run[99].worker = Some(1);
        run[99].arrived_s = Some(11.0);
        assert_eq!(
            time_to_detect(&mark(), &run, 5),
            Detected::After {
                seconds: 1.0,
                requests: 1
            }
        );
    }

    #[test]
    fn recovery_is_the_end_of_the_last_bad_window() {
        let well = Well {
            window_s: 1.0,
            max_error_rate: 0.01,
            max_ttft_factor: Some(2.0),
            quantile: 0.99,
        };
        let recover = |run: &[Request]| time_to_recover(&mark(), run, &well, 30.0);
        let after = |seconds| Recovered::After { seconds };
        let good = every_tenth(0, 30, |at| request(at, 0, true, 0.1));
        assert_eq!(recover(&good), after(0.0));
        let failing = every_tenth(0, 30, |at| request(at, 0, !(10.0..12.3).contains(&at), 0.1));
        assert_eq!(recover(&failing), after(3.0));
        let slow = every_tenth(0, 30, |at| {
            request(at, 0, true, if (11.0..15.5).contains(&at) { 0.3 } else { 0.1 })
        });
        assert_eq!(recover(&slow), after(6.0));
        let doomed = every_tenth(0, 30, |at| request(at, 0, at < 10.0, 0.1));
        assert_eq!(recover(&doomed), Recovered::Never);
        assert_eq!(recover(&good[..100]), Recovered::Unknown, "nothing came after");
        assert_eq!(recover(&good[100..]), Recovered::Unknown, "nothing came before");
    }
}
