//! Prompts as runs of hash ids.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::Token;

/// Hash ids of all prompts of a workload: renumbered in order of first sight and kept as runs of consecutive ids, since
/// fresh ids get consecutive numbers.
#[derive(Debug)]
pub struct PromptStore {
    /// Tokens per id.
    block_tokens: u32,
    numbers: HashMap<u64, u32, FxBuildHasher>,
    /// First id and how many.
    runs: Vec<(u32, u32)>,
}

/// One prompt in a store.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PromptRef {
    first_run: u32,
    runs: u32,
    tokens: u32,
}

impl PromptRef {
    pub(crate) fn tokens(self) -> u32 {
        self.tokens
    }
}

impl PromptStore {
    /// An empty store for ids that stand for `block_tokens` tokens each.
    pub fn new(block_tokens: u32) -> Self {
        Self {
            block_tokens,
            numbers: HashMap::default(),
            runs: Vec::new(),
        }
    }

    /// Tokens per id.
    pub(crate) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Keeps the prompt of `tokens` tokens that these ids stand for, at most as many as they cover.
    pub(crate) fn add(&mut self, ids: impl IntoIterator<Item = u64>, tokens: u32) -> PromptRef {
        let first_run = self.runs.len();
        let mut count = 0_u32;
        for id in ids {
            count += 1;
            let fresh = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let number = *self.numbers.entry(id).or_insert(fresh);
            match self.runs[first_run..].last_mut() {
                Some((first, length)) if *first + *length == number => *length += 1,
                _ => self.runs.push((number, 1)),
            }
        }
        PromptRef {
            first_run: u32::try_from(first_run).unwrap_or(u32::MAX),
            runs: u32::try_from(self.runs.len() - first_run).unwrap_or(u32::MAX),
            tokens: tokens.min(count.saturating_mul(self.block_tokens)),
        }
    }

    /// Forgets the numbering, which is only needed while prompts are added.
    pub(crate) fn seal(&mut self) {
        self.numbers = HashMap::default();
        self.runs.shrink_to_fit();
    }

    /// Appends a prompt: each id as often as it has tokens, the last one cut.
    pub(crate) fn write(&self, prompt: PromptRef, into: &mut Vec<Token>) {
        let end = into.len() + prompt.tokens as usize;
        into.reserve(prompt.tokens as usize);
        let first = prompt.first_run as usize;
        for &(id, length) in &self.runs[first..first + prompt.runs as usize] {
            for id in id..id + length {
                let left = end - into.len();
                into.resize(into.len() + left.min(self.block_tokens as usize), id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_renumbered_and_repeated_and_the_tail_is_cut() {
        let mut store = PromptStore::new(3);
        let first = store.add([900, 7, 8], 100);
        let second = store.add([900, 8, 55], 7);
        store.seal();
        let mut tokens = Vec::new();
        store.write(first, &mut tokens);
        assert_eq!(
            (first.tokens(), tokens.as_slice()),
            (9, &[0, 0, 0, 1, 1, 1, 2, 2, 2][..])
        );
        tokens.clear();
        store.write(second, &mut tokens);
        assert_eq!(tokens, [0, 0, 0, 2, 2, 2, 3]);
    }
}
