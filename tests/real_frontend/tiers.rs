//! What a frontend makes of blocks that have left the GPU for host memory.

use std::time::Duration;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::RouterMode;
use crate::prefixes::{assert_no_event_refused, wait_hearing};
use crate::release::on_each_release;
use crate::stack::Stack;
use crate::wait::eventually;

const LIMIT: Duration = Duration::from_secs(30);

/// Prompt of a topic: 16 blocks of 16 tokens and one token.
const PROMPT: u32 = 257;

on_each_release! {
    /// Whatever one worker computes, the other reads from the host that they share. The router sends each request to the next
    /// worker, so that the same prompt is served by both.
    fn a_worker_reads_from_shared_host_memory_what_another_one_has_computed(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(
            &stack,
            "--num-workers 2 --block-size 16 --num-host-blocks 400 --kv-bytes-per-token 1000 --host-offload-scope cluster_shared \
             --kv-layout-id tiny --speedup-ratio 0",
        );
        let frontend = stack.frontend(release, RouterMode::RoundRobin);
        let client = frontend.client();
        client.wait_serving(MODEL, LIMIT);
        client.wait_instances("generate", 2, LIMIT);
        let served_by = |topic: u32| {
            let reply = client.post(COMPLETIONS, &completion(&prompt(topic, PROMPT), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
            let cached = reply.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
            (fleet.position(reply.served().instance_id), cached.unwrap_or_default())
        };
        for topic in 0..4 {
            let (first, cached) = served_by(topic);
            assert_eq!(cached, 0, "topic {topic} is new");
            let (second, cached) = served_by(topic);
            assert_ne!(first, second);
            assert_eq!(cached, 256, "topic {topic} is read from the host");
        }
        fleet.stop();
    }

    /// Each of two workers has room for two prompts in the GPU and for many in the host. After six topics most prompts are in
    /// the host alone; their requests are answered, by whichever worker, with the prompt read back from there.
    fn blocks_that_left_the_gpu_for_the_host_are_understood(release) {
        let stack = Stack::on_etcd();
        let fleet = Fleet::start(
            &stack,
            "--num-workers 2 --block-size 16 --num-gpu-blocks-override 40 --num-host-blocks 400 --kv-bytes-per-token 1000 \
             --speedup-ratio 0",
        );
        let frontend = stack.frontend(release, RouterMode::Kv);
        let client = frontend.client();
        client.wait_serving(MODEL, LIMIT);
        client.wait_instances("generate", 2, LIMIT);
        wait_hearing(client, 2);
        let served_by = |topic: u32| {
            let reply = client.post(COMPLETIONS, &completion(&prompt(topic, PROMPT), 2));
            assert_eq!(reply.status, 200, "{reply:?}");
            (fleet.position(reply.served().instance_id), reply)
        };
        let owners: Vec<usize> = (0..6).map(|topic| served_by(topic).0).collect();
        eventually(LIMIT, "the router has heard of blocks that are gone from the GPU", || {
            let removed = [r#"event_type="removed""#, r#"status="ok""#];
            (client.metrics().sum("dynamo_component_kv_cache_events_applied", &removed) > 0.0).then_some(())
        });
        for round in 0..3 {
            for topic in 0..6 {
                let (worker, reply) = served_by(topic);
                let cached = reply.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
                // A worker that had the prompt before has it still, in the GPU or in the host.
                if worker == owners[topic as usize] {
                    assert_eq!(cached, Some(256), "round {round}, topic {topic}: {reply:?}");
                }
            }
        }
        assert_no_event_refused(client);
        fleet.stop();
    }
}
