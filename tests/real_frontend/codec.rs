//! Bodies in both encodings, on both request planes: what workers ask for is what frontends send and get back, in answers
//! and in recovery alike.

use std::time::Duration;

use crate::ask::{CHAT, chat};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::RouterMode;
use crate::prefixes::{follow_up, plant_and_index, wait_known};
use crate::release::{Release, on_each_release};
use crate::stack::{Events, Requests, Stack, Store};

const LIST_LIMIT: Duration = Duration::from_secs(30);

on_each_release! {
    fn json_on_tcp(release) {
        serves(release, Requests::Tcp, "json");
    }

    fn json_on_nats(release) {
        serves(release, Requests::Nats, "json");
    }

    fn msgpack_by_the_variable_of_dynamo(release) {
        serves(release, Requests::Tcp, "msgpack");
    }
}

fn serves(release: Release, requests: Requests, codec: &str) {
    let stack = Stack::on(Store::Files, requests, Events::Zmq);
    let flags = "--num-workers 2 --block-size 16 --speedup-ratio 0";
    let fleet = Fleet::start_with(&stack, flags, &[("DYN_REQUEST_PLANE_CODEC", codec)]);
    let attach = || {
        let frontend = stack.frontend(release, RouterMode::Kv);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 2, LIST_LIMIT);
        frontend
    };
    let frontend = attach();
    let client = frontend.client();
    let transcript = client.stream(CHAT, &chat("Hello.", 6)).finish();
    assert_eq!(transcript.error(), None);
    assert_eq!(transcript.usage()["completion_tokens"], 6);
    let owner = plant_and_index(&fleet, client, 1);
    assert_eq!(follow_up(&fleet, client, 1, 0), owner);
    let late = attach();
    wait_known(&fleet, late.client(), &[(1, owner)]);
    assert_eq!(follow_up(&fleet, late.client(), 1, 1), owner);
}
