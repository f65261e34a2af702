//! Refuses faults that cannot happen in a drill, whatever the router does and whatever dice say: a drill with one of them
//! tests less than it seems to.

use super::load::Load;
use super::program::Program;
use super::span::Span;
use super::step::{Action, Step};
use crate::faults::Fault;
use crate::faults::kind::{AnswerFault, Kind, ResponseFault};

/// What a drill has that faults may strike.
pub(super) struct Drill<'a> {
    pub(super) loads: &'a [Load],
    pub(super) programs: &'a [Program],
    pub(super) duration: Span,
}

impl Drill<'_> {
    /// Whether every fault of the timeline may happen.
    ///
    /// # Errors
    /// The first that cannot, and why.
    pub(super) fn check(&self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            for (line, action) in &step.actions {
                if let Action::Fault(fault) = action {
                    self.may_happen(step.at, fault)
                        .map_err(|why| format!("{line:?} at {} would never happen: {why}", step.at))?;
                }
            }
        }
        Ok(())
    }

    fn may_happen(&self, at: Span, fault: &Fault) -> Result<(), String> {
        let begins = at.0 + fault.from.as_secs_f64();
        if begins > self.duration.0 {
            return Err(format!(
                "it begins at {begins} s, and the drill ends at {} (from counts from its step)",
                self.duration
            ));
        }
        // Only a program knows how much it asks for.
        let longest = self.loads.iter().map(|load| load.output_tokens).max();
        let Some(longest) = longest.filter(|_| self.programs.is_empty()) else {
            return Ok(());
        };
        match tokens_before(&fault.kind) {
            Some(before) if before > longest => Err(format!(
                "it waits for {before} tokens of an answer, and no load asks for more than {longest} (output_tokens)"
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// Tokens of an answer that go out before the fault; `None`: it does not wait for any.
fn tokens_before(kind: &Kind) -> Option<u32> {
    match kind {
        Kind::Answer(
            AnswerFault::Cut { tokens: before }
            | AnswerFault::BlackHole { after_tokens: before }
            | AnswerFault::ErrorItem {
                after_tokens: before, ..
            },
        )
        | Kind::Response(ResponseFault::MalformedFrame { after_tokens: before }) => Some(*before),
        Kind::Response(
            ResponseFault::Latency { .. }
            | ResponseFault::Bandwidth { .. }
            | ResponseFault::ResetPeer { .. }
            | ResponseFault::SlowClose { .. }
            | ResponseFault::LimitData { .. }
            | ResponseFault::Slicer { .. }
            | ResponseFault::NoPrologue {}
            | ResponseFault::DuplicateFinal {}
            | ResponseFault::MissingFinal {},
        )
        | Kind::Life(_)
        | Kind::Condition(_)
        | Kind::Pass(_)
        | Kind::Door(_)
        | Kind::Admission(_)
        | Kind::Capacity(_)
        | Kind::Purge(_)
        | Kind::Request(_)
        | Kind::Event(_)
        | Kind::Storm(_)
        | Kind::Recovery(_)
        | Kind::Discovery(_)
        | Kind::Metrics(_)
        | Kind::Rendezvous(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(line: &str) -> Result<(), String> {
        let loads = [8, 20].map(|output_tokens| Load {
            output_tokens,
            ..Load::default()
        });
        let drill = Drill {
            loads: &loads,
            programs: &[],
            duration: Span(10.0),
        };
        drill.check(&[Step {
            at: Span(4.0),
            mark: "step".to_owned(),
            actions: vec![(line.to_owned(), Action::Fault(line.parse().unwrap()))],
            may_miss: false,
        }])
    }

    #[test]
    fn a_fault_behind_the_end_of_every_answer_or_of_the_drill_is_refused() {
        for (line, words) in [
            ("w0 cut tokens=21", "it waits for 21 tokens of an answer"),
            (
                "w0 response.black_hole after_tokens=500",
                "no load asks for more than 20",
            ),
            ("w0 error_item after_tokens=21", "would never happen"),
            ("w0 malformed_frame after_tokens=21", "would never happen"),
            ("w0 crash from=7s", "it begins at 11 s, and the drill ends at 10s"),
        ] {
            let error = checked(line).unwrap_err();
            assert!(error.contains(words) && error.contains(line), "{line}: {error}");
        }
        for line in [
            "w0 cut tokens=19",
            "w0 cut",
            "w0 crash from=5s p=0.1",
            "w0 slow factor=2 to=90s",
        ] {
            assert_eq!(checked(line), Ok(()), "{line}");
        }
    }
}
