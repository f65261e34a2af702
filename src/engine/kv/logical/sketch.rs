//! How often blocks were asked for lately, in constant space: a count-min sketch of 4-bit counters that ages.
//!
//! A key has four counters, each in a word of its own choice; the estimate is the smallest of the four, so keys that
//! share a counter are over-estimated, never under-estimated. After ten increments per counted block all counters are
//! halved. An increment or estimate costs four hashes, ageing O(capacity) once per `10 * capacity` increments. The
//! table (2 bytes per block of capacity) is made at the first increment.
//!
//! Word and counter come from the same bits of a hash. Where the number of words is a power of two, a word therefore uses
//! only one of its counters: the sketch fills up early, stops ageing, and calls every block very hot. A capacity that is
//! not a power of two avoids that.
//!
//! Source: kvbm-logical 1.6.1 (`TinyLFU`).

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// The secrets of XXH3 for the seeds 0 to 3.
const SECRETS: [[u8; 192]; 4] = [
    const_custom_default_secret(0),
    const_custom_default_secret(1),
    const_custom_default_secret(2),
    const_custom_default_secret(3),
];

const COUNTER_BITS: u32 = 4;
const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;
/// Lowest bit of each counter of a word.
const LOWEST_BITS: u64 = 0x1111_1111_1111_1111;
/// All but the highest bit of each counter of a word.
const LOW_BITS: u64 = 0x7777_7777_7777_7777;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Sketch {
    words: usize,
    table: Vec<u64>,
    increments: u32,
    /// Increments after which the counters are halved.
    period: u32,
}

impl Sketch {
    /// A sketch for `capacity` blocks: a word of 16 counters per four blocks.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            words: (capacity as usize / 4).max(1),
            table: Vec::new(),
            increments: 0,
            period: capacity.saturating_mul(10),
        }
    }

    /// Counts one access. Saturated counters stay; when all four are, the access does not age the sketch either.
    pub(super) fn increment(&mut self, key: u128) {
        self.table.resize(self.words, 0);
        let mut counted = false;
        for (word, shift) in places(key, self.words) {
            if (self.table[word] >> shift) & COUNTER_MAX < COUNTER_MAX {
                self.table[word] += 1 << shift;
                counted = true;
            }
        }
        self.increments += u32::from(counted);
        if counted && self.increments >= self.period {
            self.age();
        }
    }

    /// Accesses of a key, at most 15.
    pub(super) fn estimate(&self, key: u128) -> u8 {
        if self.table.is_empty() {
            return 0;
        }
        let counters = places(key, self.words).map(|(word, shift)| (self.table[word] >> shift) & COUNTER_MAX);
        let least = counters.into_iter().min().unwrap_or(0);
        u8::try_from(least).unwrap_or(u8::MAX)
    }

    fn age(&mut self) {
        let mut odd = 0;
        for word in &mut self.table {
            odd += (*word & LOWEST_BITS).count_ones();
            *word = (*word >> 1) & LOW_BITS;
        }
        self.increments = (self.increments / 2).saturating_sub(odd / 4);
    }
}

/// Word and bit position of the four counters of a key.
fn places(key: u128, words: usize) -> [(usize, u32); 4] {
    let bytes = key.to_le_bytes();
    SECRETS.each_ref().map(|secret| {
        let hash = xxh3_64_with_secret(&bytes, secret);
        let word = usize::try_from(hash % words as u64).unwrap_or(0);
        let counter = u32::try_from(hash & 15).unwrap_or(0);
        (word, counter * COUNTER_BITS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_saturate_at_fifteen() {
        let mut sketch = Sketch::new(1024);
        assert_eq!(sketch.estimate(7), 0);
        for expected in 1..=15 {
            sketch.increment(7);
            assert_eq!(sketch.estimate(7), expected);
        }
        sketch.increment(7);
        assert_eq!((sketch.estimate(7), sketch.increments), (15, 15));
    }

    #[test]
    fn counts_are_halved_after_ten_increments_per_block() {
        // 255 words: not a power of two, so that all counters are in use.
        let mut sketch = Sketch::new(1020);
        for _ in 0..9 {
            sketch.increment(7);
        }
        for key in 0..20_000 {
            if sketch.increments < 10_199 {
                sketch.increment((1 << 64) | key);
            }
        }
        assert_eq!(sketch.increments, 10_199);
        let before = sketch.estimate(7);
        assert!(before >= 9, "{before}");
        sketch.increment(8);
        assert_eq!(sketch.estimate(7), before / 2);
        assert!(
            (2550..5100).contains(&sketch.increments),
            "odd counters are carried off"
        );
    }
}
