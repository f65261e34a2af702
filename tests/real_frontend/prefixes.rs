//! Prompts that share a prefix: who has it cached, and what a KV router knows of that.

use std::time::Duration;

use serde_json::json;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::client::{Client, Reply};
use crate::fleet::Fleet;
use crate::wait::eventually;

/// Tokens of a topic's prefix: 20 blocks of 16.
const PREFIX: u32 = 320;

/// Tokens that a follow-up adds, a block and a half.
const TAIL: u32 = 24;

/// Blocks of [`PREFIX`].
const PREFIX_BLOCKS: u32 = PREFIX / 16;

const LIMIT: Duration = Duration::from_secs(20);

/// Waits until a KV router listens to this many event streams. What was published before it may still be on its way.
#[track_caller]
pub(crate) fn wait_hearing(client: &Client, streams: u32) {
    eventually(LIMIT, &format!("the router hears {streams} event streams"), || {
        let active = client
            .metrics()
            .sum("dynamo_component_router_kv_zmq_ingress_sources", &[r#"state="active""#]);
        ((active - f64::from(streams)).abs() < 0.5).then_some(())
    });
}

/// Waits until a KV router has begun to listen this many times: once per stream, and again for each new publisher.
#[track_caller]
pub(crate) fn wait_activated(client: &Client, times: u32) {
    eventually(LIMIT, &format!("the router has begun to listen {times} times"), || {
        let name = "dynamo_component_router_kv_zmq_ingress_lifecycle_total";
        (client.metrics().sum(name, &[r#"action="activated""#]) + 0.5 > f64::from(times)).then_some(())
    });
}

/// Waits until a KV router would send each topic to its owner, without sending anything.
#[track_caller]
pub(crate) fn wait_known(fleet: &Fleet, client: &Client, owners: &[(u32, usize)]) {
    eventually(LIMIT, &format!("the router knows who has what: {owners:?}"), || {
        let known = |(topic, owner): &(u32, usize)| {
            let mut question = completion(&prompt(*topic, PREFIX), 1);
            question["nvext"]["annotations"] = json!(["query_instance_id:"]);
            // A router that knows nothing yet may name the owner by chance, but not time and again.
            (0..12).all(|_| fleet.position(client.post(COMPLETIONS, &question).served().instance_id) == *owner)
        };
        owners.iter().all(known).then_some(())
    });
}

/// Sends a topic's prefix for the first time; returns the position of the worker that has it cached now.
#[track_caller]
pub(crate) fn plant(fleet: &Fleet, client: &Client, topic: u32) -> usize {
    let before = cached_blocks(fleet);
    let reply = client.post(COMPLETIONS, &completion(&prompt(topic, PREFIX), 1));
    assert_eq!(reply.status, 200, "{reply:?}");
    let owner = fleet.position(reply.served().instance_id);
    eventually(LIMIT, "the prefix is cached and released", || {
        (cached_blocks(fleet)[owner] >= before[owner] + PREFIX_BLOCKS).then_some(())
    });
    owner
}

/// The same through a KV router, and waits until its index has the prefix.
#[track_caller]
pub(crate) fn plant_and_index(fleet: &Fleet, client: &Client, topic: u32) -> usize {
    let stored = || {
        client
            .metrics()
            .sum(EVENTS, &[r#"event_type="stored""#, r#"status="ok""#])
    };
    let before = stored();
    let owner = plant(fleet, client, topic);
    eventually(LIMIT, "the router's index has the prefix", || {
        (stored() > before).then_some(())
    });
    owner
}

/// Sends a topic's prefix with something new behind it through a KV router; returns the position of the worker that
/// served it.
///
/// # Panics
/// When the router did not count on the whole prefix.
#[track_caller]
pub(crate) fn follow_up(fleet: &Fleet, client: &Client, topic: u32, extra: u32) -> usize {
    let tokens = [prompt(topic, PREFIX), prompt(1000 + 100 * topic + extra, TAIL)].concat();
    let reply = client.post(COMPLETIONS, &completion(&tokens, 2));
    assert_eq!(reply.status, 200, "{reply:?}");
    let expected = f64::from(PREFIX) / f64::from(PREFIX + TAIL);
    let hit_rate = hit_rate(&reply);
    assert!(
        (hit_rate - expected).abs() < 0.05,
        "hit rate {hit_rate}, expected about {expected:.2}: {reply:?}"
    );
    fleet.position(reply.served().instance_id)
}

const EVENTS: &str = "dynamo_component_kv_cache_events_applied";

/// Asserts that the router's index took every event as it was meant.
#[track_caller]
pub(crate) fn assert_no_event_refused(client: &Client) {
    let metrics = client.metrics();
    let all = metrics.sum(EVENTS, &[]);
    let taken = metrics.sum(EVENTS, &[r#"status="ok""#]);
    assert!(taken > 0.0, "no event has arrived");
    assert!(
        (all - taken).abs() < 0.5,
        "{} of {all} events were refused",
        all - taken
    );
    let warnings = metrics.sum("dynamo_component_kv_cache_event_warnings", &[]);
    assert!(warnings.abs() < 0.5, "{warnings} warnings about events");
}

fn hit_rate(reply: &Reply) -> f64 {
    reply.body["nvext"]["timing"]["kv_hit_rate"]
        .as_f64()
        .unwrap_or_default()
}

fn cached_blocks(fleet: &Fleet) -> Vec<u32> {
    let workers = fleet.snapshot().workers;
    workers
        .iter()
        .map(|worker| worker.ranks.iter().map(|rank| rank.load.inactive_blocks).sum())
        .collect()
}
