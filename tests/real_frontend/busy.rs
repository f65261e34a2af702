//! Overloaded workers: a frontend with a threshold learns from `kv_metrics` who is busy, and when it is over.

use std::time::Duration;

use crate::ask::{COMPLETIONS, completion, prompt};
use crate::client::Stream;
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, FrontendOptions, RouterMode};
use crate::release::on_each_release;
use crate::stack::Stack;
use crate::wait::eventually;

const LIST_LIMIT: Duration = Duration::from_secs(30);
const STATE_LIMIT: Duration = Duration::from_secs(20);

/// What a frontend answers when every worker is busy.
const OVERLOADED: u16 = 529;

on_each_release! {
    fn busy_workers_get_no_requests_until_they_have_room_again(release) {
        let stack = Stack::on_files();
        // 63 blocks to use each: a prompt of 40 is over half, two of 10 are not.
        let flags = "--num-workers 2 --block-size 16 --num-gpu-blocks-override 64";
        let fleet = Fleet::start(&stack, flags);
        let mut environment = stack.environment();
        environment.push(("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", "0.5".to_owned()));
        let options = FrontendOptions { release, router_mode: RouterMode::RoundRobin, migration_limit: 0 };
        let frontend = Frontend::start(stack.scratch(), &environment, stack.namespace(), &options);
        let client = frontend.client();
        client.wait_serving(MODEL, LIST_LIMIT);
        client.wait_instances("generate", 2, LIST_LIMIT);
        let short = |topic| client.post(COMPLETIONS, &completion(&prompt(topic, 20), 2));

        // One busy worker: all others go to the other one.
        let first = holding(&frontend, 1);
        let busy = fleet.busy_worker();
        let before = fleet.requests();
        eventually(STATE_LIMIT, "the busy worker is spared", || {
            let before = fleet.requests();
            for topic in 10..14 {
                assert_eq!(short(topic).status, 200);
            }
            (fleet.requests()[busy] == before[busy]).then_some(())
        });
        assert!(fleet.requests()[1 - busy] >= before[1 - busy] + 4);

        // Both: refused with the status for it.
        let second = holding(&frontend, 2);
        eventually(STATE_LIMIT, "everybody is busy", || {
            let reply = short(20);
            if reply.status == OVERLOADED {
                assert_eq!(reply.body["code"], OVERLOADED, "{reply:?}");
                return Some(());
            }
            assert_eq!(reply.status, 200, "{reply:?}");
            None
        });

        // The answers end, and with them the overload.
        drop((first, second));
        fleet.wait_idle();
        eventually(STATE_LIMIT, "requests are taken again", || (short(30).status == 200).then_some(()));
        let before = fleet.requests();
        for topic in 31..35 {
            assert_eq!(short(topic).status, 200);
        }
        assert_eq!(fleet.requests(), [before[0] + 2, before[1] + 2], "turn by turn, as before");
    }
}

/// An answer that holds more than half of a worker's blocks and does not end by itself in time.
#[track_caller]
fn holding(frontend: &Frontend, topic: u32) -> Stream {
    frontend.client().stream_begun(&completion(&prompt(topic, 640), 300))
}
