//! What faults do to a KV event stream.

use actix::prelude::*;
use bytes::Bytes;

use super::super::clock::Clock;
use super::super::event_ways::Sent;
use super::super::fault_post::FaultsChanged;
use super::super::gust::{self, Gust};
use super::KvPublisher;
use crate::faults::draw::Dice;
use crate::faults::kind::{AtSource, EventFault, StormFault};
use crate::faults::table::InForce;
use crate::transport::event_plane::journal::Journal;
use crate::types::{KvEvent, LocalHash, SequenceHash, StoredBlock, TierEvent};

/// Salts of the dice.
const SPOILED: u64 = 0x6b76;
const STORMED: u64 = 0x7374;

/// What there is to say.
pub(super) enum News<'a> {
    /// Of the cache on the GPU.
    Cache(Vec<KvEvent>),
    /// Of what lies below it.
    Lower(&'a [TierEvent]),
    /// All that was said before.
    Everything,
}

impl News<'_> {
    /// Payloads that say it.
    fn record(self, journal: &mut Journal) -> Vec<Bytes> {
        match self {
            Self::Cache(events) => journal.record(events),
            Self::Lower(events) => journal.record_lower(events),
            Self::Everything => journal.restate(),
        }
    }

    /// Nobody hears of it.
    fn keep_quiet(&self, journal: &Journal) {
        match self {
            Self::Cache(events) => journal.keep_quiet_about(events),
            Self::Lower(_) | Self::Everything => {}
        }
    }
}

impl KvPublisher {
    /// As [`KvPublisher::publish`], through the faults.
    pub(super) fn publish_disturbed(&mut self, news: News<'_>, ctx: &mut Context<Self>) {
        let faults = self.post.table().draw::<EventFault>();
        for fault in &faults {
            match fault.at_source() {
                Some(AtSource::Silent) => {
                    fault.happened();
                    return news.keep_quiet(&self.journal);
                }
                Some(AtSource::Gap(ids)) => {
                    fault.happened();
                    self.journal.skip(ids);
                }
                None => {}
            }
        }
        let dice = self.post.table().dice(SPOILED);
        let before = self.journal.last_event_id();
        let payloads = news.record(&mut self.journal);
        self.gauge.count_kv_events(self.journal.last_event_id() - before);
        for payload in payloads {
            let stream = &self.stream;
            for sent in self
                .spoiler
                .pass(payload, &faults, dice, |payload| stream.messages(payload))
            {
                self.put(sent, ctx);
            }
        }
    }

    fn put(&mut self, sent: Sent<Bytes>, ctx: &mut Context<Self>) {
        match sent {
            Sent::Now(message) => self.stream.send(&message, Clock::unix_ms()),
            Sent::Later(message, wait) => {
                ctx.run_later(wait, move |publisher, _| {
                    publisher.stream.send(&message, Clock::unix_ms());
                });
            }
            Sent::Stale(message) => {
                let stream = &self.stream;
                let stale = self.stale.get_or_insert_with(|| stream.under_another_id());
                stale.send(&message, Clock::unix_ms());
            }
            Sent::Lost => self.stream.skip(),
        }
    }

    /// Begins, changes or ends a storm.
    pub(super) fn storm(&mut self, ctx: &mut Context<Self>) {
        if let Some(storm) = self.storm.take() {
            ctx.cancel_future(storm);
        }
        let Some(storm) = self.post.table().in_force::<StormFault>().pop() else {
            return;
        };
        let StormFault::Storm { per_s } = *storm;
        let mut gust = Gust::new(per_s);
        self.storm = Some(ctx.run_interval(gust::EVERY, move |publisher, ctx| {
            for _ in 0..gust.due() {
                storm.happened();
                publisher.blow(ctx);
            }
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
        let in_force: Vec<EventFault> = in_force.into_iter().map(InForce::into_fault).collect();
        for message in self.spoiler.release(&in_force) {
            self.stream.send(&message, Clock::unix_ms());
        }
        if !in_force.contains(&EventFault::StaleEpoch {}) {
            self.stale = None;
        }
        self.storm(ctx);
    }
}
