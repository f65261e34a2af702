//! The children of a worker and how each of them starts.

use std::sync::Arc;

use actix::prelude::*;

use super::super::common_memory::CommonMemoryOfRank;
use super::super::kv_publisher::KvPublisher;
use super::super::kv_trace::KvTrace;
use super::super::liveness::{Child, Liveness};
use super::super::metrics_reporter::{ForwardPasses, MetricsReporter};
use super::super::native_stream::{NativeParts, NativeStream};
use super::super::rank::{Connect, ConnectNative, ConnectRendezvous, Rank, RankParts};
use super::super::recovery::RecoveryEndpoint;
use super::super::supervision::Restarts;
use super::{StartError, Worker};
use crate::engine;
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::event_plane::journal::Journal;
use crate::transport::event_plane::native::BatchEncoder;
use crate::transport::event_plane::topic::Topic;
use crate::transport::event_plane::{EventPublisher, PublisherId};
use crate::types::{DpRank, SequenceHash, SimTime, StoredBlock};

/// A rank and its publishers: restarted one by one.
pub(super) struct RankSlot {
    pub(super) rank: DpRank,
    pub(super) actor: Option<Addr<Rank>>,
    pub(super) rank_incarnation: u32,
    pub(super) rank_restarts: Restarts,
    pub(super) publisher: Option<Addr<KvPublisher>>,
    pub(super) publisher_id: PublisherId,
    pub(super) publisher_incarnation: u32,
    pub(super) publisher_restarts: Restarts,
    pub(super) native: Option<Addr<NativeStream>>,
    pub(super) native_incarnation: u32,
    pub(super) native_restarts: Restarts,
}

/// The reporter of load and forward passes.
pub(super) struct ReporterSlot {
    pub(super) actor: Option<Addr<MetricsReporter>>,
    pub(super) publisher_id: PublisherId,
    /// Of the forward passes.
    pub(super) forward_id: PublisherId,
    pub(super) incarnation: u32,
    pub(super) restarts: Restarts,
}

impl Worker {
    pub(super) fn start_rank(
        &mut self,
        index: usize,
        starts_at: SimTime,
        ctx: &mut Context<Self>,
    ) -> Result<(), StartError> {
        let child = Child::Rank(self.ranks[index].rank.0);
        // Tokens have the same seed on every rank: a request that migrates goes on with the same ones.
        let config = self
            .plan
            .group
            .engine
            .of_rank(self.plan.id.0.into(), self.ranks[index].rank.0);
        let shares = config.tiers.is_some_and(|tiers| tiers.is_shared());
        let memory = &self.shared.common_memory;
        let mut engine = engine::build_in(&config, memory.memory()).map_err(|error| StartError::Engine {
            path: self.path(Some(child)),
            reason: error.to_string(),
        })?;
        let native = !self.sockets.native.is_empty();
        engine.record_stored(native);
        let handoffs = self.handoff_parts(child);
        let slot = &mut self.ranks[index];
        slot.rank_incarnation += 1;
        let actor = Rank::new(RankParts {
            rank: slot.rank,
            engine,
            clock: self.shared.clock,
            starts_at,
            gauge: Arc::clone(&self.entry.gauges[index]),
            trace: self.plan.group.kv_cache_trace.then(|| KvTrace {
                rank: slot.rank,
                block_size: self.plan.group.engine.block_size,
            }),
            metrics: Arc::clone(&self.entry.metrics[index]),
            native,
            handoffs,
            forward_passes: self.plan.group.forward_passes,
            common_memory: shares.then(|| CommonMemoryOfRank(memory.clone())),
            faults: Arc::clone(&self.entry.faults),
            liveness: Liveness::new(ctx.address().recipient(), child, slot.rank_incarnation),
        })
        .start();
        if let Some(stream) = &slot.native {
            actor.do_send(ConnectNative(stream.clone()));
        }
        actor.do_send(Connect {
            publisher: slot.publisher.clone(),
            reporter: self.reporter.actor.clone(),
        });
        if let Some(rendezvous) = &self.rendezvous.actor {
            actor.do_send(ConnectRendezvous(rendezvous.clone()));
        }
        slot.actor = Some(actor.clone());
        self.gate.set_rank(slot.rank.0, Some(actor));
        Ok(())
    }

