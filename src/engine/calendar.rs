//! When something happens to a decoding request: a block to take, a block that fills, the last token.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Due passes of decoding requests; each has one valid entry. Entries of requests that left are skipped when they come
/// up, so nothing is searched. O(log n) per operation.
#[derive(Debug, Default)]
pub(crate) struct Calendar {
    heap: BinaryHeap<Reverse<Entry>>,
}

/// One entry: ordered by pass, then admission, which is the order in which a pass visits them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) pass: i64,
    pub(crate) ordinal: u64,
    pub(crate) sequence: u32,
}

impl Calendar {
    pub(crate) fn push(&mut self, entry: Entry) {
        self.heap.push(Reverse(entry));
    }

    /// The next entry that is due in or before `pass`.
    pub(crate) fn pop_due(&mut self, pass: i64) -> Option<Entry> {
        let due = self.heap.peek().is_some_and(|Reverse(entry)| entry.pass <= pass);
        if due {
            self.heap.pop().map(|Reverse(entry)| entry)
        } else {
            None
        }
    }

    /// The first pass with a valid entry, dropping invalid ones on the way.
    pub(crate) fn first_due(&mut self, is_valid: impl Fn(&Entry) -> bool) -> Option<i64> {
        while let Some(Reverse(entry)) = self.heap.peek() {
            if is_valid(entry) {
                return Some(entry.pass);
            }
            self.heap.pop();
        }
        None
    }
}
