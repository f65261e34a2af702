//! Faults of KV events, and of the queries that make good for lost ones.

use serde::{Deserialize, Serialize};

use super::param::{self, Param};
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
            copies: u32 as param::COPIES,
        }
        /// Messages are sent in windows of so many, each window in random order.
        Reorder = "reorder" {
            /// Messages in a window.
            window: u32 as param::WINDOW,
        }
        /// The message is late; those after it may overtake it.
        Delay = "delay" {
            /// Delay, ms.
            ms: f64 as param::MS,
            /// Random extra delay, uniform up to so much, ms.
            #[serde(default, skip_serializing_if = "is_zero")]
            jitter_ms: f64 as param::MS,
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
            rank: u32 as param::RANK,
        }
        /// Blocks are announced as if they were smaller: each as so many.
        WrongBlockSize = "wrong_block_size" {
            /// Blocks per block.
            #[serde(default = "two")]
            factor: u32 as param::PARTS,
        }
        /// Each stored block is listed twice.
        DuplicateHash = "duplicate_hash" {}
        /// Event ids start over on the wire.
        Renumber = "renumber" {
            /// Id of the first event from now on.
            #[serde(default)]
            first: u64 as param::EVENT_ID,
        }
        /// Event ids skip before the message, as if events had been lost.
        Gap = "gap" {
            /// Ids that are skipped.
            #[serde(default = "one_id")]
            ids: u64 as param::SOME_IDS,
        }
        /// Messages come from another publisher than the one in discovery, as after a restart nobody heard of.
        StaleEpoch = "stale_epoch" {}
        /// Nothing is published, and nothing is recorded: the publisher never says a word.
        Silent = "silent" {}
    }
}

/// What happens before a message has a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AtSource {
    /// See [`EventFault::Silent`].
    Silent,
    /// So many ids are skipped.
    Gap(u64),
}

/// What happens to that which a message says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InContent {
    /// See [`EventFault::WrongHash`].
    WrongHash,
    /// See [`EventFault::WrongParent`].
    WrongParent,
    /// Events name this rank.
    WrongRank(u32),
    /// Each block is announced as so many.
    WrongBlockSize(u32),
    /// See [`EventFault::DuplicateHash`].
    DuplicateHash,
    /// Ids start over with this one.
    Renumber(u64),
    /// See [`EventFault::Corrupt`].
    Corrupt,
}

/// What becomes of a message on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnTheWay {
    /// See [`EventFault::Drop`].
    Drop,
    /// So many extra copies.
    Duplicate(u32),
    /// In windows of so many.
    Reorder(u32),
    /// So late, and up to so much more, ms.
    Delay(f64, f64),
    /// See [`EventFault::Hold`].
    Hold,
    /// See [`EventFault::StaleEpoch`].
    StaleEpoch,
}

/// An event fault by where it acts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Source(AtSource),
    Content(InContent),
    Way(OnTheWay),
}

impl EventFault {
    /// The one place that sorts the kinds.
    const fn place(&self) -> Place {
        match *self {
            Self::Silent {} => Place::Source(AtSource::Silent),
            Self::Gap { ids } => Place::Source(AtSource::Gap(ids)),
            Self::WrongHash {} => Place::Content(InContent::WrongHash),
            Self::WrongParent {} => Place::Content(InContent::WrongParent),
            Self::WrongRank { rank } => Place::Content(InContent::WrongRank(rank)),
            Self::WrongBlockSize { factor } => Place::Content(InContent::WrongBlockSize(factor)),
            Self::DuplicateHash {} => Place::Content(InContent::DuplicateHash),
            Self::Renumber { first } => Place::Content(InContent::Renumber(first)),
            Self::Corrupt {} => Place::Content(InContent::Corrupt),
            Self::Drop {} => Place::Way(OnTheWay::Drop),
            Self::Duplicate { copies } => Place::Way(OnTheWay::Duplicate(copies)),
            Self::Reorder { window } => Place::Way(OnTheWay::Reorder(window)),
            Self::Delay { ms, jitter_ms } => Place::Way(OnTheWay::Delay(ms, jitter_ms)),
            Self::Hold {} => Place::Way(OnTheWay::Hold),
            Self::StaleEpoch {} => Place::Way(OnTheWay::StaleEpoch),
        }
    }

    /// What it does before a message has a number, if anything.
    pub const fn at_source(&self) -> Option<AtSource> {
        match self.place() {
            Place::Source(source) => Some(source),
            Place::Content(_) | Place::Way(_) => None,
        }
    }

    /// What it does to that which a message says, if anything.
    pub const fn in_content(&self) -> Option<InContent> {
        match self.place() {
            Place::Content(content) => Some(content),
            Place::Source(_) | Place::Way(_) => None,
        }
    }

    /// What it does to a message on its way, if anything.
    pub const fn on_the_way(&self) -> Option<OnTheWay> {
        match self.place() {
            Place::Way(way) => Some(way),
            Place::Source(_) | Place::Content(_) => None,
        }
    }
}

gate! {
    /// Publishing out of turn, asked when faults change.
    Storm(StormFault, Events, 8, once) {
        /// Extra events, true to form but of blocks that come and go without a request.
        Storm = "storm" {
            /// Messages per second.
            per_s: f64 as param::PER_S,
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
