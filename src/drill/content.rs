//! Whether an answer consists of the tokens that the workers gave, each once and in order.
//!
//! A load sends a seed with each request, and the tokens of an answer follow from that seed and their position alone, on
//! whichever worker they come about. So a client knows them beforehand: what a router repeats, leaves out or mixes up shows,
//! also where the number of tokens is right. Ids are compared where they are told, and the text in any case, without its
//! blanks: how words are joined is a detokenizer's own affair.

use std::sync::Arc;

use crate::engine::SeededTokens;
use crate::model::tokenizer::ModelTokenizer;
use crate::transport::intake::token_key;
use crate::types::Token;

/// Tokens from where an answer goes astray that are looked for elsewhere in it: enough to be there by no chance.
const TRACE: usize = 4;

/// Text that is kept for each token asked for, bytes: more is another text.
const KEPT_PER_TOKEN: usize = 256;

/// What all answers of a fleet consist of.
#[derive(Clone)]
pub(super) struct Foretold {
    pub(super) tokens: SeededTokens,
    /// Without it only ids are compared.
    pub(super) tokenizer: Option<Arc<ModelTokenizer>>,
}

/// One answer, as far as it has come.
pub(super) struct Content {
    foretold: Foretold,
    key: u64,
    prompt_tokens: u32,
    asked: u32,
    told: u32,
    /// From where on it is another one, and how it goes on.
    astray: Option<(u32, Vec<Token>)>,
    /// Its text without blanks.
    text: String,
}

impl Content {
    /// Of the answer of so many tokens to a prompt of so many that was sent with `seed`.
    pub(super) fn new(foretold: Foretold, seed: i64, (prompt_tokens, asked): (u32, u32)) -> Self {
        Self {
            foretold,
            key: token_key(Some(seed), "", 0),
            prompt_tokens,
            asked,
            told: 0,
            astray: None,
            text: String::new(),
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

    /// Text that has come.
    pub(super) fn read(&mut self, text: &str) {
        let most = (self.asked as usize + 1).saturating_mul(KEPT_PER_TOKEN);
        if self.foretold.tokenizer.is_some() && self.text.len() <= most {
            self.text.extend(text.split_whitespace());
        }
    }

    /// How many ids have come; `None`: they are not told.
    pub(super) fn told(&self) -> Option<u32> {
        (self.told > 0).then_some(self.told)
    }

    /// Whether it is all as it was given. `counted`: how many tokens the answer itself says that it has. The answer is
    /// whether that could be told at all.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn verdict(&self, counted: Option<u32>) -> Result<bool, String> {
        if let Some((at, trace)) = &self.astray {
            return Err(self.explain(*at, trace));
        }
        match (self.told(), counted) {
            (Some(told), Some(counted)) if told != counted => {
                return Err(format!("ids of {told} tokens came, and its usage says {counted}"));
            }
            (Some(_) | None, _) => {}
        }
        let Some(expected) = self.expected_text(counted) else {
            return Ok(self.told > 0);
        };
        if self.text == expected {
            return Ok(true);
        }
        let common = expected
            .bytes()
            .zip(self.text.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let rest = |text: &str| -> String {
            text.chars()
                .skip(text[..common.min(text.len())].chars().count())
                .take(24)
                .collect()
        };
        let why = match (common, self.told > 0) {
            (0, false) => "; does the router hand the request's seed to workers?",
            _ => "",
        };
        Err(format!(
            "its text is another: after {common} bytes that are right (blanks left out) it goes on with {:?} instead of \
             {:?}{why}",
            rest(&self.text),
            rest(&expected)
        ))
    }

    /// Its text without blanks; `None`: there is no telling, as of characters that are told in pieces.
    fn expected_text(&self, counted: Option<u32>) -> Option<String> {
        let tokenizer = self.foretold.tokenizer.as_ref()?;
        let many = self.told().or(counted).unwrap_or(self.asked);
        let ids: Vec<Token> = (0..many).map(|index| self.expected(index)).collect();
        let text = tokenizer.decode(&ids, true).ok()?;
        (!text.contains(char::REPLACEMENT_CHARACTER)).then(|| text.split_whitespace().collect())
    }

    fn expected(&self, index: u32) -> Token {
        self.foretold
            .tokens
            .token(self.key, self.prompt_tokens.saturating_add(index))
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
    use crate::model::{HubOptions, Model};

    /// Of the answer to a prompt of 8 tokens that was sent with seed 5.
    pub(in crate::drill) fn content() -> Content {
        of_model(None)
    }

    fn of_model(tokenizer: Option<Arc<ModelTokenizer>>) -> Content {
        let tokens = SeededTokens::of(&EngineConfig::default()).unwrap();
        Content::new(Foretold { tokens, tokenizer }, 5, (8, 20))
    }

    /// Its tokens.
    pub(in crate::drill) fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
        let content = content();
        range.map(|index| content.expected(index)).collect()
    }

    fn verdict(ids: &[Vec<Token>], counted: Option<u32>) -> Result<bool, String> {
        let mut content = content();
        for ids in ids {
            content.take(ids.iter().copied());
        }
        content.verdict(counted)
    }

    #[test]
    fn an_answer_as_it_was_given_is_right_however_it_is_cut_into_pieces() {
        assert_eq!(
            verdict(&[tokens(0..1), tokens(1..7), tokens(7..20)], Some(20)),
            Ok(true)
        );
        assert_eq!(verdict(&[tokens(0..20)], None), Ok(true));
        assert_eq!(verdict(&[], Some(20)), Ok(false), "ids that nobody tells say nothing");
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

    #[test]
    fn a_text_is_that_of_its_tokens_but_for_blanks() {
        let model = Model::resolve("config/tiny-model", &HubOptions::default()).unwrap();
        let tokenizer = Arc::new(ModelTokenizer::load(&model).unwrap());
        let text = |range| tokenizer.decode(&tokens(range), true).unwrap();
        let verdict = |pieces: &[String], counted| {
            let mut content = of_model(Some(Arc::clone(&tokenizer)));
            for piece in pieces {
                content.read(piece);
            }
            content.verdict(counted)
        };
        assert_eq!(verdict(&[text(0..20)], Some(20)), Ok(true));
        assert_eq!(verdict(&[text(0..7), " ".to_owned(), text(7..20)], None), Ok(true));
        assert_eq!(
            verdict(&[text(0..12)], Some(12)),
            Ok(true),
            "its length is judged elsewhere"
        );
        for (wrong, counted) in [
            (vec![text(0..12), text(0..8)], Some(20)),
            (vec![text(0..12)], None),
            (vec![text(0..12), text(13..20)], Some(20)),
            (vec![text(0..20), text(0..20)], Some(20)),
            (vec!["X".repeat(1 << 20)], Some(20)),
            (Vec::new(), Some(20)),
        ] {
            let error = verdict(&wrong, counted).unwrap_err();
            assert!(error.starts_with("its text is another") && error.len() < 300, "{error}");
        }
        let mut content = of_model(Some(Arc::clone(&tokenizer)));
        for _ in 0..100_000 {
            content.read("without an end ");
        }
        assert!(content.text.len() < 10_000, "{}", content.text.len());
    }
}
