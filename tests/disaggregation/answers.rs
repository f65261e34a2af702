//! Requests through both pools that nothing happens to.

use crate::legs::{Handoff, INSTANT, Pair, SLOW, end, prompt};

#[test]
fn a_handoff_brings_every_token_from_the_decode_worker() {
    let pair = Pair::start(INSTANT);
    let (prefill, decode) = pair.serve(&prompt(1, 30), 6);
    assert_eq!(
        (prefill.tokens.len(), prefill.finish.as_deref(), prefill.complete),
        (1, Some("length"), true)
    );
    assert_eq!(
        (decode.tokens.len(), decode.finish.as_deref(), decode.complete),
        (6, Some("length"), true)
    );
    assert_eq!(prefill.tokens[0], decode.tokens[0]);
    pair.scene.until_nothing_is_left();
    for worker in 0..2 {
        let handoffs = pair.scene.worker(worker).handoffs;
        assert_eq!((handoffs.completed_total, handoffs.failed_total), (1, 0), "w{worker}");
    }
}

#[test]
fn either_side_may_come_first() {
    let pair = Pair::start(INSTANT);
    let tokens = prompt(1, 30);
    let handoff = Handoff::new();
    let decode = pair.decode(&handoff, &tokens, 4);
    pair.until_rooms((1, 1));
    let prefill = pair.prefill(&handoff, &tokens);
    assert!(end(prefill).complete && end(decode).complete);
    let handoff = Handoff::new();
    let prefill = pair.prefill(&handoff, &tokens);
    pair.until_rooms((1, 0));
    assert_eq!(
        pair.scene.worker(0).ranks[0].load.running,
        0,
        "computed only when somebody wants it"
    );
    let decode = pair.decode(&handoff, &tokens, 4);
    assert!(end(prefill).complete && end(decode).complete);
    pair.scene.until_nothing_is_left();
}

#[test]
fn transfers_take_the_modelled_time_and_then_everything_is_free() {
    // 10 ms for a prompt of ten tokens.
    let pair = Pair::start("kv_bytes_per_token = 1000000\nkv_transfer_bandwidth = 1.0");
    let (prefill, decode) = pair.serve(&prompt(1, 10), 3);
    assert_eq!((prefill.error, decode.error), (None, None));
    assert_eq!(decode.tokens.len(), 3);
    pair.scene.until_nothing_is_left();
}

#[test]
fn many_handoffs_at_once_all_complete() {
    const REQUESTS: u32 = 100;
    let pair = Pair::start("kv_bytes_per_token = 100000\nkv_transfer_bandwidth = 1.0");
    let legs: Vec<_> = (0..REQUESTS)
        .map(|topic| {
            let (handoff, tokens) = (Handoff::new(), prompt(topic, 20));
            (pair.decode(&handoff, &tokens, 5), pair.prefill(&handoff, &tokens))
        })
        .collect();
    for (decode, prefill) in legs {
        assert!(end(prefill).complete);
        let outcome = end(decode);
        assert_eq!((outcome.tokens.len(), outcome.error), (5, None));
    }
    pair.scene.until_nothing_is_left();
    assert_eq!(pair.scene.worker(1).handoffs.completed_total, u64::from(REQUESTS));
}

#[test]
fn ranks_of_one_worker_share_its_rendezvous() {
    let pair = Pair::start(&format!("{INSTANT}\ndata_parallel_size = 2"));
    for topic in 0..4 {
        let (prefill, decode) = pair.serve(&prompt(topic, 12), 2);
        assert_eq!((prefill.error, decode.error), (None, None));
    }
    let requests: Vec<u64> = pair
        .scene
        .worker(0)
        .ranks
        .iter()
        .map(|rank| rank.requests_total)
        .collect();
    assert_eq!(requests, [2, 2]);
    pair.scene.until_nothing_is_left();
}

#[test]
fn sglang_sets_blocks_aside_before_it_computes_the_prompt() {
    let pair = Pair::start(&format!("{SLOW}\nengine_type = \"sglang\""));
    let (prefill, decode) = pair.begin(&prompt(1, 30), 5);
    pair.until_both_hold(7..);
    drop((prefill, decode));
    pair.scene.until_nothing_is_left();
    let pair = Pair::start(&format!("{INSTANT}\nengine_type = \"sglang\""));
    for topic in [1, 2, 1] {
        let (prefill, decode) = pair.serve(&prompt(topic, 30), 6);
        assert_eq!((prefill.error, decode.error), (None, None));
        assert_eq!((prefill.tokens.len(), decode.tokens.len()), (1, 6));
        assert_eq!(prefill.tokens[0], decode.tokens[0]);
    }
    pair.scene.until_nothing_is_left();
    assert_eq!(pair.scene.worker(1).handoffs.completed_total, 3);
}

#[test]
fn what_a_handoff_waits_for_is_told_in_words() {
    let pair = Pair::start(SLOW);
    let handoff = Handoff::new();
    let because = |words: &str| {
        let control = pair.scene.cluster.control();
        pair.scene.until(words, |scene| {
            let found = scene.cluster.wait_for(control.why(&handoff.request.to_string()));
            found
                .iter()
                .any(|why| why.because.iter().any(|because| because.contains(words)))
        });
    };
    let decode = pair.decode(&handoff, &prompt(1, 30), 5);
    because("has not asked for blocks");
    let look = |pair: &Pair| {
        let said = pair.scene.cluster.control().inspect("w0/rendezvous".parse().unwrap());
        pair.scene.cluster.wait_for(said).unwrap()["said"]["rooms"][0].clone()
    };
    let room = look(&pair);
    assert_eq!(
        (&room["room"], &room["source"], &room["destination"]),
        (&handoff.room.into(), &serde_json::Value::Null, &true.into()),
        "{room}"
    );
    assert!(
        room["ends_in_ms"]
            .as_f64()
            .is_some_and(|left| left > 0.0 && left <= 30_000.0),
        "{room}"
    );
    let prefill = pair.prefill(&handoff, &prompt(1, 30));
    because("its blocks are kept until the decode worker has the KV");
    because("has not arrived");
    pair.until_transferring();
    let room = look(&pair);
    assert_eq!(
        (&room["source"], &room["transferring"]),
        (&"r0".into(), &true.into()),
        "{room}"
    );
    drop((decode, prefill));
    pair.scene.until_nothing_is_left();
}

#[test]
fn rooms_and_how_handoffs_ended_are_on_the_metrics_page() {
    let pair = Pair::start(&format!("{SLOW}\nsystem_port = 0"));
    let shows = |figures: [(&str, u32); 4]| {
        let address = pair.scene.cluster.facts().status.expect("a status server");
        pair.scene.until("the figures", |_| {
            let mut page = ureq::get(format!("http://{address}/metrics")).call().unwrap();
            let page = page.body_mut().read_to_string().unwrap();
            let line = |(name, value)| page.lines().any(|line| line == format!("ghostfleet_{name} {value}"));
            figures.into_iter().all(line)
        });
    };
    let figures = |rooms, transfers, failed| {
        [
            ("handoff_rooms", rooms),
            ("kv_transfers", transfers),
            ("handoffs_completed_total", 0),
            ("handoffs_failed_total", failed),
        ]
    };
    let (prefill, decode) = pair.begin(&prompt(1, 30), 5);
    shows(figures(2, 1, 0));
    drop((prefill, decode));
    shows(figures(0, 0, 2));
    pair.scene.until_nothing_is_left();
}
