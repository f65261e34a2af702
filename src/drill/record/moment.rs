//! Steps of the timeline, and what came of their faults.

use serde::Serialize;

/// A moment of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Its name.
    pub mark: String,
    /// When.
    pub at: f64,
    /// What was done.
    pub lines: Vec<String>,
    /// Whether that disturbs the fleet.
    pub disturbs: bool,
    /// Its faults, in order, and how often they happened up to the drill's very end, when it had settled.
    pub faults: Vec<Tally>,
    /// Workers that it was done to.
    pub victims: Vec<u32>,
    /// What could not be done.
    pub errors: Vec<String>,
}

/// What came of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// As its step says it.
    pub line: String,
    /// How often its turn came.
    pub asked: u64,
    /// How often it happened then.
    pub happened: u64,
}

impl Moment {
    /// What was done, each fault with how often it happened.
    pub fn told(&self) -> String {
        let mut tallies = self.faults.iter().peekable();
        let lines = self
            .lines
            .iter()
            .map(|line| match tallies.next_if(|tally| tally.line == *line) {
                Some(tally) => format!("{line} (happened {})", tally.happened),
                None => line.clone(),
            });
        lines.collect::<Vec<_>>().join("; ")
    }

    /// Faults that never happened, in words. A step that could not be done says so itself.
    pub fn idle(&self) -> impl Iterator<Item = String> {
        let idle = self
            .faults
            .iter()
            .filter(|tally| tally.happened == 0 && self.errors.is_empty());
        idle.map(|tally| {
            let times = if tally.asked == 1 { "time" } else { "times" };
            format!(
                "step {}: {}: this fault never happened (its turn came {} {times}), and the drill says nothing about it",
                self.mark, tally.line, tally.asked
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    #[test]
    fn a_step_tells_how_often_its_faults_happened_and_which_never_did() {
        let tally = |line: &str, asked, happened| Tally {
            line: line.to_owned(),
            asked,
            happened,
        };
        let mut moment = record().moments.remove(0);
        moment.lines = ["w0 slow factor=2", "heal w1", "w0 cut tokens=9"]
            .map(str::to_owned)
            .to_vec();
        moment.faults = vec![tally("w0 slow factor=2", 7, 7), tally("w0 cut tokens=9", 1, 0)];
        assert_eq!(
            moment.told(),
            "w0 slow factor=2 (happened 7); heal w1; w0 cut tokens=9 (happened 0)"
        );
        let idle: Vec<String> = moment.idle().collect();
        assert_eq!(idle.len(), 1);
        let words = "step crash: w0 cut tokens=9: this fault never happened (its turn came 1 time)";
        assert!(idle[0].starts_with(words), "{idle:?}");
        moment.errors.push("no such worker".to_owned());
        assert_eq!(moment.idle().count(), 0, "what could not be done is an error");
    }
}
