//! What comes next, from what came before.
//!
//! Source: `core/load/predictors.py` and `plugins/builtins` of Dynamo 1.4.2's planner; the filter is that of `filterpy`.

use super::super::planner::Traffic;

/// How values are foreseen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Method {
    /// As the latest one.
    Constant,
    /// By a level and its trend, each of which wanders.
    Kalman {
        /// How far the level wanders.
        level: f64,
        /// How far the trend wanders.
        trend: f64,
        /// How far a value is off the level.
        noise: f64,
        /// Of logarithms.
        logarithms: bool,
    },
}

/// Level and trend with their covariance.
#[derive(Debug, Clone, Copy)]
struct Filter {
    state: [f64; 2],
    covariance: [[f64; 2]; 2],
}

impl Filter {
    fn new(first: f64) -> Self {
        Self {
            state: [first, 0.0],
            covariance: [[1000.0, 0.0], [0.0, 1000.0]],
        }
    }

    /// One step on.
    fn step(&mut self, level: f64, trend: f64) {
        self.state[0] += self.state[1];
        let [[a, b], [c, d]] = self.covariance;
        self.covariance = [[a + b + c + d + level.max(1e-12), b + d], [c + d, d + trend.max(1e-12)]];
    }

    fn correct(&mut self, value: f64, noise: f64) {
        let noise = noise.max(1e-9);
        let [[a, b], [c, d]] = self.covariance;
        let (gain, drift) = (a / (a + noise), c / (a + noise));
        let off = value - self.state[0];
        self.state = [self.state[0] + gain * off, self.state[1] + drift * off];
        // (I - K H) P (I - K H)' + K R K'
        let (left, cross) = (1.0 - gain, -drift);
        let rows = [[left * a, left * b], [cross * a + c, cross * b + d]];
        self.covariance = [
            [
                rows[0][0] * left + gain * gain * noise,
                rows[0][0] * cross + rows[0][1] + gain * drift * noise,
            ],
            [
                rows[1][0] * left + drift * gain * noise,
                rows[1][0] * cross + rows[1][1] + drift * drift * noise,
            ],
        ];
    }
}

/// Values over time, from the first one that is not 0 on.
#[derive(Debug, Clone)]
struct Series {
    method: Method,
    latest: Option<f64>,
    filter: Option<Filter>,
}

impl Series {
    fn new(method: Method) -> Self {
        Self {
            method,
            latest: None,
            filter: None,
        }
    }

    fn add(&mut self, value: f64) {
        if self.latest.is_none() && value == 0.0 {
            return;
        }
        self.latest = Some(value);
        let Method::Kalman {
            level,
            trend,
            noise,
            logarithms,
        } = self.method
        else {
            return;
        };
        let value = if logarithms { value.max(0.0).ln_1p() } else { value };
        let filter = if let Some(mut filter) = self.filter {
            filter.correct(value, noise);
            filter
        } else {
            Filter::new(value)
        };
        // The forecast is the state one step on, and the next value corrects that.
        let filter = self.filter.insert(filter);
        filter.step(level, trend);
    }

    fn next(&self) -> f64 {
        match (self.method, &self.filter) {
            (Method::Constant, _) | (_, None) => self.latest.unwrap_or(0.0),
            (Method::Kalman { logarithms: true, .. }, Some(filter)) => filter.state[0].exp_m1().max(0.0),
            (Method::Kalman { logarithms: false, .. }, Some(filter)) => filter.state[0],
        }
    }
}

/// What is foreseen for an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Foreseen {
    pub(super) requests: f64,
    pub(super) input_tokens: f64,
    pub(super) output_tokens: f64,
}

/// Requests and their lengths, interval by interval.
#[derive(Debug, Clone)]
pub(super) struct Forecast {
    requests: Series,
    input: Series,
    output: Series,
    /// Latest mean lengths of an interval with requests.
    lengths: Option<(f64, f64)>,
}

impl Forecast {
    pub(super) fn new(method: Method) -> Self {
        Self {
            requests: Series::new(method),
            input: Series::new(method),
            output: Series::new(method),
            lengths: None,
        }
    }

    /// Takes in an interval and foresees the next one.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn after(&mut self, traffic: &Traffic) -> Foreseen {
        self.requests.add(traffic.num_req as f64);
        let mut lengths = (traffic.avg_isl, traffic.avg_osl);
        if traffic.num_req > 0 {
            self.lengths = Some(lengths);
        } else if let Some(latest) = self.lengths {
            // Nobody came: lengths are not 0, they are unknown.
            lengths = latest;
        }
        self.input.add(lengths.0);
        self.output.add(lengths.1);
        Foreseen {
            requests: self.requests.next(),
            input_tokens: self.input.next(),
            output_tokens: self.output.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(num_req: u64, avg_isl: f64) -> Traffic {
        Traffic {
            num_req,
            avg_isl,
            avg_osl: 10.0,
            ..Traffic::default()
        }
    }

    #[test]
    fn the_latest_interval_repeats_itself_and_an_empty_one_keeps_the_lengths() {
        let mut forecast = Forecast::new(Method::Constant);
        let none = forecast.after(&traffic(0, 0.0));
        assert_eq!((none.requests, none.input_tokens), (0.0, 0.0));
        let some = forecast.after(&traffic(7, 300.0));
        assert_eq!(
            (some.requests, some.input_tokens, some.output_tokens),
            (7.0, 300.0, 10.0)
        );
        let gone = forecast.after(&traffic(0, 0.0));
        assert_eq!((gone.requests, gone.input_tokens), (0.0, 300.0));
    }

    // What the predictor of Dynamo 1.4.2 said with filterpy 2.0.0.
    const VALUES: [f64; 8] = [0.0, 12.0, 15.0, 11.0, 40.0, 38.0, 0.0, 5.0];
    const OF_VALUES: [f64; 8] = [
        0.0,
        12.0,
        16.476_877_175_534_558,
        7.383_541_123_944_772,
        46.840_236_784_639_416,
        50.206_771_711_762_485,
        18.213_457_036_060_365,
        8.097_883_233_524_9,
    ];
    const OF_LOGARITHMS: [f64; 8] = [
        0.0,
        12.0,
        16.722_021_198_050_033,
        8.248_853_010_206_513,
        49.801_950_593_789_826,
        60.840_038_865_774_92,
        1.967_661_178_674_323_7,
        2.087_008_413_874_088,
    ];

    #[test]
    fn the_filter_foresees_what_the_peers_does() {
        for (logarithms, expected) in [(false, OF_VALUES), (true, OF_LOGARITHMS)] {
            let mut series = Series::new(Method::Kalman {
                level: 1.0,
                trend: 0.1,
                noise: 10.0,
                logarithms,
            });
            for (value, expected) in VALUES.into_iter().zip(expected) {
                series.add(value);
                let found = series.next();
                assert!(
                    (found - expected).abs() < 1e-9 * expected.abs().max(1.0),
                    "{found} instead of {expected}"
                );
            }
        }
    }
}
