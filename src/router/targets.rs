//! Where requests can go, and sets of such places.

/// One data-parallel rank of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Worker number.
    pub worker: u32,
    /// Rank inside the worker.
    pub rank: u32,
}

/// Bits of one machine word.
pub(crate) const WORD: usize = 64;

/// Positions of the bits set in `words`, ascending.
pub(crate) fn members(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(at, &word)| {
        let mut rest = word;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            Some(at * WORD + bit)
        })
    })
}
