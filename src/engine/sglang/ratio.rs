//! The new-token ratio: which share of the outputs still to come an admission sets aside.
//!
//! It starts high and falls with every decode step until memory runs out once; then it jumps to what the requests turned
//! out to need. Source: SGLang 0.5.23, Dynamo 1.6.1 engine core (the same numbers, but the emulator starts above 1 when
//! its conservativeness asks for it).

/// Share of `init` that it falls to.
const LEAST_SHARE: f64 = 0.14;
/// Ratio at conservativeness 1.
const INITIAL: f64 = 0.7;
/// Decode steps from the first value to the least.
const DECAY_STEPS: f64 = 600.0;
/// Tokens per request that a retraction looks ahead.
pub(super) const RETRACT_TOKENS: u32 = 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct NewTokenRatio {
    initial: f64,
    least: f64,
    value: f64,
}

impl NewTokenRatio {
    /// It starts no higher than at `most`.
    pub(super) fn new(conservativeness: f64, most: f64) -> Self {
        let initial = (INITIAL * conservativeness).min(most);
        Self {
            initial,
            least: initial * LEAST_SHARE,
            value: initial,
        }
    }

    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// A decode step passed without a retraction.
    pub(super) fn decay(&mut self) {
        let step = (self.initial - self.least) / DECAY_STEPS;
        self.value = (self.value - step).max(self.least);
    }

    /// Steps without a retraction pass at one instant, as many as change anything.
    pub(super) fn settle(&mut self) {
        self.value = self.least;
    }

    /// Nothing is left to do.
    pub(super) fn reset(&mut self) {
        self.value = self.initial;
    }

    /// Requests were retracted; `survivors` go on.
    pub(super) fn retracted(&mut self, survivors: Survivors) {
        self.value = survivors.ratio();
    }
}

/// Requests that go on after a retraction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Survivors {
    count: u32,
    generated: u64,
    max_new: u64,
}

impl Survivors {
    pub(super) fn add(&mut self, generated: u32, max_new: u32) {
        self.count += 1;
        self.generated += u64::from(generated);
        self.max_new += u64::from(max_new);
    }

    #[allow(clippy::cast_precision_loss)]
    fn ratio(self) -> f64 {
        let ahead = u64::from(RETRACT_TOKENS) * u64::from(self.count);
        ((self.generated + ahead) as f64 / (self.max_new + 1) as f64).min(1.0)
    }
}

/// The ratio after a retraction that left requests with these generated and most generated tokens.
pub fn retraction_ratio(survivors: impl Iterator<Item = (u32, u32)>) -> f64 {
    let mut sums = Survivors::default();
    survivors.for_each(|(generated, max_new)| sums.add(generated, max_new));
    sums.ratio()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_falls_to_its_least_in_600_steps_and_starts_again_when_idle() {
        let mut ratio = NewTokenRatio::new(1.0, 1.0);
        ratio.decay();
        assert!((ratio.value() - 0.698_996_667).abs() < 1e-9);
        (1..600).for_each(|_| ratio.decay());
        assert!((ratio.value() - 0.098).abs() < 1e-9);
        ratio.decay();
        assert!((ratio.value() - 0.098).abs() < 1e-9);
        ratio.reset();
        assert!((ratio.value() - 0.7).abs() < 1e-12);
        assert!((NewTokenRatio::new(9.0, 1.0).value() - 1.0).abs() < 1e-12);
        assert!((NewTokenRatio::new(2.0, f64::INFINITY).value() - 1.4).abs() < 1e-12);
    }

    #[test]
    fn a_retraction_sets_it_to_what_the_survivors_needed() {
        let mut ratio = NewTokenRatio::new(1.0, 1.0);
        let mut survivors = Survivors::default();
        survivors.add(11, 50);
        ratio.retracted(survivors);
        assert!((ratio.value() - 0.607_843_137).abs() < 1e-9);
        ratio.retracted(Survivors::default());
        assert!(ratio.value().abs() < 1e-12);
        ratio.decay();
        assert!((ratio.value() - 0.098).abs() < 1e-9);
    }
}
