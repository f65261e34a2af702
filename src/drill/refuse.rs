//! Drills that cannot be run with the fleet and the frontend that they have: refused before anything happens.

use super::check::{Check, Quantity, Whom};
use super::error::DrillError;
use super::scenario::Scenario;
use super::scenario::index::Way;
use super::scenario::step::Action;
use crate::actors::control::Control;
use crate::faults::{FaultError, Selector};

/// Checks of which none applies: without a frontend there is nobody to judge.
pub(super) fn what_says_nothing(scenario: &Scenario, direct: bool) -> Result<(), DrillError> {
    let has_indexer = matches!(scenario.index.way, Way::Indexer(_));
    let says_nothing = |check: &Check| {
        let quantity = &check.condition.quantity;
        check.needs_frontend || quantity.is_of_a_router() && !(has_indexer && *quantity == Quantity::IndexDrift)
    };
    if direct && scenario.checks.iter().all(says_nothing) {
        return Err(DrillError::Input(format!(
            "{}: every check needs a frontend; name one with --frontend or --frontend-command",
            scenario.path.display()
        )));
    }
    Ok(())
}

/// A step or a check about workers, or parts of workers, that this fleet does not have.
pub(super) fn what_is_not_there(scenario: &Scenario, control: &Control) -> Result<(), DrillError> {
    let fleet = control.registry().candidates();
    let refuse = |what: &str, why: &FaultError| {
        let path = scenario.path.display();
        Err(DrillError::Input(format!("{path}: {what:?}: {why}")))
    };
    let named = |select: &Selector| {
        select
            .unmatched(&fleet)
            .map_or(Ok(()), |part| Err(FaultError::Nobody(part)))
    };
    for (line, action) in scenario.steps.iter().flat_map(|step| &step.actions) {
        let possible = match action {
            Action::Fault(fault) => control.check_fault(fault),
            Action::Order(_, select) => named(select),
            Action::ClearFaults | Action::Load { .. } => Ok(()),
        };
        possible.or_else(|why| refuse(line, &why))?;
    }
    for check in &scenario.checks {
        if let Quantity::Reaching(Whom::Named(select)) = &check.condition.quantity {
            named(select).or_else(|why| refuse(&check.expect, &why))?;
        }
    }
    Ok(())
}
