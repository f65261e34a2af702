//! How large a replay may be. A slip of the finger is refused before it takes the machine's memory.

use crate::types::{MAX_RANKS_OF_WORKER, MAX_WORKERS};

/// Most ranks of a pool: what a few GiB hold.
const MAX_RANKS: u64 = 1 << 18;
/// Most router replicas.
const MAX_REPLICAS: u32 = 1024;

/// Whether a pool may have so many workers of so many ranks; `name` is what asks for the workers.
///
/// # Errors
/// What is too large, and the most that it may be.
pub(super) fn check_pool(name: &str, workers: u32, ranks: u32) -> Result<(), String> {
    at_most(name, workers, MAX_WORKERS)?;
    at_most("dp_size", ranks, MAX_RANKS_OF_WORKER)?;
    let all = u64::from(workers) * u64::from(ranks);
    if all > MAX_RANKS {
        return Err(format!(
            "{name} {workers} with dp_size {ranks} makes {all} ranks, expected at most {MAX_RANKS}"
        ));
    }
    Ok(())
}

/// Whether so many routers may stand in front.
///
/// # Errors
/// As [`check_pool`].
pub(super) fn check_replicas(replicas: u32) -> Result<(), String> {
    at_most("--router-replicas", replicas, MAX_REPLICAS)
}

fn at_most(name: &str, value: u32, most: u32) -> Result<(), String> {
    if value > most {
        return Err(format!("{name} is {value}, expected at most {most}"));
    }
    Ok(())
}
