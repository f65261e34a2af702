//! The start screen: what runs, where it is, and which frontend command attaches to it.

use std::fmt::Write as _;

use super::attach;
use crate::cluster::{Cluster, Facts};
use crate::config::choices::brief;
use crate::config::{Brokers, Config, EventPlane, Group, NativeEvents, NatsConnections, RequestPlane};
use crate::transport::discovery::DiscoveryConfig;

/// All of it.
pub(super) fn render(config: &Config, cluster: &Cluster) -> String {
    let facts = cluster.facts();
    let mut text = format!("ghostfleet {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: String| {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "  {name:<11}{value}");
    };
    line(
        "model",
        format!("{} (from {})", config.model_name, facts.model_dir.display()),
    );
    for (group, &blocks) in config.groups.iter().zip(&facts.kv_blocks) {
        let engine = &group.engine;
        line(
            "workers",
            format!(
                "{} x {} [{}], {} rank(s), {} blocks of {} tokens, speed {}",
                group.num_workers,
                group.endpoint,
                group.name,
                group.data_parallel_size,
                blocks,
                engine.block_size,
                if engine.speedup_ratio == 0.0 {
                    "unlimited".to_owned()
                } else {
                    format!("x{}", brief(engine.speedup_ratio))
                },
            ),
        );
        if let Some(aic) = &group.aic {
            line("timing", format!("[{}] {}", group.name, aic.words()));
        }
        if let Some(handoffs) = group.handoffs() {
            line("handoffs", format!("[{}] {handoffs}", group.name));
        }
    }
    let discovery = match &config.discovery {
        DiscoveryConfig::Etcd(etcd) => {
            format!("etcd {}, leases of {} s", etcd.endpoints.join(","), etcd.ttl.as_secs())
        }
        DiscoveryConfig::File(file) => format!("files below {}", file.root.display()),
        DiscoveryConfig::Mem(_) => "a map in this process".to_owned(),
    };
    line("discovery", discovery);
    for planes in distinct(config.groups.iter().map(|group| describe_planes(config, group, facts))) {
        line("planes", planes);
    }
    if config.http_port == Some(0) {
        line(
            "http",
            format!("{}, a free port per worker, told when ready", config.http_host),
        );
    } else if let Some(first) = config.http_port {
        let last = u32::from(first) + config.num_workers() - 1;
        line(
            "http",
            format!("http://{}:{first} .. {last}, one port per worker", config.http_host),
        );
    }
    if let Some(status) = facts.status {
        let paths = config.status.as_ref();
        let paths = paths.map_or(String::new(), |paths| {
            format!("{}, {}, ", paths.health_path, paths.live_path)
        });
        line("status", format!("http://{status}{paths}/metrics"));
    }
    if let Some(admin) = facts.admin {
        line("admin", format!("ghostfleet ctl --url http://{admin} top"));
    }
    for group in &config.groups {
        if let Some(native) = &group.native {
            line("native", format!("[{}] {}", group.name, describe_native(native)));
        }
    }
    line(
        "budget",
        format!(
            "{} threads at most; {} descriptors idle, {} allowed; seed {}",
            facts.threads, facts.budget.idle, facts.budget.limit, config.seed
        ),
    );
    let commands = config.groups.iter().filter_map(|group| attach::command(config, group));
    let commands = distinct(commands);
    if commands.is_empty() {
        text.push_str("no frontend can attach: the map is inside this process");
        return text;
    }
    text.push_str("attach a Dynamo frontend with:");
    for command in commands {
        text.push_str("\n  ");
        text.push_str(&command);
    }
    text
}

/// Each text once, in order.
fn distinct(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for text in texts {
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

fn describe_native(native: &NativeEvents) -> String {
    let how = if native.connect { "connecting to" } else { "on" };
    let first = native.ports.first().copied().unwrap_or_default();
    let last = native.ports.last().copied().unwrap_or(first);
    let replay = if native.replay_ports.is_empty() {
        ""
    } else {
        ", with replay"
    };
    format!("{how} {}:{first} .. {last}{replay}", native.host)
}

fn describe_planes(config: &Config, group: &Group, facts: &Facts) -> String {
    let nats = || {
        config.nats.as_ref().map_or_else(String::new, |nats| {
            let connections = match nats.connections {
                NatsConnections::Shared => "one connection",
                NatsConnections::PerWorker => "a connection per worker",
            };
            format!("nats {} ({connections})", nats.options.addresses())
        })
    };
    let requests = match (group.request_plane, facts.requests) {
        (RequestPlane::Tcp, Some(at)) => format!("tcp {at}{}", tls(config)),
        (RequestPlane::Tcp, None) => format!("tcp, one listener per worker{}", tls(config)),
        (RequestPlane::Nats, _) => nats(),
    };
    let events = match (group.event_plane, &group.brokers) {
        (EventPlane::Zmq, Brokers::None) => format!("zmq on {}", config.event_advertise),
        (EventPlane::Zmq, Brokers::At { addresses, .. }) => {
            format!("zmq to brokers at {}", addresses.hosts().join(", "))
        }
        (EventPlane::Zmq, Brokers::Discovered) => "zmq to the brokers in discovery".to_owned(),
        (EventPlane::Nats, _) => nats(),
    };
    format!("requests {requests}; events {events}")
}

fn tls(config: &Config) -> &'static str {
    match (&config.tls.server, &config.tls.client) {
        (None, None) => "",
        (Some(_), None) => ", requests with TLS",
        (None, Some(_)) => ", answers with TLS",
        (Some(_), Some(_)) => " with TLS",
    }
}
