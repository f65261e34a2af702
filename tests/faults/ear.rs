//! A router's ear: hears what a worker publishes.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ghostfleet::transport::event_plane::envelope;
use serde_json::Value;
use tokio::runtime::Builder;
use zeromq::{Socket, SocketRecv, SubSocket};

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::scene::PATIENCE;

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    pub(crate) publisher: u64,
    pub(crate) sequence: u64,
    /// `Null`: not msgpack.
    pub(crate) payload: Value,
}

impl Heard {
    /// Ids of its events.
    pub(crate) fn ids(&self) -> Vec<u64> {
        let events = self.payload.as_array().into_iter().flatten();
        events.filter_map(|event| event["event"]["event_id"].as_u64()).collect()
    }
}

pub(crate) struct Ear(Receiver<Heard>);

impl Ear {
    /// Listens to a topic of the first worker.
    pub(crate) fn new(admin: &Admin, topic: &'static str) -> Self {
        let records = admin.scene.records("v1/event_channels");
        let record = records
            .iter()
            .find(|record| record["topic"] == topic)
            .expect("a channel");
        let address = record["transport"]["config"]["endpoint"].as_str().unwrap().to_owned();
        let (heard, ear) = channel();
        std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut socket = SubSocket::new();
                socket.connect(&address).await.unwrap();
                socket.subscribe(topic).await.unwrap();
                // Ends with the worker's socket, or when nobody wants to hear more.
                while let Ok(message) = socket.recv().await {
                    let frame = message.get(3).expect("four frames");
                    let envelope = envelope::decode(&frame[5..]).unwrap();
                    let told = heard.send(Heard {
                        publisher: envelope.publisher_id.get(),
                        sequence: envelope.sequence,
                        payload: rmp_serde::from_slice(envelope.payload).unwrap_or(Value::Null),
                    });
                    if told.is_err() {
                        return;
                    }
                }
            });
        });
        Self(ear)
    }

    pub(crate) fn next(&self) -> Heard {
        self.0.recv_timeout(PATIENCE).expect("a message")
    }

    /// Whatever comes within a short while.
    pub(crate) fn soon(&self) -> Option<Heard> {
        self.0.recv_timeout(Duration::from_millis(300)).ok()
    }

    /// Asks until the first message is heard: a subscription takes its time.
    pub(crate) fn wake(&self, admin: &Admin) {
        for n in 1.. {
            // Long enough that blocks are in use between two passes.
            ask_for(admin, 1_000 + n, 12);
            if self.soon().is_some() {
                break;
            }
            assert!(n < 100, "nothing is heard");
        }
        while self.soon().is_some() {}
    }
}

/// A request that stores two blocks that were never seen; returns when it is answered.
pub(crate) fn ask(admin: &Admin, n: u32) {
    ask_for(admin, n, 1);
}

fn ask_for(admin: &Admin, n: u32, tokens: u32) {
    let prompt = [n; 8];
    let answer = call(&admin.scene.address(0), "ask", &chat(&prompt, tokens));
    assert!(answer.unwrap().finish().unwrap().complete);
}
