//! Whom a drill asks what is believed of the workers' caches, to hold it against what they really have.

mod choices;
mod indexer;
mod served;

use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use self::choices::ByChoices;
use self::indexer::Standalone;
pub use self::served::Served;
use super::error::DrillError;
use super::process::Surroundings;
use super::scenario::index::Index;
use super::truth::{Comparing, Truth};
use crate::actors::control::Control;
use crate::config::Config;

/// Whoever asks for a comparison waits for the next one: each is over within so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// A frontend that serves its index has said so in discovery by then.
const FIND_WITHIN: Duration = Duration::from_secs(2);

/// How often it is looked for.
const FIND_PAUSE: Duration = Duration::from_millis(100);

/// The witness that a scenario names. `router`: address of the frontend, if there is one.
pub(super) async fn witness(
    index: &Index,
    router: Option<&str>,
    (config, seed, control): (&Config, u64, &Control),
    surroundings: Surroundings<'_>,
) -> Result<Option<Box<dyn Truth>>, DrillError> {
    let by_choices = || router.map(|router| ByChoices::new(router, config, seed)).transpose();
    Ok(match index {
        Index::Served => Some(Box::new(Served)),
        Index::Indexer(indexer) => Some(Box::new(Standalone::start(indexer, control, surroundings).await?)),
        Index::Choices => by_choices()
            .map_err(DrillError::Input)?
            .map(|choices| Box::new(choices) as Box<dyn Truth>),
        // Without a frontend, or where blocks have several sizes, there is nobody to ask.
        Index::Any => by_choices().ok().flatten().map(|choices| {
            Box::new(Any {
                choices,
                is_served: OnceCell::new(),
            }) as Box<dyn Truth>
        }),
    })
}

/// The frontend's own index where it serves it, else its choices. Decided once: what the two say is not the same.
struct Any {
    choices: ByChoices,
    is_served: OnceCell<bool>,
}

impl Any {
    async fn is_served(control: &Control) -> bool {
        let begun = Instant::now();
        while served::find(control).await.is_err() {
            if begun.elapsed() >= FIND_WITHIN {
                return false;
            }
            sleep(FIND_PAUSE).await;
        }
        true
    }
}

impl Truth for Any {
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a> {
        Box::pin(async move {
            if *self.is_served.get_or_init(|| Self::is_served(control)).await {
                Served.compare(control).await
            } else {
                self.choices.compare(control).await
            }
        })
    }

    fn own_requests(&self) -> Vec<String> {
        self.choices.own_requests()
    }
}
