//! A small seeded generator (SplitMix64), so that recordings do not depend on another crate's release.

pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is positive.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// In `from..=to`.
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Below `end`, small numbers far more often than big ones.
    pub(crate) fn skewed(&mut self, end: usize) -> usize {
        let mut bound = end;
        while bound > 1 && self.chance(70) {
            bound = bound.div_ceil(2);
        }
        self.below(bound)
    }
}
