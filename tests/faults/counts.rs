//! How often a fault has happened: every kind counts when it does, and only then.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

use ghostfleet::actors::registry::WorkerState;
use ghostfleet::faults::kind::catalogue;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::raw::{Sent, post};

/// What makes a fault happen once it is in force.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    /// Nothing more.
    Itself,
    /// A request for ten tokens with a prompt that nobody has asked before.
    Call,
    /// The worker is started again.
    Restart,
    /// The worker dies.
    Crash,
    /// A router asks for what it missed.
    Query,
    /// A prompt is computed for a decode worker that is not met.
    Prefill,
    /// Both sides of a handoff meet.
    Meeting,
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Times {
    Once,
    Often,
}
use Times::{Often, Once};

/// Every kind: its layer, itself with its parameters, what makes it happen, how often.
const KINDS: &[(&str, &str, By, Times)] = &[
    ("life", "crash", By::Itself, Once),
    ("life", "panic", By::Itself, Once),
    ("life", "drain", By::Itself, Once),
    ("life", "restart", By::Itself, Once),
    ("life", "flap up_ms=50 down_ms=50", By::Itself, Often),
    ("life", "hang", By::Itself, Once),
    ("life", "slow_start ms=1", By::Restart, Once),
    ("engine", "slow factor=2", By::Call, Often),
    ("engine", "stall ms=1", By::Call, Often),
    ("engine", "jitter ms=1", By::Call, Often),
    ("engine", "refuse", By::Call, Once),
    ("engine", "reject", By::Call, Once),
    ("engine", "lose_capacity share=0.5", By::Itself, Once),
    ("engine", "clear_cache", By::Itself, Once),
    ("request", "latency ms=1", By::Call, Once),
    ("request", "reset_peer", By::Call, Once),
    ("request", "black_hole", By::Call, Once),
    ("request", "ack_withheld", By::Call, Once),
    ("request", "no_call_home", By::Call, Once),
    ("response", "cut tokens=3", By::Call, Once),
    ("response", "black_hole after_tokens=3", By::Call, Once),
    ("response", "error_item after_tokens=3", By::Call, Once),
    ("response", "latency ms=1", By::Call, Once),
    ("response", "bandwidth bytes_per_s=100000", By::Call, Once),
    ("response", "reset_peer", By::Call, Once),
    ("response", "slow_close ms=1", By::Call, Once),
    ("response", "limit_data bytes=20", By::Call, Once),
    ("response", "slicer bytes=100", By::Call, Once),
    ("response", "no_prologue", By::Call, Once),
    ("response", "duplicate_final", By::Call, Once),
    ("response", "missing_final", By::Call, Once),
    ("response", "malformed_frame after_tokens=3", By::Call, Once),
    ("events", "drop", By::Call, Often),
    ("events", "duplicate", By::Call, Often),
    ("events", "reorder window=2", By::Call, Often),
    ("events", "delay ms=1", By::Call, Often),
    ("events", "hold", By::Call, Often),
    ("events", "corrupt", By::Call, Often),
    ("events", "wrong_hash", By::Call, Often),
    ("events", "wrong_parent", By::Call, Often),
    ("events", "wrong_rank", By::Call, Often),
    ("events", "wrong_block_size", By::Call, Often),
    ("events", "duplicate_hash", By::Call, Often),
    ("events", "renumber", By::Call, Often),
    ("events", "gap", By::Call, Often),
    ("events", "stale_epoch", By::Call, Often),
    ("events", "silent", By::Call, Often),
    ("events", "storm per_s=200", By::Itself, Often),
    ("events", "recovery_missing", By::Query, Once),
    ("events", "recovery_hanging", By::Query, Once),
    ("events", "recovery_wrong", By::Query, Once),
    ("discovery", "lease_lost", By::Itself, Once),
    ("discovery", "key_kept", By::Crash, Once),
    ("discovery", "wrong_address", By::Itself, Once),
    ("discovery", "card_churn period_ms=20", By::Itself, Often),
    ("discovery", "duplicate_source", By::Itself, Once),
    ("discovery", "registration_storm period_ms=20", By::Itself, Often),
    ("metrics", "stale ms=1", By::Itself, Often),
    ("metrics", "frozen", By::Itself, Often),
    ("metrics", "lying high=5", By::Itself, Often),
    ("rendezvous", "never_ready", By::Prefill, Once),
    ("rendezvous", "late ms=1", By::Prefill, Once),
    ("rendezvous", "wrong_room", By::Meeting, Once),
    ("rendezvous", "abort", By::Prefill, Once),
    ("rendezvous", "orphan", By::Prefill, Once),
    ("rendezvous", "slow_link factor=2", By::Prefill, Once),
    ("rendezvous", "lost_link", By::Prefill, Once),
];

