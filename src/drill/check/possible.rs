//! Refuses checks that no router could meet, and that no drill of this length could decide.

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
        if let Value::Number(limit) = condition.value {
            in_range(condition, limit)?;
        }
        if Plan::needs_disturbance(condition) && plan.first_disturbance().is_none() {
            return Err("nothing disturbs the fleet in this drill, which it counts from".to_owned());
        }
        plan.fits(condition)
    }
}

/// Whether a quantity can be so related to this number at all.
fn in_range(condition: &Condition, limit: f64) -> Result<(), String> {
    let relation = condition.relation;
    if condition.quantity.unit() == Unit::Plain {
        // What a program reports may be anything.
        return Ok(());
    }
    if limit < 0.0 || limit == 0.0 && relation == Relation::Less {
        return Err(format!(
            "what is measured is 0 at least, and is compared with {} {limit}",
            relation.sign()
        ));
    }
    match condition.quantity.unit() {
        Unit::Share if limit > 1.0 || limit >= 1.0 && relation == Relation::Greater => Err(format!(
            "a share is 100% at most, and is compared with {} {}%",
            relation.sign(),
            limit * 100.0
        )),
        Unit::Count if relation == Relation::Equal && limit.fract() != 0.0 => {
            Err(format!("a count is a whole number, and never {limit}"))
        }
        Unit::Share | Unit::Count | Unit::Time | Unit::Number | Unit::Plain => Ok(()),
    }
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
