//! The running list: who decodes where, without touching anybody in a pass that changes nothing.
//!
//! A decoding request gains one token per pass, so its length is `pass + offset` and nobody has to count it up.

use crate::types::{FinishReason, RequestId};

/// One running request, in admission order.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    /// Admission number; ascending along the list.
    pub(super) ordinal: u64,
    pub(super) sequence: u32,
    pub(super) id: RequestId,
    /// Stream of a request whose tokens are drawn without masks.
    pub(super) plain: Option<u64>,
    /// Length before pass `p` is `p + offset`, once decoding.
    pub(super) offset: i64,
    /// First pass that brings a token; [`NOT_DECODING`] before the end of the prefill is scheduled.
    pub(super) first_pass: i64,
    /// Tokens of this pass; more than one only with speculative decoding.
    pub(super) burst: u32,
    /// Set in the pass that brings the last token.
    pub(super) finish: Option<FinishReason>,
}

/// `first_pass` of a request that computes known tokens.
pub(super) const NOT_DECODING: i64 = i64::MAX;

/// Running requests in admission order. Finding one is O(log n); adding is O(1); removing moves the entries behind.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    list: Vec<Lane>,
    next_ordinal: u64,
}

impl Lanes {
    pub(super) fn push(&mut self, sequence: u32, id: RequestId, plain: Option<u64>) -> u64 {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        self.list.push(Lane {
            ordinal,
            sequence,
            id,
            plain,
            offset: 0,
            first_pass: NOT_DECODING,
            burst: 1,
            finish: None,
        });
        ordinal
    }

    pub(super) fn find(&self, ordinal: u64) -> Option<usize> {
        self.list.binary_search_by_key(&ordinal, |lane| lane.ordinal).ok()
    }

    pub(super) fn remove(&mut self, index: usize) -> Lane {
        self.list.remove(index)
    }
}

impl std::ops::Deref for Lanes {
    type Target = [Lane];
    fn deref(&self) -> &[Lane] {
        &self.list
    }
}

impl std::ops::DerefMut for Lanes {
    fn deref_mut(&mut self) -> &mut [Lane] {
        &mut self.list
    }
}
