//! Faults of leases, records and load figures.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::ear::Ear;
use ghostfleet::actors::registry::WorkerState;

#[test]
fn a_lease_is_lost_while_the_worker_lives_and_returns_when_healed() {
    let admin = Admin::start(&[]);
    let address = admin.scene.address(0);
    let id = admin.fault("w0 lease_lost");
    admin
        .scene
        .until("it is unlisted", |scene| scene.instances().is_empty());
    assert_eq!(admin.scene.worker(0).state, WorkerState::Ready);
    assert!(
        call(&address, "a", &chat(&[1], 3)).unwrap().finish().unwrap().complete,
        "it serves on"
    );
    admin.delete(&format!("/v1/faults/f{id}"));
    admin
        .scene
        .until("it is listed again", |scene| scene.instances().len() == 1);
    admin.scene.until_nothing_is_left();
}

#[test]
fn keys_of_a_dead_worker_stay_as_long_as_the_fault_does() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let (kept, gone) = (admin.scene.worker(0).instance_id, admin.scene.worker(1).instance_id);
    let id = admin.fault("w0 key_kept");
    admin.fault("* crash");
    admin.scene.until("the other lease runs out", |scene| {
        !scene.instances().contains_key(&gone)
    });
    assert!(admin.scene.instances().contains_key(&kept));
    assert_eq!(admin.scene.worker(0).state, WorkerState::Dead);
    admin.delete(&format!("/v1/faults/f{id}"));
    admin
        .scene
        .until("then its own does", |scene| scene.instances().is_empty());
}

#[test]
fn records_lie_about_the_address_and_the_source() {
    let admin = Admin::start(&[]);
    let truth = admin.scene.address(0);
    let id = admin.fault("w0 wrong_address");
    admin
        .scene
        .until("the address is wrong", |scene| scene.address(0).contains(":1/"));
    admin.delete(&format!("/v1/faults/f{id}"));
    admin
        .scene
        .until("the address is right", |scene| scene.address(0) == truth);
    let sources = |admin: &Admin| -> Vec<Value> { admin.scene.records("v1/event_sources") };
    assert_eq!(sources(&admin).len(), 1);
    let id = admin.fault("w0 duplicate_source");
    admin
        .scene
        .until("two sources claim the rank", |_| sources(&admin).len() == 2);
    let both = sources(&admin);
    assert_ne!(both[0]["publisher_id"], both[1]["publisher_id"]);
    assert_eq!(both[0]["metadata"]["worker"], both[1]["metadata"]["worker"]);
    // The lie goes on when the publisher that it is about is another one.
    let publishers = |sources: &[Value]| -> BTreeSet<u64> {
        let ids = sources.iter().map(|source| source["publisher_id"].as_u64().unwrap());
        ids.collect()
    };
    let former = publishers(&both);
    admin.post("/v1/commands", &json!({"command": "crash", "path": "w0/kv"}));
    admin.scene.until("two others claim it", |_| {
        let now = publishers(&sources(&admin));
        now.len() == 2 && now.is_disjoint(&former)
    });
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.scene.until("one is left", |_| sources(&admin).len() == 1);
}

#[test]
fn cards_come_and_go_and_registrations_storm() {
    let admin = Admin::start(&[]);
    let cards = |admin: &Admin| admin.scene.records("v1/mdc").len();
    let id = admin.fault("w0 card_churn period_ms=40");
    for _ in 0..2 {
        admin.scene.until("the card is away", |_| cards(&admin) == 0);
        admin.scene.until("the card is back", |_| cards(&admin) == 1);
    }
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.scene.until("the card is there", |_| cards(&admin) == 1);
    let id = admin.fault("w0 registration_storm period_ms=20");
    for _ in 0..3 {
        admin
            .scene
            .until("it is unlisted", |scene| scene.instances().is_empty());
        admin.scene.until("it is listed", |scene| scene.instances().len() == 1);
    }
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.scene.until("it is listed", |scene| {
        scene.instances().len() == 1 && cards(&admin) == 1
    });
    assert_eq!(admin.scene.worker(0).incarnation, 1);
}

#[test]
fn load_figures_freeze_and_lie() {
    let admin = Admin::start(&["--timing-model", r#"{"type":"fixed","prefill_ms":1.0,"decode_ms":2.0}"#]);
    let ear = Ear::new(&admin, "kv_metrics");
    ear.wake(&admin);
    let used = |ear: &Ear| ear.next().payload["kv_used_blocks"].as_u64().unwrap();
    let id = admin.fault("w0 lying high=777 wave=constant");
    assert_eq!(used(&ear), 777);
    let mut answer = call(&admin.scene.address(0), "a", &chat(&[1; 8], 20)).unwrap();
    assert_eq!(used(&ear), 777);
    answer.finish().unwrap();
    admin.delete(&format!("/v1/faults/f{id}"));
    while used(&ear) == 777 {}
    let id = admin.fault("w0 lying wave=square low=5 high=9 period_ms=200");
    let (mut low, mut high) = (false, false);
    while !(low && high) {
        match used(&ear) {
            5 => low = true,
            9 => high = true,
            other => assert!(other < 5, "{other}"),
        }
    }
    admin.delete(&format!("/v1/faults/f{id}"));
    while ear.soon().is_some() {}
    admin.fault("w0 frozen");
    call(&admin.scene.address(0), "b", &chat(&[2; 8], 20))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(ear.soon(), None);
    admin.scene.until_nothing_is_left();
}
