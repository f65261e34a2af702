//! Sockets of one rank's native event stream.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::liveness::Child;
use super::path::ActorPath;
use super::plan::{NativePlan, Shared};
use super::worker::StartError;
use crate::transport::event_plane::native::replay::{Replay, ReplayRing};
use crate::transport::event_plane::zmq::{Limits, ZmqPublisher, ZmqRouter};
use crate::types::WorkerId;

/// Native event stream of one rank.
pub(super) struct NativeSockets {
    pub(super) events: Arc<ZmqPublisher>,
    /// Replay socket and what it serves.
    pub(super) replay: Option<(ZmqRouter, Arc<ReplayRing>)>,
    /// Number of the next batch.
    pub(super) next_sequence: Arc<AtomicU64>,
}

impl NativeSockets {
    pub(super) fn open(worker: WorkerId, plan: &NativePlan, rank: u32, shared: &Shared) -> Result<Self, StartError> {
        let failed = |address: SocketAddr| {
            let path = ActorPath {
                worker,
                child: Some(Child::Native(rank)),
            };
            move |source| StartError::NativeSocket { path, address, source }
        };
        let (limits, pool) = (Limits::default(), &shared.pool);
        let address = NativePlan::port_of(plan.events, rank);
        let events = if plan.connect {
            ZmqPublisher::connect(address, limits, pool)
        } else {
            ZmqPublisher::bind_with(address, limits, pool).map_err(failed(address))?
        };
        let replay = plan.replay.map(|base| {
            let address = NativePlan::port_of(base, rank);
            let ring = Arc::new(ReplayRing::new(plan.replay_topic.then(|| plan.topic_of(rank))));
            let service = Arc::new(Replay(Arc::clone(&ring)));
            let router = ZmqRouter::bind(address, limits, service, pool).map_err(failed(address))?;
            Ok((router, ring))
        });
        Ok(Self {
            events: Arc::new(events),
            replay: replay.transpose()?,
            next_sequence: Arc::default(),
        })
    }

    pub(super) fn close(&self) {
        self.events.close();
    }

    pub(super) fn crash(&self) {
        self.events.crash();
        if let Some((router, _)) = &self.replay {
            router.crash();
        }
    }
}
