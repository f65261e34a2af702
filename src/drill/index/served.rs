//! The index of a frontend that serves it (`--serve-indexer`), held against what workers really have.

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::PATIENCE;
use crate::actors::control::{Control, Seen};
use crate::drill::truth::{Compared, Comparing, GRACE, Truth};
use crate::truth::credit::{self, Credit, Question};
use crate::witness::served::ServedIndex;

/// Prompts of those that ranks have, and of those that they had, that are asked for in one comparison.
const QUESTIONS: usize = 64;

/// Finds the index in discovery each time it is asked, as frontends come and go. Where none serves its index there is
/// nothing to compare. What workers had is asked for too: that is where phantoms are.
#[derive(Debug, Default)]
pub struct Served;

impl Truth for Served {
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a> {
        Box::pin(async move {
            let index = find(control).await?;
            let earlier = control.past();
            let before = control.caches().await;
            tokio::time::sleep(GRACE).await;
            let (questions, _) = credit::questions(&before, &control.past(), QUESTIONS);
            let asked = timeout(PATIENCE, spawn_blocking(move || ask_all(&index, questions))).await;
            let asked = asked.map_err(|_| "the index does not answer in time".to_owned())?;
            let asked = asked.map_err(|error| error.to_string())??;
            let after = control.caches().await;
            let passing = control.past().since(&earlier);
            let drift = credit::compare(&before, &asked, (&after, &passing));
            Ok(Compared {
                missing: drift.missing,
                phantom: drift.phantom,
                cached: drift.true_blocks,
            })
        })
    }
}

pub(super) async fn find(control: &Control) -> Result<ServedIndex, String> {
    let cards = control.records("v1/mdc/").await?;
    let name = cards
        .first()
        .and_then(|card| card.value["card_json"]["display_name"].as_str());
    let model = name.ok_or("no model is in discovery")?.to_owned();
    let instances = control.records("v1/instances/").await?;
    let instances: Vec<Value> = instances
        .into_iter()
        .map(|Seen { key, value }| json!({"key": key, "value": value}))
        .collect();
    ServedIndex::find(&json!(instances), model).map_err(|error| error.to_string())
}

fn ask_all(index: &ServedIndex, questions: Vec<Question>) -> Result<Vec<(Question, Credit)>, String> {
    let ask = |question: Question| {
        let credit = index.ask(&question).map_err(|error| error.to_string())?;
        Ok((question, credit))
    };
    questions.into_iter().map(ask).collect()
}
