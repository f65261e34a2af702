//! A prompt on its way to the rendezvous.

use actix::prelude::*;

use super::super::rank::{Rank, SourceFailed};
use super::Source;
use crate::transport::rendezvous::Identity;
use crate::types::{DpRank, RequestId};

/// What a rank is told when its rendezvous has died.
pub(super) const GONE: &str = "the worker's rendezvous is gone";

/// A prompt that is to be handed over; answered by [`SourceMet`](super::super::rank::SourceMet) or [`SourceFailed`]. A
/// rendezvous that is dead, or dies with the offer in its mailbox, answers too: by the offer's end.
#[derive(Message)]
#[rtype(result = "()")]
pub(in super::super) struct Offer {
    pub(super) identity: Identity,
    source: Option<Source>,
}

impl Offer {
    pub(in super::super) fn new(id: RequestId, identity: Identity, rank: Addr<Rank>, dp_rank: DpRank) -> Self {
        Self {
            identity,
            source: Some(Source { rank, dp_rank, id }),
        }
    }

    /// Who offers; from now on the caller has to answer. `None`: taken before.
    pub(super) fn take(&mut self) -> Option<Source> {
        self.source.take()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if let Some(source) = self.source.take() {
            source.fail(GONE);
        }
    }
}

impl Source {
    /// Nobody will get its KV.
    pub(super) fn fail(self, why: &str) {
        self.rank.do_send(SourceFailed {
            id: self.id,
            why: why.to_owned(),
        });
    }
}
