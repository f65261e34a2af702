//! The prompt of a request in flight whose row was read from a file.

use std::sync::Arc;

use crate::types::{IdRun, Prompt, Token};

/// Hash ids, each of which stands for a block of tokens. An id that fits a token stands for itself over and over, a wider
/// one for its halves in turn: different ids stay different without a table of all of them.
#[derive(Debug)]
pub(crate) struct HeldPrompt {
    hash_ids: Box<[u64]>,
    block_tokens: u32,
    tokens: u32,
}

impl HeldPrompt {
    /// A prompt of so many tokens, at most what the ids cover.
    pub(crate) fn new(hash_ids: &[u64], tokens: u32, block_tokens: u32) -> Self {
        let covered = u32::try_from(hash_ids.len())
            .unwrap_or(u32::MAX)
            .saturating_mul(block_tokens);
        Self {
            hash_ids: hash_ids.into(),
            block_tokens,
            tokens: tokens.min(covered),
        }
    }

    /// Appends the tokens.
    pub(crate) fn write(&self, prompt: &mut Vec<Token>) {
        let end = prompt.len() + self.tokens as usize;
        prompt.reserve(self.tokens as usize);
        for &id in &self.hash_ids {
            let tokens = (self.block_tokens as usize).min(end - prompt.len());
            let (low, high) = halves(id);
            prompt.extend((0..tokens).map(|at| if at % 2 == 0 { low } else { high }));
        }
    }

    /// As an engine keeps it.
    pub(crate) fn prompt(&self) -> Prompt {
        if self.hash_ids.iter().any(|&id| u32::try_from(id).is_err()) {
            let mut tokens = Vec::new();
            self.write(&mut tokens);
            return tokens.into();
        }
        let ids = self.hash_ids.iter().map(|&id| IdRun {
            first: halves(id).0,
            count: 1,
        });
        let runs: Arc<[IdRun]> = ids.collect();
        let own = 0..u32::try_from(runs.len()).unwrap_or(u32::MAX);
        Prompt::from_runs(runs, own, self.block_tokens, self.tokens)
    }
}

/// The tokens of an id: itself twice, or its halves, of which the low one is mixed, so that ids which differ only above
/// differ in the first token too.
#[allow(clippy::cast_possible_truncation)]
fn halves(id: u64) -> (Token, Token) {
    let (low, high) = (id as u32, (id >> 32) as u32);
    if high == 0 {
        return (low, low);
    }
    (low ^ high.wrapping_mul(0x9e37_79b9), high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_for_the_same_tokens_wherever_they_are() {
        let narrow = HeldPrompt::new(&[7, 8], 7, 4);
        assert_eq!(narrow.prompt().to_vec(), [7, 7, 7, 7, 8, 8, 8]);
        let mixed = HeldPrompt::new(&[7, 1 << 40], 100, 4);
        let tokens = mixed.prompt().to_vec();
        assert_eq!((tokens.len(), &tokens[..4]), (8, &[7; 4][..]));
        let mut written = Vec::new();
        mixed.write(&mut written);
        assert_eq!(written, tokens);
        assert_ne!(tokens[4..], HeldPrompt::new(&[1 << 41], 4, 4).prompt().to_vec());
    }
}
