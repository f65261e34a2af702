//! Dynamo's standalone indexer (`python -m dynamo.indexer`), release 1.6.1: it reads the engines' native streams and
//! shows everything that it has made of them.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Server, WitnessError};
use crate::truth::RankId;
use crate::truth::dump::{Dump, DumpError, Names};

/// One standalone indexer.
pub struct Indexer {
    server: Server,
    model: Option<String>,
}

/// A native stream that an indexer shall read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// Under which name.
    pub id: RankId,
    /// Model of the worker.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// `tcp://host:port` of its PUB socket.
    pub events: String,
    /// The same of its replay socket.
    pub replay: Option<String>,
}

impl Indexer {
    /// The indexer at `url`; of what it shows only `model` counts, or everything.
    ///
    /// # Errors
    /// [`WitnessError::Url`].
    pub fn new(url: &str, model: Option<String>) -> Result<Self, WitnessError> {
        Ok(Self {
            server: Server::new(url)?,
            model,
        })
    }

    fn no_dump(&self, path: &str) -> impl Fn(DumpError) -> WitnessError + use<> {
        let url = self.server.at(path);
        move |source| WitnessError::Dump {
            url: url.clone(),
            source,
        }
    }

    /// Everything that it believes in.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn dump(&self) -> Result<Dump, WitnessError> {
        let text = self.server.get("/dump")?;
        Dump::read(&text, self.model.as_deref()).map_err(self.no_dump("/dump"))
    }

    /// What it calls the ranks whose native streams come from these ports.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn names(&self, ports: &BTreeMap<u16, RankId>) -> Result<Names, WitnessError> {
        let text = self.server.get("/workers")?;
        Names::read(&text, ports).map_err(self.no_dump("/workers"))
    }

    /// Has it read a stream.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn register(&self, stream: &Stream) -> Result<(), WitnessError> {
        let mut body = json!({
            "instance_id": stream.id.worker.0, "dp_rank": stream.id.rank.0, "model_name": stream.model,
            "block_size": stream.block_size, "endpoint": stream.events,
        });
        if let Some(replay) = &stream.replay {
            body["replay_endpoint"] = replay.clone().into();
        }
        self.server.post("/register", &body).map(drop)
    }

    /// Has it forget a stream and what it knows from there. One that it does not know is forgotten already.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn unregister(&self, stream: &Stream) -> Result<(), WitnessError> {
        let body = json!({
            "instance_id": stream.id.worker.0, "dp_rank": stream.id.rank.0, "model_name": stream.model,
        });
        match self.server.post("/unregister", &body) {
            Ok(_) | Err(WitnessError::Refused { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
