//! Whether an answer consists of the tokens that the workers gave, each once and in order.
//!
//! A load sends a seed with each request, and the tokens of an answer follow from that seed and their position alone, on
//! whichever worker they come about. So a client that is told the ids of the tokens knows them beforehand: what a router
//! repeats, leaves out or mixes up when it moves a stream shows, also where the number of tokens is right.

use crate::engine::SeededTokens;
use crate::transport::intake::token_key;
use crate::types::Token;

/// Tokens from where an answer goes astray that are looked for elsewhere in it: enough to be there by no chance.
const TRACE: usize = 4;

/// One answer, as far as it has come.
#[derive(Debug, Clone)]
pub(super) struct Content {
    tokens: SeededTokens,
    key: u64,
    prompt_tokens: u32,
    told: u32,
    /// From where on it is another one, and how it goes on.
    astray: Option<(u32, Vec<Token>)>,
}

impl Content {
    /// Of the answer to a prompt of so many tokens that was sent with `seed`.
    pub(super) fn new(tokens: SeededTokens, seed: i64, prompt_tokens: u32) -> Self {
        Self {
            tokens,
            key: token_key(Some(seed), "", 0),
            prompt_tokens,
            told: 0,
            astray: None,
        }
    }

    /// Ids of tokens that have come.
    pub(super) fn take(&mut self, ids: impl IntoIterator<Item = Token>) {
        for id in ids {
            match &mut self.astray {
                Some((_, trace)) if trace.len() < TRACE => trace.push(id),
                Some(_) => {}
                None => {
                    if id != self.expected(self.told) {
                        self.astray = Some((self.told, vec![id]));
                    }
                }
            }
            self.told = self.told.saturating_add(1);
        }
    }

    /// How many ids have come.
    pub(super) fn told(&self) -> u32 {
        self.told
    }

    /// Whether it is all as it was given. `counted`: how many tokens the answer itself says that it has. Of an answer that
    /// tells no ids nothing is known.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn verdict(&self, counted: Option<u32>) -> Result<(), String> {
        if let Some((at, trace)) = &self.astray {
            return Err(self.explain(*at, trace));
        }
        match counted {
            Some(counted) if self.told > 0 && counted != self.told => Err(format!(
                "ids of {} tokens came, and its usage says {counted}",
                self.told
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn expected(&self, index: u32) -> Token {
        self.tokens.token(self.key, self.prompt_tokens.saturating_add(index))
    }

    fn explain(&self, at: u32, trace: &[Token]) -> String {
        let goes_on = |from: &u32| (*from..).zip(trace).all(|(index, id)| self.expected(index) == *id);
        let beyond = self.told.saturating_mul(2).saturating_add(64);
        let number = at + 1;
        match (0..beyond).find(goes_on) {
            Some(from) if from < at => format!(
                "from token {number} on it repeats: they are its tokens from {} on",
                from + 1
            ),
            Some(from) => format!("before token {number} are {} tokens missing", from - at),
            None if at == 0 => {
                "its tokens are not those of its seed; does the router hand the request's seed to workers?".to_owned()
            }
            None => format!("token {number} is none of its own"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engine::EngineConfig;

    /// Of the answer to a prompt of 8 tokens that was sent with seed 5.
    pub(in crate::drill) fn content() -> Content {
        Content::new(SeededTokens::of(&EngineConfig::default()).unwrap(), 5, 8)
    }

    /// Its tokens.
    pub(in crate::drill) fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
        let content = content();
        range.map(|index| content.expected(index)).collect()
    }

    fn verdict(ids: &[Vec<Token>], counted: Option<u32>) -> Result<(), String> {
        let mut content = content();
        for ids in ids {
            content.take(ids.iter().copied());
        }
        content.verdict(counted)
    }

    #[test]
    fn an_answer_as_it_was_given_is_right_however_it_is_cut_into_pieces() {
        assert_eq!(verdict(&[tokens(0..1), tokens(1..7), tokens(7..20)], Some(20)), Ok(()));
        assert_eq!(verdict(&[tokens(0..20)], None), Ok(()));
        assert_eq!(verdict(&[], Some(20)), Ok(()), "ids that nobody tells say nothing");
    }

    #[test]
    fn what_is_repeated_missing_or_foreign_is_told_by_its_place() {
        for (ids, words) in [
            (
                vec![tokens(0..12), tokens(0..8)],
                "from token 13 on it repeats: they are its tokens from 1 on",
            ),
            (
                vec![tokens(0..12), tokens(11..19)],
                "from token 13 on it repeats: they are its tokens from 12 on",
            ),
            (
                vec![tokens(0..12), tokens(14..22)],
                "before token 13 are 2 tokens missing",
            ),
            (vec![tokens(0..12), vec![1; 8]], "token 13 is none of its own"),
            (vec![vec![1; 20]], "does the router hand the request's seed"),
            (vec![tokens(0..19)], "ids of 19 tokens came, and its usage says 20"),
        ] {
            let error = verdict(&ids, Some(20)).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
