//! Ground truth: what the ranks of a fleet really have, held against what a router believes or does.
//!
//! | Module | Question |
//! |---|---|
//! | [`cache`] | which blocks does each rank have |
//! | [`past`] | which blocks has each rank had |
//! | [`dump`] | which blocks does an index believe in, when it shows them all |
//! | [`drift`] | how far are the two apart: missing blocks, phantom blocks |
//! | [`credit`] | the same, when an index only answers how much of a prompt each rank has |
//! | [`choice`] | the same, when there is a router that only routes |
//! | [`leaks`] | what is still held when nobody uses anything any more |
//!
//! Pure: pictures and records come in, figures go out, so that a live check, a drill and a test ask the same questions.
//! A fleet does not stand still while it is looked at. Comparisons therefore take two pictures of the truth, one from
//! before the router was asked and one from after: a block counts as missing only when it is in both, and as phantom only
//! when it is in neither.

pub mod cache;
pub mod choice;
pub mod credit;
pub mod drift;
pub mod dump;
pub mod leaks;
pub mod past;

pub use cache::{Block, Caches, RankCache, RankId};
pub use drift::Drift;
pub use past::Past;

/// Samples kept of each sort of error.
pub const SAMPLES: usize = 8;
