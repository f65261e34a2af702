//! What a rendezvous says of itself.

use actix::prelude::*;
use serde_json::json;

use super::super::inspect::Look;
use super::Rendezvous;

impl Handler<Look> for Rendezvous {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        MessageResult(json!({
            "port": self.parts.port,
            "open_rooms": self.rooms.len(),
            "sources_waiting": self.sources.len(),
        }))
    }
}
