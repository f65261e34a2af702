//! What each role registers, and its part without a rendezvous.

use std::io::Write;

use serde_json::{Value, json};

use crate::caller::{call, chat};
use crate::legs::{INSTANT, Pair, SLOW, end, error_of, prompt};
use crate::scene::Scene;

fn card<'a>(cards: &'a [Value], worker_type: &str) -> &'a Value {
    let cards = cards.iter().map(|record| &record["card_json"]);
    let mut of_type = cards.filter(|card| card["worker_type"] == worker_type);
    of_type.next().unwrap()
}

#[test]
fn groups_of_one_fleet_have_both_roles_with_their_endpoints_and_cards() {
    let pair = Pair::groups(INSTANT, "num_workers = 2\nbootstrap_ports = \"0,0\"", "num_workers = 3");
    let cards = pair.scene.records("v1/mdc");
    let components = |component: &str| cards.iter().filter(|card| card["component"] == component).count();
    assert_eq!((components("prefill"), components("backend")), (2, 3));
    let (prefill, decode) = (card(&cards, "prefill"), card(&cards, "decode"));
    assert_eq!(
        (&prefill["model_type"], &prefill["needs"]),
        (&json!(""), &json!([["decode"]]))
    );
    assert_eq!(
        (&decode["model_type"], &decode["needs"]),
        (&json!("Chat | Completions"), &json!([["prefill"]]))
    );
    for (card, publishes) in [(prefill, true), (decode, false)] {
        assert_eq!(card["runtime_config"]["kv_event_publishing_enabled"], publishes);
        assert_eq!(card["runtime_config"]["enable_local_indexer"], publishes);
    }
    assert!(decode["runtime_config"].get("disaggregated_endpoint").is_none());
    let mut ports: Vec<u64> = cards
        .iter()
        .filter_map(|card| card["card_json"]["runtime_config"]["disaggregated_endpoint"]["bootstrap_port"].as_u64())
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 2, "each prefill worker has a port of its own: {ports:?}");
    // Only prefill workers tell of their cache.
    assert_eq!(pair.scene.records("v1/event_sources").len(), 2);
}

#[test]
fn without_a_rendezvous_the_prefill_leg_answers_for_the_decode_leg() {
    let pair = Pair::groups(INSTANT, "num_workers = 1", "num_workers = 1");
    let tokens = prompt(1, 30);
    // Whatever the client wants, a prefill worker brings one token.
    let first = call(&pair.scene.address(0), "r", &chat(&tokens, 9))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!((first.tokens.len(), first.finish.as_deref()), (1, Some("length")));
    assert_eq!(first.usage.unwrap()["prompt_tokens"], 30);
    let mut request = chat(&tokens, 5);
    request["prefill_result"] = json!({"disaggregated_params": {"prefill_worker": "w0"}});
    let rest = call(&pair.scene.address(1), "r", &request).unwrap().finish().unwrap();
    assert_eq!((rest.tokens.len(), rest.complete), (5, true));
    assert_eq!(
        rest.tokens[0], first.tokens[0],
        "the decode worker brings the prefill's token again"
    );
    pair.scene.until_nothing_is_left();
    assert_eq!(pair.scene.worker(0).handoffs.completed_total, 1);
}

/// Answers of a prefill worker, with a recording at hand: asked for five tokens, and for the recorded answer.
fn brought_by_prefill_worker(flags: &[&str]) -> [Vec<u64>; 2] {
    let mut recording = tempfile::NamedTempFile::new().unwrap();
    let row = r#"{"request_id": "monday", "output_length": 3, "output_token_ids": [301, 302, 303]}"#;
    writeln!(recording, "{row}").unwrap();
    let path = recording.path().display().to_string();
    let scene = Scene::start(&[flags, &["--speedup-ratio", "0", "--response-replay-trace-path", &path]].concat());
    let mut asked = chat(&prompt(1, 30), 5);
    asked["stop_conditions"]["min_tokens"] = json!(4);
    let mut recorded = chat(&prompt(1, 30), 5);
    recorded["annotations"] = json!(["output_replay_id:monday"]);
    let tokens = [asked, recorded].map(|request| {
        let outcome = call(&scene.address(0), "r", &request).unwrap().finish().unwrap();
        assert_eq!((outcome.error, outcome.finish.as_deref()), (None, Some("length")));
        assert_eq!(outcome.usage.unwrap()["completion_tokens"], 1);
        outcome.tokens
    });
    scene.until_nothing_is_left();
    tokens
}

