//! Faults of KV events and their recovery.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::caller::{Said, call};
use crate::ear::{Ear, Heard, ask};
use crate::raw::{is_called_home, post};

const FAST: [&str; 2] = ["--speedup-ratio", "0"];

fn hear() -> (Admin, Ear) {
    let admin = Admin::start(&FAST);
    let ear = Ear::new(&admin, "kv-events");
    ear.wake(&admin);
    (admin, ear)
}

/// What is heard of one request while a fault is in force.
fn under(admin: &Admin, ear: &Ear, line: &str, n: u32) -> Heard {
    let id = admin.fault(line);
    ask(admin, n);
    let heard = ear.next();
    admin.delete(&format!("/v1/faults/f{id}"));
    while ear.soon().is_some() {}
    heard
}

fn last_id(heard: &Heard) -> u64 {
    *heard.ids().last().expect("events")
}

#[test]
fn a_lost_message_leaves_a_gap_in_numbers_and_ids() {
    let (admin, ear) = hear();
    ask(&admin, 1);
    let before = ear.next();
    let id = admin.fault("w0 events.drop");
    ask(&admin, 2);
    assert_eq!(ear.soon(), None);
    admin.delete(&format!("/v1/faults/f{id}"));
    ask(&admin, 3);
    let after = ear.next();
    assert_eq!(after.sequence, before.sequence + 2);
    assert_eq!(after.ids()[0], last_id(&before) + 2);
    let (_, listed) = admin.get("/v1/faults");
    assert_eq!(listed, json!([]));
}

#[test]
fn messages_are_repeated_held_late_and_out_of_order() {
    let (admin, ear) = hear();
    let id = admin.fault("w0 events.duplicate copies=2");
    ask(&admin, 1);
    let copies: Vec<Heard> = (0..3).map(|_| ear.next()).collect();
    assert!(copies.iter().all(|copy| copy.payload == copies[0].payload));
    admin.delete(&format!("/v1/faults/f{id}"));
    let id = admin.fault("w0 events.hold");
    for n in 2..5 {
        ask(&admin, n);
    }
    assert_eq!(ear.soon(), None);
    let (_, shown) = admin.get("/v1/actors/w0/kv");
    assert_eq!(shown["inside"]["said"]["held_messages"], 3);
    admin.delete(&format!("/v1/faults/f{id}"));
    let ids: Vec<u64> = (0..3).map(|_| last_id(&ear.next())).collect();
    assert!(
        ids.windows(2).all(|pair| pair[0] < pair[1]),
        "released in order: {ids:?}"
    );
    let id = admin.fault("w0 events.reorder window=8");
    for n in 10..18 {
        ask(&admin, n);
    }
    let ids: Vec<u64> = (0..8).map(|_| last_id(&ear.next())).collect();
    assert!(ids.windows(2).any(|pair| pair[0] > pair[1]), "{ids:?}");
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.fault("w0 events.delay ms=400");
    ask(&admin, 20);
    let early = ear.soon();
    assert_eq!(early, None);
    ear.next();
}

#[test]
fn what_messages_say_is_wrong() {
    let (admin, ear) = hear();
    let heard = under(&admin, &ear, "w0 wrong_rank rank=3", 1);
    assert_eq!(heard.payload[0]["event"]["dp_rank"], 3);
    let heard = under(&admin, &ear, "w0 renumber first=0", 2);
    assert_eq!(heard.ids()[0], 0);
    ask(&admin, 3);
    let before = last_id(&ear.next());
    let heard = under(&admin, &ear, "w0 gap ids=5", 4);
    assert_eq!(heard.ids()[0], before + 6);
    let blocks = |heard: &Heard| {
        heard.payload[0]["event"]["data"]["stored"]["blocks"]
            .as_array()
            .map_or(0, Vec::len)
    };
    ask(&admin, 5);
    let truth = ear.next();
    let heard = under(&admin, &ear, "w0 wrong_block_size factor=3", 6);
    assert_eq!(blocks(&heard), 3 * blocks(&truth));
    let (_, cache) = admin.get("/v1/cache/w0");
    let known: Vec<u64> = cache[0]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|b| b["block_hash"].as_u64())
        .collect();
    let hash = |heard: &Heard| {
        heard.payload[0]["event"]["data"]["stored"]["blocks"][0]["block_hash"]
            .as_u64()
            .unwrap()
    };
    assert!(known.contains(&hash(&truth)));
    let heard = under(&admin, &ear, "w0 wrong_hash", 7);
    let (_, cache) = admin.get("/v1/cache/w0");
    assert!(!cache.to_string().contains(&hash(&heard).to_string()));
    let heard = under(&admin, &ear, "w0 wrong_parent", 8);
    let parent = &heard.payload[0]["event"]["data"]["stored"]["parent_hash"];
    assert!(
        parent.is_u64() && !cache.to_string().contains(&parent.to_string()),
        "{parent}"
    );
    let truth = admin.scene.source(0, 0).unwrap()["publisher_id"].as_u64();
    let heard = under(&admin, &ear, "w0 stale_epoch", 9);
    assert_ne!(Some(heard.publisher), truth);
    let id = admin.fault("w0 corrupt");
    let mut spoiled = 0;
    for n in 30..40 {
        ask(&admin, n);
        let heard = ear.next();
        spoiled += usize::from(heard.payload.is_null() || heard.ids().is_empty());
    }
    admin.delete(&format!("/v1/faults/f{id}"));
    assert!(spoiled > 0, "no message could not be read any more");
}

