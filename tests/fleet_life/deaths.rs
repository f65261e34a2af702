//! Every kind of actor dies, and what is seen of it outside.

use std::net::TcpStream;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;
use serde_json::{Value, json};

use crate::caller::{call, chat};
use crate::scene::Scene;

/// Asks a rank's recovery endpoint for everything it has announced.
fn recover(scene: &Scene, worker: usize) -> Value {
    let source = scene.source(worker, 0).expect("the rank's source is registered");
    let address = source["metadata"]["recovery_target"]["transport"]["tcp"]
        .as_str()
        .unwrap()
        .to_owned();
    let query = json!({"worker_id": scene.worker(worker).instance_id, "dp_rank": 0, "start_event_id": null});
    let mut answer = call(&address, "recover", &query).unwrap();
    loop {
        if let crate::caller::Said::Item(item) = answer.next().unwrap() {
            return item["data"].clone();
        }
    }
}

fn dumped_blocks(dump: &Value) -> usize {
    let events = dump["TreeDump"]["events"]
        .as_array()
        .unwrap_or_else(|| panic!("no dump: {dump}"));
    let blocks = |event: &Value| {
        event["event"]["data"]["stored"]["blocks"]
            .as_array()
            .map_or(0, Vec::len)
    };
    events.iter().map(blocks).sum()
}

#[test]
fn a_crashed_worker_resets_its_streams_and_its_records_run_out() {
    let scene = Scene::start(&["--num-workers", "2"]);
    let (victim, address) = (scene.worker(0).instance_id, scene.address(0));
    let mut answer = call(&address, "a", &chat(&[1, 2, 3], 10_000)).unwrap();
    answer.read_tokens(2);
    scene.cluster.kill("w0", Death::Crash).unwrap();
    answer.assert_reset();
    scene.until("w0 is dead", |scene| scene.worker(0).state == WorkerState::Dead);
    assert!(
        scene.instances().contains_key(&victim),
        "a dead process says no goodbye"
    );
    let refusal = call(&address, "b", &chat(&[1, 2, 3], 1)).err().unwrap();
    assert!(refusal.starts_with("Server unavailable: unknown endpoint"), "{refusal}");
    scene.until("the lease has run out", |scene| {
        !scene.instances().contains_key(&victim)
    });
    assert_eq!(scene.instances().len(), 1, "the neighbour lives on");
    scene.until_nothing_is_left();
}

#[test]
fn with_a_listener_of_its_own_a_crashed_worker_closes_its_port() {
    let scene = Scene::start(&["--num-workers", "2", "--ports", "per-worker"]);
    let (first, second) = (scene.address(0), scene.address(1));
    let port = |address: &str| address.split_once('/').unwrap().0.to_owned();
    assert_ne!(port(&first), port(&second));
    scene.cluster.kill("w0", Death::Crash).unwrap();
    scene.until("the port is closed", |_| TcpStream::connect(port(&first)).is_err());
    assert!(
        call(&second, "a", &chat(&[1, 2, 3], 1))
            .unwrap()
            .finish()
            .unwrap()
            .complete
    );
}

#[test]
fn a_worker_that_panics_is_replaced_under_a_new_id() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let before = scene.worker(0);
    scene.cluster.kill("w0", Death::Panic).unwrap();
    scene.until("w0 is back", |scene| {
        scene.worker(0).incarnation == 2 && scene.worker(0).state == WorkerState::Ready
    });
    assert_ne!(scene.worker(0).instance_id, before.instance_id);
    assert!(scene.answers(0));
}

#[test]
fn a_dead_worker_comes_back_when_told_to_under_its_old_id_if_asked() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let id = scene.worker(0).instance_id;
    assert!(
        scene
            .cluster
            .restart("w0", true)
            .unwrap_err()
            .to_string()
            .contains("is alive")
    );
    scene.cluster.kill("w0", Death::Crash).unwrap();
    scene.until("w0 is dead", |scene| scene.worker(0).state == WorkerState::Dead);
    assert!(
        scene
            .cluster
            .kill("w0", Death::Crash)
            .unwrap_err()
            .to_string()
            .contains("not alive")
    );
    // News of the death reaches the supervisor a moment after the registry.
    scene.until("it may be restarted", |scene| scene.cluster.restart("w0", true).is_ok());
    scene.until("w0 is back", |scene| scene.worker(0).state == WorkerState::Ready);
    assert_eq!(scene.worker(0).instance_id, id);
    assert!(scene.answers(0));
}