#[test]
fn prefill_workers_of_either_release_bring_one_token_even_of_a_recorded_answer() {
    for engine in ["vllm", "sglang", "trtllm"] {
        let flat = format!(r#"{{"engine_type": "{engine}", "worker_type": "prefill"}}"#);
        let [asked, recorded] = brought_by_prefill_worker(&["--semantics", "1.4.2", "--extra-engine-args", &flat]);
        assert_eq!(
            (asked.len(), &recorded),
            (1, &asked),
            "no recordings at prefill workers"
        );
        let nested = format!(r#"{{"engine": {{"backend": "{engine}", "worker_type": "prefill"}}}}"#);
        let [asked, recorded] = brought_by_prefill_worker(&["--extra-engine-args", &nested]);
        assert_eq!((asked.len(), recorded), (1, vec![301]));
    }
}

#[test]
fn the_prefill_token_carries_what_the_decode_leg_is_told() {
    let pair = Pair::groups(INSTANT, "num_workers = 1", "num_workers = 1");
    let mut answer = call(&pair.scene.address(0), "r", &chat(&prompt(1, 5), 1)).unwrap();
    let token = loop {
        if let crate::caller::Said::Item(item) = answer.next().unwrap() {
            break item;
        }
    };
    assert_eq!(
        token["data"]["data"]["disaggregated_params"],
        json!({"prefill_worker": "w0"})
    );
    assert!(
        token["data"]["data"].get("finish_reason").is_none(),
        "the end comes when the KV is away"
    );
    assert!(end(answer).complete);
}

#[test]
fn without_a_rendezvous_blocks_stay_while_the_kv_travels() {
    let pair = Pair::groups(SLOW, "num_workers = 1", "num_workers = 1");
    let mut answer = call(&pair.scene.address(0), "r", &chat(&prompt(1, 30), 1)).unwrap();
    assert_eq!(answer.read_tokens(1).len(), 1);
    pair.until_transferring();
    pair.scene.until("a free slot and kept blocks", |scene| {
        let load = scene.worker(0).ranks[0].load;
        (load.running, load.active_blocks) == (0, 8)
    });
    answer.say("kill");
    pair.scene.until_nothing_is_left();
    assert_eq!(pair.scene.worker(0).handoffs.failed_total, 1);
}

#[test]
fn trtllm_prefills_end_when_the_kv_is_away_too() {
    let scene = Scene::start(&[
        "--disaggregation-mode",
        "prefill",
        "--engine-type",
        "trtllm",
        "--speedup-ratio",
        "0",
        "--kv-bytes-per-token",
        "1000000",
        "--kv-transfer-bandwidth",
        "1",
    ]);
    let outcome = call(&scene.address(0), "r", &chat(&prompt(1, 9), 1))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!((outcome.tokens.len(), outcome.finish.as_deref()), (1, Some("length")));
    scene.until_nothing_is_left();
    assert_eq!(scene.worker(0).handoffs.completed_total, 1);
}

#[test]
fn trtllm_workers_refuse_to_meet_and_say_so() {
    for role in ["prefill", "decode"] {
        let scene = Scene::start(&["--disaggregation-mode", role, "--engine-type", "trtllm"]);
        let mut request = chat(&prompt(1, 9), 1);
        request["bootstrap_info"] = json!({
            "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 5, "handoff_id": uuid::Uuid::new_v4(),
        });
        let outcome = call(&scene.address(0), "r", &request).unwrap().finish().unwrap();
        let error = error_of(&outcome);
        assert!(error.contains("trtllm engine has no rendezvous"), "{error}");
        scene.until_nothing_is_left();
    }
}

#[test]
fn the_example_config_serves_through_both_pools() {
    let file = format!("{}/config/disagg.toml", env!("CARGO_MANIFEST_DIR"));
    let scene = Scene::start(&["--config", &file, "--speedup-ratio", "0"]);
    let roles = scene.records("v1/mdc");
    let count = |role: &str| {
        roles
            .iter()
            .filter(|card| card["card_json"]["worker_type"] == role)
            .count()
    };
    assert_eq!((count("prefill"), count("decode")), (2, 6));
    let endpoint = |instance: u64| {
        let card = roles.iter().find(|card| card["instance_id"] == instance).unwrap();
        card["card_json"]["runtime_config"]["disaggregated_endpoint"].clone()
    };
    let mut request = chat(&prompt(1, 30), 4);
    let id = uuid::Uuid::new_v4();
    request["bootstrap_info"] = endpoint(scene.worker(1).instance_id);
    request["bootstrap_info"]["bootstrap_room"] = json!(1);
    request["bootstrap_info"]["handoff_id"] = json!(id);
    let decode = call(&scene.address(7), &id.to_string(), &request).unwrap();
    let prefill = call(&scene.address(1), &id.to_string(), &request).unwrap();
    assert_eq!(end(prefill).tokens.len(), 1);
    assert_eq!(end(decode).tokens.len(), 4);
    scene.until_nothing_is_left();
}

#[test]
fn a_decode_worker_computes_prompts_itself_where_it_may() {
    // A prefill of a minute: only what is not computed comes to an end.
    let timing = "speedup_ratio = 1.0\ntiming_model = {type = \"fixed\", prefill_ms = 60000.0, decode_ms = 1.0}";
    let decode = format!("num_workers = 1\ndecode_local_prefill = true\n{timing}");
    let pair = Pair::groups(INSTANT, "num_workers = 1\nbootstrap_ports = \"0\"", &decode);
    let cards = pair.scene.records("v1/mdc");
    let config = &card(&cards, "decode")["runtime_config"];
    assert_eq!(config["kv_event_publishing_enabled"], true);
    assert_eq!(pair.scene.records("v1/event_sources").len(), 2);
    // With the KV of a prefill leg, met or not, nothing is computed.
    let (_, answer) = pair.serve(&prompt(1, 30), 3);
    assert_eq!((answer.tokens.len(), answer.error), (3, None));
    let mut request = chat(&prompt(2, 30), 3);
    request["prefill_result"] = json!({"disaggregated_params": {"prefill_worker": "w0"}});
    let answer = end(call(&pair.scene.address(1), "with", &request).unwrap());
    assert_eq!((answer.tokens.len(), answer.error), (3, None));
    pair.scene.until_nothing_is_left();
    // Without it the prompt is computed here.
    let mut answer = call(&pair.scene.address(1), "without", &chat(&prompt(3, 30), 3)).unwrap();
    pair.scene
        .until("a running prefill", |scene| scene.worker(1).ranks[0].load.running == 1);
    answer.say("kill");
    pair.scene.until_nothing_is_left();
}
