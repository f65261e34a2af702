//! Participants that are in the wrong place, twice there, or no participants at all.

use std::io::{Read, Write};
use std::net::TcpStream;

use ghostfleet::transport::rendezvous::wire::{ActionAck, Fact, HEADER, Message, Order, Outcome, Register};
use serde_json::{Value, json};

use crate::caller::{call, chat};
use crate::legs::{Handoff, INSTANT, Pair, SLOW, end, error_of, prompt};
use crate::peers::{Source, hear, identity, join, runtime, vllm};
use crate::scene::{PATIENCE, Scene};

#[test]
fn a_stranger_in_the_wrong_room_is_sent_away_and_harms_nobody() {
    let pair = Pair::start(INSTANT);
    let handoff = Handoff::new();
    let prefill = pair.prefill(&handoff, &prompt(1, 30));
    pair.until_rooms((1, 0));
    let runtime = runtime();
    let meeting = pair.meeting(0, &handoff);
    let mut wrong = identity(&handoff);
    wrong.bootstrap_room ^= 1;
    let refused = join(&runtime, &meeting, wrong, vllm()).unwrap_err();
    assert!(
        refused.to_string().contains("identity or backend mismatch"),
        "{refused}"
    );
    assert_eq!(pair.scene.worker(0).handoffs.rooms, 1);
    let outcome = pair.decode(&handoff, &prompt(1, 30), 4).finish().unwrap();
    assert_eq!((outcome.tokens.len(), outcome.error), (4, None));
    assert!(end(prefill).complete);
    pair.scene.until_nothing_is_left();
}

#[test]
fn another_engine_cannot_take_the_kv() {
    let pair = Pair::start(INSTANT);
    let handoff = Handoff::new();
    let prefill = pair.prefill(&handoff, &prompt(1, 30));
    pair.until_rooms((1, 0));
    let sglang = Register {
        order: Order::DestinationFirst,
        engine_type: "sglang".to_owned(),
        ..vllm()
    };
    let refused = join(&runtime(), &pair.meeting(0, &handoff), identity(&handoff), sglang).unwrap_err();
    assert!(
        refused.to_string().contains("identity or backend mismatch"),
        "{refused}"
    );
    let outcome = end(prefill);
    assert!(error_of(&outcome).contains("identity or backend mismatch"));
    pair.scene.until_nothing_is_left();
}

#[test]
fn a_room_takes_one_of_each_side_and_is_never_used_again() {
    let pair = Pair::start(SLOW);
    let runtime = runtime();
    let handoff = Handoff::new();
    let mut decode = pair.decode(&handoff, &prompt(1, 30), 5);
    pair.until_rooms((1, 1));
    let second = join(&runtime, &pair.meeting(0, &handoff), identity(&handoff), vllm()).unwrap_err();
    assert!(
        second.to_string().contains("duplicate destination participant"),
        "{second}"
    );
    let prefill = pair.prefill(&handoff, &prompt(1, 30));
    pair.until_transferring();
    let second = pair.prefill(&handoff, &prompt(1, 30)).finish().unwrap();
    assert!(error_of(&second).contains("duplicate source participant"), "{second:?}");
    decode.say("kill");
    error_of(&end(prefill));
    let late = join(&runtime, &pair.meeting(0, &handoff), identity(&handoff), vllm()).unwrap_err();
    assert!(late.to_string().contains("already active or retired"), "{late}");
    pair.scene.until_nothing_is_left();
}

#[test]
fn rooms_are_bounded_on_both_sides() {
    let pair = Pair::start(&format!("{SLOW}\nmax_num_seqs = 2"));
    let waiting: Vec<_> = (0..2)
        .map(|topic| pair.prefill(&Handoff::new(), &prompt(topic, 9)))
        .collect();
    pair.until_rooms((2, 0));
    let third = pair.prefill(&Handoff::new(), &prompt(3, 9)).finish().unwrap();
    assert!(
        error_of(&third).contains("handoff session limit of 2 reached for r0"),
        "{third:?}"
    );
    drop(waiting);
    pair.until_rooms((0, 0));
    let waiting: Vec<_> = (0..2)
        .map(|topic| pair.decode(&Handoff::new(), &prompt(topic, 9), 5))
        .collect();
    pair.until_rooms((2, 2));
    let third = pair.decode(&Handoff::new(), &prompt(3, 9), 5).finish().unwrap();
    assert!(
        error_of(&third).contains("handoff session limit of 2 reached for r0"),
        "{third:?}"
    );
    let handoff = Handoff::new();
    let third = join(&runtime(), &pair.meeting(0, &handoff), identity(&handoff), vllm()).unwrap_err();
    assert!(third.to_string().contains("too many handoffs"), "{third}");
    drop(waiting);
    pair.scene.until_nothing_is_left();
}

