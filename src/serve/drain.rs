//! The wait for answers under way once the fleet has been told to stop, and what is said of it meanwhile.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::progress_line;
use crate::actors::registry::WorkerState;
use crate::cluster::Cluster;

/// How the wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Every worker has left.
    Drained,
    /// Told to stop at once.
    Stopped,
    /// It took too long.
    OutOfTime,
}

/// How often it is looked whether somebody wants to stop at once.
const LOOK: Duration = Duration::from_millis(50);

/// Before the first line: most drains are over by then.
const FIRST_LINE: Duration = Duration::from_secs(2);

/// Longest time between two lines, which grows from the first.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Workers named in a line.
const NAMED: usize = 6;

/// Waits until every worker has left, `stop` says so, or `limit` is over; says now and then what it waits for.
pub(super) fn wait(cluster: &Cluster, stop: impl Fn() -> bool, limit: Duration) -> Ended {
    let begin = Instant::now();
    let (mut next, mut pause) = (FIRST_LINE, FIRST_LINE);
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        if cluster.wait_over(LOOK.min(left)) {
            return Ended::Drained;
        }
        if stop() {
            return Ended::Stopped;
        }
        let waited = begin.elapsed();
        if waited >= limit {
            return Ended::OutOfTime;
        }
        if waited >= next {
            progress_line(&format!(
                "draining for {} s, at most {} s: waits for {}; once more stops at once\n",
                waited.as_secs(),
                limit.as_secs_f32(),
                told(&waiting(cluster))
            ));
            pause = (pause * 2).min(LONGEST_PAUSE);
            next = waited + pause;
        }
    }
}

/// A worker that has not left.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    path: String,
    answers: u32,
    /// A fault holds it up, or it is long overdue.
    hangs: bool,
}

fn waiting(cluster: &Cluster) -> Vec<Waiting> {
    let control = cluster.control();
    let entries = control.registry().entries();
    let there = entries
        .iter()
        .filter(|entry| !matches!(entry.state(), WorkerState::Left | WorkerState::Dead));
    there
        .map(|entry| Waiting {
            path: entry.id().to_string(),
            answers: entry.open_streams(),
            hangs: entry.hangs(control.now()),
        })
        .collect()
}

/// In words, those with most answers first.
fn told(waiting: &[Waiting]) -> String {
    let mut by_answers: Vec<&Waiting> = waiting.iter().filter(|worker| worker.answers > 0).collect();
    if by_answers.is_empty() {
        // Late requests are still served for a moment, and discovery has to be told.
        return match waiting {
            [] => "the end of the fleet".to_owned(),
            [one] => format!("{} to leave", one.path),
            many => format!("{} workers to leave", many.len()),
        };
    }
    by_answers.sort_by_key(|worker| std::cmp::Reverse(worker.answers));
    let answers: u64 = by_answers.iter().map(|worker| u64::from(worker.answers)).sum();
    let mut words = match answers {
        1 => "1 answer: ".to_owned(),
        many => format!("{many} answers: "),
    };
    for (position, worker) in by_answers.iter().take(NAMED).enumerate() {
        let comma = if position == 0 { "" } else { ", " };
        let hangs = if worker.hangs { " (hangs)" } else { "" };
        // Writing into a String cannot fail.
        let _ = write!(words, "{comma}{} of {}{hangs}", worker.answers, worker.path);
    }
    if by_answers.len() > NAMED {
        let _ = write!(words, ", others of {} more workers", by_answers.len() - NAMED);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(position: u32, answers: u32, hangs: bool) -> Waiting {
        Waiting {
            path: format!("w{position}"),
            answers,
            hangs,
        }
    }

    #[test]
    fn the_busiest_workers_are_named_and_the_others_counted() {
        let few = [worker(0, 0, false), worker(1, 1, false), worker(2, 30, true)];
        assert_eq!(told(&few), "31 answers: 30 of w2 (hangs), 1 of w1");
        assert_eq!(told(&few[1..2]), "1 answer: 1 of w1");
        let many: Vec<Waiting> = (0..9).map(|position| worker(position, 2, false)).collect();
        let told = told(&many);
        assert!(told.starts_with("18 answers: 2 of w0, 2 of w1, "), "{told}");
        assert!(told.ends_with("2 of w5, others of 3 more workers"), "{told}");
    }

    #[test]
    fn workers_without_answers_have_only_to_leave() {
        let idle = [worker(0, 0, false), worker(1, 0, true)];
        assert_eq!(told(&idle), "2 workers to leave");
        assert_eq!(told(&idle[..1]), "w0 to leave");
        assert_eq!(told(&[]), "the end of the fleet");
    }
}