#[test]
fn a_dead_rank_breaks_its_streams_and_comes_back_with_an_empty_cache() {
    let scene = Scene::start(&["--speedup-ratio", "1"]);
    call(&scene.address(0), "warm", &chat(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 1))
        .unwrap()
        .finish()
        .unwrap();
    scene.until("two blocks are announced", |scene| {
        dumped_blocks(&recover(scene, 0)) == 2
    });
    let mut answer = call(&scene.address(0), "a", &chat(&[1, 2, 3], 10_000)).unwrap();
    answer.read_tokens(2);
    scene.cluster.kill("w0/r0", Death::Panic).unwrap();
    answer.assert_reset();
    scene.until("the rank is back", |scene| {
        call(&scene.address(0), "b", &chat(&[1, 2, 3], 1)).is_ok_and(|mut a| a.finish().is_ok_and(|o| o.complete))
    });
    assert_eq!(scene.worker(0).incarnation, 1, "only the rank died");
    scene.until("the router is told that the cache is gone", |scene| {
        dumped_blocks(&recover(scene, 0)) == 0
    });
    scene.until_nothing_is_left();
}

#[test]
fn a_dead_kv_publisher_is_followed_by_a_new_stream_with_the_ranks_true_blocks() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    call(&scene.address(0), "warm", &chat(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 1))
        .unwrap()
        .finish()
        .unwrap();
    let before = scene.source(0, 0).unwrap()["publisher_id"].clone();
    scene.cluster.kill("w0/kv", Death::Panic).unwrap();
    scene.until("there is a new source", |scene| {
        scene
            .source(0, 0)
            .is_some_and(|source| source["publisher_id"] != before)
    });
    assert_eq!(
        scene.records("v1/event_sources").len(),
        1,
        "never two sources of one rank"
    );
    scene.until("the new stream knows the blocks", |scene| {
        dumped_blocks(&recover(scene, 0)) == 2
    });
    assert!(scene.answers(0));
}

#[test]
fn a_dead_metrics_reporter_is_followed_by_a_new_channel() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let channel = |scene: &Scene| {
        let records = scene.records("v1/event_channels");
        records
            .iter()
            .find(|record| record["topic"] == "kv_metrics")
            .map(|record| record["instance_id"].clone())
    };
    let before = channel(&scene).unwrap();
    scene.cluster.kill("w0/metrics", Death::Crash).unwrap();
    scene.until("there is a new channel", |scene| {
        channel(scene).is_some_and(|now| now != before)
    });
    assert_eq!(scene.worker(0).restarts, 1);
}

#[test]
fn a_dead_registrar_is_replaced_and_the_worker_stays_listed() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let id = scene.worker(0).instance_id;
    scene.cluster.kill("w0/lease", Death::Panic).unwrap();
    scene.until("the registrar is replaced", |scene| scene.worker(0).restarts == 1);
    // Longer than a lease that nobody renews would live.
    let end = std::time::Instant::now() + Duration::from_secs(12);
    scene.until("a lease's time has passed", |scene| {
        let listed = scene.instances().contains_key(&id);
        assert!(
            listed,
            "unlisted {:?} before the end",
            end.saturating_duration_since(std::time::Instant::now())
        );
        std::time::Instant::now() > end
    });
}

#[test]
fn a_child_that_keeps_dying_takes_its_worker_with_it() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let mut killed = 0;
    scene.until("the worker is replaced as a whole", |scene| {
        if scene.worker(0).incarnation == 1 && scene.cluster.kill("w0/metrics", Death::Panic).is_ok() {
            killed += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        scene.worker(0).incarnation == 2
    });
    assert!(killed > 5, "the budget of five restarts was spent first: {killed}");
    scene.until("it serves again", |scene| scene.worker(0).state == WorkerState::Ready);
}

#[test]
fn commands_for_actors_that_are_not_there_name_them() {
    let scene = Scene::start(&[]);
    for (path, words) in [
        ("w9", "no actor w9"),
        ("w0/r7", "no actor w0/r7"),
        ("nonsense", "no actor path"),
    ] {
        let error = scene.cluster.kill(path, Death::Crash).unwrap_err().to_string();
        assert!(error.contains(words), "{path}: {error}");
    }
    assert!(
        scene
            .cluster
            .drain("w0/r0")
            .unwrap_err()
            .to_string()
            .contains("not a worker")
    );
}
