//! Refuses checks that no router could meet or every one would, and that no drill of this length could decide.

use super::{Check, Condition, Point, Quantity, Relation, Unit, Value, Whom};
use crate::drill::scenario::span::Span;
use crate::drill::scenario::step::Step;

/// The plan that checks are held against: when what is to happen.
pub(in crate::drill) struct Plan<'a> {
    pub(in crate::drill) steps: &'a [Step],
    pub(in crate::drill) warmup: Span,
    pub(in crate::drill) duration: Span,
}

impl Check {
    /// Whether it could be decided, and hold.
    ///
    /// # Errors
    /// Why it cannot.
    pub(in crate::drill) fn is_possible(&self, plan: &Plan<'_>) -> Result<(), String> {
        let condition = &self.condition;
        match condition.value {
            Value::Number(limit) => in_range(condition, limit)?,
            // So many times what nobody knows yet; none of it is nothing.
            Value::Baseline(times) if times <= 0.0 => in_range(condition, times)?,
            Value::Baseline(_) => {}
        }
        if Plan::needs_disturbance(condition) && plan.first_disturbance().is_none() {
            return Err("nothing disturbs the fleet in this drill, which it counts from".to_owned());
        }
        plan.fits(condition)
    }
}

/// What can be measured of a quantity, from the least to the most.
struct Range {
    least: f64,
    most: f64,
    /// There are whole numbers only.
    is_whole: bool,
}

impl Range {
    /// `None`: what a program reports may be anything.
    fn of(quantity: &Quantity) -> Option<Self> {
        let unit = quantity.unit();
        (unit != Unit::Plain).then_some(Self {
            // The busiest worker has no less than the mean.
            least: if *quantity == Quantity::Spread { 1.0 } else { 0.0 },
            most: if unit == Unit::Share { 1.0 } else { f64::INFINITY },
            is_whole: unit == Unit::Count,
        })
    }

    fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value) && (!self.is_whole || value.fract() == 0.0)
    }

    /// Whether nothing that can be measured is so related to this number.
    fn excludes(&self, relation: Relation, limit: f64) -> bool {
        match relation {
            Relation::Less => limit <= self.least,
            Relation::AtMost => limit < self.least,
            Relation::Greater => limit >= self.most,
            Relation::AtLeast => limit > self.most,
            Relation::Equal => !self.holds(limit),
            Relation::NotEqual => false,
        }
    }

    /// Whether everything that can be measured is so related to it.
    fn implies(&self, relation: Relation, limit: f64) -> bool {
        match relation {
            Relation::Less => limit > self.most,
            Relation::AtMost => limit >= self.most,
            Relation::Greater => limit < self.least,
            Relation::AtLeast => limit <= self.least,
            Relation::Equal => false,
            Relation::NotEqual => !self.holds(limit),
        }
    }

    /// The bound, or the sort of number, that decides about this one.
    fn says(&self, relation: Relation, limit: f64) -> String {
        let is_upper = match relation {
            Relation::Less | Relation::AtMost | Relation::Greater | Relation::AtLeast => limit >= self.most,
            Relation::Equal | Relation::NotEqual => limit > self.most,
        };
        let is_lower = match relation {
            Relation::Less | Relation::AtMost | Relation::Greater | Relation::AtLeast => limit <= self.least,
            Relation::Equal | Relation::NotEqual => limit < self.least,
        };
        if is_upper {
            "a share is 100% at most".to_owned()
        } else if is_lower {
            format!("what is measured is {} at least", self.least)
        } else {
            "a count is a whole number".to_owned()
        }
    }
}

/// Whether a quantity can be so related to this number at all, and need not be.
fn in_range(condition: &Condition, limit: f64) -> Result<(), String> {
    let (relation, unit) = (condition.relation, condition.quantity.unit());
    let Some(range) = Range::of(&condition.quantity) else {
        return Ok(());
    };
    let outcome = if range.excludes(relation, limit) {
        "can never hold"
    } else if range.implies(relation, limit) {
        "can never fail"
    } else {
        return Ok(());
    };
    let said = match condition.value {
        Value::Number(_) if unit == Unit::Share => format!("{}%", limit * 100.0),
        Value::Number(_) => limit.to_string(),
        Value::Baseline(_) => format!("{limit}x"),
    };
    Err(format!(
        "{}, so that {} {said} {outcome}",
        range.says(relation, limit),
        relation.sign()
    ))
}

