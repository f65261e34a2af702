//! Listeners to the rank's cache changes, passed on to its publisher.

use actix::prelude::*;

use super::super::kv_listener::ListenKv;
use super::Rank;

impl Handler<ListenKv> for Rank {
    type Result = ();

    fn handle(&mut self, listen: ListenKv, _: &mut Self::Context) {
        // Without a publisher nothing is ever announced.
        if let Some(publisher) = &self.publisher {
            publisher.do_send(listen);
        }
    }
}
