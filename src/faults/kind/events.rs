//! Faults of KV events, and of the queries that make good for lost ones.

use serde::{Deserialize, Serialize};

use super::{GateFault, Kind, KindInfo, Layer, is_zero, one};

fn two() -> u32 {
    2
}

fn one_id() -> u64 {
    1
}

gate! {
    /// KV events, asked for each message.
    Event(EventFault, Events, 7) {
        /// The message is lost.
        Drop = "drop" {}
        /// The message is sent again.
        Duplicate = "duplicate" {
            /// Extra copies.
            #[serde(default = "one")]
            copies: u32,
        }
        /// Messages are sent in windows of so many, each window in random order.
        Reorder = "reorder" {
            /// Messages in a window.
            window: u32,
        }
        /// The message is late; those after it may overtake it.
        Delay = "delay" {
            /// Delay, ms.
            ms: f64,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64,
        }
        /// Messages are held, and released in order when the fault ends.
        Hold = "hold" {}
        /// Bytes of the payload are flipped.
        Corrupt = "corrupt" {}
        /// Blocks have other identities than the cache.
        WrongHash = "wrong_hash" {}
        /// Blocks hang below a parent that does not exist.
        WrongParent = "wrong_parent" {}
        /// Events name another rank.
        WrongRank = "wrong_rank" {
            /// That rank.
            #[serde(default = "one")]
            rank: u32,
        }
        /// Blocks are announced as if they were smaller: each as so many.
        WrongBlockSize = "wrong_block_size" {
            /// Blocks per block.
            #[serde(default = "two")]
            factor: u32,
        }
        /// Each stored block is listed twice.
        DuplicateHash = "duplicate_hash" {}
        /// Event ids start over on the wire.
        Renumber = "renumber" {
            /// Id of the first event from now on.
            #[serde(default)]
            first: u64,
        }
        /// Event ids skip before the message, as if events had been lost.
        Gap = "gap" {
            /// Ids that are skipped.
            #[serde(default = "one_id")]
            ids: u64,
        }
        /// Messages come from another publisher than the one in discovery, as after a restart nobody heard of.
        StaleEpoch = "stale_epoch" {}
        /// Nothing is published, and nothing is recorded: the publisher never says a word.
        Silent = "silent" {}
    }
}

gate! {
    /// Publishing out of turn, asked when faults change.
    Storm(StormFault, Events, 8, once) {
        /// Extra events, true to form but of blocks that come and go without a request.
        Storm = "storm" {
            /// Messages per second.
            per_s: f64,
        }
    }
}

gate! {
    /// Recovery queries, asked for each one.
    Recovery(RecoveryFault, Events, 9) {
        /// The recovery endpoint is not there.
        Missing = "recovery_missing" {}
        /// Queries are taken and never answered.
        Hanging = "recovery_hanging" {}
        /// Answers are for another worker, with event ids from the future.
        Wrong = "recovery_wrong" {}
    }
}