impl Plan<'_> {
    fn first_disturbance(&self) -> Option<f64> {
        let mut steps = self.steps.iter();
        steps.find(|step| step.disturbs()).map(|step| step.at.0)
    }

    /// Whether it cannot be measured without a first disturbance.
    fn needs_disturbance(condition: &Condition) -> bool {
        let named = matches!(condition.after, Some(Point::After(..)));
        let quantity = &condition.quantity;
        let of_victims = matches!(
            quantity,
            Quantity::TimeToDetect | Quantity::Victims | Quantity::Reaching(Whom::Victims(None))
        );
        let from_disturbance = if of_victims {
            !named
        } else {
            *quantity == Quantity::TimeToRecover || condition.within.is_some() && condition.after.is_none()
        };
        from_disturbance || matches!(condition.value, Value::Baseline(_))
    }

    /// When a point is due; marks are known here.
    fn due(&self, point: &Point) -> f64 {
        match point {
            Point::At(at) => *at,
            Point::End => self.duration.0,
            Point::After(mark, more) => {
                let step = self.steps.iter().find(|step| step.mark == *mark);
                step.map_or(0.0, |step| step.at.0) + more
            }
        }
    }

    fn fits(&self, condition: &Condition) -> Result<(), String> {
        let end = self.duration.0;
        let from = match (&condition.after, condition.within) {
            (Some(point), _) => self.due(point),
            (None, Some(_)) => self.first_disturbance().unwrap_or(0.0),
            (None, None) => self.warmup.0,
        };
        let until = condition.until.as_ref().map_or(end, |point| self.due(point));
        // Sums of decimal fractions differ in the last digit.
        let after = |late: f64, early: f64| late > early + 1e-9;
        if after(until, end) {
            return Err(format!("it looks until {until} s, and the drill ends at {end} s"));
        }
        if !after(until, from) {
            return Err(format!(
                "its window is empty: it begins at {from} s and ends at {until} s of a drill of {end} s"
            ));
        }
        let Some(within) = condition.within else {
            return Ok(());
        };
        if after(from + within.0, until) {
            return Err(format!(
                "within {within} does not fit in the drill: it counts from {from} s and ends at {until} s"
            ));
        }
        let over = condition.over;
        if after(from + over.0, until) {
            return Err(format!(
                "stretches of {over} do not fit between {from} s and {until} s: make the drill longer, or say over"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Names, words};
    use super::*;

    fn ranged(text: &str) -> Result<(), String> {
        let condition = words::read(text, Names::default()).unwrap_or_else(|why| panic!("{text}: {why}"));
        match condition.value {
            Value::Number(limit) | Value::Baseline(limit) => in_range(&condition, limit),
        }
    }

    #[test]
    fn a_check_that_can_never_hold_or_never_fail_is_refused_with_the_range_of_its_quantity() {
        let (share, zero) = ("a share is 100% at most", "what is measured is 0 at least");
        for (text, reason, outcome) in [
            ("requests >= 0", zero, "can never fail"),
            ("requests > -1", zero, "can never fail"),
            ("migrations >= 0", zero, "can never fail"),
            ("victims >= 0", zero, "can never fail"),
            ("requests reaching w1 >= 0", zero, "can never fail"),
            ("leaked blocks != -3", zero, "can never fail"),
            ("completed != 1.5", "a count is a whole number", "can never fail"),
            ("throughput >= 0", "what is measured is 0 at least", "can never fail"),
            ("p99 ttft >= 0s", zero, "can never fail"),
            ("time_to_recover >= 0ms", zero, "can never fail"),
            ("error_rate >= 0%", zero, "can never fail"),
            ("error_rate <= 100%", share, "can never fail"),
            ("error_rate < 101%", share, "can never fail"),
            ("hit_rate != 2", share, "can never fail"),
            ("error_rate >= 0x", zero, "can never fail"),
            ("spread >= 1", "what is measured is 1 at least", "can never fail"),
            ("failed < 0", zero, "can never hold"),
            ("failed == -1", zero, "can never hold"),
            ("failed == 0.5", "a count is a whole number", "can never hold"),
            ("index_drift > 100%", share, "can never hold"),
            ("overcredit >= 120%", share, "can never hold"),
            ("spread < 1", "what is measured is 1 at least", "can never hold"),
            ("hit_rate < 0x", zero, "can never hold"),
        ] {
            let why = ranged(text).expect_err(text);
            assert!(why.contains(reason) && why.contains(outcome), "{text}: {why}");
        }
    }

    #[test]
    fn a_check_that_may_go_either_way_is_taken() {
        for text in [
            "requests >= 1",
            "requests > 0",
            "failed <= 0",
            "failed < 0.5",
            "failed != 0",
            "error_rate == 0",
            "error_rate < 100%",
            "error_rate >= 100%",
            "error_rate > 0%",
            "throughput > 0",
            "spread <= 1",
            "spread > 1",
            "p99 ttft > 0s",
            "hit_rate > 0.8x",
            "hit_rate > 0x",
        ] {
            assert_eq!(ranged(text), Ok(()), "{text}");
        }
    }
}
