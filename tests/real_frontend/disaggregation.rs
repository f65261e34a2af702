//! Prefill and decode pools behind real frontends that route by KV.

use std::path::PathBuf;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::client::Client;
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, RouterMode};
use crate::prefixes::{assert_no_event_refused, wait_hearing};
use crate::release::{Release, on_each_release};
use crate::stack::Stack;
use crate::wait::eventually;

const LIST_LIMIT: Duration = Duration::from_secs(30);
pub(crate) const STATE_LIMIT: Duration = Duration::from_secs(20);

/// Two prefill workers come first, then three decode workers.
pub(crate) const PREFILL: usize = 2;
pub(crate) const DECODE: usize = 3;

/// A transfer that does not end while a test looks at it: a second for each token.
pub(crate) const SLOW: &str = "kv_bytes_per_token = 1000000000\nkv_transfer_bandwidth = 1.0";
/// A transfer of 40 ms for a prompt of 40 tokens.
pub(crate) const QUICK: &str = "kv_bytes_per_token = 1000000\nkv_transfer_bandwidth = 1.0";

pub(crate) const RENDEZVOUS: &str = "bootstrap_ports = \"0,0\"";

pub(crate) struct Running {
    frontend: Frontend,
    pub(crate) fleet: Fleet,
    _stack: Stack,
}

/// Both pools behind a frontend that lists the model.
pub(crate) fn running(stack: Stack, release: Release, keys: &str, prefill: &str) -> Running {
    running_with(stack, release, (keys, prefill, ""), PREFILL)
}

/// With further keys of the decode pool, and so many event streams.
pub(crate) fn running_with(
    stack: Stack,
    release: Release,
    (keys, prefill, decode): (&str, &str, &str),
    streams: usize,
) -> Running {
    let file: PathBuf = stack.scratch().join("disagg.toml");
    let text = format!(
        "block_size = 16\nspeedup_ratio = 10.0\n{keys}\n\
         [[group]]\nname = \"prefill\"\ndisaggregation_mode = \"prefill\"\nnum_workers = {PREFILL}\n{prefill}\n\
         [[group]]\nname = \"decode\"\ndisaggregation_mode = \"decode\"\nnum_workers = {DECODE}\n{decode}\n"
    );
    std::fs::write(&file, text).expect("the scratch directory is writable");
    let fleet = Fleet::start(&stack, &format!("--config {}", file.display()));
    let frontend = stack.frontend(release, RouterMode::Kv);
    let client = frontend.client();
    client.wait_serving(MODEL, LIST_LIMIT);
    client.wait_instances("generate", PREFILL + DECODE, LIST_LIMIT);
    wait_hearing(client, u32::try_from(streams).expect("a small number"));
    Running {
        frontend,
        fleet,
        _stack: stack,
    }
}

impl Running {
    pub(crate) fn client(&self) -> &Client {
        self.frontend.client()
    }

    /// Requests that each pool has taken.
    fn pools(&self) -> (u64, u64) {
        let requests = self.fleet.requests();
        let (prefill, decode) = requests.split_at(PREFILL);
        (prefill.iter().sum(), decode.iter().sum())
    }

    /// The workers of the pair whose KV is travelling.
    pub(crate) fn pair(&self) -> (usize, usize) {
        eventually(STATE_LIMIT, "KV travels", || {
            let workers = self.fleet.snapshot().workers;
            let prefill = workers.iter().position(|worker| worker.handoffs.transfers == 1)?;
            let decode = workers
                .iter()
                .skip(PREFILL)
                .position(|worker| worker.handoffs.rooms == 1)?;
            Some((prefill, PREFILL + decode))
        })
    }
}

/// Asks on a thread of its own and gives what the client saw. A frontend that has listed the model may not know the prefill
/// pool yet: it is asked again until a worker has had the request.
pub(crate) fn asking<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    running: &'scope Running,
) -> std::thread::ScopedJoinHandle<'scope, (u16, serde_json::Value)> {
    let ask = || {
        let reply = running.client().post(COMPLETIONS, &completion(&prompt(1, 40), 20));
        (reply.status != 503 || running.pools() != (0, 0)).then_some((reply.status, reply.body))
    };
    scope.spawn(move || eventually(STATE_LIMIT, "a worker is asked", ask))
}

