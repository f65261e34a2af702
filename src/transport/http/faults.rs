//! Requests and connections that go wrong on purpose.
//!
//! The kinds are those of the request plane. HTTP acknowledges nothing by itself and nobody is dialled, so `ack_withheld`
//! and `no_call_home` let requests pass; it has no prologue and no final item, so of the response kinds those that act on
//! bytes count. These are asked for each connection, as on the request plane, where each answer has its own. A connection
//! that was there before its fault gives one more answer and is closed.

use std::io;
use std::sync::atomic::Ordering;

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::FaceState;
use crate::faults::draw::Dice;
use crate::faults::kind::{RequestFault, ResponseFault};
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
        let in_force = faults.in_force::<ResponseFault>().into_iter();
        Toxics::of(&in_force.map(|(_, fault)| fault).collect::<Vec<_>>()).is_some()
    }
}

/// A new connection, by a detour if there is a fault.
pub(super) async fn detour(state: &FaceState, stream: TcpStream) -> io::Result<(TcpStream, Detour)> {
    let faults = state.faults.as_ref().map(|faults| faults.ask::<ResponseFault>());
    let Some(toxics) = faults.and_then(|faults| Toxics::of(&faults)) else {
        return Ok((stream, Detour(false)));
    };
    let dice = Dice::new(state.draws.fetch_add(1, Ordering::Relaxed), 0);
    Ok((toxics.detour(stream, dice).await?, Detour(true)))
}

/// A request that wants tokens has come. Returns when it may be looked at, which may be never.
pub(super) async fn arrive(state: &FaceState, reset: &CancellationToken) {
    let Some(faults) = &state.faults else { return };
    for fault in faults.ask::<RequestFault>() {
        match fault {
            RequestFault::Latency { ms, jitter_ms } => {
                let draw = state.draws.fetch_add(1, Ordering::Relaxed);
                let ms = ms + jitter_ms * Dice::new(draw, 1).unit(0);
                tokio::time::sleep(span_of_ms(ms)).await;
            }
            RequestFault::ResetPeer {} => {
                reset.cancel();
                std::future::pending::<()>().await;
            }
            RequestFault::BlackHole {} => {
                // Until the client goes, or the worker.
                state.leaving.cancelled().await;
                reset.cancel();
                std::future::pending::<()>().await;
            }
            RequestFault::AckWithheld {} | RequestFault::NoCallHome {} => {}
        }
    }
}
