//! What requests may ask for on the request plane.

use std::io::Write;

use serde_json::{Value, json};

use crate::caller::{Said, call, chat};
use crate::scene::Scene;

fn with(mut request: Value, more: Value) -> Value {
    let Value::Object(more) = more else { unreachable!() };
    request.as_object_mut().unwrap().extend(more);
    request
}

/// Every output of an answer.
fn outputs(scene: &Scene, request: &Value) -> Vec<Value> {
    let mut answer = call(&scene.address(0), "id", request).unwrap();
    let mut outputs = Vec::new();
    loop {
        match answer.next().unwrap() {
            Said::Header(text) if text == "\"sentinel\"" => return outputs,
            Said::Item(item) if item["complete_final"] == false => {
                assert!(item["data"].get("error").is_none(), "{item}");
                outputs.push(item["data"]["data"].clone());
            }
            Said::Header(_) | Said::Item(_) => {}
        }
    }
}

fn error(scene: &Scene, request: &Value) -> String {
    let outcome = call(&scene.address(0), "id", request).unwrap().finish().unwrap();
    let error = outcome.error.expect("the request is refused");
    assert_eq!(error["error_type"], "InvalidArgument", "{error}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn several_answers_share_a_socket_a_rank_and_a_prompt() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--data-parallel-size", "2"]);
    let prompt: Vec<u32> = (100..120).collect();
    let request = with(chat(&prompt, 6), json!({ "sampling_options": { "n": 3 } }));
    let outputs = outputs(&scene, &request);
    let tokens = |index: u64| -> Vec<u64> {
        let own = outputs.iter().filter(|output| output["index"] == index);
        own.flat_map(|output| output["token_ids"].as_array().unwrap())
            .map(|token| token.as_u64().unwrap())
            .collect()
    };
    let all: Vec<_> = (0..3).map(tokens).collect();
    assert!(all.iter().all(|tokens| tokens.len() == 6), "{all:?}");
    assert!(all[0] != all[1] && all[1] != all[2], "each answer draws its own tokens");
    let ends = outputs.iter().filter(|output| output["finish_reason"] == "length");
    assert_eq!(ends.count(), 3);
    let usage = outputs
        .iter()
        .rev()
        .find_map(|output| output.get("completion_usage"))
        .unwrap();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(20), &json!(18))
    );
    let ranks: Vec<u64> = scene.worker(0).ranks.iter().map(|rank| rank.requests_total).collect();
    assert!(ranks.contains(&3) && ranks.contains(&0), "{ranks:?}");
    // The first answer is the one that a lone request would get.
    assert_eq!(
        call(&scene.address(0), "id", &chat(&prompt, 6))
            .unwrap()
            .finish()
            .unwrap()
            .tokens,
        all[0]
    );
    scene.until_nothing_is_left();
}

#[test]
fn a_client_that_leaves_frees_all_its_answers() {
    let scene = Scene::start(&["--speedup-ratio", "1"]);
    let prompt: Vec<u32> = (100..120).collect();
    let request = with(chat(&prompt, 5000), json!({ "sampling_options": { "n": 4 } }));
    let mut answer = call(&scene.address(0), "id", &request).unwrap();
    answer.read_tokens(4);
    assert_eq!(scene.cluster.snapshot().in_use().sequences, 4);
    answer.say("kill");
    scene.until_nothing_is_left();
}

#[test]
fn log_probabilities_come_with_each_token() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let prompt: Vec<u32> = (100..110).collect();
    let request = with(chat(&prompt, 5), json!({ "output_options": { "logprobs": 2 } }));
    let outputs = outputs(&scene, &request);
    let with_tokens: Vec<_> = outputs
        .iter()
        .filter(|output| output["token_ids"] != json!([]))
        .collect();
    assert_eq!(with_tokens.len(), 5);
    for output in with_tokens {
        let top = output["top_logprobs"][0].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token_id"]), (2, &output["token_ids"][0]));
        assert_eq!(output["log_probs"][0], top[0]["logprob"]);
        assert!(top[1]["logprob"].as_f64() < top[0]["logprob"].as_f64());
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_words_for_the_client() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--lora-modules", "poet,clerk=/adapters/clerk"]);
    let ask = |more: Value| error(&scene, &with(chat(&[100, 101], 5), more));
    assert!(ask(json!({ "sampling_options": { "n": 0 } })).contains("n must be between"));
    assert!(ask(json!({ "sampling_options": { "use_beam_search": true } })).contains("use_beam_search"));
    assert!(ask(json!({ "output_options": { "prompt_logprobs": 1 } })).contains("prompt_logprobs"));
    assert!(ask(json!({ "routing": { "lora_name": "painter" } })).contains("\"painter\" is not served"));
    scene.until_nothing_is_left();
}

#[test]
fn the_same_seed_gives_the_same_answer_to_any_request() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--num-workers", "2"]);
    let ask = |worker, id: &str, seed: Value| {
        let request = with(
            chat(&[100, 101, 102], 6),
            json!({ "sampling_options": { "seed": seed } }),
        );
        call(&scene.address(worker), id, &request)
            .unwrap()
            .finish()
            .unwrap()
            .tokens
    };
    assert_eq!(ask(0, "a", json!(7)), ask(1, "b", json!(7)));
    assert_ne!(ask(0, "a", json!(7)), ask(0, "a", json!(8)));
    assert_ne!(ask(0, "a", json!(null)), ask(0, "b", json!(null)));
}