fn check_both_pools(running: &Running, handoffs: bool) {
    let client = running.client();
    for topic in 0..6 {
        let transcript = client.stream(COMPLETIONS, &completion(&prompt(topic, 40), 20)).finish();
        assert!(transcript.done && transcript.error().is_none(), "{transcript:?}");
        assert_eq!(transcript.finish_reason(), "length");
        assert_eq!(transcript.usage()["completion_tokens"], 20);
        let served = running.fleet.position(transcript.served().instance_id);
        assert!(served >= PREFILL, "a decode worker answers, not w{served}");
    }
    assert_eq!(running.pools(), (6, 6));
    running.fleet.wait_idle();
    let completed: u64 = running.fleet.snapshot().workers[PREFILL..]
        .iter()
        .map(|worker| worker.handoffs.completed_total)
        .sum();
    assert_eq!(completed, if handoffs { 6 } else { 0 });
    assert_no_event_refused(client);
}

on_each_release! {
    fn streams_go_through_both_pools_and_their_rendezvous(release) {
        let running = running(Stack::on_etcd(), release, QUICK, RENDEZVOUS);
        check_both_pools(&running, true);
        // The prefill pool is routed by prefix: the same prompt again goes where its blocks are.
        let before = running.fleet.requests();
        for _ in 0..3 {
            let reply = running.client().post(COMPLETIONS, &completion(&prompt(0, 40), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
        }
        let grown: Vec<u64> = running.fleet.requests().iter().zip(before).map(|(now, then)| now - then).collect();
        assert!(grown[..PREFILL].contains(&3), "one prefill worker has the prefix: {grown:?}");
    }

    fn streams_go_through_both_pools_without_a_rendezvous(release) {
        let running = running(Stack::on_etcd(), release, QUICK, "");
        check_both_pools(&running, false);
    }

    fn a_prefill_worker_that_dies_during_the_transfer_is_an_error_for_the_client(release) {
        let running = running(Stack::on_etcd(), release, SLOW, RENDEZVOUS);
        std::thread::scope(|scope| {
            let asked = asking(scope, &running);
            let (prefill, _) = running.pair();
            running.fleet.kill(&format!("w{prefill}"), Death::Crash);
            running.fleet.wait_state(prefill, WorkerState::Dead, STATE_LIMIT);
            let (status, body) = asked.join().expect("the client gets an answer");
            assert!(status >= 500, "{status}: {body}");
        });
        running.fleet.wait_idle();
    }

    fn a_decode_worker_that_dies_during_the_transfer_frees_the_prompt(release) {
        let running = running(Stack::on_etcd(), release, SLOW, RENDEZVOUS);
        std::thread::scope(|scope| {
            let asked = asking(scope, &running);
            let (_, decode) = running.pair();
            running.fleet.kill(&format!("w{decode}"), Death::Crash);
            let (status, body) = asked.join().expect("the client gets an answer");
            assert!(status >= 500, "{status}: {body}");
        });
        running.fleet.wait_idle();
    }

    fn a_client_that_leaves_during_the_transfer_leaves_nothing(release) {
        let running = running(Stack::on_etcd(), release, SLOW, RENDEZVOUS);
        std::thread::scope(|scope| {
            let left = scope.spawn(|| {
                running.client().abandon(COMPLETIONS, &completion(&prompt(1, 40), 20), || {
                    running.pair();
                });
            });
            left.join().expect("the client leaves");
        });
        running.fleet.wait_idle();
        let reply = running.client().models();
        assert_eq!(reply, [MODEL]);
    }
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn a_router_that_disaggregates_by_need_leaves_a_cached_prompt_to_its_decode_worker() {
    let stack = Stack::on_etcd().with_variables(&[
        ("DYN_ROUTER_CONDITIONAL_DISAGG", "true"),
        ("DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG", r#"{"eff_isl_threshold": 100}"#),
    ]);
    let keys = (QUICK, RENDEZVOUS, "decode_local_prefill = true");
    let running = running_with(stack, Release::V1_6_1, keys, PREFILL + DECODE);
    let ask = || {
        let reply = running.client().post(COMPLETIONS, &completion(&prompt(1, 330), 5));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(reply.body["usage"]["completion_tokens"], 5);
        running.pools()
    };
    assert_eq!(ask(), (1, 1), "nobody has it: through both pools");
    // Once the router has heard of the decode worker's cache, the prompt need not go through the prefill pool.
    eventually(STATE_LIMIT, "a decode worker is asked alone", || {
        let before = running.pools();
        (ask() == (before.0, before.1 + 1)).then_some(())
    });
    assert_no_event_refused(running.client());
}
