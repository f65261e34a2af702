//! File descriptors: how many the fleet needs, raised as far as the system lets us.

use serde::Serialize;

use crate::config::{Brokers, Config, EventPlane, Group, NatsConnections, Ports, RequestPlane};

/// Descriptors that a process needs before the first worker: streams of the runtime, logs, discovery, the shared
/// listener.
const BASE: u64 = 64;

/// Descriptors kept for requests: connections of frontends, response sockets, event subscribers.
const FOR_REQUESTS: u64 = 512;

/// Descriptors of this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// What the idle fleet holds.
    pub idle: u64,
    /// The limit in force.
    pub limit: u64,
}

/// Not enough descriptors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The hard limit is too low.
    #[error(
        "{workers} workers need {needed} file descriptors but this process may open {limit}; {fitting} workers fit; \
         raise the limit (ulimit -Hn, LimitNOFILE= in systemd, --ulimit nofile= in docker) or start fewer workers"
    )]
    TooFew {
        /// Wanted workers.
        workers: u32,
        /// Descriptors for them and their requests.
        needed: u64,
        /// Hard limit.
        limit: u64,
        /// How many workers fit.
        fitting: u64,
    },
}

impl Budget {
    /// Raises the soft limit to what the hard limit allows and checks that the fleet fits.
    ///
    /// # Errors
    /// [`BudgetError::TooFew`].
    pub fn raise(config: &Config) -> Result<Self, BudgetError> {
        let limit = rlimit::increase_nofile_limit(rlimit::INFINITY).unwrap_or(1024);
        Self::check(config, limit)
    }

    fn check(config: &Config, limit: u64) -> Result<Self, BudgetError> {
        let workers: u64 = config
            .groups
            .iter()
            .map(|group| u64::from(group.num_workers) * per_worker(config, group))
            .sum();
        let idle = BASE + workers;
        let needed = idle + FOR_REQUESTS;
        if needed > limit {
            let each = workers.div_ceil(u64::from(config.num_workers()).max(1)).max(1);
            let fitting = limit.saturating_sub(BASE + FOR_REQUESTS) / each;
            return Err(BudgetError::TooFew {
                workers: config.num_workers(),
                needed,
                limit,
                fitting,
            });
        }
        Ok(Self { idle, limit })
    }
}

/// Descriptors of an idle worker.
fn per_worker(config: &Config, group: &Group) -> u64 {
    let listener = group.request_plane == RequestPlane::Tcp && config.ports == Ports::PerWorker;
    let own_nats = config
        .nats
        .as_ref()
        .is_some_and(|nats| nats.connections == NatsConnections::PerWorker);
    let sockets = if group.event_plane == EventPlane::Zmq && group.brokers == Brokers::None {
        group.data_parallel_size
    } else {
        0
    };
    let native = group
        .native
        .as_ref()
        .map_or(0, |native| 1 + u64::from(!native.replay_ports.is_empty()));
    u64::from(sockets)
        + u64::from(group.data_parallel_size) * native
        + u64::from(listener)
        + u64::from(config.http_port.is_some())
        + u64::from(own_nats && group.uses_nats())
}
