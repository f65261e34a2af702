//! SGLang.
mod cache;
mod events;
mod tree;
pub use cache::RadixCache;
pub use tree::{Insert, Match, NodeId};
