//! vLLM's own router, with `--policy kv_aware`, has to find each prompt where it is cached, from the engines' own events.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ghostfleet::actors::death::Death;
use serde_json::json;

use crate::cable::Cable;
use crate::native::free_ports;
use crate::scene::{PATIENCE, Scene};

/// The command `vllm-router`, without the parts of its package that a router does not use.
const MAIN: &str = "\
import argparse
from vllm_router.router import Router
from vllm_router.router_args import RouterArgs
parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
Router.from_args(RouterArgs.from_cli_args(parser.parse_args())).start()
";

/// Prompts per worker in one question: a router that guesses is found out.
const TOPICS: u32 = 5;

/// How often a question may be put again, with new topics, because the router had not heard of the last ones yet.
const ATTEMPTS: u32 = 16;

struct Router {
    child: Child,
    port: u16,
}

impl Router {
    /// Over workers at these HTTP ports, with the event and replay ports of each.
    fn start(workers: &[(u16, u16, u16)]) -> Self {
        let python = std::env::var_os("GHOSTFLEET_VLLM_ROUTER").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/vllm-router-0.1.17/bin/python"),
            PathBuf::from,
        );
        assert!(
            python.is_file(),
            "{} does not exist; run scripts/setup or set GHOSTFLEET_VLLM_ROUTER",
            python.display()
        );
        let (port, metrics) = (free_ports(), free_ports());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(python)
            .args(["-c", MAIN]);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args([
            "--prometheus-host",
            "127.0.0.1",
            "--prometheus-port",
            &metrics.to_string(),
        ]);
        command.args([
            "--policy",
            "kv_aware",
            "--kv-event-block-size",
            "4",
            "--kv-event-model",
            "tiny",
        ]);
        command
            .arg("--worker-urls")
            .args(workers.iter().map(|worker| url(worker.0)));
        for (http, events, replay) in workers {
            let http = url(*http);
            command.args(["--kv-event-source", &format!("{http}=tcp://127.0.0.1:{events}")]);
            command.args(["--kv-event-replay-source", &format!("{http}=tcp://127.0.0.1:{replay}")]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks the server at a port about a topic, with a prompt of its own some twenty blocks long.
fn ask(port: u16, topic: u32) -> bool {
    let words: Vec<_> = (0..30).map(|word| format!("topic {topic} word {word}")).collect();
    let body = json!({
        "model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": words.join(", ")}],
    });
    let url = format!("http://127.0.0.1:{port}/v1/chat/completions");
    ureq::post(url).send_json(&body).is_ok()
}

struct Bench {
    scene: Scene,
    router: Router,
    cables: [Cable; 2],
    http: u16,
    next_topic: u32,
}

impl Bench {
    fn served(&self) -> [u64; 2] {
        [0, 1].map(|worker| self.scene.worker(worker).ranks[0].requests_total)
    }

    /// The worker that the router gives a topic to.
    fn choice(&self, topic: u32) -> usize {
        let before = self.served();
        assert!(ask(self.router.port, topic), "the router answers");
        let after = self.served();
        assert_eq!(after.iter().sum::<u64>(), before.iter().sum::<u64>() + 1);
        usize::from(after[1] > before[1])
    }

    /// Has a worker compute a topic.
    fn plant(&self, topic: u32, worker: u16) {
        assert!(ask(self.http + worker, topic), "w{worker} answers");
    }

    fn fresh(&mut self) -> u32 {
        self.next_topic += 1;
        self.next_topic
    }

    /// Has both workers compute topics of their own, in turns: topic and worker.
    fn plant_many(&mut self) -> Vec<(u32, u16)> {
        let topics: Vec<_> = (0..2 * TOPICS).map(|_| self.fresh()).collect();
        let owners: Vec<_> = topics.into_iter().zip([1, 0].into_iter().cycle()).collect();
        for (topic, worker) in &owners {
            self.plant(*topic, *worker);
        }
        owners
    }

