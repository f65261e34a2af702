//! Requests and connections that go wrong on purpose.
//!
//! The kinds are those of the request plane. HTTP acknowledges nothing by itself and nobody is dialled, so `ack_withheld`
//! and `no_call_home` let requests pass; it has no prologue and no final item, so of the response kinds there are those
//! that act on bytes, and `malformed_frame`. The others are not asked for. Those that act on bytes are asked for each
//! connection, as on the request plane, where each answer has its own. A connection that was there before its fault gives
//! one more answer and is closed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::FaceState;
use super::open::Caller;
use crate::faults::WorkerFaults;
use crate::faults::draw::Dice;
use crate::faults::kind::{RequestFault, ResponseFault};
use crate::faults::table::Due;
use crate::transport::held::{HeldRequest, Hold};
use crate::transport::toxic::Toxics;
use crate::types::span_of_ms;

/// Whether a connection goes by a detour that spoils its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Detour(bool);

impl Detour {
    /// Whether the connection has none although new ones would have one.
    #[inline]
    pub(super) fn is_due(self, state: &FaceState) -> bool {
        let Some(faults) = state.faults.as_ref().filter(|_| !self.0) else {
            return false;
        };
        let in_force = faults.in_force::<ResponseFault>();
        in_force.iter().any(|fault| fault.acts_on_bytes())
    }
}

/// A new connection, by a detour if there is a fault.
pub(super) async fn detour(state: &FaceState, stream: TcpStream) -> io::Result<(TcpStream, Detour)> {
    let of_bytes = |faults: &Arc<WorkerFaults>| faults.draw_of(ResponseFault::acts_on_bytes);
    let Some(toxics) = state.faults.as_ref().map(of_bytes).and_then(Toxics::of) else {
        return Ok((stream, Detour(false)));
    };
    let dice = Dice::new(state.draws.fetch_add(1, Ordering::Relaxed), 0);
    Ok((toxics.detour(stream, dice).await?, Detour(true)))
}

/// A request that wants tokens has come. Returns when it may be looked at, which may be never.
pub(super) async fn arrive(state: &FaceState, caller: &Caller, reset: &CancellationToken) {
    let Some(faults) = &state.faults else { return };
    let due = faults.draw_of(RequestFault::is_of_http);
    let happens = |is_it: fn(&RequestFault) -> bool| {
        let fault = due.iter().find(|fault| is_it(fault));
        fault.inspect(|fault| fault.happened()).map(Due::id)
    };
    let hold = |hold, fault| {
        let mut request = HeldRequest::new(&caller.answer, caller.whereabouts(), hold, fault);
        request.alias = Some(caller.id.clone());
        state.open.held().hold(request)
    };
    if happens(|fault| matches!(fault, RequestFault::ResetPeer {})).is_some() {
        reset.cancel();
        std::future::pending::<()>().await;
    }
    if let Some(fault) = happens(|fault| matches!(fault, RequestFault::BlackHole {})) {
        // Until the client goes, or the worker.
        let _seat = hold(Hold::Swallowed, fault);
        state.leaving.cancelled().await;
        reset.cancel();
        std::future::pending::<()>().await;
    }
    for fault in &due {
        if let RequestFault::Latency { ms, jitter_ms } = **fault {
            fault.happened();
            let draw = state.draws.fetch_add(1, Ordering::Relaxed);
            let ms = ms + jitter_ms * Dice::new(draw, 1).unit(0);
            let until = Instant::now() + span_of_ms(ms);
            let _seat = hold(Hold::Delayed { until }, fault.id());
            tokio::time::sleep_until(until).await;
        }
    }
}

/// Garbage in one answer.
pub(super) struct Garbage {
    after_tokens: usize,
    fault: Due<ResponseFault>,
}

/// What stands where JSON should.
const GARBAGE: &str = "not a frame";

impl Garbage {
    /// That of the next answer, if there is any.
    pub(super) fn of(state: &FaceState) -> Option<Self> {
        let faults = state.faults.as_ref()?;
        let malformed = |fault: &ResponseFault| matches!(fault, ResponseFault::MalformedFrame { .. });
        let fault = faults.draw_of(malformed).pop()?;
        let ResponseFault::MalformedFrame { after_tokens } = *fault else {
            return None;
        };
        Some(Self {
            after_tokens: usize::try_from(after_tokens).unwrap_or(usize::MAX),
            fault,
        })
    }

    /// The event of the token that comes after `tokens` others is due: what goes out before it, to `out`.
    pub(super) fn before_token(&self, tokens: usize, out: &mut Vec<u8>) {
        if tokens == self.after_tokens {
            self.fault.happened();
            out.extend_from_slice(format!("data: {GARBAGE}\n\n").as_bytes());
        }
    }

    /// The body of a whole answer of so many tokens, an object in JSON, as it is told.
    pub(super) fn in_body(&self, tokens: usize, body: String) -> String {
        if tokens <= self.after_tokens {
            return body;
        }
        self.fault.happened();
        format!("{GARBAGE}{body}")
    }
}
