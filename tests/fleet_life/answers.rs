//! Answers of a fleet that nothing happens to.

use serde_json::json;

use crate::caller::{Outcome, Said, call, chat};
use crate::scene::Scene;

#[test]
fn an_answer_has_its_opening_its_tokens_its_usage_and_its_end() {
    let scene = Scene::start(&["--speedup-ratio", "0"]);
    let prompt: Vec<u32> = (100..110).collect();
    let mut answer = call(&scene.address(0), "a", &chat(&prompt, 6)).unwrap();
    let opening = [answer.next().unwrap(), answer.next().unwrap()];
    let header = |text: &str| Said::Header(text.to_owned());
    assert_eq!(
        opening,
        [
            header(r#"{"subject":"subject","stream_type":"response"}"#),
            header(r#"{"error":null}"#)
        ]
    );
    let outcome = answer.finish().unwrap();
    assert_eq!(
        (outcome.tokens.len(), outcome.finish.as_deref(), outcome.complete),
        (6, Some("length"), true)
    );
    let usage = outcome.usage.unwrap();
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(10), &json!(6))
    );
    drop(answer);
    scene.until_nothing_is_left();
}

#[test]
fn a_repeated_prompt_is_served_from_the_cache_and_a_request_id_fixes_the_tokens() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--num-workers", "2"]);
    let prompt: Vec<u32> = (100..121).collect();
    let ask = |worker, id: &str| {
        call(&scene.address(worker), id, &chat(&prompt, 5))
            .unwrap()
            .finish()
            .unwrap()
    };
    let (first, again, elsewhere, other) = (ask(0, "a"), ask(0, "a"), ask(1, "a"), ask(0, "b"));
    let cached = |outcome: &Outcome| outcome.usage.as_ref().unwrap()["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(
        (cached(&first), cached(&again), cached(&elsewhere)),
        (json!(0), json!(20), json!(0))
    );
    assert_eq!(first.tokens, again.tokens);
    assert_eq!(first.tokens, elsewhere.tokens);
    assert_ne!(first.tokens, other.tokens);
}

#[test]
fn a_migrated_request_goes_on_with_the_same_tokens() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--num-workers", "2"]);
    let prompt: Vec<u32> = (100..121).collect();
    let whole = call(&scene.address(0), "m", &chat(&prompt, 8))
        .unwrap()
        .finish()
        .unwrap()
        .tokens;
    // What a frontend sends on after three tokens: the same id, the longer prompt, the rest of the budget.
    let mut longer = prompt.clone();
    longer.extend(whole[..3].iter().map(|id| u32::try_from(*id).unwrap()));
    let rest = call(&scene.address(1), "m", &chat(&longer, 5))
        .unwrap()
        .finish()
        .unwrap()
        .tokens;
    assert_eq!(rest, whole[3..]);
}

#[test]
fn ranks_share_the_load_and_an_unknown_rank_is_an_error_that_names_it() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--data-parallel-size", "3"]);
    for id in 0..9 {
        call(&scene.address(0), &id.to_string(), &chat(&[1, 2, 3], 2))
            .unwrap()
            .finish()
            .unwrap();
    }
    let requests: Vec<u64> = scene.worker(0).ranks.iter().map(|rank| rank.requests_total).collect();
    assert_eq!(requests, [3, 3, 3]);
    let mut request = chat(&[1, 2, 3], 2);
    request["routing"] = json!({"dp_rank": 2});
    call(&scene.address(0), "x", &request).unwrap().finish().unwrap();
    assert_eq!(scene.worker(0).ranks[2].requests_total, 4);
    request["routing"] = json!({"dp_rank": 3});
    let error = call(&scene.address(0), "y", &request)
        .unwrap()
        .finish()
        .unwrap()
        .error
        .unwrap();
    assert_eq!(error["error_type"], "InvalidArgument");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("dp_rank 3 is out of bounds for dp_size 3"),
        "{error}"
    );
}

#[test]
fn a_prompt_that_cannot_run_is_an_error_that_says_why() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--max-model-len", "8"]);
    let prompt: Vec<u32> = (0..9).collect();
    let outcome = call(&scene.address(0), "a", &chat(&prompt, 1))
        .unwrap()
        .finish()
        .unwrap();
    let error = outcome.error.unwrap();
    assert!(
        error["message"].as_str().unwrap().contains("max_model_len 8"),
        "{error}"
    );
    let garbage = call(&scene.address(0), "b", &json!({"token_ids": "none"}))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(garbage.error.unwrap()["error_type"], "InvalidArgument");
    scene.until_nothing_is_left();
}

#[test]
fn kill_stop_and_a_closed_socket_free_sequence_and_blocks() {
    let scene = Scene::start(&["--speedup-ratio", "1"]);
    for end in ["kill", "stop", "close"] {
        let mut answer = call(&scene.address(0), end, &chat(&[1, 2, 3, 4, 5], 10_000)).unwrap();
        answer.read_tokens(3);
        let load = scene.worker(0).ranks[0].load;
        assert_eq!((load.running, load.active_blocks > 0), (1, true));
        let passes = scene.worker(0).ranks[0].passes_total;
        if end == "close" {
            drop(answer);
        } else {
            answer.say(end);
        }
        scene.until_nothing_is_left();
        // Nothing but this request runs: the passes after its end are the ones it still held.
        let more = scene.worker(0).ranks[0].passes_total - passes;
        assert!(more < 50, "{end}: {more} passes after the cancellation");
    }
    assert_eq!(scene.worker(0).cancelled_total, 3);
}

#[test]
fn requests_wait_for_a_worker_that_is_still_starting() {
    let scene = Scene::start(&["--speedup-ratio", "0", "--startup-time", "0.5"]);
    let outcome = call(&scene.address(0), "early", &chat(&[1, 2, 3], 2))
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(outcome.tokens.len(), 2);
}

#[test]
fn a_full_worker_says_so_in_the_ack() {
    let scene = Scene::start(&["--max-open-requests", "2", "--max-num-seqs", "1"]);
    let address = scene.address(0);
    let mut running = call(&address, "1", &chat(&[1, 2, 3], 1000)).unwrap();
    let waiting = call(&address, "2", &chat(&[1, 2, 3], 1000)).unwrap();
    let refusal = call(&address, "3", &chat(&[1, 2, 3], 1)).err().unwrap();
    assert_eq!(refusal, "Server overloaded: worker at capacity");
    running.say("kill");
    drop(waiting);
    scene.until_nothing_is_left();
    assert!(
        call(&address, "4", &chat(&[1, 2, 3], 1))
            .unwrap()
            .finish()
            .unwrap()
            .complete
    );
}
