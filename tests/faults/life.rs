//! Faults of workers as processes.

use std::net::TcpListener;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;
use serde_json::json;

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::ports::free_ports;
use crate::scene::PATIENCE;

#[test]
fn the_hottest_worker_crashes_and_comes_back_under_its_id() {
    let admin = Admin::start(&["--num-workers", "3"]);
    let mut answer = call(&admin.scene.address(1), "a", &chat(&[1, 2, 3], 10_000)).unwrap();
    answer.read_tokens(1);
    let instance = admin.scene.worker(1).instance_id;
    admin.fault("hottest crash restart_after_ms=50 same_id=true");
    answer.assert_reset();
    admin.scene.until("w1 is back", |scene| {
        scene.worker(1).incarnation == 2 && scene.worker(1).state == WorkerState::Ready
    });
    assert_eq!(admin.scene.worker(1).instance_id, instance);
    assert_eq!(admin.scene.worker(0).incarnation, 1);
    let (_, listed) = admin.get("/v1/faults");
    assert_eq!(
        (&listed[0]["phase"], &listed[0]["workers"]),
        (&json!("over"), &json!([1]))
    );
    admin.scene.until_nothing_is_left();
}

#[test]
fn every_actor_dies_by_its_path_and_the_budget_is_seen() {
    let admin = Admin::start(&["--num-workers", "2"]);
    for (actor, deaths) in [("r0", 1), ("kv", 1), ("metrics", 1), ("lease", 1), ("r0", 2)] {
        admin.fault(&format!("w0 panic actor={actor}"));
        let path = match actor {
            "kv" => "w0/r0/kv".to_owned(),
            other => format!("w0/{other}"),
        };
        admin.scene.until("the death is seen", |scene| {
            let seen = scene.worker(0).deaths;
            seen.iter()
                .any(|death| death.path == path && death.deaths_total == deaths)
        });
        let seen = admin.scene.worker(0).deaths;
        let death = seen.iter().find(|death| death.path == path).unwrap();
        assert_eq!((death.budget, u64::from(death.deaths_in_window)), (5, deaths));
        assert!(death.backoff_ms.unwrap() >= 100.0 * 2f64.powi(i32::try_from(deaths).unwrap() - 1));
        admin.scene.until("it is replaced", |_| {
            let (_, shown) = admin.get(&format!("/v1/actors/{path}"));
            shown["inside"]["alive"] == true
        });
    }
    assert_eq!(admin.scene.worker(0).incarnation, 1, "the worker itself lives on");
    admin.fault("w1 panic");
    admin
        .scene
        .until("w1 is replaced", |scene| scene.worker(1).incarnation == 2);
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_worker_that_was_killed_by_request_shows_how_it_died() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let killed = |total: u64| {
        let (status, answer) = admin.post("/v1/commands", &json!({"command": "crash", "select": "w1"}));
        assert_eq!(status, 200, "{answer}");
        admin.scene.until("the death is seen", |_| {
            let (_, shown) = admin.get("/v1/actors/w1");
            shown["deaths"][0]["deaths_total"] == total && shown["state"] == "dead"
        });
    };
    killed(1);
    let (_, shown) = admin.get("/v1/actors/w1");
    let death = &shown["deaths"][0];
    assert_eq!(
        (
            &death["path"],
            &death["cause"],
            &death["deaths_in_window"],
            &death["backoff_ms"]
        ),
        (&json!("w1"), &json!("killed"), &json!(0), &json!(null)),
        "{death}"
    );
    let healed = admin.post("/v1/commands", &json!({"command": "heal", "select": "w1"}));
    assert_eq!(healed.0, 200, "{}", healed.1);
    admin
        .scene
        .until("w1 is back", |scene| scene.worker(1).state == WorkerState::Ready);
    killed(2);
    assert!(admin.scene.worker(0).deaths.is_empty());
    // One that leaves in good order has not died.
    let drained = admin.post("/v1/commands", &json!({"command": "drain", "select": "w0"}));
    assert_eq!(drained.0, 200, "{}", drained.1);
    admin
        .scene
        .until("w0 left", |scene| scene.worker(0).state == WorkerState::Left);
    assert!(admin.scene.worker(0).deaths.is_empty());
}

