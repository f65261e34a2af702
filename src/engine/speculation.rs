//! Which drafted tokens are accepted.
//!
//! The draws are those of the reference emulator: one stream per rank, `StdRng` of `rand` 0.9 seeded with the configured
//! seed, one Bernoulli draw per draft up to the first that is refused; a chance of 1 draws nothing. Source: Dynamo 1.6.1
//! engine core, equal in 1.4.2.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::config::Speculation;

/// A stream of accepted drafts.
#[derive(Debug)]
pub(crate) struct Acceptance {
    /// One per drafted token.
    chances: Vec<f64>,
    rng: StdRng,
}

impl Acceptance {
    /// Rates, which are chances, are cut or padded with 0 to the number of drafts.
    pub(crate) fn new(speculation: &Speculation) -> Self {
        let rates = speculation.accept_rates.iter().copied().chain(std::iter::repeat(0.0));
        Self {
            chances: rates.take(speculation.nextn as usize).collect(),
            rng: StdRng::seed_from_u64(speculation.seed),
        }
    }

    /// Tokens of one pass: one, and the accepted drafts up to the first that is not.
    pub(crate) fn draw(&mut self) -> u32 {
        let mut tokens = 1;
        for &chance in &self.chances {
            if !self.rng.random_bool(chance) {
                break;
            }
            tokens += 1;
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(rates: &[f64], nextn: u32, seed: u64) -> Vec<u32> {
        let mut acceptance = Acceptance::new(&Speculation {
            nextn,
            accept_rates: rates.to_vec(),
            seed,
        });
        (0..1000).map(|_| acceptance.draw()).collect()
    }

    #[test]
    fn certain_and_impossible_drafts_are_exact() {
        assert!(stream(&[1.0, 1.0], 2, 1).iter().all(|&tokens| tokens == 3));
        assert!(stream(&[0.0, 1.0], 2, 1).iter().all(|&tokens| tokens == 1));
        assert!(stream(&[1.0], 3, 1).iter().all(|&tokens| tokens == 2), "padded with 0");
        assert!(stream(&[1.0, 1.0, 1.0], 1, 1).iter().all(|&tokens| tokens == 2), "cut");
    }

    #[test]
    fn streams_follow_the_seed_and_the_chances() {
        let rates = [0.8, 0.6];
        assert_eq!(stream(&rates, 2, 7), stream(&rates, 2, 7));
        assert_ne!(stream(&rates, 2, 7), stream(&rates, 2, 8));
        let sum: u32 = stream(&rates, 2, 7).iter().sum();
        let mean = f64::from(sum) / 1000.0;
        assert!((mean - (1.0 + 0.8 + 0.48)).abs() < 0.08, "{mean}");
    }
}
