//! Progress on stderr: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::replay::Progress;

/// Time between two lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// See the module's text.
pub(super) struct Meter {
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
}

impl Meter {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} requests, {msg}");
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            started,
            last_line: started,
        }
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        Instant::now().duration_since(self.started)
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn show(&mut self, progress: Progress) {
        let virtual_s = progress.now.as_ms() / 1e3;
        let rate = progress.ended as f64 / self.elapsed().as_secs_f64().max(1e-9);
        let left = (progress.total - progress.ended.min(progress.total)) as f64 / rate.max(1e-9);
        // Nothing is known of the rest before something ended.
        let end = if progress.ended == 0 {
            "ETA unknown".to_owned()
        } else {
            format!("ETA {left:.0} s")
        };
        let speed = format!("{rate:.0}/s, {end}, virtual time {virtual_s:.1} s");
        if let Some(bar) = &self.bar {
            bar.set_length(progress.total);
            bar.set_position(progress.ended);
            bar.set_message(speed);
            return;
        }
        let now = Instant::now();
        if now.duration_since(self.last_line) < LINE_EVERY {
            return;
        }
        self.last_line = now;
        // Who does not read this still gets the report.
        let _ = writeln!(
            std::io::stderr(),
            "{}/{} requests, {speed}",
            progress.ended,
            progress.total
        );
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
