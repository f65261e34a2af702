//! What a pass did, in numbers: the content of forward-pass metrics.

/// Sum and spread of a length over some requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Requests.
    pub requests: u32,
    /// Sum of their lengths, tokens.
    pub tokens: u64,
    squares: u128,
}

impl Lengths {
    /// Of `requests` requests with these sums of lengths and of squared lengths.
    pub(crate) fn new(requests: u32, tokens: u64, squares: u128) -> Self {
        Self {
            requests,
            tokens,
            squares,
        }
    }

    /// Adds one request.
    pub fn add(&mut self, length: u32) {
        self.requests += 1;
        self.tokens += u64::from(length);
        self.squares += u128::from(length) * u128::from(length);
    }

    /// Takes one request out that was added before.
    pub fn remove(&mut self, length: u32) {
        self.requests -= 1;
        self.tokens -= u64::from(length);
        self.squares -= u128::from(length) * u128::from(length);
    }

    /// Adds the requests of `other`.
    pub(crate) fn append(&mut self, other: Self) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.squares += other.squares;
    }

    /// Population variance of the lengths; 0 without requests.
    #[allow(clippy::cast_precision_loss)]
    pub fn variance(&self) -> f64 {
        if self.requests == 0 {
            return 0.0;
        }
        let count = u128::from(self.requests);
        let tokens = u128::from(self.tokens);
        (count * self.squares - tokens * tokens) as f64 / (count * count) as f64
    }
}

/// Work of one pass and what was left waiting. Source: Dynamo 1.6.1 forward-pass metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forward {
    /// Requests that computed prompt tokens, by prompt length.
    pub prefill: Lengths,
    /// Tokens that they computed in this pass, answers recomputed after a preemption included.
    pub prefill_tokens: u64,
    /// Prompt tokens of these requests that were there before, from the cache or earlier chunks.
    pub prefill_kv_tokens: u64,
    /// Requests that were scheduled without prompt tokens, by sequence length.
    pub decode: Lengths,
    /// Waiting requests that never ran, by prompt length.
    pub queued_prefill: Lengths,
    /// Waiting requests that were preempted, by sequence length.
    pub queued_decode: Lengths,
}

#[cfg(test)]
mod tests {
    use super::Lengths;

    #[test]
    fn variance_is_that_of_the_population() {
        let mut lengths = Lengths::default();
        assert!(lengths.variance().abs() < f64::EPSILON);
        for length in [2, 4, 4, 4, 5, 5, 7, 9, 1000] {
            lengths.add(length);
        }
        lengths.remove(1000);
        assert_eq!((lengths.requests, lengths.tokens), (8, 40));
        assert!((lengths.variance() - 4.0).abs() < 1e-12);
    }
}
