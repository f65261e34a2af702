//! Death by request: every actor can be killed, for drills and tests.

use actix::prelude::*;

use super::kv_publisher::KvPublisher;
use super::metrics_reporter::MetricsReporter;
use super::native_stream::NativeStream;
use super::rank::Rank;
use super::registrar::Registrar;

/// How an actor is to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// At once and without a word. A worker stays dead until it is restarted; a child is replaced by its worker.
    Crash,
    /// By a panic in its own thread. Its supervisor replaces it.
    Panic,
}

impl Death {
    /// Carries it out on the actor whose context this is.
    ///
    /// # Panics
    /// With [`Death::Panic`]: that is what it is for.
    pub(super) fn happen<A: Actor<Context = Context<A>>>(self, ctx: &mut Context<A>) {
        match self {
            Self::Crash => ctx.terminate(),
            Self::Panic => panic!("killed by request"),
        }
    }
}

/// The order to die.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(super) struct Die(pub(super) Death);

macro_rules! mortal {
    ($($actor:ty),*) => {$(
        impl Handler<Die> for $actor {
            type Result = ();

            fn handle(&mut self, Die(death): Die, ctx: &mut Self::Context) {
                death.happen(ctx);
            }
        }
    )*};
}

mortal!(Rank, KvPublisher, NativeStream, MetricsReporter, Registrar);
