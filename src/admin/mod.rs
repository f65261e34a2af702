//! What operators and probes see of a fleet, and what they can do to it.
//!
//! | Module | Job |
//! |---|---|
//! | [`status`], `exporter` | probes and Prometheus, as Dynamo workers have them |
//! | [`server`], `guard`, `places` | the admin server; who is served, who is asked for a token; how many, and who gives way |
//! | `routes`, `live`, [`figures`] | snapshots, faults, commands; changes as server-sent events; what they count |
//! | `dashboard` | the page that shows all of it in a browser |
//! | [`openapi`], `schemas` | the table of its paths, what bodies and answers hold, and the document made from both |

mod answer;
mod blocks;
mod counters;
mod dashboard;
mod exporter;
pub mod figures;
mod guard;
mod live;
pub mod openapi;
mod places;
mod routes;
mod schemas;
mod seats;
pub mod server;
pub mod status;
mod supervisor;
mod unique;

pub use live::HEARTBEAT;
