//! Prompts as runs of hash ids.

use std::sync::Arc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::types::{IdRun, Prompt, Token};

/// Ids from here on get numbers of their own, so that every id fits a token.
const WIDE: u32 = 1 << 31;

/// Hash ids of all prompts of a workload, kept as runs of consecutive ids. Ids that fit a token stand for themselves;
/// wider ones are numbered in order of first sight, so that fresh ones are consecutive.
#[derive(Debug)]
pub struct PromptStore {
    /// Tokens per id.
    block_tokens: u32,
    numbers: HashMap<u64, u32, FxBuildHasher>,
    /// What is being added.
    runs: Vec<IdRun>,
    /// Everything, once no more is added; requests share it.
    sealed: Arc<[IdRun]>,
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
            sealed: Arc::default(),
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
            let number = self.number(id);
            match self.runs[first_run..].last_mut() {
                Some(run) if run.first + run.count == number => run.count += 1,
                _ => self.runs.push(IdRun {
                    first: number,
                    count: 1,
                }),
            }
        }
        PromptRef {
            first_run: u32::try_from(first_run).unwrap_or(u32::MAX),
            runs: u32::try_from(self.runs.len() - first_run).unwrap_or(u32::MAX),
            tokens: tokens.min(count.saturating_mul(self.block_tokens)),
        }
    }

    /// The numbers of a prompt's ids, before the store is sealed.
    pub(crate) fn ids(&self, prompt: PromptRef) -> impl Iterator<Item = u32> {
        let runs = prompt.first_run as usize..(prompt.first_run + prompt.runs) as usize;
        self.runs[runs].iter().flat_map(|run| run.first..run.first + run.count)
    }

    fn number(&mut self, id: u64) -> u32 {
        match u32::try_from(id) {
            Ok(id) if id < WIDE => id,
            _ => {
                let fresh = u32::try_from(self.numbers.len()).map_or(u32::MAX, |count| count.saturating_add(WIDE));
                *self.numbers.entry(id).or_insert(fresh)
            }
        }
    }

    /// Ends the adding: forgets the numbering and opens the store for reading.
    pub(crate) fn seal(&mut self) {
        self.numbers = HashMap::default();
        self.sealed = std::mem::take(&mut self.runs).into();
    }

    /// A prompt of the sealed store, sharing its runs.
    pub(crate) fn prompt(&self, prompt: PromptRef) -> Prompt {
        let own = prompt.first_run..prompt.first_run + prompt.runs;
        Prompt::from_runs(Arc::clone(&self.sealed), own, self.block_tokens, prompt.tokens)
    }

    /// Appends a prompt of the sealed store: each id as often as it has tokens, the last one cut.
    pub(crate) fn write(&self, prompt: PromptRef, into: &mut Vec<Token>) {
        self.prompt(prompt).append(0..prompt.tokens, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_repeated_and_the_tail_is_cut() {
        let mut store = PromptStore::new(3);
        let first = store.add([900, 1 << 60, 8], 100);
        let second = store.add([900, 8, u64::MAX], 7);
        store.seal();
        let mut tokens = Vec::new();
        store.write(first, &mut tokens);
        assert_eq!(
            (first.tokens(), tokens.as_slice()),
            (9, &[900, 900, 900, WIDE, WIDE, WIDE, 8, 8, 8][..])
        );
        tokens.clear();
        store.write(second, &mut tokens);
        assert_eq!(tokens, [900, 900, 900, 8, 8, 8, WIDE + 1]);
    }

    #[test]
    fn consecutive_ids_cost_one_run_however_wide_they_are() {
        let mut store = PromptStore::new(3);
        store.add(5..5000, 9);
        store.add((1 << 40..).step_by(7).take(5000), 9);
        let runs: Vec<_> = store.runs.iter().map(|run| (run.first, run.count)).collect();
        assert_eq!(runs, [(5, 4995), (WIDE, 5000)]);
    }
}
