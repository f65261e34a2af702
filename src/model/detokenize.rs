//! Tokens to text, one by one, as a stream needs it: no character is split, no text comes twice.

use super::tokenizer::{ModelTokenizer, TokenizeError};
use crate::types::Token;

/// Prompt tokens that are looked at, so that the first piece gets its leading space where the vocabulary keeps that in
/// the token. Source: vLLM 0.32.0 looks at as many.
const CONTEXT_TOKENS: usize = 5;
/// Tokens that are held back at most: a character has 4 bytes, so with this many it is broken for good.
const MAX_HELD: usize = 4;

/// Text of one answer so far, as far as it is still needed.
#[derive(Debug)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    /// Window: `ids[..told]` has been told already and is there to decode the rest in its context.
    ids: Vec<Token>,
    told: usize,
}

impl Detokenizer {
    /// Starts behind a prompt.
    pub fn new(prompt: &[Token], skip_special_tokens: bool) -> Self {
        let ids = prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..].to_vec();
        Self {
            skip_special_tokens,
            told: ids.len(),
            ids,
        }
    }

    /// Takes a token; returns the text that it completes, possibly empty.
    ///
    /// # Errors
    /// [`TokenizeError`]; the token is kept.
    pub fn push(&mut self, tokenizer: &ModelTokenizer, token: Token) -> Result<String, TokenizeError> {
        self.ids.push(token);
        let held = self.ids.len() - self.told;
        self.pull(tokenizer, held > MAX_HELD)
    }

    /// The rest at the end of the answer: what is left of a broken character, as U+FFFD.
    ///
    /// # Errors
    /// [`TokenizeError`].
    pub fn finish(&mut self, tokenizer: &ModelTokenizer) -> Result<String, TokenizeError> {
        if self.told == self.ids.len() {
            Ok(String::new())
        } else {
            self.pull(tokenizer, true)
        }
    }

    fn pull(&mut self, tokenizer: &ModelTokenizer, even_broken: bool) -> Result<String, TokenizeError> {
        let before = tokenizer.decode(&self.ids[..self.told], self.skip_special_tokens)?;
        let mut after = tokenizer.decode(&self.ids, self.skip_special_tokens)?;
        if after.ends_with(char::REPLACEMENT_CHARACTER) && !even_broken {
            return Ok(String::new());
        }
        let text = after.split_off(common_prefix(&before, &after));
        self.ids.drain(..self.told);
        self.told = self.ids.len();
        Ok(text)
    }
}

/// Bytes that both texts begin with, at a character's end.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars()
        .zip(b.chars())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{HubOptions, Model};

    fn tokenizer() -> ModelTokenizer {
        let model = Model::resolve("config/tiny-model", &HubOptions::default()).unwrap();
        ModelTokenizer::load(&model).unwrap()
    }

    #[test]
    fn any_text_comes_back_in_whole_characters() {
        let tokenizer = tokenizer();
        for text in [
            "the quick brown fox",
            "na\u{ef}ve \u{6771}\u{4eac} \u{1f389}\u{1f389}!",
            "  two  spaces\n\n\ttab",
            "",
        ] {
            let ids = tokenizer.encode(text, false).unwrap();
            let mut stream = Detokenizer::new(&[], true);
            let mut pieces = Vec::new();
            for id in ids {
                pieces.push(stream.push(&tokenizer, id).unwrap());
            }
            pieces.push(stream.finish(&tokenizer).unwrap());
            assert_eq!(pieces.concat(), text);
            assert!(!pieces.iter().any(|piece| piece.contains(char::REPLACEMENT_CHARACTER)));
        }
    }

    #[test]
    fn the_prompt_is_context_and_never_told() {
        let tokenizer = tokenizer();
        let prompt = tokenizer.encode("once upon a time", false).unwrap();
        let answer = tokenizer.encode(" there was a king", false).unwrap();
        let mut stream = Detokenizer::new(&prompt, true);
        let text: String = answer.iter().map(|id| stream.push(&tokenizer, *id).unwrap()).collect();
        assert_eq!(text, " there was a king");
    }

    #[test]
    fn half_a_character_is_held_back_until_the_end() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("\u{1f389}", false).unwrap();
        assert_eq!(ids.len(), 4);
        let mut stream = Detokenizer::new(&[], true);
        assert_eq!(stream.push(&tokenizer, ids[0]).unwrap(), "");
        assert_eq!(stream.push(&tokenizer, ids[1]).unwrap(), "");
        assert_eq!(stream.finish(&tokenizer).unwrap(), "\u{fffd}");
        assert_eq!(stream.finish(&tokenizer).unwrap(), "");
    }

    #[test]
    fn bytes_that_never_make_a_character_do_not_pile_up() {
        let tokenizer = tokenizer();
        let start_byte = tokenizer.encode("\u{1f389}", false).unwrap()[0];
        let mut stream = Detokenizer::new(&[], true);
        let mut text = String::new();
        for _ in 0..100 {
            text += &stream.push(&tokenizer, start_byte).unwrap();
            assert!(stream.ids.len() <= 2 * (MAX_HELD + 1));
        }
        text += &stream.finish(&tokenizer).unwrap();
        assert_eq!(text.chars().count(), 100);
    }

    #[test]
    fn special_tokens_are_left_out_or_kept_as_asked() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("a<|im_end|>b", false).unwrap();
        for (skip, expected) in [(true, "ab"), (false, "a<|im_end|>b")] {
            let mut stream = Detokenizer::new(&[], skip);
            let text: String = ids.iter().map(|id| stream.push(&tokenizer, *id).unwrap()).collect();
            assert_eq!(text, expected);
        }
    }
}
