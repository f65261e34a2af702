//! The index of a frontend that serves it (`--serve-indexer`), held against what workers really have.

use std::cell::RefCell;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::truth::{Compared, Comparing, GRACE, Truth};
use crate::actors::control::{Control, Seen};
use crate::truth::Caches;
use crate::truth::credit::{self, Credit, Question};
use crate::witness::served::ServedIndex;

/// Prompts that are asked for in one comparison.
const QUESTIONS: usize = 64;

/// Longest wait for all answers: the drill waits too.
const PATIENCE: Duration = Duration::from_secs(1);

/// Finds the index in discovery each time it is asked, as frontends come and go. Where none serves its index there is
/// nothing to compare. What workers had at the last comparison is asked for too: that is where phantoms are.
#[derive(Debug, Default)]
pub struct Served {
    earlier: RefCell<Caches>,
}

impl Truth for Served {
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a> {
        Box::pin(async move {
            let index = find(control).await?;
            let before = control.caches().await;
            tokio::time::sleep(GRACE).await;
            let (questions, _) = credit::questions(&[&before, &self.earlier.take()], QUESTIONS);
            let asked = timeout(PATIENCE, spawn_blocking(move || ask_all(&index, questions))).await;
            let asked = asked.map_err(|_| "the index does not answer in time".to_owned())?;
            let asked = asked.map_err(|error| error.to_string())??;
            let drift = credit::compare(&before, &asked, &control.caches().await);
            self.earlier.replace(before);
            Ok(Compared {
                missing: drift.missing,
                phantom: drift.phantom,
                cached: drift.true_blocks,
            })
        })
    }
}

async fn find(control: &Control) -> Result<ServedIndex, String> {
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
