//! Either side of a handoff, played by the test.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ghostfleet::transport::rendezvous::link::{Link, LinkError};
use ghostfleet::transport::rendezvous::server::{Arrival, Host, RendezvousServer};
use ghostfleet::transport::rendezvous::wire::{Fact, Message, Order, Register, Role, TimingMode, TransferTiming};
use ghostfleet::transport::rendezvous::{Identity, Meeting, RendezvousLimits, client};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::legs::Handoff;
use crate::scene::PATIENCE;

/// Threads of the played side.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn identity(handoff: &Handoff) -> Identity {
    Identity {
        handoff_id: handoff.id,
        bootstrap_room: handoff.room,
        request_id: handoff.request,
    }
}

/// A registration as a vLLM decode worker makes it.
pub(crate) fn vllm() -> Register {
    Register {
        role: Role::Destination,
        dp_rank: 0,
        order: Order::SourceFirst,
        engine_type: "vllm".to_owned(),
    }
}

/// Joins a rendezvous as a decode worker.
pub(crate) fn join(
    runtime: &Runtime,
    meeting: &Value,
    identity: Identity,
    register: Register,
) -> Result<Link, LinkError> {
    let meeting = Meeting {
        host: meeting["bootstrap_host"].as_str().unwrap().to_owned(),
        port: u16::try_from(meeting["bootstrap_port"].as_u64().unwrap()).unwrap(),
        identity,
    };
    let never = CancellationToken::new();
    runtime.block_on(client::join(&meeting, register, RendezvousLimits::default(), &never))
}

/// What a prefill worker says when the prompt of 30 tokens is computed.
pub(crate) fn held(handoff: &Handoff, kv_bytes_per_token: Option<u64>) -> Message {
    Message::Fact(Fact::SourceHeld {
        handoff_id: handoff.id,
        transfer_timing: TransferTiming {
            mode: TimingMode::FullPrompt,
            full_prompt_tokens: 30,
            kv_bytes_per_token,
            bandwidth_gb_s: None,
        },
    })
}

/// The next message; `None`: the connection is closed.
pub(crate) fn hear(runtime: &Runtime, link: &mut Link) -> Option<Message> {
    let heard = runtime.block_on(async { tokio::time::timeout(PATIENCE, link.inbox.recv()).await });
    heard.expect("the other side says something or closes")
}

/// A prefill worker's rendezvous.
pub(crate) struct Source {
    server: RendezvousServer,
    arrivals: Receiver<Arrival>,
}

struct Desk(Sender<Arrival>);

impl Host for Desk {
    fn receive(&self, arrival: Arrival) -> bool {
        self.0.send(arrival).is_ok()
    }
}

impl Source {
    pub(crate) fn start(runtime: &Runtime) -> Self {
        let (sender, arrivals) = channel();
        let at = ([127, 0, 0, 1], 0).into();
        let server = RendezvousServer::bind(
            at,
            Arc::new(Desk(sender)),
            RendezvousLimits::default(),
            runtime.handle(),
        );
        Self {
            server: server.unwrap(),
            arrivals,
        }
    }

    /// `bootstrap_info` that leads here.
    pub(crate) fn meeting(&self, handoff: &Handoff) -> Value {
        json!({
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.server.address().port(),
            "bootstrap_room": handoff.room,
            "handoff_id": handoff.id,
        })
    }

    /// Sends the next decode worker away.
    pub(crate) fn refuse(&self, why: &str) {
        let arrival = self.arrivals.recv_timeout(PATIENCE).unwrap();
        let message = why.to_owned();
        assert!(arrival.link.outbox.say(Message::ProtocolError { message }));
    }

    /// The next decode worker, which waits for its registration as it does at Dynamo's prefill workers.
    pub(crate) fn keep_waiting(&self) -> Arrival {
        self.arrivals.recv_timeout(PATIENCE).unwrap()
    }

    /// The next decode worker, registered.
    pub(crate) fn receive(&self) -> Arrival {
        let arrival = self.keep_waiting();
        assert!(arrival.link.outbox.say(Message::Registered));
        arrival
    }
}