#[test]
fn a_flapping_worker_comes_and_goes_and_stays_when_healed() {
    let admin = Admin::start(&[]);
    admin.fault("w0 flap up_ms=60 down_ms=50");
    admin
        .scene
        .until("w0 was up a few times", |scene| scene.worker(0).incarnation >= 3);
    let healed = admin.post("/v1/commands", &json!({"command": "heal", "select": "w0"}));
    assert_eq!(healed.0, 200, "{}", healed.1);
    admin
        .scene
        .until("w0 is well", |scene| scene.worker(0).state == WorkerState::Ready);
    let incarnation = admin.scene.worker(0).incarnation;
    assert!(
        call(&admin.scene.address(0), "a", &chat(&[1], 3))
            .unwrap()
            .finish()
            .unwrap()
            .complete
    );
    assert_eq!(admin.scene.worker(0).incarnation, incarnation);
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_flap_that_is_removed_while_its_worker_is_dead_brings_the_worker_back() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let dead = |worker| {
        admin
            .scene
            .until("it is dead", |scene| scene.worker(worker).state == WorkerState::Dead);
    };
    let back = |worker| {
        admin
            .scene
            .until("it is back", |scene| scene.worker(worker).state == WorkerState::Ready);
    };
    // Dead for a day, if nobody does anything.
    let id = admin.fault("w0 flap up_ms=50 down_ms=86400000 same_id=true");
    dead(0);
    let instance = admin.scene.worker(0).instance_id;
    admin.delete(&format!("/v1/faults/f{id}"));
    back(0);
    assert_eq!(admin.scene.worker(0).instance_id, instance, "as the flap would have");
    admin.fault("w1 crash restart_after_ms=86400000");
    dead(1);
    admin.delete("/v1/faults");
    back(1);
    // One that was to stay dead stays dead.
    admin.fault("w1 crash");
    dead(1);
    admin.delete("/v1/faults");
    assert_eq!(admin.scene.worker(1).state, WorkerState::Dead);
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_flap_ends_with_its_window_and_a_fleet_that_flaps_stops() {
    let admin = Admin::start(&["--num-workers", "2"]);
    admin.fault("w0 flap up_ms=50 down_ms=50 for=1s");
    let over = |admin: &Admin| admin.get("/v1/faults").1[0]["phase"] == "over";
    admin.scene.until("the window is over", |_| over(&admin));
    admin
        .scene
        .until("w0 is well, and the last crash is made good", |scene| {
            let (_, journal) = admin.get("/v1/journal");
            let entries = journal["entries"].as_array().unwrap();
            let done = |act: &str| entries.iter().filter(|entry| entry["act"] == act).count();
            done("crash") == done("restart") && scene.worker(0).state == WorkerState::Ready
        });
    let incarnation = admin.scene.worker(0).incarnation;
    // An order that was still waiting would bring the worker back after this death.
    let (status, answer) = admin.post("/v1/commands", &json!({"command": "crash", "select": "w0"}));
    assert_eq!(status, 200, "{answer}");
    admin
        .scene
        .until("w0 is dead", |scene| scene.worker(0).state == WorkerState::Dead);
    let (status, answer) = admin.post("/v1/commands", &json!({"command": "crash", "select": "w0"}));
    assert_eq!(status, 409, "{answer}");
    assert_eq!(admin.scene.worker(0).incarnation, incarnation);
    let (status, answer) = admin.post("/v1/commands", &json!({"command": "restart", "select": "w0"}));
    assert_eq!(status, 200, "{answer}");
    admin.fault("* flap up_ms=50 down_ms=50");
    admin.scene.until("it flaps", |scene| scene.worker(1).incarnation >= 3);
    admin.scene.cluster.begin_stop();
    assert!(admin.scene.cluster.wait_over(PATIENCE), "a worker was not drained");
}

#[test]
fn a_fleet_that_drains_can_still_be_healed() {
    let admin = Admin::start(&["--speedup-ratio", "0"]);
    admin.fault("w0 hang");
    let mut answer = call(&admin.scene.address(0), "a", &chat(&[1; 4], 3)).unwrap();
    admin.scene.until("it is taken", |_| admin.get("/v1/why/a").0 == 200);
    admin.scene.cluster.begin_stop();
    admin
        .scene
        .until("it drains", |scene| scene.worker(0).state == WorkerState::Draining);
    let (status, done) = admin.post("/v1/commands", &json!({"command": "heal", "select": "w0"}));
    assert_eq!(status, 200, "{done}");
    assert_eq!(answer.finish().unwrap().tokens.len(), 3);
    assert!(admin.scene.cluster.wait_over(PATIENCE), "nothing holds it any more");
    // Nobody is started any more.
    let (status, done) = admin.post("/v1/commands", &json!({"command": "heal", "select": "w0"}));
    assert_eq!(status, 503, "{done}");
}

#[test]
fn a_rank_in_back_off_is_said_to_be_down_and_a_spent_budget_is_in_the_journal() {
    let admin = Admin::start(&[]);
    let order = json!({"command": "panic", "path": "w0/r0"});
    let mut downs = 0;
    admin.scene.until("the budget is spent", |_| {
        let (_, answer) = admin.post("/v1/commands", &order);
        let error = answer["results"][0]["error"].as_str().unwrap_or_default();
        assert!(!error.contains("there is no actor"), "{error}");
        downs += usize::from(error.contains("w0/r0 is down; its supervisor builds it again in"));
        let (_, journal) = admin.get("/v1/journal");
        let gave_up = |entry: &serde_json::Value| entry["event"] == "gave_up" && entry["path"] == "w0/r0";
        journal["entries"].as_array().unwrap().iter().any(gave_up)
    });
    assert!(downs > 0);
    assert_eq!(
        admin
            .post("/v1/commands", &json!({"command": "panic", "path": "w0/r9"}))
            .0
            / 100,
        4
    );
}

#[test]
fn a_drained_worker_leaves_in_good_order_and_returns() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let instance = admin.scene.worker(0).instance_id;
    let mut answer = call(&admin.scene.address(0), "a", &chat(&[1], 20)).unwrap();
    admin.fault("w0 drain restart_after_ms=10");
    assert!(answer.finish().unwrap().complete, "streams end normally");
    admin.scene.until("w0 is back", |scene| {
        scene.worker(0).incarnation == 2 && scene.worker(0).state == WorkerState::Ready
    });
    assert_ne!(admin.scene.worker(0).instance_id, instance);
    assert!(!admin.scene.instances().contains_key(&instance), "it said goodbye");
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_slow_start_holds_requests_back() {
    let admin = Admin::start(&[]);
    admin.fault("w0 slow_start ms=300");
    admin.fault("w0 restart");
    admin.scene.until("w0 is back", |scene| {
        scene.worker(0).incarnation == 2 && scene.worker(0).state == WorkerState::Ready
    });
    let mut answer = call(&admin.scene.address(0), "a", &chat(&[1], 3)).unwrap();
    let (_, shown) = admin.get("/v1/actors/w0/r0");
    assert!(
        shown["inside"]["said"]["activity"]["starts_in_ms"].as_f64().is_some(),
        "{shown}"
    );
    assert!(answer.finish().unwrap().complete);
    admin.scene.until_nothing_is_left();
}

#[test]
fn a_worker_with_a_port_of_its_own_is_started_again_at_once() {
    let port = free_ports().to_string();
    let admin = Admin::start(&["--http-port", &port]);
    let address = admin.scene.worker(0).http;
    for restarts in 1..=10 {
        admin.fault("w0 restart");
        admin.scene.until("it is back", |scene| {
            let worker = scene.worker(0);
            worker.restarts == restarts && worker.state == WorkerState::Ready
        });
        admin.delete("/v1/faults");
        assert_eq!(admin.scene.worker(0).http, address);
    }
    let (_, journal) = admin.get("/v1/journal");
    assert!(!journal.to_string().contains("cannot restart"), "{journal}");
}

#[test]
fn a_restart_whose_port_somebody_else_has_taken_fails_with_the_port() {
    let port = free_ports();
    let admin = Admin::start(&["--http-port", &port.to_string()]);
    admin.scene.cluster.kill("w0", Death::Crash).unwrap();
    let taken = || TcpListener::bind(("127.0.0.1", port)).ok();
    let _squatter = std::iter::repeat_with(taken).flatten().next().unwrap();
    let (status, answer) = admin.post("/v1/commands", &json!({"command": "restart", "select": "w0"}));
    let error = answer["results"][0]["error"].as_str().unwrap();
    assert!(status == 503 && error.contains(&port.to_string()), "{status} {error}");
}

#[test]
fn what_only_a_whole_worker_can_do_is_not_said_to_have_no_actor() {
    let admin = Admin::start(&[]);
    for command in ["drain", "restart", "heal"] {
        let (status, answer) = admin.post("/v1/commands", &json!({"command": command, "path": "w0/r0"}));
        let error = answer["results"][0]["error"].as_str().unwrap_or_default();
        assert!(
            status == 400 && error.contains("name w0 instead of w0/r0"),
            "{command}: {status} {answer}"
        );
    }
    assert_eq!(admin.scene.worker(0).state, WorkerState::Ready);
}
