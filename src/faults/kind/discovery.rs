//! Faults of leases and records.

use serde::{Deserialize, Serialize};

use super::param::{self, Param};
use super::{GateFault, Kind, KindInfo, Layer};

gate! {
    /// Lease and records, asked when faults change.
    Discovery(DiscoveryFault, Discovery, 10, once) {
        /// The lease is gone while the worker lives and serves.
        LeaseLost = "lease_lost" {}
        /// Lease and records are kept up although the worker is dead.
        KeyKept = "key_kept" {}
        /// The record names an address at which nobody listens.
        WrongAddress = "wrong_address" {}
        /// The model card disappears and comes back, again and again.
        CardChurn = "card_churn" {
            /// Time between two changes, ms.
            period_ms: f64 as param::PERIOD_MS,
        }
        /// A second source claims the KV events of each rank.
        DuplicateSource = "duplicate_source" {}
        /// The worker signs off and registers again, again and again.
        RegistrationStorm = "registration_storm" {
            /// Time between two registrations, ms.
            period_ms: f64 as param::PERIOD_MS,
        }
    }
}
