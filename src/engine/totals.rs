//! Lengths of many requests that all grow by one token per pass, without touching them.

use super::forward::Lengths;

/// Sums over decoding requests, as functions of the pass number.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    count: u32,
    offsets: i64,
    squares: i128,
}

impl Totals {
    pub(crate) fn add(&mut self, offset: i64) {
        self.count += 1;
        self.offsets += offset;
        self.squares += i128::from(offset) * i128::from(offset);
    }

    pub(crate) fn remove(&mut self, offset: i64) {
        self.count -= 1;
        self.offsets -= offset;
        self.squares -= i128::from(offset) * i128::from(offset);
    }

    /// Lengths before pass `pass`.
    pub(crate) fn lengths(&self, pass: i64) -> Lengths {
        let tokens = self.offsets + i64::from(self.count) * pass;
        let (wide, count) = (i128::from(pass), i128::from(self.count));
        let squares = self.squares + 2 * wide * i128::from(self.offsets) + count * wide * wide;
        let (tokens, squares) = (u64::try_from(tokens), u128::try_from(squares));
        Lengths::new(self.count, tokens.unwrap_or(0), squares.unwrap_or(0))
    }
}

/// A length as one of the numbers that loads are told in.
pub(crate) fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
