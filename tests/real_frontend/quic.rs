//! A frontend that wants its answers by QUIC, which workers here do not speak: refused at once, never a request that
//! hangs.

use std::time::Duration;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, FrontendOptions, RouterMode};
use crate::release::Release;
use crate::stack::{Events, Requests, Stack, Store};

const LIST_LIMIT: Duration = Duration::from_secs(30);

fn refuses(requests: Requests) {
    let stack = Stack::on(Store::Files, requests, Events::Zmq);
    let fleet = Fleet::start(&stack, "--num-workers 1 --block-size 16 --speedup-ratio 0");
    let mut environment = stack.environment();
    environment.push(("DYN_RESPONSE_PLANE", "quic".to_owned()));
    let options = FrontendOptions {
        release: Release::V1_6_1,
        router_mode: RouterMode::RoundRobin,
        migration_limit: 0,
    };
    let frontend = Frontend::start(stack.scratch(), &environment, stack.namespace(), &options);
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    // A hang would end in the client's time limit, which is a panic.
    let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(1, 40), 2));
    assert_eq!(reply.status, 503, "{reply:?}");
    drop(frontend);
    // The same fleet serves a frontend that takes answers by TCP.
    let frontend = stack.frontend(Release::V1_6_1, RouterMode::RoundRobin);
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(1, 40), 2));
    assert_eq!(reply.status, 200, "{reply:?}");
    fleet.stop();
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn a_request_that_asks_for_a_quic_answer_fails_at_once_on_tcp() {
    refuses(Requests::Tcp);
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn a_request_that_asks_for_a_quic_answer_fails_at_once_on_nats() {
    refuses(Requests::Nats);
}
