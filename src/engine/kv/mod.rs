//! KV caches: which blocks exist, who uses them, which leave first.

pub(crate) mod backend;
pub(crate) mod logical;
pub(crate) mod pool;
mod readers;
pub(crate) mod run;
pub(crate) mod tiers;
