//! The stores between fleet and frontend: files without any server, and an etcd that goes away.

use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::WorkerState;

use crate::ask::{CHAT, COMPLETIONS, chat, completion, prompt};
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{FrontendOptions, RouterMode};
use crate::prefixes::{assert_no_event_refused, follow_up, plant_and_index, wait_hearing};
use crate::release::on_each_release;
use crate::stack::Stack;

const LIST_LIMIT: Duration = Duration::from_secs(30);
const STATE_LIMIT: Duration = Duration::from_secs(20);

on_each_release! {
    fn files_list_answer_and_route_by_prefix(release) {
        let stack = Stack::on_files();
        let fleet = Fleet::start(&stack, "--num-workers 4 --block-size 16 --speedup-ratio 0");
        let frontend = stack.frontend(release, RouterMode::Kv);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 4, LIST_LIMIT);
        let transcript = frontend.client().stream(CHAT, &chat("Hello.", 8)).finish();
        assert_eq!(transcript.usage()["completion_tokens"], 8);
        wait_hearing(frontend.client(), 4);
        let owner = plant_and_index(&fleet, frontend.client(), 1);
        for extra in 0..6 {
            assert_eq!(follow_up(&fleet, frontend.client(), 1, extra), owner, "request {extra}");
        }
        assert_no_event_refused(frontend.client());
        fleet.stop();
        frontend.client().wait_unlisted(MODEL, LIST_LIMIT);
    }

    fn files_of_a_crashed_worker_are_left_to_expire(release) {
        let stack = Stack::on_files();
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16");
        let frontend = stack.frontend_with(&FrontendOptions {
            release,
            router_mode: RouterMode::RoundRobin,
            migration_limit: 3,
        });
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 2, LIST_LIMIT);
        let mut streams: Vec<_> = (0..2)
            .map(|topic| frontend.client().stream(COMPLETIONS, &completion(&prompt(topic, 70), 100)))
            .collect();
        for stream in &mut streams {
            stream.read_texts(1);
        }
        let gone = fleet.worker(0).instance_id;
        fleet.kill("w0", Death::Crash);
        for stream in streams {
            let transcript = stream.finish();
            assert_eq!(transcript.error(), None);
            assert_eq!(transcript.usage()["completion_tokens"], 100);
        }
        assert!(frontend.client().instances("generate").contains(&gone), "nobody has taken its record back");
        frontend.client().wait_instances("generate", 1, LIST_LIMIT);
        assert_eq!(frontend.client().instances("generate"), [fleet.worker(1).instance_id]);
        fleet.drain("w1");
        fleet.wait_state(1, WorkerState::Left, STATE_LIMIT);
        frontend.client().wait_unlisted(MODEL, LIST_LIMIT);
    }

    fn requests_go_on_while_etcd_is_away(release) {
        let mut stack = Stack::on_etcd();
        let fleet = Fleet::start(&stack, "--num-workers 2 --block-size 16");
        let frontend = stack.frontend(release, RouterMode::RoundRobin);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 2, LIST_LIMIT);
        let mut running = frontend.client().stream(COMPLETIONS, &completion(&prompt(1, 70), 60));
        running.read_texts(1);
        let etcd = stack.etcd.as_mut().expect("this stack has an etcd");
        etcd.kill();
        let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(2, 70), 20));
        assert_eq!(reply.status, 200, "{reply:?}");
        let transcript = running.finish();
        assert_eq!(transcript.error(), None);
        assert_eq!(transcript.usage()["completion_tokens"], 60);
        etcd.restart();
        let ids: Vec<_> = fleet.snapshot().workers.iter().map(|worker| worker.instance_id).collect();
        let next = stack.frontend(release, RouterMode::RoundRobin);
        next.client().wait_instances("generate", 2, LIST_LIMIT);
        let mut seen = next.client().instances("generate");
        seen.sort_by_key(|id| ids.iter().position(|own| own == id));
        assert_eq!(seen, ids);
    }

    fn an_etcd_that_has_lost_everything_is_told_again(release) {
        let mut stack = Stack::on_etcd();
        let fleet = Fleet::start_with(&stack, "--num-workers 3 --block-size 16", &[("ETCD_LEASE_TTL", "4")]);
        let etcd = stack.etcd.as_mut().expect("this stack has an etcd");
        etcd.kill();
        etcd.restart_empty();
        let frontend = stack.frontend(release, RouterMode::Kv);
        frontend.client().wait_serving(MODEL, LIST_LIMIT);
        frontend.client().wait_instances("generate", 3, LIST_LIMIT);
        let transcript = frontend.client().stream(CHAT, &chat("Hello.", 8)).finish();
        assert_eq!(transcript.usage()["completion_tokens"], 8);
        assert!(fleet.snapshot().workers.iter().all(|worker| worker.state == WorkerState::Ready));
    }
}
