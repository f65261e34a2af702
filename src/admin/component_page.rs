//! The figures that Dynamo's runtime shows of each worker's endpoint, under its names and labels.
//!
//! Requests that come by the HTTP face are not the runtime's and do not count. Source: Dynamo 1.6.1.

use std::fmt::Write;
use std::time::Duration;

use crate::actors::registry::{Registry, WorkerEntry, WorkerSnapshot};

type Figure = fn(&WorkerSnapshot) -> u64;

const FIGURES: [(&str, &str, &str, Figure); 3] = [
    ("requests_total", "counter", "Requests taken.", |worker| {
        worker.accepted_total
    }),
    ("inflight_requests", "gauge", "Answers under way.", |worker| {
        u64::from(worker.open_streams)
    }),
    ("cancellation_total", "counter", "Answers cut short.", |worker| {
        worker.cancelled_total
    }),
];

/// Appends them for every worker of the fleet.
pub(super) fn put(page: &mut String, registry: &Registry, uptime: Duration) {
    let entries = registry.entries();
    let workers: Vec<_> = entries
        .iter()
        .map(|entry| (labels(entry), entry.snapshot()))
        .filter(|(_, worker)| worker.incarnation > 0)
        .collect();
    // Writing into a String cannot fail.
    for (name, kind, help, figure) in FIGURES {
        let name = format!("dynamo_component_{name}");
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, worker) in &workers {
            let _ = writeln!(
                page,
                "{name}{{{labels},worker_id=\"{:x}\"}} {}",
                worker.instance_id,
                figure(worker)
            );
        }
    }
    let name = "dynamo_component_uptime_seconds";
    let _ = writeln!(page, "# HELP {name} Time since the start.\n# TYPE {name} gauge");
    for (_, worker) in &workers {
        let _ = writeln!(
            page,
            "{name}{{worker_id=\"{:x}\"}} {:?}",
            worker.instance_id,
            uptime.as_secs_f64()
        );
    }
}

/// Names of endpoints need no escapes.
fn labels(entry: &WorkerEntry) -> String {
    let endpoint = entry.endpoint();
    format!(
        "dynamo_namespace=\"{}\",dynamo_component=\"{}\",dynamo_endpoint=\"{}\"",
        endpoint.namespace(),
        endpoint.component(),
        endpoint.endpoint()
    )
}