/// Asked and happened of a fault.
fn counts(admin: &Admin, id: u64) -> (u64, u64) {
    let (_, listed) = admin.get("/v1/faults");
    let listed = listed.as_array().unwrap().iter().find(|fault| fault["id"] == id);
    let count = |name: &str| listed.unwrap()[name].as_u64().unwrap();
    (count("asked"), count("happened"))
}

/// A prefill worker with a rendezvous and a decode worker, whose KV takes a while to travel.
fn pair() -> (Admin, TempDir) {
    let config = TempDir::new().unwrap();
    let path = config.path().join("pair.toml");
    let text = "speedup_ratio = 0.0\nkv_bytes_per_token = 1000\nkv_transfer_bandwidth = 1.0\n\
                handoff_session_timeout_ms = 300\n\
                [[group]]\nname = \"prefill\"\ndisaggregation_mode = \"prefill\"\nnum_workers = 1\nbootstrap_ports = \"0\"\n\
                [[group]]\nname = \"decode\"\ndisaggregation_mode = \"decode\"\nnum_workers = 1\n";
    std::fs::write(&path, text).unwrap();
    (Admin::start(&["--config", &Path::display(&path).to_string()]), config)
}

/// What was sent, which is not to be dropped before it has had its effect.
struct Sents {
    _sent: Vec<Sent>,
    _home: TcpListener,
}

fn send(requests: &[(String, Value)]) -> Sents {
    let home = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let sent = requests.iter().map(|(address, request)| post(address, request, &home));
    Sents {
        _sent: sent.collect(),
        _home: home,
    }
}

fn prompt(n: u32) -> Vec<u32> {
    (0..12).map(|token| 100 * n + token).collect()
}

fn query(admin: &Admin) -> (String, Value) {
    let source = admin.scene.source(0, 0).unwrap();
    let target = &source["metadata"]["recovery_target"]["transport"]["tcp"];
    let instance = admin.scene.worker(0).instance_id;
    let query = json!({"worker_id": instance, "dp_rank": 0, "start_event_id": null});
    (target.as_str().unwrap().to_owned(), query)
}

/// Both legs of one request.
fn legs(admin: &Admin) -> [(String, Value); 2] {
    let instance = admin.scene.worker(0).instance_id;
    let cards = admin.scene.records("v1/mdc");
    let card = cards.iter().find(|card| card["instance_id"] == instance).unwrap();
    let endpoint = &card["card_json"]["runtime_config"]["disaggregated_endpoint"];
    let leg = |worker: usize| {
        let mut request = chat(&prompt(1), 3);
        request["bootstrap_info"] = json!({
            "bootstrap_host": endpoint["bootstrap_host"],
            "bootstrap_port": endpoint["bootstrap_port"],
            "bootstrap_room": 7,
            "handoff_id": "6b3df0a4-aeab-41aa-a556-fdf171182473",
        });
        (admin.scene.address(worker), request)
    };
    [leg(1), leg(0)]
}

