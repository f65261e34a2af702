//! Counters of the `metrics` facade in Prometheus' text form. The recorder belongs to the process, as the facade has it.

use std::sync::OnceLock;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Starts to collect. Counters from before are lost, so call it before the fleet starts; later calls do nothing.
pub(super) fn install() {
    RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        match metrics::set_global_recorder(recorder) {
            Ok(()) => {
                super::counters::announce();
                Some(handle)
            }
            Err(error) => {
                tracing::warn!(%error, "fleet counters are not exported: the process collects them elsewhere");
                None
            }
        }
    });
}

/// All counters now; empty when somebody else collects them.
pub(super) fn page() -> String {
    match RECORDER.get() {
        Some(Some(handle)) => {
            handle.run_upkeep();
            handle.render()
        }
        Some(None) | None => String::new(),
    }
}
