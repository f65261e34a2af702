//! What leads a Dynamo frontend to a fleet.

use super::{Config, Group};
use crate::transport::discovery::DiscoveryConfig;

impl Config {
    /// Environment of a frontend that attaches to the workers of a group: discovery, addresses, servers.
    pub fn frontend_environment(&self, group: &Group) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        match &self.discovery {
            DiscoveryConfig::Etcd(etcd) => variables.push(("ETCD_ENDPOINTS", etcd.endpoints.join(","))),
            DiscoveryConfig::File(file) => {
                // Absolute: the frontend may be started from anywhere.
                let root = std::path::absolute(&file.root).unwrap_or_else(|_| file.root.clone());
                variables.push(("DYN_FILE_KV", root.display().to_string()));
            }
            DiscoveryConfig::Mem(_) => {}
        }
        if self.tcp_advertise.is_loopback() {
            variables.extend(
                [
                    ("DYN_TCP_RPC_HOST", "127.0.0.1"),
                    ("DYN_TCP_RESPONSE_STREAM_HOST", "lo"),
                    ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
                ]
                .map(|(name, value)| (name, value.to_owned())),
            );
        }
        if let Some(nats) = self.nats.as_ref().filter(|_| group.uses_nats()) {
            variables.push(("NATS_SERVER", nats.options.addresses()));
        }
        variables
    }
}
