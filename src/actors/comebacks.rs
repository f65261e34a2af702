//! What routers may have missed while NATS or a broker was away is told again once it is back.
//!
//! Whatever waited goes out the moment the connection is made again, and routers come back in their own time: a Dynamo
//! frontend about a second later. Who was not there yet would believe for ever what an idle worker said last before.

use std::time::Duration;

use actix::fut::wrap_future;
use actix::prelude::*;
use tokio::sync::watch;

/// When after the return. Routers try again after pauses that grow to a few seconds.
const AFTER: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(15)];

/// Says again what stands.
pub(super) trait TellAgain: Actor<Context = Context<Self>> {
    /// Tells what routers have to know of the present, without a change of it.
    fn tell_again(&mut self, ctx: &mut Context<Self>);
}

/// Has an actor tell things again after each return of what carries its messages.
pub(super) fn follow<A: TellAgain>(comebacks: Option<watch::Receiver<u64>>, ctx: &mut Context<A>) {
    let Some(mut comebacks) = comebacks else { return };
    let next = async move { comebacks.changed().await.is_ok().then_some(comebacks) };
    let told = wrap_future::<_, A>(next).map(|comebacks, _, ctx: &mut Context<A>| {
        // Nothing comes back once its connection has ended.
        if comebacks.is_some() {
            for after in AFTER {
                ctx.run_later(after, A::tell_again);
            }
            follow(comebacks, ctx);
        }
    });
    ctx.spawn(told);
}