    /// A publisher that starts from what the rank has in its cache.
    pub(super) fn start_publisher(
        &mut self,
        index: usize,
        blocks: &[(Option<SequenceHash>, StoredBlock)],
        ctx: &mut Context<Self>,
    ) {
        let child = Child::Kv(self.ranks[index].rank.0);
        let plane = self.sockets.events(index);
        let scope = &self.plan.group.endpoint;
        let slot = &mut self.ranks[index];
        slot.publisher_incarnation += 1;
        slot.publisher_id = PublisherId::random();
        let publisher = KvPublisher::new(
            Journal::seeded(self.instance, slot.rank, blocks).remembering(self.entry.gauges[index].former()),
            EventPublisher::new(plane, scope, Topic::KvEvents, slot.publisher_id),
            Arc::clone(&self.entry.recovery),
            Arc::clone(&self.entry.gauges[index]),
            Arc::clone(&self.entry.faults),
            Liveness::new(ctx.address().recipient(), child, slot.publisher_incarnation),
        )
        .start();
        slot.publisher = Some(publisher.clone());
        if let Some(rank) = &slot.actor {
            rank.do_send(Connect {
                publisher: Some(publisher.clone()),
                reporter: None,
            });
        }
        if self.plan.group.durable_kv_events {
            return;
        }
        let name = self.records().query_name(self.ranks[index].publisher_id);
        let figures = self.entry.query_figures(index, &name);
        let endpoint = RecoveryEndpoint {
            publisher,
            figures,
            limits: self.shared.recovery_limits.clone(),
            counts: Arc::clone(&self.entry.recovery),
            held: Arc::clone(&self.entry.streams.held),
            faults: Arc::clone(self.entry.faults.table()),
        };
        let ready = self.sockets.requests.serve(&name, self.instance, Arc::new(endpoint));
        self.unreachable.push(ready);
    }

    /// A native stream that the rank tells its cache.
    pub(super) fn start_native(&mut self, index: usize, ctx: &mut Context<Self>) {
        let (Some(plan), Some(sockets)) = (&self.plan.native, self.sockets.native.get(index)) else {
            return;
        };
        let slot = &mut self.ranks[index];
        slot.native_incarnation += 1;
        let parts = NativeParts {
            encoder: BatchEncoder {
                encoding: plan.encoding,
                block_size: self.plan.group.engine.block_size,
                rank: slot.rank,
            },
            topic: plan.topic_of(slot.rank.0),
            socket: Arc::clone(&sockets.events),
            ring: sockets.replay.as_ref().map(|(_, ring)| Arc::clone(ring)),
            replay_address: sockets.replay.as_ref().map(|(socket, _)| socket.local_addr()),
            next_sequence: Arc::clone(&sockets.next_sequence),
            faults: Arc::clone(&self.entry.faults),
        };
        let child = Child::Native(slot.rank.0);
        let liveness = Liveness::new(ctx.address().recipient(), child, slot.native_incarnation);
        let stream = NativeStream::new(parts, liveness).start();
        if let Some(rank) = &slot.actor {
            rank.do_send(ConnectNative(stream.clone()));
        }
        slot.native = Some(stream);
    }

    pub(super) fn start_reporter(&mut self, ctx: &mut Context<Self>) {
        let plane = self.sockets.events(0);
        self.reporter.incarnation += 1;
        self.reporter.publisher_id = PublisherId::random();
        self.reporter.forward_id = PublisherId::random();
        let liveness = Liveness::new(ctx.address().recipient(), Child::Metrics, self.reporter.incarnation);
        let group = &self.plan.group;
        let scope = &group.endpoint;
        let forward = (group.forward_passes != Detail::Off).then(|| {
            let stream = EventPublisher::new(plane.clone(), scope, Topic::ForwardPasses, self.reporter.forward_id);
            ForwardPasses::new(stream, group.data_parallel_size)
        });
        let stream = EventPublisher::new(plane, scope, Topic::KvMetrics, self.reporter.publisher_id);
        let (told, faults) = (Arc::clone(&self.entry.told), Arc::clone(&self.entry.faults));
        let reporter = MetricsReporter::new(self.instance, stream, forward, told, faults, liveness).start();
        self.reporter.actor = Some(reporter.clone());
        for rank in self.ranks.iter().filter_map(|slot| slot.actor.as_ref()) {
            rank.do_send(Connect {
                publisher: None,
                reporter: Some(reporter.clone()),
            });
        }
    }
}

impl RankSlot {
    pub(super) fn new(rank: DpRank) -> Self {
        Self {
            rank,
            actor: None,
            rank_incarnation: 0,
            rank_restarts: Restarts::default(),
            publisher: None,
            publisher_id: PublisherId::random(),
            publisher_incarnation: 0,
            publisher_restarts: Restarts::default(),
            native: None,
            native_incarnation: 0,
            native_restarts: Restarts::default(),
        }
    }
}

impl ReporterSlot {
    pub(super) fn new() -> Self {
        Self {
            actor: None,
            publisher_id: PublisherId::random(),
            forward_id: PublisherId::random(),
            incarnation: 0,
            restarts: Restarts::default(),
        }
    }
}
