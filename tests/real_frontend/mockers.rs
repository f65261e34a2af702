//! Handoffs with Dynamo's own mocker (release 1.4.2) as the other side.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::frontend::RouterMode;
use crate::process::{Process, free_port};
use crate::release::Release;
use crate::stack::{Events, Requests, Stack, Store, model_path};

const LIMIT: Duration = Duration::from_secs(60);

/// Whose worker does a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    Dynamos,
}

/// Starts one worker of a role, of either make, with the same flags.
fn worker(stack: &Stack, whose: Whose, role: &str, engine: &str, more: &[&str]) -> Process {
    let (program, first) = match whose {
        Whose::Ours => (env!("CARGO_BIN_EXE_ghostfleet").into(), vec!["serve"]),
        Whose::Dynamos => (Release::V1_4_2.python(), vec!["-m", "dynamo.mocker"]),
    };
    let program: &Path = program.as_path();
    Process::start(&format!("{role}-{whose:?}"), program, stack.scratch(), |command| {
        command.args(first);
        command.arg("--model-path").arg(model_path());
        command.args([
            "--disaggregation-mode",
            role,
            "--engine-type",
            engine,
            "--block-size",
            "16",
        ]);
        command.args(["--kv-bytes-per-token", "100000", "--kv-transfer-bandwidth", "1"]);
        command.args(more);
        command
            .envs(stack.environment())
            .env("DYN_NAMESPACE", stack.namespace());
        command.env("DYN_TCP_RPC_HOST", "127.0.0.1").env("HF_HUB_OFFLINE", "1");
    })
}

fn check(prefill: Whose, decode: Whose, engine: &str) {
    // NATS events: with ZeroMQ the mocker listens beyond loopback.
    let stack = Stack::on(Store::Etcd, Requests::Tcp, Events::Nats);
    let port = free_port().to_string();
    let mut workers = [
        worker(&stack, prefill, "prefill", engine, &["--bootstrap-ports", &port]),
        worker(&stack, decode, "decode", engine, &[]),
    ];
    let frontend = stack.frontend(Release::V1_4_2, RouterMode::Kv);
    let client = frontend.client();
    // Without a name of its own the model is called by its path.
    let model = model_path().display().to_string();
    let ready = workers[1].wait_ready(LIMIT, || client.models().contains(&model));
    if ready.is_err() {
        workers.iter().for_each(Process::show_log);
        panic!("{decode:?} ended: {ready:?}");
    }
    client.wait_instances("generate", 2, LIMIT);
    for topic in [1, 2, 1] {
        let mut request = completion(&prompt(topic, 40), 6);
        request["model"] = json!(model);
        let transcript = client.stream(COMPLETIONS, &request).finish();
        assert!(transcript.done && transcript.error().is_none(), "{transcript:?}");
        assert_eq!(transcript.usage()["completion_tokens"], 6);
    }
}

#[test]
#[ignore = "needs etcd, NATS and the Dynamo mocker: scripts/test"]
fn a_decode_worker_takes_the_kv_of_dynamos_own_prefill_worker() {
    check(Whose::Dynamos, Whose::Ours, "vllm");
}

#[test]
#[ignore = "needs etcd, NATS and the Dynamo mocker: scripts/test"]
fn a_prefill_worker_hands_its_kv_to_dynamos_own_decode_worker() {
    check(Whose::Ours, Whose::Dynamos, "vllm");
}
