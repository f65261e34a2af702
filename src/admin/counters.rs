//! Every counter of the fleet, shown with 0 before it first counts, so that a rate over it sees its first event.

/// Name, help, and the values that its one label may have.
type Counter = (
    &'static str,
    &'static str,
    Option<(&'static str, &'static [&'static str])>,
);

/// All of them; a test holds this list against the sources.
const COUNTERS: &[Counter] = &[
    (
        "ghostfleet_call_home_failures_total",
        "Answers whose response socket could not be opened.",
        None,
    ),
    (
        "ghostfleet_discovery_failed_renewals_total",
        "Renewals of leases that the store did not answer.",
        None,
    ),
    (
        "ghostfleet_discovery_leases_lost_total",
        "Leases that had run out when they were renewed.",
        None,
    ),
    (
        "ghostfleet_durable_events_repeated_total",
        "Times that JetStream had not stored events and they were sent again.",
        None,
    ),
    (
        "ghostfleet_event_messages_dropped_total",
        "Event messages dropped because the queue was full or the server refused them.",
        Some(("plane", &["zmq", "nats"])),
    ),
    (
        "ghostfleet_forward_passes_untold_total",
        "Forward passes that planners were not told of.",
        None,
    ),
    (
        "ghostfleet_http_connections_refused_total",
        "HTTP connections turned away because there were too many.",
        None,
    ),
    (
        "ghostfleet_kv_event_batches_lost_total",
        "Passes whose KV events did not reach the publisher; the whole cache is told later.",
        None,
    ),
    (
        "ghostfleet_native_event_batches_held_total",
        "Passes whose native KV events had to wait.",
        None,
    ),
    (
        "ghostfleet_native_replay_batches_dropped_total",
        "Native KV event batches that cannot be replayed because newer ones fill the bytes that are kept.",
        None,
    ),
    (
        "ghostfleet_native_replays_total",
        "Replays of native KV events that were asked for.",
        None,
    ),
    ("ghostfleet_nats_connections_lost_total", "NATS connections lost.", None),
    (
        "ghostfleet_nats_replies_lost_total",
        "Acks that the NATS connection did not take.",
        None,
    ),
    (
        "ghostfleet_nats_requests_dropped_total",
        "Requests dropped because they came faster than they were handed on.",
        None,
    ),
    (
        "ghostfleet_recovery_answers_given_up_total",
        "Recovery answers whose reader was gone or stood still.",
        None,
    ),
    (
        "ghostfleet_request_connections_dropped_total",
        "Request connections dropped for what they sent.",
        None,
    ),
    (
        "ghostfleet_request_connections_refused_total",
        "Request connections turned away because there were too many.",
        None,
    ),
    ("ghostfleet_requests_refused_total", "Requests refused.", None),
    (
        "ghostfleet_streams_cancelled_total",
        "Answers cut short because of their reader.",
        Some(("reason", &["slow_reader", "stalled_reader"])),
    ),
    (
        "ghostfleet_timing_errors_total",
        "Passes that took the last known duration because the AIC performance model had none.",
        Some(("phase", &["prefill", "decode"])),
    ),
    (
        "ghostfleet_unknown_recordings_total",
        "Requests for a recorded answer that is not there.",
        None,
    ),
];

/// Makes all of them known to the recorder.
pub(super) fn announce() {
    for &(name, help, label) in COUNTERS {
        metrics::describe_counter!(name, help);
        match label {
            None => metrics::counter!(name).increment(0),
            Some((label, values)) => {
                for &value in values {
                    metrics::counter!(name, label => value).increment(0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Names and label values of all `counter!` calls below a directory.
    fn used(directory: &Path, found: &mut BTreeSet<(String, Option<String>)>) {
        for entry in std::fs::read_dir(directory).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                used(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                for call in text.split("counter!(").skip(1) {
                    let call = call.split(')').next().expect("a first part");
                    let mut texts = call.split('"').skip(1).step_by(2);
                    if let Some(name) = texts.next().filter(|name| name.starts_with("ghostfleet_")) {
                        found.insert((name.to_owned(), texts.nth(1).map(str::to_owned)));
                    }
                }
            }
        }
    }

    #[test]
    fn the_list_names_every_counter_of_the_sources_and_no_other() {
        let mut found = BTreeSet::new();
        used(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        let listed = COUNTERS.iter().flat_map(|&(name, _, label)| match label {
            None => vec![(name.to_owned(), None)],
            Some((_, values)) => values
                .iter()
                .map(|value| (name.to_owned(), Some((*value).to_owned())))
                .collect(),
        });
        let listed: BTreeSet<_> = listed.collect();
        assert!(found.len() > 10, "the sources are read: {found:?}");
        assert_eq!(listed, found);
    }
}
