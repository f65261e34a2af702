//! What a client gets: every token, the right counts, the right reason for the end.

use std::time::Duration;

use crate::ask::{CHAT, COMPLETIONS, chat, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, RouterMode};
use crate::release::{Release, on_each_release};
use crate::stack::Stack;
use crate::wait::eventually;

const LIST_LIMIT: Duration = Duration::from_secs(30);

on_each_release! {
    fn a_fleet_is_listed_while_it_runs(release) {
        let stack = Stack::on_etcd();
        let frontend = stack.frontend(release, RouterMode::Kv);
        assert!(frontend.client().models().is_empty());
        let fleet = Fleet::start(&stack, "--num-workers 3");
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 3, LIST_LIMIT);
        let mut ids: Vec<_> = fleet.snapshot().workers.iter().map(|worker| worker.instance_id).collect();
        let mut seen = frontend.client().instances("generate");
        ids.sort_unstable();
        seen.sort_unstable();
        assert_eq!(seen, ids);
        fleet.stop();
        frontend.client().wait_unlisted(MODEL, LIST_LIMIT);
    }

    fn a_chat_is_answered_whole(release) {
        let (_stack, frontend, _fleet) = one_worker(release);
        let reply = frontend.client().post(CHAT, &chat("Tell me about routers.", 12));
        assert_eq!(reply.status, 200, "{reply:?}");
        let choice = &reply.body["choices"][0];
        assert_eq!(choice["finish_reason"], "length");
        assert!(choice["message"]["content"].as_str().is_some_and(|text| !text.trim().is_empty()), "{reply:?}");
        let usage = &reply.body["usage"];
        assert_eq!(usage["completion_tokens"], 12);
        let prompt_tokens = usage["prompt_tokens"].as_u64().expect("usage has prompt tokens");
        assert!(prompt_tokens > 4, "the chat template adds to the message: {usage}");
        assert_eq!(usage["total_tokens"], prompt_tokens + 12);
    }

    fn a_chat_streams_one_token_at_a_time(release) {
        let (_stack, frontend, fleet) = one_worker(release);
        let transcript = frontend.client().stream(CHAT, &chat("Tell me about routers.", 24)).finish();
        assert!(transcript.done, "{transcript:?}");
        assert_eq!(transcript.finish_reason(), "length");
        assert_eq!(transcript.usage()["completion_tokens"], 24);
        assert!(!transcript.text().trim().is_empty());
        // The words of the tiny model are whole characters, so every token shows as an event of its own.
        assert_eq!(transcript.events.iter().filter(|event| event.has_text()).count(), 24, "{transcript:?}");
        let worker = fleet.worker(0);
        assert_eq!(transcript.served().instance_id, worker.instance_id);
        eventually(Duration::from_secs(5), "the stream counts as completed", || {
            (fleet.worker(0).completed_total == 1).then_some(())
        });
    }

    fn a_completion_takes_token_ids_as_they_are(release) {
        let (_stack, frontend, _fleet) = one_worker(release);
        let prompt = prompt(1, 77);
        let reply = frontend.client().post(COMPLETIONS, &completion(&prompt, 9));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.body["usage"]["prompt_tokens"], 77);
        assert_eq!(reply.body["usage"]["completion_tokens"], 9);
        assert_eq!(reply.body["choices"][0]["finish_reason"], "length");
        let transcript = frontend.client().stream(COMPLETIONS, &completion(&prompt, 9)).finish();
        assert_eq!(transcript.usage()["prompt_tokens"], 77);
        assert_eq!(transcript.usage()["completion_tokens"], 9);
        assert_eq!(transcript.finish_reason(), "length");
    }

    fn an_answer_without_a_limit_ends_by_itself(release) {
        let (_stack, frontend, _fleet) = one_worker(release);
        let mut body = chat("Say something.", 0);
        body.as_object_mut().expect("a body is an object").remove("max_tokens");
        let reply = frontend.client().post(CHAT, &body);
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.body["choices"][0]["finish_reason"], "stop");
        assert!(reply.body["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{reply:?}");
    }

    fn a_request_that_can_never_run_is_refused(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, "--block-size 16 --num-gpu-blocks-override 8");
        let frontend = stack.frontend(release, RouterMode::RoundRobin);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(1, 400), 4));
        assert!(reply.status >= 400, "{reply:?}");
        // It has done no harm to the worker.
        eventually(Duration::from_secs(20), "the worker serves the next request", || {
            let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(2, 40), 4));
            (reply.status == 200).then_some(())
        });
        drop(fleet);
    }
}

fn one_worker(release: Release) -> (Stack, Frontend, Fleet) {
    let stack = Stack::on_etcd();
    let fleet = Fleet::start(&stack, "--num-workers 1");
    let frontend = stack.frontend(release, RouterMode::RoundRobin);
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    (stack, frontend, fleet)
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn one_fleet_serves_frontends_of_both_releases_at_once() {
    let stack = Stack::on_etcd();
    let fleet = Fleet::start(&stack, "--num-workers 2");
    let frontends = [Release::V1_6_1, Release::V1_4_2].map(|release| stack.frontend(release, RouterMode::Kv));
    for frontend in &frontends {
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
    }
    let mut streams = frontends
        .each_ref()
        .map(|frontend| frontend.client().stream(CHAT, &chat("Hello.", 40)));
    for stream in &mut streams {
        stream.read_texts(1);
    }
    for stream in streams {
        let transcript = stream.finish();
        assert_eq!(transcript.usage()["completion_tokens"], 40);
        assert_eq!(transcript.finish_reason(), "length");
    }
    drop(fleet);
}
