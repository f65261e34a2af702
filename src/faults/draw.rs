//! The seeded dice: a draw depends on the seed, the fault, the worker and the number of the draw alone, so that a drill
//! that runs again makes the same choices whatever happens in between.

/// One stream of draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dice(u64);

impl Dice {
    /// The stream of `seed`, told from others by `salt`.
    pub const fn new(seed: u64, salt: u64) -> Self {
        Self(mix(seed ^ mix(salt)))
    }

    /// The `n`-th draw, uniform over all 64 bits.
    pub const fn bits(self, n: u64) -> u64 {
        mix(self.0.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The `n`-th draw, uniform from 0 up to but not including 1.
    #[allow(clippy::cast_precision_loss)]
    pub fn unit(self, n: u64) -> f64 {
        (self.bits(n) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = last as u64 + 1;
            let other = usize::try_from(self.bits(last as u64) % bound).unwrap_or(last);
            items.swap(last, other);
        }
    }
}

/// The finalizer of `SplitMix64`: every input bit moves every output bit.
const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_another_does_not() {
        let draws = |seed, salt| (0..8).map(|n| Dice::new(seed, salt).bits(n)).collect::<Vec<_>>();
        assert_eq!(draws(7, 1), draws(7, 1));
        assert_ne!(draws(7, 1), draws(8, 1));
        assert_ne!(draws(7, 1), draws(7, 2));
    }

    #[test]
    fn draws_are_spread_evenly() {
        let dice = Dice::new(1, 2);
        let below = (0..10_000).filter(|&n| dice.unit(n) < 0.3).count();
        assert!((2800..3200).contains(&below), "{below}");
        let mut order: Vec<u32> = (0..100).collect();
        dice.shuffle(&mut order);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
