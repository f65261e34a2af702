//! Records that do not tell the truth.

use bytes::Bytes;
use serde_json::Value;

use crate::faults::FaultId;
use crate::faults::kind::DiscoveryFault;
use crate::faults::table::InForce;
use crate::transport::discovery::Record;
use crate::transport::discovery::record::{EVENT_SOURCES, INSTANCES, MODELS};

/// What faults do to a worker's place in discovery.
// Each stands for itself: any of them may hold beside any other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Default)]
pub(super) struct Disturbed {
    pub(super) lease_lost: bool,
    pub(super) key_kept: bool,
    wrong_address: bool,
    duplicate_source: bool,
    /// Time between two changes of the card, ms.
    pub(super) card_churn_ms: Option<f64>,
    /// Time between two registrations, ms.
    pub(super) storm_ms: Option<f64>,
    in_force: Vec<InForce<DiscoveryFault>>,
}

impl Disturbed {
    pub(super) fn of(in_force: Vec<InForce<DiscoveryFault>>) -> Self {
        let mut disturbed = Self::default();
        for fault in &in_force {
            match **fault {
                DiscoveryFault::LeaseLost {} => disturbed.lease_lost = true,
                DiscoveryFault::KeyKept {} => disturbed.key_kept = true,
                DiscoveryFault::WrongAddress {} => disturbed.wrong_address = true,
                DiscoveryFault::DuplicateSource {} => disturbed.duplicate_source = true,
                DiscoveryFault::CardChurn { period_ms } => disturbed.card_churn_ms = Some(period_ms),
                DiscoveryFault::RegistrationStorm { period_ms } => disturbed.storm_ms = Some(period_ms),
            }
        }
        disturbed.in_force = in_force;
        disturbed
    }

    /// Counts what has been done because of a fault of this kind; the answer is its number.
    pub(super) fn happened(&self, is_it: impl Fn(&DiscoveryFault) -> bool) -> Option<FaultId> {
        let fault = self.in_force.iter().find(|fault| is_it(fault))?;
        fault.happened();
        Some(fault.id())
    }

    /// Counts the faults that make these records other than they are, now that they are told so: all of them, or those
    /// that were not in force `before`.
    pub(super) fn told_wrong(&self, records: &[Record], before: Option<&Self>) {
        let was_told = |fault: &InForce<DiscoveryFault>| {
            before.is_some_and(|before| before.in_force.iter().any(|other| other.id() == fault.id()))
        };
        for fault in self.in_force.iter().filter(|fault| !was_told(fault)) {
            let changes = match **fault {
                DiscoveryFault::WrongAddress {} => {
                    let mut instances = records.iter().filter(|record| record.key.starts_with(INSTANCES));
                    instances.any(|record| elsewhere(record).value != record.value)
                }
                DiscoveryFault::DuplicateSource {} => records.iter().any(|record| second_source(record).is_some()),
                DiscoveryFault::LeaseLost {}
                | DiscoveryFault::KeyKept {}
                | DiscoveryFault::CardChurn { .. }
                | DiscoveryFault::RegistrationStorm { .. } => false,
            };
            if changes {
                fault.happened();
            }
        }
    }

    /// The records as they are told.
    pub(super) fn told(&self, records: &[Record]) -> Vec<Record> {
        let mut told: Vec<Record> = records
            .iter()
            .map(|record| {
                if self.wrong_address && record.key.starts_with(INSTANCES) {
                    elsewhere(record)
                } else {
                    record.clone()
                }
            })
            .collect();
        if self.duplicate_source {
            told.extend(records.iter().filter_map(second_source));
        }
        told
    }

    /// Keys that are told for these faults alone.
    pub(super) fn extra_keys<'a>(&self, records: impl IntoIterator<Item = &'a Record>) -> Vec<String> {
        if !self.duplicate_source {
            return Vec::new();
        }
        records
            .into_iter()
            .filter_map(second_source)
            .map(|record| record.key)
            .collect()
    }
}

/// Keys of model cards.
pub(super) fn card_keys(records: &[Record]) -> Vec<String> {
    let cards = records.iter().filter(|record| record.key.starts_with(MODELS));
    cards.map(|record| record.key.clone()).collect()
}

/// The record with an address at which nobody listens.
fn elsewhere(record: &Record) -> Record {
    let Ok(mut value) = serde_json::from_slice::<Value>(&record.value) else {
        return record.clone();
    };
    if let Some(Value::String(address)) = value["transport"].get_mut("tcp") {
        // Port 1 is nobody's.
        if let Some((host, path)) = address.split_once('/') {
            let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
            *address = format!("{host}:1/{path}");
        }
    }
    for key in ["nats", "nats_tcp"] {
        if let Some(Value::String(subject)) = value["transport"].get_mut(key) {
            subject.push_str("-nowhere");
        }
    }
    Record {
        key: record.key.clone(),
        value: Bytes::from(value.to_string()),
    }
}

/// The source record of another publisher for the same rank.
fn second_source(record: &Record) -> Option<Record> {
    if !record.key.starts_with(EVENT_SOURCES) {
        return None;
    }
    let mut value: Value = serde_json::from_slice(&record.value).ok()?;
    let publisher = value["publisher_id"].as_u64()?;
    let other = publisher ^ 1;
    value["publisher_id"] = other.into();
    value["metadata"]["publisher_id"] = other.into();
    let (head, tail) = record.key.rsplit_once('/')?;
    let renamed = tail.replace(&format!("{publisher:x}"), &format!("{other:x}"));
    (renamed != tail).then(|| Record {
        key: format!("{head}/{renamed}"),
        value: Bytes::from(value.to_string()),
    })
}
