//! Failures that real routers have had, each with its drill.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

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

/// A drill, and the ways to be wrong that it is for, each with the check that fails then.
type Proof = (&'static str, &'static [(Wrong, &'static str)]);

/// The router that gets everything right passes; one that is wrong fails the check that is for it. They run at the same time.
fn prove(&(name, wrongs): &Proof) {
    std::thread::scope(|scope| {
        let right = scope.spawn(|| drill(name, None));
        let caught = wrongs
            .iter()
            .map(|&(wrong, check)| (wrong, check, scope.spawn(move || drill(name, Some(wrong)))));
        for (wrong, check, report) in caught.collect::<Vec<_>>() {
            assert_caught(name, wrong, check, &report.join().unwrap());
        }
        let right = right.join().unwrap();
        assert_eq!(right.verdict, Verdict::Pass, "{}", right.text());
    });
}

fn assert_caught(name: &str, wrong: Wrong, check: &str, report: &Report) {
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

/// Drills are made of waiting: a few of them run side by side, more would not leave each enough of two cores.
static TURN: Mutex<()> = Mutex::new(());

/// Proves all of these; one that fails names itself and does not keep the others from being looked at.
fn prove_side_by_side(proofs: &[Proof]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let running = proofs.iter().map(|proof| (proof.0, scope.spawn(|| prove(proof))));
        let running: Vec<_> = running.collect();
        let failed = running
            .into_iter()
            .filter_map(|(name, proof)| proof.join().is_err().then_some(name));
        failed.collect()
    });
    assert!(failed.is_empty(), "the reasons are above: {failed:?}");
}

#[test]
fn a_router_that_loses_the_thread_of_a_stream_of_events_is_caught() {
    prove_side_by_side(&[
        ("event-gap", &[(Wrong::EndlessDumps, "it does not ask without end")]),
        ("restart-at-zero", &[(Wrong::StaleCredit, "no stale credit")]),
        (
            "late-event",
            &[(Wrong::LateEventRevives, "nobody is sent to a worker that has left")],
        ),
        ("hanging-recovery", &[(Wrong::RecoveryBlocks, "nobody waits for it")]),
    ]);
}

#[test]
fn a_router_that_miscounts_what_is_cached_is_caught() {
    prove_side_by_side(&[
        ("duplicate-hash", &[(Wrong::DuplicatesCount, "no block counts twice")]),
        (
            "two-sources",
            &[(Wrong::BothSourcesCount, "the blocks of two sources are not added up")],
        ),
        ("changed-block-size", &[(Wrong::BlockSizeIgnored, "it still gets work")]),
    ]);
}

#[test]
fn a_router_that_misjudges_who_can_work_is_caught() {
    prove_side_by_side(&[
        ("zombie-key", &[(Wrong::DeadForEver, "the dead worker is left alone")]),
        (
            "cancelled-stream",
            &[
                (Wrong::PinnedSlots, "patient clients are served"),
                (Wrong::CancelIsLost, "nothing is kept"),
            ],
        ),
        (
            "crash-hottest",
            &[
                (Wrong::CutIsTheEnd, "no client sees it"),
                (Wrong::MoveRepeats, "no client sees it"),
                (Wrong::MoveReplays, "no client sees it"),
            ],
        ),
        ("slow-decode", &[(Wrong::LoadIgnored, "work moves to the others")]),
        // A publisher that never publishes is given up, or gets everything.
        (
            "silent-publisher",
            &[
                (Wrong::SilenceStarves, "it still gets work"),
                (Wrong::SilenceAttracts, "and not all of it"),
            ],
        ),
    ]);
}
