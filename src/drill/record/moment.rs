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
    /// The drill says something also if a fault of it never happens.
    pub may_miss: bool,
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
    /// It happens with what a router does.
    pub needs_router: bool,
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

    /// Looks for faults that never happened: the step is not done then. Where it says that it may miss, or where there is
    /// no router that the fault could happen to, the answer has them in words.
    pub fn look_for_misses(&mut self, has_router: bool) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.errors.is_empty() {
            // One that could not be done says so itself.
            return notes;
        }
        for tally in self.faults.iter().filter(|tally| tally.happened == 0) {
            let times = if tally.asked == 1 { "time" } else { "times" };
            let missed = format!(
                "{}: this fault never happened (its turn came {} {times}), and the drill says nothing about it",
                tally.line, tally.asked
            );
            if self.may_miss || tally.needs_router && !has_router {
                notes.push(format!("step {}: {missed}", self.mark));
            } else {
                self.errors.push(format!(
                    "{missed}; may_miss = true in its step is for those that need not happen"
                ));
            }
        }
        notes
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
            needs_router: false,
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
        let mut missed = Moment {
            may_miss: true,
            ..moment.clone()
        };
        let words = "step crash: w0 cut tokens=9: this fault never happened (its turn came 1 time)";
        let notes = missed.look_for_misses(true);
        assert!(notes.len() == 1 && notes[0].starts_with(words), "{notes:?}");
        assert!(missed.errors.is_empty());
        missed.may_miss = false;
        missed.faults[1].needs_router = true;
        assert_eq!(
            missed.look_for_misses(false),
            notes,
            "nobody is there whom it could strike"
        );
        assert!(missed.look_for_misses(true).is_empty());
        assert!(
            missed.errors[0].starts_with("w0 cut tokens=9: this fault never happened"),
            "{:?}",
            missed.errors
        );
        moment.errors.push("no such worker".to_owned());
        assert!(
            moment.look_for_misses(true).is_empty() && moment.errors.len() == 1,
            "that is an error already"
        );
    }
}
