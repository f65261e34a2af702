//! The figures that Dynamo's runtime shows of each worker's endpoints, under its names and labels.
//!
//! Recovery endpoints have their own series. Requests that come by the HTTP face are not the runtime's and do not count.
//! Not here: what Dynamo counts of its relay from an engine's ZeroMQ stream (`..._kv_publisher_zmq_*`), because events are
//! published without such a detour, and of the queue before its handlers (`dynamo_work_handler_*`), because calls are taken
//! as they come. Source: Dynamo 1.6.1.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::registry::WorkerEntry;
use crate::transport::discovery::EndpointName;
use crate::transport::request_plane::figures::{CallError, DURATION_BOUNDS, EndpointFigures};

type Figure = fn(&EndpointFigures) -> u64;

const FIGURES: [(&str, &str, &str, Figure); 5] = [
    ("requests_total", "counter", "Requests taken.", |figures| {
        figures.requests()
    }),
    ("inflight_requests", "gauge", "Answers under way.", |figures| {
        figures.in_flight()
    }),
    ("request_bytes_total", "counter", "Bytes of requests.", |figures| {
        figures.request_bytes()
    }),
    (
        "response_bytes_total",
        "counter",
        "Bytes of answers that are over.",
        |figures| figures.response_bytes(),
    ),
    (
        "cancellation_total",
        "counter",
        "Answers that callers cut short.",
        |figures| figures.cancelled(),
    ),
];

/// One endpoint of one worker.
struct Series {
    labels: String,
    figures: Arc<EndpointFigures>,
}

/// The page of these workers; those that have never been built are left out.
pub(super) fn render(entries: &[Arc<WorkerEntry>], uptime: Duration) -> String {
    let mut page = String::new();
    put(&mut page, entries, uptime);
    page
}

fn put(page: &mut String, entries: &[Arc<WorkerEntry>], uptime: Duration) {
    let built = || entries.iter().filter(|entry| entry.incarnation() > 0);
    let series: Vec<Series> = built().flat_map(|entry| series(entry)).collect();
    for (name, kind, help, figure) in FIGURES {
        let name = head(page, name, kind, help);
        for Series { labels, figures } in &series {
            row(page, &name, labels, figure(figures));
        }
    }
    durations(page, &series);
    let name = head(page, "errors_total", "counter", "Calls that went wrong, by reason.");
    for Series { labels, figures } in &series {
        for error in CallError::ALL {
            let labels = format!("{labels},error_type=\"{}\"", error.name());
            row(page, &name, &labels, figures.errors(error));
        }
    }
    let name = head(page, "uptime_seconds", "gauge", "Time since the start.");
    for entry in built() {
        let labels = format!("worker_id=\"{:x}\"", entry.instance_id());
        row(page, &name, &labels, format!("{:?}", uptime.as_secs_f64()));
    }
    let help = "Passes whose KV events did not reach their publisher; it is told the whole cache instead.";
    let name = head(page, "kv_publisher_engines_dropped_events_total", "counter", help);
    for entry in built() {
        let endpoint = entry.endpoint();
        let labels = format!(
            "dynamo_namespace=\"{}\",dynamo_component=\"{}\",worker_id=\"{:x}\"",
            endpoint.namespace(),
            endpoint.component(),
            entry.instance_id()
        );
        row(page, &name, &labels, entry.lost_event_batches());
    }
}

fn durations(page: &mut String, series: &[Series]) {
    let help = "From a call to the end of its answer.";
    let name = head(page, "request_duration_seconds", "histogram", help);
    for Series { labels, figures } in series {
        let (up_to, all, sum) = figures.durations();
        let bucket = format!("{name}_bucket");
        for (bound, count) in DURATION_BOUNDS.iter().zip(up_to) {
            row(page, &bucket, &format!("{labels},le=\"{bound}\""), count);
        }
        row(page, &bucket, &format!("{labels},le=\"+Inf\""), all);
        row(page, &format!("{name}_sum"), labels, format!("{sum:?}"));
        row(page, &format!("{name}_count"), labels, all);
    }
}

/// The lines above a family's rows; its whole name.
fn head(page: &mut String, name: &str, kind: &str, help: &str) -> String {
    let name = format!("dynamo_component_{name}");
    // Writing into a String cannot fail.
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    name
}

fn row(page: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(page, "{name}{{{labels}}} {value}");
}

/// Names of endpoints need no escapes.
fn series(entry: &WorkerEntry) -> Vec<Series> {
    let worker = entry.instance_id();
    let of = |(name, figures): (EndpointName, _)| Series {
        labels: format!(
            "dynamo_namespace=\"{}\",dynamo_component=\"{}\",dynamo_endpoint=\"{}\",worker_id=\"{worker:x}\"",
            name.namespace(),
            name.component(),
            name.endpoint()
        ),
        figures,
    };
    entry.endpoint_figures().into_iter().map(of).collect()
}
