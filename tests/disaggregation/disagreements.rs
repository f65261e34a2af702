//! Workers that cannot hand KV to each other: each request fails, and a log says once why.

use ghostfleet::transport::rendezvous::MISMATCH;
use ghostfleet::transport::rendezvous::wire::{Message, Order, Register};

use crate::legs::{Handoff, INSTANT, Pair, end, error_of, prompt};
use crate::logs;
use crate::peers::{Source, held, identity, join, runtime, vllm};

#[test]
fn a_prefill_worker_warns_once_of_decode_workers_of_another_engine() {
    logs::keep();
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let other = Register {
        order: Order::DestinationFirst,
        engine_type: "sglang-of-this-test".to_owned(),
        ..vllm()
    };
    for _ in 0..3 {
        let handoff = Handoff::new();
        let refused = join(&runtime, &pair.meeting(0, &handoff), identity(&handoff), other.clone()).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.contains("\"vllm\"") && said.contains("sglang-of-this-test"),
            "{said}"
        );
    }
    assert_eq!(logs::warnings(&["w0/rendezvous", "sglang-of-this-test"]), 1);
}

#[test]
fn a_decode_worker_warns_once_of_each_prefill_worker_that_refuses_it() {
    logs::keep();
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let sources = [Source::start(&runtime), Source::start(&runtime)];
    for source in sources.iter().cycle().take(6) {
        let handoff = Handoff::new();
        let answer = pair.decode_from(source, &handoff, &prompt(1, 30));
        source.refuse(MISMATCH);
        assert!(error_of(&end(answer)).contains(MISMATCH));
    }
    for source in &sources {
        let port = source.meeting(&Handoff::new())["bootstrap_port"].to_string();
        assert_eq!(logs::warnings(&["w1/r0", &format!("127.0.0.1:{port}"), MISMATCH]), 1);
    }
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_decode_worker_warns_once_of_kv_of_another_layout() {
    logs::keep();
    let pair = Pair::start("kv_bytes_per_token = 1000\nkv_transfer_bandwidth = 0.0");
    let runtime = runtime();
    let source = Source::start(&runtime);
    for _ in 0..3 {
        let handoff = Handoff::new();
        let answer = pair.decode_from(&source, &handoff, &prompt(1, 30));
        let link = source.receive().link;
        assert!(link.outbox.say(held(&handoff, Some(2000))));
        let abort = Message::Abort {
            message: "enough".to_owned(),
        };
        assert!(link.outbox.say(abort));
        assert!(error_of(&end(answer)).contains("enough"));
    }
    let port = source.meeting(&Handoff::new())["bootstrap_port"].to_string();
    assert_eq!(
        logs::warnings(&["w1/r0", &format!("127.0.0.1:{port}"), "2000 bytes per token"]),
        1
    );
    pair.scene.until_nothing_is_left();
}
