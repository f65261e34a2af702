//! Whom a drill asks what is believed of the workers' caches, to hold it against what they really have.

mod choices;
mod indexer;
mod served;

use std::time::Duration;

use self::choices::ByChoices;
use self::indexer::Standalone;
pub use self::served::Served;
use super::error::DrillError;
use super::process::Surroundings;
use super::scenario::index::Way;
use super::truth::Truth;
use crate::actors::control::Control;
use crate::config::Config;

/// Whoever asks for a comparison waits for the next one: each is over within so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// The witness that a scenario names. `router`: address of the frontend, if there is one.
pub(super) async fn witness(
    way: &Way,
    router: Option<&str>,
    (config, seed, control): (&Config, u64, &Control),
    surroundings: Surroundings<'_>,
) -> Result<Option<Box<dyn Truth>>, DrillError> {
    Ok(match way {
        Way::Served => Some(Box::new(Served)),
        Way::Indexer(server) => Some(Box::new(Standalone::start(server, control, surroundings).await?)),
        Way::Choices => {
            let choices = router.map(|router| ByChoices::new(router, config, seed)).transpose();
            choices
                .map_err(DrillError::Input)?
                .map(|choices| Box::new(choices) as Box<dyn Truth>)
        }
    })
}
