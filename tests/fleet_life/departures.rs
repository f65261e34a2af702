//! Workers that leave in good order.

use ghostfleet::actors::registry::{InUse, WorkerState};

use crate::caller::{call, chat};
use crate::scene::Scene;

#[test]
fn a_drained_worker_is_unlisted_at_once_finishes_its_streams_and_leaves() {
    let scene = Scene::start(&["--num-workers", "2", "--speedup-ratio", "1"]);
    let id = scene.worker(0).instance_id;
    let mut answer = call(&scene.address(0), "a", &chat(&[1, 2, 3], 200)).unwrap();
    answer.read_tokens(2);
    scene.cluster.drain("w0").unwrap();
    scene.until("it is unlisted", |scene| !scene.instances().contains_key(&id));
    assert_eq!(scene.worker(0).state, WorkerState::Draining);
    let rest = answer.finish().unwrap();
    assert_eq!((rest.tokens.len(), rest.complete), (198, true));
    drop(answer);
    scene.until("it has left", |scene| scene.worker(0).state == WorkerState::Left);
    assert_eq!(scene.instances().len(), 1);
    assert!(scene.source(0, 0).is_none(), "its event records went with the lease");
    scene.until_nothing_is_left();
}

#[test]
fn a_request_on_its_way_during_a_drain_is_still_served() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let (id, address) = (scene.worker(0).instance_id, scene.address(0));
    scene.cluster.drain("w0").unwrap();
    scene.until("it is unlisted", |scene| !scene.instances().contains_key(&id));
    // Sent by a router that has not seen it yet.
    assert!(
        call(&address, "late", &chat(&[1, 2, 3], 2))
            .unwrap()
            .finish()
            .unwrap()
            .complete
    );
}

#[test]
fn stopping_the_fleet_leaves_no_record_and_nothing_in_use() {
    let scene = Scene::start(&["--num-workers", "5", "--data-parallel-size", "2"]);
    assert_eq!(scene.instances().len(), 5);
    scene.cluster.begin_stop();
    assert!(scene.cluster.wait_over(crate::scene::PATIENCE), "not every worker left");
    for bucket in ["v1/instances", "v1/mdc", "v1/event_channels", "v1/event_sources"] {
        assert_eq!(scene.records(bucket), Vec::<serde_json::Value>::new(), "{bucket}");
    }
    let snapshot = scene.cluster.snapshot();
    assert!(snapshot.workers.iter().all(|worker| worker.state == WorkerState::Left));
    assert_eq!(snapshot.in_use(), InUse::default());
}