#[test]
fn a_silent_publisher_never_says_a_word_and_its_recovery_does_not_know_either() {
    let (admin, ear) = hear();
    ask(&admin, 1);
    let before = last_id(&ear.next());
    let id = admin.fault("w0 silent");
    ask(&admin, 2);
    assert_eq!(ear.soon(), None);
    admin.delete(&format!("/v1/faults/f{id}"));
    ask(&admin, 3);
    assert_eq!(ear.next().ids()[0], before + 1, "no gap tells of it");
}

#[test]
fn a_storm_blows_until_it_is_over() {
    let (admin, ear) = hear();
    let id = admin.fault("w0 storm per_s=500");
    let mut last = last_id(&ear.next());
    for _ in 0..200 {
        let heard = ear.next();
        assert_eq!(heard.ids()[0], last + 1, "true to form");
        last = last_id(&heard);
    }
    admin.delete(&format!("/v1/faults/f{id}"));
    while ear.soon().is_some() {}
    ask(&admin, 1);
    ear.next();
}

#[test]
fn a_cleared_cache_is_told_not_told_or_told_late() {
    let (admin, ear) = hear();
    let removed = |heard: &Heard| {
        let data = &heard.payload[0]["event"]["data"];
        *data == "cleared" || data["removed"].is_object()
    };
    let cached = |admin: &Admin| admin.get("/v1/cache/w0").1[0].as_array().unwrap().len();
    ask(&admin, 1);
    ear.next();
    admin.fault("w0 clear_cache");
    assert!(removed(&ear.next()));
    assert_eq!(cached(&admin), 0);
    ask(&admin, 2);
    ear.next();
    admin.fault("w0 clear_cache event=without");
    admin.scene.until("the cache is empty", |_| cached(&admin) == 0);
    assert_eq!(ear.soon(), None);
    ask(&admin, 3);
    ear.next();
    admin.fault("w0 clear_cache event=late late_ms=500");
    admin.scene.until("the cache is empty", |_| cached(&admin) == 0);
    assert_eq!(ear.soon(), None);
    assert!(removed(&ear.next()));
}

#[test]
fn blocks_that_a_rank_has_no_more_are_remembered_whether_anybody_was_told_or_not() {
    let admin = Admin::start(&[&FAST[..], &["--num-gpu-blocks-override", "12"]].concat());
    let known = |path: &str| -> Vec<Value> { admin.get(path).1[0].as_array().cloned().unwrap_or_default() };
    let former = || -> Vec<Value> { admin.get("/v1/former/w0").1[0]["blocks"].as_array().unwrap().clone() };
    ask(&admin, 1);
    let first = known("/v1/cache/w0");
    assert!(!first.is_empty());
    assert_eq!(former(), Vec::<Value>::new());
    // Pushed out, and told.
    for n in 2..9 {
        ask(&admin, n);
    }
    let all_gone = || first.iter().all(|block| former().contains(block));
    admin.scene.until("evicted blocks are remembered", |_| all_gone());
    // Dropped without a word.
    let second = known("/v1/cache/w0");
    admin.fault("w0 clear_cache event=without");
    admin.scene.until("dropped blocks are remembered", |_| {
        second.iter().all(|block| former().contains(block))
    });
    // Of a worker that has died.
    ask(&admin, 20);
    let third = known("/v1/cache/w0");
    admin.fault("w0 crash");
    admin.scene.until("what it had is remembered", |_| {
        third.iter().all(|block| former().contains(block))
    });
    assert_eq!(admin.get("/v1/former/w0").1[0]["dropped"], 0);
    assert_eq!(admin.get("/v1/former/w7").0, 404);
}

#[test]
fn recovery_is_missing_hangs_or_is_wrong() {
    let admin = Admin::start(&FAST);
    ask(&admin, 1);
    let source = admin.scene.source(0, 0).unwrap();
    let address = source["metadata"]["recovery_target"]["transport"]["tcp"]
        .as_str()
        .unwrap()
        .to_owned();
    let instance = admin.scene.worker(0).instance_id;
    let query = json!({"worker_id": instance, "dp_rank": 0, "start_event_id": null});
    let dump = || -> Value {
        let mut answer = call(&address, "r", &query).unwrap();
        loop {
            if let Said::Item(item) = answer.next().unwrap() {
                return item["data"].clone();
            }
        }
    };
    let worker_of = |dump: &Value| dump["TreeDump"]["events"][0]["worker_id"].as_u64();
    assert_eq!(worker_of(&dump()), Some(instance));
    let id = admin.fault("w0 recovery_missing");
    let refusal = call(&address, "r", &query).err().unwrap();
    assert!(refusal.contains("unknown endpoint"), "{refusal}");
    admin.delete(&format!("/v1/faults/f{id}"));
    let id = admin.fault("w0 recovery_hanging");
    let home = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let sent = post(&address, &query, &home);
    assert_eq!(sent.ack(Duration::from_secs(5)).as_deref(), Some(""));
    assert!(!is_called_home(&home));
    admin.delete(&format!("/v1/faults/f{id}"));
    admin.fault("w0 recovery_wrong");
    let wrong = dump();
    assert_eq!(worker_of(&wrong), Some(1));
    assert!(wrong["TreeDump"]["last_event_id"].as_u64().unwrap() > 1 << 40);
}
