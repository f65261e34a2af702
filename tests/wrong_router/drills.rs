//! Ten failures that real routers have had, each with its drill.

use std::path::Path;
use std::sync::Arc;

use ghostfleet::drill::{Front, Options, Report, Scenario, Status, Verdict, run};
use ghostfleet::transport::discovery::Discovery;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::router::Router;
use crate::wrong::Wrong;
use crate::{http, sources};

/// A router and the threads that it runs on.
struct Running {
    router: Arc<Router>,
    runtime: Runtime,
}

impl Running {
    fn new(wrong: Option<Wrong>) -> Self {
        Self {
            router: Arc::new(Router::new(wrong)),
            runtime: Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    /// Puts it in front of the fleet that is found through `discovery`; its address.
    fn begin(&self, config: &ghostfleet::config::Config) -> String {
        let router = Arc::clone(&self.router);
        self.runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let discovery = Discovery::connect(&config.discovery).await.unwrap();
            tokio::spawn(sources::follow(Arc::clone(&router), discovery));
            tokio::spawn(http::serve(listener, router));
            url
        })
    }
}

fn drill(name: &str, wrong: Option<Wrong>) -> Report {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config/drills")
        .join(format!("{name}.toml"));
    let scenario = Scenario::parse(&path, &std::fs::read_to_string(&path).unwrap()).unwrap();
    let running = Running::new(wrong);
    let front = Front::Made(Box::new(|_, config| Ok(running.begin(config))));
    let options = Options {
        front,
        ..Options::default()
    };
    let report = run(&scenario, options).unwrap();
    running.runtime.shutdown_background();
    report
}

/// The router that gets everything right passes; the one that is wrong in this way fails this check.
fn proves(name: &str, wrong: Wrong, check: &str) {
    let (right, report) = std::thread::scope(|scope| {
        let right = scope.spawn(|| drill(name, None));
        let report = drill(name, Some(wrong));
        (right.join().unwrap(), report)
    });
    assert_eq!(right.verdict, Verdict::Pass, "{}", right.text());
    assert_eq!(
        report.verdict,
        Verdict::Fail,
        "{wrong:?} is not caught: {}",
        report.text()
    );
    let caught = report.judgements.iter().find(|judgement| judgement.name == check);
    let caught = caught.unwrap_or_else(|| panic!("{name} has no check {check:?}"));
    assert_eq!(
        caught.status,
        Status::Fail,
        "{wrong:?} is caught, but not by {check:?}: {}",
        report.text()
    );
}

#[test]
fn a_gap_that_is_answered_by_endless_dumps() {
    proves("event-gap", Wrong::EndlessDumps, "it does not ask without end");
}

#[test]
#[ignore = "not decided reliably yet: six prefixes fill the new cache before stale credit adds up"]
fn stale_credit_after_a_restart_at_sequence_0() {
    proves("restart-at-zero", Wrong::StaleCredit, "no stale credit");
}

#[test]
fn a_late_event_of_a_worker_that_has_left() {
    proves(
        "late-event",
        Wrong::LateEventRevives,
        "nobody is sent to a worker that has left",
    );
}

#[test]
fn a_block_that_is_listed_twice_in_one_message() {
    proves("duplicate-hash", Wrong::DuplicatesCount, "no block counts twice");
}

#[test]
fn two_sources_for_one_rank() {
    proves(
        "two-sources",
        Wrong::BothSourcesCount,
        "the blocks of two sources are not added up",
    );
}

#[test]
fn blocks_of_another_size() {
    proves("changed-block-size", Wrong::BlockSizeIgnored, "it still gets work");
}

#[test]
fn a_dead_worker_that_keeps_its_key() {
    proves("zombie-key", Wrong::DeadForEver, "the dead worker is left alone");
}

#[test]
fn cancelled_streams_that_pin_their_slots() {
    proves("cancelled-stream", Wrong::PinnedSlots, "patient clients are served");
}

#[test]
fn a_publisher_that_never_publishes_and_is_given_up() {
    proves("silent-publisher", Wrong::SilenceStarves, "it still gets work");
}

#[test]
fn a_publisher_that_never_publishes_and_gets_everything() {
    proves("silent-publisher", Wrong::SilenceAttracts, "and not all of it");
}

#[test]
fn a_recovery_endpoint_that_hangs() {
    proves("hanging-recovery", Wrong::RecoveryBlocks, "nobody waits for it");
}