#[test]
fn stop_ids_and_fewest_tokens_are_kept() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let prompt: Vec<u32> = (100..110).collect();
    let ask = |stop: Value| {
        let request = json!({ "token_ids": prompt, "stop_conditions": stop, "eos_token_ids": [2] });
        call(&scene.address(0), "id", &request).unwrap().finish().unwrap()
    };
    let whole = ask(json!({ "max_tokens": 12 })).tokens;
    let cut = ask(json!({ "max_tokens": 12, "stop_token_ids": [whole[4]] }));
    let end = whole.iter().position(|token| *token == whole[4]).unwrap();
    assert_eq!(
        (cut.tokens.as_slice(), cut.finish.as_deref()),
        (&whole[..=end], Some("stop"))
    );
    let later = ask(json!({ "max_tokens": 12, "min_tokens": 8, "stop_token_ids_hidden": [whole[4]] }));
    assert!(
        later.tokens.len() >= 8 && !later.tokens[..8].contains(&whole[4]),
        "{later:?}"
    );
    let natural = ask(json!({ "min_tokens": 3 }));
    assert_eq!(natural.finish.as_deref(), Some("eos"));
    assert_eq!((natural.tokens.last(), natural.tokens.len() > 3), (Some(&2), true));
}

#[test]
fn answers_begin_by_thinking() {
    let reasoning = r#"{"start_thinking_token_id":5,"end_thinking_token_id":6,"thinking_ratio":0.5}"#;
    let scene = Scene::start(&["--speedup-ratio", "0", "--reasoning", reasoning]);
    let ask = |stop: Value| {
        let request = json!({ "token_ids": [100, 101, 102], "stop_conditions": stop });
        call(&scene.address(0), "id", &request)
            .unwrap()
            .finish()
            .unwrap()
            .tokens
    };
    let tokens = ask(json!({ "max_tokens": 8 }));
    let markers: Vec<_> = (0..8).filter(|at| [5, 6].contains(&tokens[*at])).collect();
    assert_eq!((markers.as_slice(), tokens[0], tokens[3]), (&[0, 3][..], 5, 6));
    assert_eq!(ask(json!({ "max_tokens": 8, "max_thinking_tokens": 2 }))[1], 6);
    assert_ne!(ask(json!({ "max_tokens": 1 })), [5], "no room for both markers");
}

#[test]
fn a_recorded_answer_is_given_back_as_it_was() {
    let mut recording = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        recording,
        r#"{{"request_id": "monday", "output_length": 3, "output_token_ids": [301, 302, 303]}}"#
    )
    .unwrap();
    let path = recording.path().display().to_string();
    let scene = Scene::start(&["--speedup-ratio", "0", "--response-replay-trace-path", &path]);
    let ask = |name: &str| {
        let annotations = json!({ "annotations": [format!("output_replay_id:{name}")] });
        let request = with(chat(&[100, 101], 7), annotations);
        call(&scene.address(0), "id", &request)
            .unwrap()
            .finish()
            .unwrap()
            .tokens
    };
    assert_eq!(ask("monday"), [301, 302, 303]);
    assert_eq!(ask("tuesday").len(), 7, "an unknown name draws tokens");
    let card = &scene.records("v1/mdc")[0]["card_json"];
    assert_eq!(card["runtime_config"]["runtime_data"]["output_replay_consumer"], true);
}

#[test]
fn an_adapter_has_a_card_and_a_cache_of_its_own() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--lora-modules", "My Poet"]);
    let card = |name: &str| {
        let records = scene.records("v1/mdc");
        records
            .into_iter()
            .find(|record| record["card_json"]["display_name"] == name)
            .unwrap()
    };
    let poet = card("My Poet");
    assert_eq!(
        (&poet["model_suffix"], &poet["card_json"]["lora"]["name"]),
        (&json!("my_poet"), &json!("My Poet"))
    );
    assert_eq!(card("tiny")["card_json"].get("lora"), None);
    let prompt: Vec<u32> = (100..120).collect();
    let cached = |lora: Value| {
        let request = with(chat(&prompt, 2), json!({ "routing": { "lora_name": lora } }));
        let usage = call(&scene.address(0), "id", &request)
            .unwrap()
            .finish()
            .unwrap()
            .usage
            .unwrap();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let model = json!(null);
    assert_eq!((cached(model.clone()), cached(model)), (0, 16));
    assert_eq!((cached(json!("My Poet")), cached(json!("My Poet"))), (0, 16));
}

#[test]
fn a_request_without_a_rank_goes_to_the_least_loaded_one() {
    let scene = Scene::start(&["--data-parallel-size", "2"]);
    let prompt: Vec<u32> = (100..120).collect();
    let rank = |rank: u32| json!({ "routing": { "dp_rank": rank } });
    let mut busy: Vec<_> = (0..3)
        .map(|id| {
            call(
                &scene.address(0),
                &format!("b{id}"),
                &with(chat(&prompt, 9000), rank(0)),
            )
            .unwrap()
        })
        .collect();
    for answer in &mut busy {
        answer.read_tokens(1);
    }
    for id in 0..3 {
        let mut answer = call(&scene.address(0), &format!("f{id}"), &chat(&prompt, 9000)).unwrap();
        answer.read_tokens(1);
        busy.push(answer);
    }
    let requests: Vec<u64> = scene.worker(0).ranks.iter().map(|rank| rank.requests_total).collect();
    assert_eq!(requests, [3, 3]);
    for answer in &mut busy {
        answer.say("kill");
    }
    scene.until_nothing_is_left();
}
