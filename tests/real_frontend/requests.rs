//! What a client may ask for through a frontend beside tokens.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ask::{CHAT, COMPLETIONS, chat, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, RouterMode};
use crate::release::{Release, on_each_release};
use crate::stack::Stack;

const LIST_LIMIT: Duration = Duration::from_secs(30);

on_each_release! {
    fn a_stop_string_ends_an_answer_and_frees_the_request(release) {
        let (_stack, frontend, fleet) = one_worker(release, "");
        let mut body = completion(&prompt(1, 40), 200);
        body["seed"] = json!(7);
        let whole = frontend.client().post(COMPLETIONS, &body);
        let text = text(&whole.body).to_owned();
        assert_eq!(whole.body["usage"]["completion_tokens"], 200);
        assert_eq!(text, self::text(&frontend.client().post(COMPLETIONS, &body).body), "the seed decides the answer");
        let word = text.split_whitespace().nth(5).expect("an answer of many words");
        body["stop"] = json!([word]);
        let cut = frontend.client().post(COMPLETIONS, &body);
        assert_eq!(cut.body["choices"][0]["finish_reason"], "stop", "{cut:?}");
        let before = text.split(word).next().unwrap_or_default();
        assert_eq!(self::text(&cut.body).trim_end(), before.trim_end());
        drop(fleet);
    }

    fn log_probabilities_reach_the_client(release) {
        let (_stack, frontend, _fleet) = one_worker(release, "");
        let mut body = chat("Tell me about routers.", 6);
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(2);
        let reply = frontend.client().post(CHAT, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let content = reply.body["choices"][0]["logprobs"]["content"].as_array().expect("log probabilities");
        assert_eq!(content.len(), 6, "{reply:?}");
        assert!(content.iter().all(|token| token["logprob"].as_f64().is_some_and(|logprob| logprob < 0.0)), "{reply:?}");
    }

    fn several_answers_are_choices(release) {
        let (_stack, frontend, fleet) = one_worker(release, "--data-parallel-size 2");
        let mut body = chat("Tell me about routers.", 6);
        body["n"] = json!(3);
        let reply = frontend.client().post(CHAT, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        let choices = reply.body["choices"].as_array().expect("choices");
        let mut indexes: Vec<_> = choices.iter().filter_map(|choice| choice["index"].as_u64()).collect();
        indexes.sort_unstable();
        assert_eq!(indexes, [0, 1, 2], "{reply:?}");
        assert_eq!(reply.body["usage"]["completion_tokens"], 18, "{reply:?}");
        drop(fleet);
    }

    fn a_recorded_answer_is_picked_by_an_annotation(release) {
        let mut recording = tempfile::NamedTempFile::new().expect("a temporary file");
        let ids: Vec<u32> = prompt(9, 11);
        writeln!(recording, "{}", json!({ "request_id": "monday", "output_length": 11, "output_token_ids": ids }))
            .expect("a written file");
        let flags = format!("--response-replay-trace-path {}", recording.path().display());
        let (_stack, frontend, _fleet) = one_worker(release, &flags);
        let ask = |max_tokens: u32| {
            let mut body = completion(&prompt(1, 20), max_tokens);
            body["nvext"]["annotations"] = json!(["output_replay_id:monday"]);
            frontend.client().post(COMPLETIONS, &body)
        };
        let (first, second) = (ask(50), ask(50));
        assert_eq!(first.body["usage"]["completion_tokens"], 11, "{first:?}");
        assert_eq!(text(&first.body), text(&second.body));
    }

    fn an_adapter_is_listed_and_served(release) {
        let (_stack, frontend, fleet) = one_worker(release, "--lora-modules poet --block-size 4");
        // 1.4.2 may see the second card of an instance only at its next reconciliation, every 30 s.
        frontend.client().wait_serving("poet", LIST_LIMIT * 2);
        let cached = |model: &str| {
            let mut body = completion(&prompt(1, 40), 3);
            body["model"] = json!(model);
            let reply = frontend.client().post(COMPLETIONS, &body);
            assert_eq!(reply.status, 200, "{reply:?}");
            reply.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
        };
        assert_eq!((cached(MODEL), cached("poet")), (0, 0), "an adapter shares no blocks with the model");
        assert_eq!((cached("poet"), cached(MODEL)), (36, 36));
        drop(fleet);
    }
}

fn text(body: &Value) -> &str {
    body["choices"][0]["text"].as_str().unwrap_or_default()
}

fn one_worker(release: Release, flags: &str) -> (Stack, Frontend, Fleet) {
    let stack = Stack::on_etcd();
    let fleet = Fleet::start(&stack, &format!("--num-workers 1 {flags}"));
    let frontend = stack.frontend(release, RouterMode::Kv);
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    (stack, frontend, fleet)
}
