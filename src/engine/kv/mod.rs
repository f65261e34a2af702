//! KV caches: which blocks exist, who uses them, which leave first.

pub(crate) mod pool;
