//! Looking into an actor: what it says of itself, if it says anything.

use std::time::Duration;

use actix::dev::ToEnvelope;
use actix::prelude::*;
use serde_json::{Value, json};

use super::fleet::{CommandError, Fleet};
use super::path::ActorPath;

/// Time for an answer; an actor that takes longer is busy or hangs, and that is the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks an actor for what only it knows.
#[derive(Message)]
#[rtype(result = "Value")]
pub(super) struct Look;

/// Asks the fleet to look into one of a worker's children.
#[derive(Message)]
#[rtype(result = "Result<Value, CommandError>")]
pub struct Inspect(pub ActorPath);

/// Asks a worker to look into one of its children.
#[derive(Message)]
#[rtype(result = "Value")]
pub(super) struct LookInto(pub(super) super::liveness::Child);

/// What `actor` says.
pub(super) fn look<A>(actor: Option<&Addr<A>>) -> ResponseFuture<Value>
where
    A: Actor + Handler<Look>,
    A::Context: ToEnvelope<A, Look>,
{
    let Some(actor) = actor.cloned() else {
        return Box::pin(std::future::ready(json!({"alive": false})));
    };
    Box::pin(async move {
        match tokio::time::timeout(PATIENCE, actor.send(Look)).await {
            Ok(Ok(said)) => json!({"alive": true, "said": said}),
            Ok(Err(_)) => json!({"alive": false}),
            Err(_) => json!({"alive": true, "silent_for_ms": PATIENCE.as_secs_f64() * 1e3}),
        }
    })
}

impl Handler<Inspect> for Fleet {
    type Result = ResponseFuture<Result<Value, CommandError>>;

    fn handle(&mut self, Inspect(path): Inspect, _: &mut Self::Context) -> Self::Result {
        let Some(child) = path.child else {
            return Box::pin(std::future::ready(Err(CommandError::NoSuchActor(path))));
        };
        let worker = match self.alive(path) {
            Ok(worker) => worker.clone(),
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        Box::pin(async move {
            match tokio::time::timeout(2 * PATIENCE, worker.send(LookInto(child))).await {
                Ok(Ok(said)) => Ok(said),
                Ok(Err(_)) => Err(CommandError::NotAlive(path)),
                Err(_) => Ok(json!({"alive": true, "worker_silent_for_ms": PATIENCE.as_secs_f64() * 2e3})),
            }
        })
    }
}