#[test]
fn every_kind_counts_when_it_has_happened() {
    let known: BTreeSet<_> = catalogue().map(|info| (info.layer.word(), info.kind)).collect();
    let word = |kind: &'static str| kind.split(' ').next().unwrap();
    let here: BTreeSet<_> = KINDS.iter().map(|(layer, kind, ..)| (*layer, word(kind))).collect();
    assert_eq!(here, known, "each kind of the catalogue, and no other");
    // Faults that leave the worker as it was have one fleet for all of them.
    let shared = Admin::start(&["--speedup-ratio", "0"]);
    let (handoffs, _config) = pair();
    for (n, &(layer, kind, by, times)) in (1..).zip(KINDS) {
        let own;
        let admin = match by {
            By::Call | By::Query => &shared,
            By::Prefill | By::Meeting => &handoffs,
            By::Itself | By::Restart | By::Crash => {
                own = Admin::start(&["--speedup-ratio", "0"]);
                &own
            }
        };
        let line = format!("w0 {layer}.{kind}");
        let id = admin.fault(&line);
        if by != By::Itself {
            assert_eq!(counts(admin, id), (0, 0), "{line} has not happened yet");
        }
        let requests = match by {
            By::Itself => Vec::new(),
            By::Call | By::Prefill => vec![(admin.scene.address(0), chat(&prompt(n), 10))],
            By::Query => vec![query(admin)],
            By::Meeting => legs(admin).into(),
            By::Restart | By::Crash => {
                admin.fault(if by == By::Crash { "w0 crash" } else { "w0 restart" });
                Vec::new()
            }
        };
        let _sents = send(&requests);
        admin.scene.until(&line, |_| counts(admin, id).1 > 0);
        let (asked, happened) = counts(admin, id);
        assert!(asked >= happened, "{line}: {asked} {happened}");
        if times == Once {
            assert_eq!(happened, 1, "{line}");
        }
        admin.delete(&format!("/v1/faults/f{id}"));
        if by == By::Call {
            // What is left of it would make the next one happen.
            admin.scene.until("its engine is idle", |scene| {
                scene.cluster.snapshot().in_use().sequences == 0
            });
        }
    }
    shared.delete("/v1/faults");
    shared.scene.until_nothing_is_left();
    handoffs.scene.until_nothing_is_left();
}

#[test]
fn what_has_not_come_to_pass_does_not_count() {
    let admin = Admin::start(&["--speedup-ratio", "0", "--num-workers", "2"]);
    // The answer is over before its turn comes.
    for (n, kind) in (1..).zip([
        "cut tokens=10",
        "response.black_hole after_tokens=10",
        "error_item after_tokens=10",
        "malformed_frame after_tokens=10",
        "limit_data bytes=1000000",
        "response.reset_peer after_ms=86400000",
        "bandwidth bytes_per_s=1000000000000",
        "slow_start ms=10",
        "key_kept",
        "lose_capacity share=0.000001",
        "recovery_wrong",
    ]) {
        let id = admin.fault(&format!("w0 {kind}"));
        let answer = call(&admin.scene.address(0), "a", &chat(&prompt(n), 10))
            .unwrap()
            .finish();
        assert!(answer.unwrap().complete, "{kind}");
        assert_eq!(counts(&admin, id).1, 0, "{kind}");
        admin.delete(&format!("/v1/faults/f{id}"));
    }
    // Nobody dies twice.
    let first = admin.fault("w1 crash");
    admin
        .scene
        .until("w1 is dead", |scene| scene.worker(1).state == WorkerState::Dead);
    assert_eq!(counts(&admin, first), (1, 1));
    let again = admin.fault("w1 crash");
    admin.scene.until("it was tried", |_| counts(&admin, again).0 == 1);
    assert_eq!(counts(&admin, again).1, 0);
    // A prompt whose KV nobody comes for is in no room.
    let (admin, _config) = pair();
    let id = admin.fault("w0 wrong_room");
    let answer = call(&admin.scene.address(0), "a", &chat(&prompt(1), 1))
        .unwrap()
        .finish();
    assert!(answer.unwrap().complete);
    assert_eq!(counts(&admin, id).1, 0);
}

#[test]
fn what_a_fault_has_done_stays_counted_when_its_worker_is_healed() {
    let admin = Admin::start(&["--speedup-ratio", "0", "--num-workers", "2"]);
    let id = admin.fault("w0 slow factor=1.5");
    call(&admin.scene.address(0), "a", &chat(&prompt(1), 10))
        .unwrap()
        .finish()
        .unwrap();
    let before = counts(&admin, id);
    assert!(before.1 > 0);
    let (status, answer) = admin.post("/v1/commands", &json!({"command": "heal", "select": "w0"}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(counts(&admin, id), before);
}