#[test]
fn what_is_no_rendezvous_is_dropped() {
    let pair = Pair::start(INSTANT);
    let port = pair.meeting(0, &Handoff::new())["bootstrap_port"].as_u64().unwrap();
    let with_header = |rest: &[u8]| [&HEADER[..], rest].concat();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"DMHF\x02\0\0\0".to_vec(),
        with_header(&[0, 0, 0, 0]),
        with_header(&[0xff, 0xff, 0xff, 0xff]),
        with_header(b"\x04\0\0\0nope"),
    ] {
        let mut socket = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        // Closed, or reset because of what was left unread.
        drop(socket.read_to_end(&mut answer));
        assert_eq!(answer, b"", "{bytes:?}");
    }
    let (_, decode) = pair.serve(&prompt(1, 9), 3);
    assert_eq!(decode.error, None);
}

#[test]
fn a_destination_that_breaks_the_protocol_ends_its_handoff() {
    let pair = Pair::start(SLOW);
    let runtime = runtime();
    for message in [
        Message::Complete,
        Message::ActionAck(ActionAck {
            action_id: 7,
            outcome: Outcome::Applied,
        }),
        Message::Fact(Fact::DestinationReserved {
            handoff_id: uuid::Uuid::nil(),
            transferable_prompt_tokens: 1,
        }),
    ] {
        let handoff = Handoff::new();
        let mut link = join(&runtime, &pair.meeting(0, &handoff), identity(&handoff), vllm()).unwrap();
        let prefill = pair.prefill(&handoff, &prompt(1, 30));
        let told = hear(&runtime, &mut link);
        assert!(matches!(told, Some(Message::Fact(Fact::SourceHeld { .. }))), "{told:?}");
        assert!(matches!(hear(&runtime, &mut link), Some(Message::Action(_))));
        assert!(link.outbox.say(message));
        assert!(matches!(hear(&runtime, &mut link), Some(Message::Abort { .. })));
        assert_eq!(hear(&runtime, &mut link), None);
        assert!(error_of(&end(prefill)).contains("broke the handoff protocol"));
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn a_source_that_breaks_the_protocol_fails_the_request() {
    let pair = Pair::start(INSTANT);
    let runtime = runtime();
    let source = Source::start(&runtime);
    for message in [
        Message::Complete,
        Message::Overloaded,
        Message::Abort {
            message: "no more".to_owned(),
        },
    ] {
        let handoff = Handoff::new();
        let answer = pair.decode_from(&source, &handoff, &prompt(1, 30));
        let arrival = source.receive();
        assert_eq!((arrival.identity, &arrival.register), (identity(&handoff), &vllm()));
        assert!(arrival.link.outbox.say(message.clone()));
        let error = error_of(&end(answer));
        assert!(
            error.contains("destination handoff ended before completion"),
            "{message:?}: {error}"
        );
        pair.scene.until_nothing_is_left();
    }
}

#[test]
fn meetings_need_a_handoff_id_and_a_worker_that_hands_over() {
    let pair = Pair::groups(INSTANT, "num_workers = 1", "num_workers = 1");
    let ask = |scene: &Scene, worker, meeting: Value| {
        let mut request = chat(&prompt(1, 9), 2);
        request["bootstrap_info"] = meeting;
        error_of(&call(&scene.address(worker), "r", &request).unwrap().finish().unwrap())
    };
    let meeting = json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 5});
    let error = ask(&pair.scene, 1, meeting.clone());
    assert!(error.contains("bootstrap_info has no handoff_id"), "{error}");
    let mut full = meeting;
    full["handoff_id"] = json!(uuid::Uuid::new_v4());
    let error = ask(&pair.scene, 0, full.clone());
    assert!(error.contains("--bootstrap-ports"), "{error}");
    let aggregated = Scene::start(&[]);
    let error = ask(&aggregated, 0, full);
    assert!(error.contains("hands nothing over"), "{error}");
}
