//! The running list: who decodes where, without touching anybody in a pass that changes nothing.
//!
//! A decoding request gains one token per pass, so its length is `pass + offset` and nobody has to count it up. Totals
//! over all decoding requests are kept the same way.

use crate::types::{FinishReason, RequestId};

use super::super::forward::Lengths;

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

/// Sums over decoding requests, as functions of the pass number.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    count: u32,
    offsets: i64,
    squares: i128,
}

impl Totals {
    pub(super) fn add(&mut self, offset: i64) {
        self.count += 1;
        self.offsets += offset;
        self.squares += i128::from(offset) * i128::from(offset);
    }

    pub(super) fn remove(&mut self, offset: i64) {
        self.count -= 1;
        self.offsets -= offset;
        self.squares -= i128::from(offset) * i128::from(offset);
    }

    /// Lengths before pass `pass`.
    pub(super) fn lengths(&self, pass: i64) -> Lengths {
        let tokens = self.offsets + i64::from(self.count) * pass;
        let (wide, count) = (i128::from(pass), i128::from(self.count));
        let squares = self.squares + 2 * wide * i128::from(self.offsets) + count * wide * wide;
        let (tokens, squares) = (u64::try_from(tokens), u128::try_from(squares));
        Lengths::new(self.count, tokens.unwrap_or(0), squares.unwrap_or(0))
    }
}
