//! Comparisons of the router's index with what workers really have cached.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;

use serde_json::json;

use super::record::Drift;
use crate::actors::control::Control;
use crate::truth::{Caches, credit};
use crate::witness::WitnessError;
use crate::witness::served::ServedIndex;

/// A comparison in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    /// Blocks that are cached and that the index does not have.
    pub missing: u64,
    /// Blocks that the index has and that are not cached.
    pub phantom: u64,
    /// Blocks that are cached.
    pub cached: u64,
}

impl Compared {
    pub(super) fn at(self, at: f64) -> Drift {
        Drift {
            at,
            missing: self.missing,
            phantom: self.phantom,
            cached: self.cached,
        }
    }
}

/// What a comparison comes to.
pub type Comparing<'a> = Pin<Box<dyn Future<Output = Result<Compared, String>> + 'a>>;

/// A source of the router's index, and the truth to hold against it.
pub trait Truth {
    /// Compares now.
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a>;
}

/// Prompts that an index is asked for at a time.
const QUESTIONS: usize = 32;

/// The index of a router that serves it to others. Phantom blocks are found where workers had them at the last comparison.
pub(super) struct Served {
    model: String,
    earlier: RefCell<Caches>,
}

impl Served {
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            earlier: RefCell::default(),
        }
    }
}

impl Truth for Served {
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a> {
        Box::pin(async move {
            let records = control.records("v1/instances/").await?;
            let index = ServedIndex::find(&json!(records), self.model.clone()).map_err(|error| error.to_string())?;
            let before = control.caches().await;
            let earlier = self.earlier.take();
            let (questions, _) = credit::questions(&[&before, &earlier], QUESTIONS);
            let asking = tokio::task::spawn_blocking(move || {
                let asked = questions.into_iter().map(|question| {
                    let credit = index.ask(&question)?;
                    Ok((question, credit))
                });
                asked.collect::<Result<Vec<_>, WitnessError>>()
            });
            let asked = asking
                .await
                .map_err(|error| error.to_string())?
                .map_err(|error| error.to_string())?;
            let after = control.caches().await;
            let drift = credit::compare(&before, &asked, &after);
            self.earlier.replace(before);
            Ok(Compared {
                missing: drift.missing,
                phantom: drift.phantom,
                cached: drift.true_blocks,
            })
        })
    }
}
