//! The router in front of the fleet, and whether it is ready.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{self, Answer, Ask};
use super::connections::Connections;
use super::error::DrillError;
use super::process::{NotReady, Process, Surroundings, wait_ready};
use super::scenario::server::Command;

/// What it is called in messages.
pub(super) const WHAT: &str = "frontend";

/// Longest wait for one small page.
const PAGE_LIMIT: Duration = Duration::from_secs(5);

/// What a router has to serve.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    /// Model.
    pub(super) model: String,
    /// Workers.
    pub(super) workers: usize,
    /// Last parts of their endpoints' names.
    pub(super) endpoints: BTreeSet<String>,
    /// An ordinary prompt.
    pub(super) prompt: Vec<u32>,
}

/// Starts a router and waits until it serves what is expected.
pub(super) async fn start(
    surroundings: Surroundings<'_>,
    command: &Command,
    expected: &Expected,
) -> Result<Process, DrillError> {
    Process::start(surroundings, command, async |authority| look(authority, expected).await).await
}

/// Waits until the router at `authority` lists the model with all workers and answers a request.
pub(super) async fn wait(
    authority: &str,
    expected: &Expected,
    limit: Duration,
    tell: &dyn Fn(&str),
) -> Result<(), NotReady> {
    wait_ready((WHAT, tell), limit, async || look(authority, expected).await, || None).await
}

async fn look(authority: &str, expected: &Expected) -> Result<(), String> {
    let page = async |path| client::get(authority, path, PAGE_LIMIT).await;
    let models = page("/v1/models").await.ok_or("it does not answer")?;
    let models: Value = serde_json::from_slice(&models.1).unwrap_or_default();
    let listed = models["data"]
        .as_array()
        .is_some_and(|all| all.iter().any(|model| model["id"] == *expected.model));
    if !listed {
        return Err(format!("it does not list the model {}", expected.model));
    }
    // Only Dynamo's frontends tell their instances.
    if let Some((_, health)) = page("/health").await
        && let Ok(health) = serde_json::from_slice::<Value>(&health)
        && let Some(instances) = health["instances"].as_array()
    {
        let ours = |instance: &&Value| {
            instance["endpoint"]
                .as_str()
                .is_some_and(|name| expected.endpoints.contains(name))
        };
        let known: BTreeSet<u64> = instances
            .iter()
            .filter(ours)
            .filter_map(|instance| instance["instance_id"].as_u64())
            .collect();
        if known.len() < expected.workers {
            return Err(format!("it knows {} of {} workers", known.len(), expected.workers));
        }
    }
    let body = json!({
        "model": expected.model, "prompt": expected.prompt, "max_tokens": 1, "stream": false,
    });
    let mut answer = Answer::default();
    let ask = Ask {
        authority: authority.to_owned(),
        body: body.to_string().into(),
        stream: false,
        tokens: None,
        first_token_timeout: PAGE_LIMIT,
        timeout: PAGE_LIMIT,
    };
    client::ask(ask, &Connections::default(), &mut answer).await;
    match answer.failure {
        None => Ok(()),
        Some(failure) => Err(format!("a request fails with {}: {}", failure.kind, failure.detail)),
    }
}
