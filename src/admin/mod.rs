//! What operators and probes see of a fleet: the status server and the exported metrics.

mod component_page;
mod exporter;
pub mod status;