    /// Replays that the fleet has served.
    fn replays(&self) -> u64 {
        let address = self.scene.cluster.facts().status.unwrap();
        let mut answer = ureq::get(format!("http://{address}/metrics")).call().unwrap();
        let page = answer.body_mut().read_to_string().unwrap();
        let lines = page
            .lines()
            .filter_map(|line| line.strip_prefix("ghostfleet_native_replays_total "));
        lines.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    /// Whether the router sends each topic to the worker that has it.
    fn finds(&self, owners: &[(u32, u16)]) -> bool {
        owners
            .iter()
            .all(|(topic, owner)| self.choice(*topic) == usize::from(*owner))
    }
}

impl Bench {
    fn start() -> Self {
        let (http, events, replay) = (free_ports(), [free_ports(), free_ports()], [free_ports(), free_ports()]);
        let list = |ports: [u16; 2]| format!("{},{}", ports[0], ports[1]);
        let flags = [
            "--speedup-ratio",
            "0",
            "--num-workers",
            "2",
            "--system-port",
            "0",
            "--http-port",
            &http.to_string(),
            "--zmq-kv-events-ports",
            &list(events),
            "--zmq-replay-ports",
            &list(replay),
        ];
        let scene = Scene::start(&flags);
        let cables = events.map(Cable::to);
        let router = Router::start(&[(http, cables[0].port, replay[0]), (http + 1, cables[1].port, replay[1])]);
        scene.until("the router serves", |_| ask(router.port, 0));
        scene.until("it hears both workers", |_| cables.iter().all(Cable::carries));
        Self {
            scene,
            router,
            cables,
            http,
            next_topic: 0,
        }
    }

    /// Plants topics until the router finds all of them; its subscription may take a moment after its connection.
    fn learn_stored(&mut self) -> Vec<(u32, u16)> {
        for _ in 0..ATTEMPTS {
            let owners = self.plant_many();
            if self.finds(&owners) {
                return owners;
            }
        }
        panic!("it never finds what both workers have");
    }

    /// Has w1 compute what was w0's: topics that w1 alone has now if w0 has lost them.
    fn move_topics(&self, owners: &[(u32, u16)]) -> Vec<(u32, u16)> {
        let of_w0 = owners.iter().filter(|(_, owner)| *owner == 0);
        let moved: Vec<_> = of_w0.map(|(topic, _)| (*topic, 1)).collect();
        for (topic, owner) in &moved {
            self.plant(*topic, *owner);
        }
        moved
    }

    /// Pulls the cables, has both workers compute topics, and puts the cables back: what was told meanwhile is replayed.
    /// Whether the router knows it then.
    fn fill_gap(&mut self) -> bool {
        for cable in &self.cables {
            cable.pull();
        }
        let missed = self.plant_many();
        let replays = self.replays();
        for cable in &self.cables {
            cable.plug_in();
        }
        // The gap shows with the first event that gets through again.
        let begin = Instant::now();
        while self.replays() < replays + 2 {
            assert!(begin.elapsed() < PATIENCE, "a gap is never noticed");
            self.plant_many();
        }
        let next = self.plant_many();
        self.finds(&next) && self.finds(&missed)
    }

    /// A new incarnation of w0 on the same ports, with nothing in its cache and its numbers from 0.
    fn restart(&mut self) {
        let connections = self.cables[0].connections();
        self.scene.cluster.kill("w0", Death::Crash).unwrap();
        self.scene
            .until("w0 starts again", |scene| scene.cluster.restart("w0", false).is_ok());
        self.scene.until("w0 answers again", |_| ask(self.http, 1_000_000));
        self.scene.until("the router connects again", |_| {
            self.cables[0].connections() > connections
        });
    }
}

#[test]
#[ignore = "needs vllm-router: scripts/test"]
fn vllm_router_finds_each_prompt_where_it_is_cached() {
    let mut bench = Bench::start();
    let forgotten = (0..ATTEMPTS).any(|_| {
        let owners = bench.learn_stored();
        assert!(bench.scene.cluster.clear_cache("w0").unwrap() > 0);
        let moved = bench.move_topics(&owners);
        bench.finds(&moved)
    });
    assert!(forgotten, "a cleared cache gets no credit");
    // The router asks for replays at its own time, so that one gap may be looked at too early.
    let filled = (0..ATTEMPTS).any(|_| bench.fill_gap());
    assert!(filled, "a gap is not filled");
    let before = bench.learn_stored();
    bench.restart();
    let forgotten = (0..ATTEMPTS).any(|_| {
        let after = bench.plant_many();
        let moved = bench.move_topics(&before);
        bench.finds(&after) && bench.finds(&moved)
    });
    assert!(forgotten, "the new w0 keeps the credit of the old one");
}
