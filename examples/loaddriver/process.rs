//! What a process uses, from `/proc`.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Time between two looks at threads, descriptors and memory.
const LOOK: Duration = Duration::from_millis(250);

/// Linux counts CPU time in hundredths of a second towards user space, whatever the kernel's own tick.
const TICKS_PER_SECOND: f64 = 100.0;

/// Accounting of one process from `start` to `finish`.
pub(crate) struct Usage {
    pid: u32,
    begin: Instant,
    cpu_s: f64,
    stop: Arc<AtomicBool>,
    looks: JoinHandle<Most>,
}

/// The largest values seen.
#[derive(Default)]
struct Most {
    rss_kib: u64,
    threads: u64,
    fds: u64,
}

impl Usage {
    pub(crate) fn start(pid: u32) -> Result<Self> {
        let cpu_s = cpu_s(pid).with_context(|| format!("process {pid}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let looks = std::thread::spawn(move || {
            let mut most = Most::default();
            loop {
                // Asked before looking, so that the last look comes after the end.
                let last = seen.load(Ordering::Acquire);
                most.look(pid);
                if last {
                    return most;
                }
                std::thread::park_timeout(LOOK);
            }
        });
        Ok(Self {
            pid,
            begin: Instant::now(),
            cpu_s,
            stop,
            looks,
        })
    }

    /// Use since `start`; a process that has ended in between has no figures but its pid.
    pub(crate) fn finish(self, tokens: u64) -> Value {
        let wall_s = self.begin.elapsed().as_secs_f64();
        let cpu = cpu_s(self.pid).map(|now| now - self.cpu_s);
        self.stop.store(true, Ordering::Release);
        self.looks.thread().unpark();
        let most = self.looks.join().unwrap_or_default();
        let Ok(cpu) = cpu else {
            return json!({"pid": self.pid, "ended": true});
        };
        #[allow(clippy::cast_precision_loss)]
        let per_million = (tokens > 0).then(|| cpu * 1e6 / tokens as f64);
        json!({
            "pid": self.pid,
            "cpu_s": cpu,
            "cores": cpu / wall_s,
            "cpu_s_per_million_tokens": per_million,
            "rss_kib_max": most.rss_kib,
            "threads_max": most.threads,
            "fds_max": most.fds,
        })
    }
}

impl Most {
    fn look(&mut self, pid: u32) {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        self.rss_kib = self.rss_kib.max(field(&status, "VmRSS:"));
        self.threads = self.threads.max(field(&status, "Threads:"));
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64);
        self.fds = self.fds.max(fds);
    }
}

fn field(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// User and system time of a process so far.
fn cpu_s(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything, so fields are counted from its end.
    let (_, rest) = stat.rsplit_once(')').context("unexpected format of stat")?;
    let ticks: f64 = rest
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<f64>)
        .sum::<Result<f64, _>>()?;
    Ok(ticks / TICKS_PER_SECOND)
}
