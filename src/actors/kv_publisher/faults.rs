//! What faults do to a KV event stream.

use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;

use super::super::clock::Clock;
use super::super::event_ways::Sent;
use super::super::fault_post::FaultsChanged;
use super::KvPublisher;
use crate::faults::draw::Dice;
use crate::faults::kind::{EventFault, StormFault};
use crate::transport::event_plane::journal::Journal;
use crate::types::{KvEvent, LocalHash, SequenceHash, StoredBlock};

/// A storm blows in gusts, so that its rate does not depend on a timer's grain.
const GUST: Duration = Duration::from_millis(20);

/// Messages of one gust at most.
const MAX_GUST: u64 = 2000;

/// Salts of the dice.
const SPOILED: u64 = 0x6b76;
const STORMED: u64 = 0x7374;

impl KvPublisher {
    /// As [`KvPublisher::publish`], through the faults. `record` makes payloads of what there is to say.
    pub(super) fn publish_disturbed(
        &mut self,
        record: impl FnOnce(&mut Journal) -> Vec<Bytes>,
        ctx: &mut Context<Self>,
    ) {
        let faults = self.post.table().ask::<EventFault>();
        for fault in &faults {
            match fault {
                EventFault::Silent {} => return,
                EventFault::Gap { ids } => self.journal.skip(*ids),
                EventFault::Drop {}
                | EventFault::Duplicate { .. }
                | EventFault::Reorder { .. }
                | EventFault::Delay { .. }
                | EventFault::Hold {}
                | EventFault::Corrupt {}
                | EventFault::WrongHash {}
                | EventFault::WrongParent {}
                | EventFault::WrongRank { .. }
                | EventFault::WrongBlockSize { .. }
                | EventFault::DuplicateHash {}
                | EventFault::Renumber { .. }
                | EventFault::StaleEpoch {} => {}
            }
        }
        let dice = self.post.table().dice(SPOILED);
        let before = self.journal.last_event_id();
        let payloads = record(&mut self.journal);
        self.gauge.count_kv_events(self.journal.last_event_id() - before);
        for payload in payloads {
            for sent in self.spoiler.pass(payload, &faults, dice) {
                match sent {
                    Sent::Now(payload) => self.stream.publish(&payload, Clock::unix_ms()),
                    Sent::Later(payload, wait) => {
                        ctx.run_later(wait, move |publisher, _| {
                            publisher.stream.publish(&payload, Clock::unix_ms());
                        });
                    }
                    Sent::Stale(payload) => {
                        let stream = &self.stream;
                        let stale = self.stale.get_or_insert_with(|| stream.under_another_id());
                        stale.publish(&payload, Clock::unix_ms());
                    }
                    Sent::Lost => self.stream.skip(),
                }
            }
        }
    }

    /// Begins, changes or ends a storm.
    pub(super) fn storm(&mut self, ctx: &mut Context<Self>) {
        if let Some(storm) = self.storm.take() {
            ctx.cancel_future(storm);
        }
        let in_force = self.post.table().in_force::<StormFault>();
        let Some((_, StormFault::Storm { per_s })) = in_force.first() else {
            return;
        };
        let per_gust = per_s * GUST.as_secs_f64();
        let mut owed = 0.0;
        self.storm = Some(ctx.run_interval(GUST, move |publisher, ctx| {
            owed += per_gust;
            let mut blown = 0;
            while owed >= 1.0 && blown < MAX_GUST {
                owed -= 1.0;
                blown += 1;
                publisher.blow(ctx);
            }
            // What is beyond the bound is not made up for.
            owed = owed.min(1.0);
        }));
    }

    /// One message of a storm: a block comes or goes.
    fn blow(&mut self, ctx: &mut Context<Self>) {
        let n = self.stormed;
        self.stormed += 1;
        let dice: Dice = self.post.table().dice(STORMED);
        let block = StoredBlock {
            block_hash: SequenceHash(dice.bits(n / 2)),
            tokens_hash: LocalHash(dice.bits(!(n / 2))),
        };
        let event = if n.is_multiple_of(2) {
            KvEvent::Stored {
                parent: None,
                blocks: vec![block],
            }
        } else {
            KvEvent::Removed {
                block_hashes: vec![block.block_hash],
            }
        };
        self.publish(vec![event], ctx);
    }
}

impl Handler<FaultsChanged> for KvPublisher {
    type Result = ();

    fn handle(&mut self, _: FaultsChanged, ctx: &mut Self::Context) {
        let in_force = self.post.table().in_force::<EventFault>();
        let in_force: Vec<EventFault> = in_force.into_iter().map(|(_, fault)| fault).collect();
        for payload in self.spoiler.release(&in_force) {
            self.stream.publish(&payload, Clock::unix_ms());
        }
        if !in_force.contains(&EventFault::StaleEpoch {}) {
            self.stale = None;
        }
        self.storm(ctx);
    }
}
