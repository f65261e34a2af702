//! Drills: a fleet, a router, a load, faults on a timeline, and checks that end in a verdict.
//!
//! ```no_run
//! use std::path::Path;
//! use ghostfleet::drill::{Front, Options, Scenario, Verdict, run};
//!
//! let path = Path::new("config/drills/crash-hottest.toml");
//! let scenario = Scenario::parse(path, &std::fs::read_to_string(path)?)?;
//! // The router may also be made here, once the fleet is up: the answer is its address.
//! let front = Front::Made(Box::new(|cluster, _config| {
//!     let workers = cluster.snapshot().workers;
//!     Ok(format!("http://127.0.0.1:{}", 8000 + workers.len()))
//! }));
//! let report = run(&scenario, Options { front, seed: Some(7), ..Options::default() })?;
//! assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | Module | Job |
//! |---|---|
//! | [`scenario`] | what the file says; pure |
//! | [`plan`] | what a load asks, and when; pure |
//! | [`record`] | what was seen; pure |
//! | [`check`] | what has to hold, and whether it did; pure |
//! | [`report`] | the verdict as text, JSON, JUnit and HTML; pure |
//! | `client`, `connections`, [`sse`], `load` | probe load over HTTP |
//! | `content` | whether an answer consists of the tokens that workers gave; pure |
//! | `refuse` | drills that this fleet cannot run |
//! | `program` | a load that is a program, AIPerf for one: started, waited for, ended |
//! | `stage`, `router`, `process`, `group`, `scratch`, `tail` | the fleet, the router in front of it and its end, their files |
//! | `timeline`, `watcher` | what is done to the fleet; what it looks like meanwhile |
//! | `index` | whom a drill asks what is believed of caches: a frontend's index, its choices, a standalone indexer |
//! | [`truth`] | where a comparison of that with the truth comes in |
//! | [`Stop`] | a user's wish that it ends |
//! | `run`, [`command`], `outputs` | all of it, from beginning to end; the command, and the files that its reports go to |

pub mod check;
mod client;
pub mod command;
mod connections;
mod content;
mod error;
mod group;
mod index;
mod load;
mod outputs;
pub mod plan;
mod process;
mod program;
pub mod record;
mod refuse;
pub mod report;
mod router;
mod run;
pub mod scenario;
mod scratch;
pub mod sse;
mod stage;
mod stop;
mod tail;
mod timeline;
pub mod truth;
mod watcher;

pub use check::{Check, Judgement, Status};
pub use error::{DrillError, Unfinished};
pub use index::Served;
pub use record::Record;
pub use report::{Report, Verdict};
pub use run::{Front, MakeRouter, Options, Progress, attempt, run};
pub use scenario::{Scenario, ScenarioError};
pub use stop::Stop;
