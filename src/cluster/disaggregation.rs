//! What the model adds to the settings of disaggregated groups, and where each worker's rendezvous is.

use std::net::SocketAddr;

use crate::actors::rendezvous::TransferModel;
use crate::config::disaggregation::TransferTiming;
use crate::config::{Config, Group};
use crate::engine::{EngineConfig, Fidelity, KvTransfer, WorkerRole};
use crate::model::{KvSizeRule, Model};
use crate::transport::rendezvous::wire::TimingMode;

/// What the engines of a group do: a decode worker that may compute prompts has one that can do everything.
pub(super) fn engine_role(group: &Group) -> WorkerRole {
    if group.disaggregation.local_prefill {
        WorkerRole::Aggregated
    } else {
        group.engine.role
    }
}

/// Whose rule says how large the KV of a token is.
pub(super) fn size_rule(engine: &EngineConfig) -> KvSizeRule {
    match engine.fidelity {
        Fidelity::Real => KvSizeRule::Real,
        Fidelity::Mocker => KvSizeRule::Mocker,
    }
}

/// How long the KV of a group's prompts travels.
pub(super) fn transfer(group: &Group, engine: &EngineConfig, model: &Model) -> TransferModel {
    let settings = &group.disaggregation.transfer;
    let rule = size_rule(engine);
    let of_model = || {
        let shape = model.info.kv_shape.as_ref();
        if shape.is_none() && engine.role == WorkerRole::Prefill && settings.bandwidth_gb_s > 0.0 {
            tracing::warn!(
                group = group.name,
                model = %model.dir.display(),
                "config.json does not say how large the KV cache is; transfers take no time (give --kv-bytes-per-token)"
            );
        }
        Some(shape?.bytes_per_token(&settings.cache_dtype, rule))
    };
    TransferModel {
        link: KvTransfer {
            bytes_per_token: settings.bytes_per_token.or_else(of_model),
            bandwidth_gb_s: (settings.bandwidth_gb_s > 0.0).then_some(settings.bandwidth_gb_s),
        },
        mode: match settings.timing {
            TransferTiming::FullPrompt => TimingMode::FullPrompt,
            TransferTiming::DestinationMissing => TimingMode::DestinationMissing,
        },
    }
}

/// Rendezvous of all workers, in their order.
pub(super) fn rendezvous(config: &Config) -> impl Iterator<Item = Option<SocketAddr>> + '_ {
    config.groups.iter().flat_map(|group| {
        let workers = usize::try_from(group.num_workers).unwrap_or(usize::MAX);
        let listed = group.disaggregation.bootstrap_ports.iter().map(|port| Some(*port));
        let ports = listed.chain(std::iter::repeat(None)).take(workers);
        ports.map(|port| port.map(|port| SocketAddr::new(config.tcp_host, port)))
    })
}
