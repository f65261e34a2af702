//! Prompts, shared and small: a request waits with what it was made from, not with a copy of its tokens.

use std::ops::Range;
use std::sync::Arc;

use super::{Token, Tokens};

/// Prompt of a request. Cheap to clone: all clones share their content.
#[derive(Debug, Clone)]
pub struct Prompt(Form);

#[derive(Debug, Clone)]
enum Form {
    /// Any tokens, 4 bytes each.
    Tokens(Tokens),
    /// Tokens that repeat: a few bytes per run, whatever its length.
    Runs(Runs),
}

/// Consecutive ids, each of which stands for the same number of equal tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRun {
    /// First id: the token that it stands for.
    pub first: Token,
    /// How many ids.
    pub count: u32,
}

#[derive(Debug, Clone)]
struct Runs {
    /// Runs of many prompts.
    store: Arc<[IdRun]>,
    /// The ones of this prompt.
    own: Range<u32>,
    /// Tokens per id.
    repeat: u32,
    /// Tokens of the prompt; the last id may be cut.
    len: u32,
}

impl Prompt {
    /// The prompt that the runs `own` of a store stand for, `repeat` tokens per id, cut to `len` tokens.
    ///
    /// # Panics
    /// When `own` is not within the store.
    pub fn from_runs(store: Arc<[IdRun]>, own: Range<u32>, repeat: u32, len: u32) -> Self {
        let ids = store[own.start as usize..own.end as usize]
            .iter()
            .map(|run| u64::from(run.count));
        let covered = ids.sum::<u64>() * u64::from(repeat);
        Self(Form::Runs(Runs {
            store,
            own,
            repeat,
            len: len.min(u32::try_from(covered).unwrap_or(u32::MAX)),
        }))
    }

    /// Number of tokens.
    pub fn len(&self) -> u32 {
        match &self.0 {
            Form::Tokens(tokens) => u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            Form::Runs(runs) => runs.len,
        }
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens at `range`, in place where they are, else written into `buffer`. O(tokens asked for), and for runs
    /// also O(runs before them).
    ///
    /// # Panics
    /// When the range reaches beyond the prompt.
    pub fn tokens<'a>(&'a self, range: Range<u32>, buffer: &'a mut Vec<Token>) -> &'a [Token] {
        match &self.0 {
            Form::Tokens(tokens) => &tokens[range.start as usize..range.end as usize],
            Form::Runs(_) => {
                buffer.clear();
                self.append(range, buffer);
                buffer
            }
        }
    }

    /// Appends the tokens at `range` to `out`. Cost as [`Self::tokens`].
    ///
    /// # Panics
    /// When the range reaches beyond the prompt.
    pub fn append(&self, range: Range<u32>, out: &mut Vec<Token>) {
        match &self.0 {
            Form::Tokens(tokens) => out.extend_from_slice(&tokens[range.start as usize..range.end as usize]),
            Form::Runs(runs) => runs.append(range, out),
        }
    }

    /// The token that everything at `range` is, where that is known without a look at each. O(runs before the range).
    pub fn uniform(&self, range: &Range<u32>) -> Option<Token> {
        match &self.0 {
            Form::Tokens(_) => None,
            Form::Runs(runs) => runs.uniform(range),
        }
    }

    /// All tokens.
    pub fn to_vec(&self) -> Vec<Token> {
        let mut all = Vec::with_capacity(self.len() as usize);
        self.append(0..self.len(), &mut all);
        all
    }
}

impl Runs {
    fn uniform(&self, range: &Range<u32>) -> Option<Token> {
        if range.is_empty() {
            return None;
        }
        let last = u64::from(range.end - 1);
        let (first, repeat) = (u64::from(range.start), u64::from(self.repeat.max(1)));
        let mut before = 0;
        for run in &self.store[self.own.start as usize..self.own.end as usize] {
            let behind = before + u64::from(run.count) * repeat;
            if first < behind {
                let index = (first - before) / repeat;
                let alike = last < behind && index == (last - before) / repeat;
                return alike.then(|| run.first.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX)));
            }
            before = behind;
        }
        None
    }

    fn append(&self, range: Range<u32>, out: &mut Vec<Token>) {
        assert!(range.end <= self.len, "tokens {range:?} of a prompt of {}", self.len);
        let repeat = u64::from(self.repeat);
        let (mut at, end) = (u64::from(range.start), u64::from(range.end));
        // Tokens before the run in hand.
        let mut before = 0;
        for run in &self.store[self.own.start as usize..self.own.end as usize] {
            let behind = before + u64::from(run.count) * repeat;
            while at < end && at < behind {
                let index = (at - before) / repeat;
                let upto = (before + (index + 1) * repeat).min(end);
                let token = run.first.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
                let count = usize::try_from(upto - at).unwrap_or(usize::MAX);
                out.extend(std::iter::repeat_n(token, count));
                at = upto;
            }
            if at >= end {
                return;
            }
            before = behind;
        }
    }
}

