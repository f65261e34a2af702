//! What a rendezvous says of itself.

use actix::prelude::*;
use serde_json::json;

use super::super::inspect::Look;
use super::Rendezvous;

/// Most rooms that are told one by one.
const LISTED: usize = 100;

impl Handler<Look> for Rendezvous {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        let now = self.parts.clock.now();
        let rooms = self.rooms.values().take(LISTED).map(|room| {
            json!({
                "handoff": room.identity.handoff_id,
                "room": room.identity.bootstrap_room,
                "request": room.identity.request_id,
                "source": room.source.as_ref().map(|source| source.dp_rank.to_string()),
                "destination": room.destination.is_some(),
                "transferring": room.transfer.is_some(),
                "ends_in_ms": room.deadline.since(now).as_secs_f64() * 1e3,
            })
        });
        MessageResult(json!({
            "port": self.parts.port,
            "open_rooms": self.rooms.len(),
            "sources_waiting": self.sources.len(),
            "rooms": rooms.collect::<Vec<_>>(),
        }))
    }
}
