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
    /// Carries it out on the actor whose context this is. Not by `terminate`: an actor that has cancelled one of several
    /// timers in the same turn would then spin for ever (actix 0.13).
    ///
    /// # Panics
    /// With [`Death::Panic`]: that is what it is for.
    pub(super) fn happen<A: Actor<Context = Context<A>>>(self, ctx: &mut Context<A>) {
        match self {
            Self::Crash => ctx.stop(),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actix::prelude::*;
    use tokio::sync::oneshot;

    use super::{Death, Die};

    /// Waits for several things at once.
    struct Busy {
        timers: Vec<SpawnHandle>,
        ended: Option<oneshot::Sender<()>>,
    }

    impl Actor for Busy {
        type Context = Context<Self>;

        fn started(&mut self, ctx: &mut Self::Context) {
            self.timers = (0..4)
                .map(|_| ctx.run_later(Duration::from_secs(3600), |_, _| ()))
                .collect();
        }

        fn stopped(&mut self, _: &mut Self::Context) {
            self.ended.take().map(|ended| ended.send(()));
        }
    }

    #[derive(Message)]
    #[rtype(result = "()")]
    struct WaitForLess;

    impl Handler<WaitForLess> for Busy {
        type Result = ();

        fn handle(&mut self, _: WaitForLess, ctx: &mut Self::Context) {
            self.timers.pop().map(|timer| ctx.cancel_future(timer));
        }
    }

    impl Handler<Die> for Busy {
        type Result = ();

        fn handle(&mut self, Die(death): Die, ctx: &mut Self::Context) {
            death.happen(ctx);
        }
    }

    #[test]
    fn an_actor_that_has_just_cancelled_a_timer_dies_as_well() {
        System::new().block_on(async {
            let (sender, ended) = oneshot::channel();
            let actor = Busy {
                timers: Vec::new(),
                ended: Some(sender),
            }
            .start();
            actor.do_send(WaitForLess);
            actor.do_send(Die(Death::Crash));
            ended.await.unwrap();
            assert!(!actor.connected());
        });
    }
}