impl PartialEq for Prompt {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.to_vec() == other.to_vec()
    }
}

impl From<Tokens> for Prompt {
    fn from(tokens: Tokens) -> Self {
        Self(Form::Tokens(tokens))
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Self(Form::Tokens(tokens.into()))
    }
}

impl From<&[Token]> for Prompt {
    fn from(tokens: &[Token]) -> Self {
        Self(Form::Tokens(tokens.into()))
    }
}

impl FromIterator<Token> for Prompt {
    fn from_iter<I: IntoIterator<Item = Token>>(tokens: I) -> Self {
        Self(Form::Tokens(tokens.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Arc<[IdRun]> {
        let run = |first, count| IdRun { first, count };
        [run(100, 9), run(7, 2), run(50, 1), run(3, 3), run(100, 9)].into()
    }

    #[test]
    fn a_range_within_one_id_is_known_to_be_uniform() {
        let store: Arc<[IdRun]> = [IdRun { first: 5, count: 2 }, IdRun { first: 9, count: 1 }].into();
        let prompt = Prompt::from_runs(store, 0..2, 4, 11);
        let uniform = |range| prompt.uniform(&range);
        assert_eq!(
            [uniform(0..4), uniform(5..7), uniform(8..11)],
            [Some(5), Some(6), Some(9)]
        );
        assert_eq!([uniform(3..5), uniform(6..9), uniform(2..2)], [None, None, None]);
    }

    #[test]
    fn runs_stand_for_repeated_tokens_and_the_tail_is_cut() {
        let prompt = Prompt::from_runs(store(), 1..4, 3, 16);
        let all = [7, 7, 7, 8, 8, 8, 50, 50, 50, 3, 3, 3, 4, 4, 4, 5];
        assert_eq!((prompt.len(), prompt.to_vec().as_slice()), (16, &all[..]));
        assert_eq!(prompt, all.as_slice().into());
        // No more than the ids cover.
        assert_eq!(Prompt::from_runs(store(), 2..3, 3, 100).to_vec(), [50, 50, 50]);
        assert!(Prompt::from_runs(store(), 2..2, 3, 100).is_empty());
    }

    #[test]
    fn any_part_of_a_prompt_is_the_same_in_both_forms() {
        let runs = Prompt::from_runs(store(), 0..5, 5, 118);
        let plain = Prompt::from(runs.to_vec());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for start in 0..=118 {
            for end in start..=118 {
                assert_eq!(
                    runs.tokens(start..end, &mut left),
                    plain.tokens(start..end, &mut right),
                    "{start}..{end}"
                );
            }
        }
    }

    #[test]
    fn a_prompt_of_runs_takes_no_memory_per_token() {
        // One run of 2^20 ids of 4,100 tokens: 16 GB if each token had its 4 bytes.
        let store: Arc<[IdRun]> = [IdRun {
            first: 0,
            count: 1 << 20,
        }]
        .into();
        let prompt = Prompt::from_runs(store, 0..1, 4100, u32::MAX);
        assert_eq!(prompt.len(), u32::MAX);
        assert_eq!(
            prompt.tokens(u32::MAX - 1..u32::MAX, &mut Vec::new()),
            [(u32::MAX - 1) / 4100]
        );
    }
}
