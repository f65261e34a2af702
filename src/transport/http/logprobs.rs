//! Log probabilities in the shapes of the two APIs, and those of prompts.
//!
//! Source: vLLM 0.32.0.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::plan::Api;
use crate::model::tokenizer::ModelTokenizer;
use crate::transport::logprob;
use crate::types::Token;

/// What an answer tells about the likelihood of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Logprobs {
    /// Alternatives per token.
    pub(super) top: u32,
    /// Tokens are written as `token_id:<id>`.
    pub(super) as_ids: bool,
    /// Ids of the model.
    pub(super) vocab_size: u32,
}

/// Tokens of an answer, with the place of the first one in its text, in characters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told<'a> {
    pub(super) tokens: &'a [Token],
    pub(super) text_offset: usize,
}

/// A number of alternatives as a client gave it.
pub(super) fn count(name: &'static str, what: &str, wanted: Option<i64>) -> Result<Option<u32>, ApiError> {
    let Some(wanted) = wanted else { return Ok(None) };
    match u32::try_from(wanted) {
        Ok(count) if count <= logprob::MAX_TOP => Ok(Some(count)),
        Ok(_) => {
            let most = logprob::MAX_TOP;
            let message = format!("Requested {what} logprobs of {wanted}, which is greater than max allowed: {most}");
            Err(ApiError::bad_value(name, message))
        }
        Err(_) => Err(ApiError::bad_value(
            name,
            format!("`{name}` must be a non-negative value"),
        )),
    }
}

impl Logprobs {
    /// `logprobs` of a choice or a chunk.
    pub(super) fn write(self, api: Api, told: Told<'_>, tokenizer: &ModelTokenizer) -> Value {
        match api {
            Api::Completion => self.completion(told, tokenizer),
            Api::Chat => self.chat(told.tokens, tokenizer),
        }
    }

    fn completion(self, told: Told<'_>, tokenizer: &ModelTokenizer) -> Value {
        let mut offset = told.text_offset;
        let (mut offsets, mut texts, mut sampled, mut tops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for &token in told.tokens {
            let candidates = logprob::top(token, self.top.max(1), self.vocab_size);
            let candidates = candidates.map(|(id, logprob)| (self.text(id, tokenizer), json!(logprob)));
            let text = self.text(token, tokenizer);
            offsets.push(offset);
            offset += text.chars().count();
            texts.push(text);
            sampled.push(logprob::sampled(token));
            tops.push(candidates.collect::<Map<_, _>>());
        }
        json!({ "text_offset": offsets, "token_logprobs": sampled, "tokens": texts, "top_logprobs": tops })
    }

    fn chat(self, tokens: &[Token], tokenizer: &ModelTokenizer) -> Value {
        let entry = |id: Token, logprob: f64| {
            let text = self.text(id, tokenizer);
            json!({ "token": text, "logprob": logprob, "bytes": text.as_bytes() })
        };
        let content = tokens.iter().map(|&token| {
            let top = logprob::top(token, self.top, self.vocab_size);
            let mut told = entry(token, logprob::sampled(token));
            told["top_logprobs"] = top.map(|(id, logprob)| entry(id, logprob)).collect();
            told
        });
        json!({ "content": content.collect::<Vec<_>>() })
    }

    fn text(self, id: Token, tokenizer: &ModelTokenizer) -> String {
        if self.as_ids {
            return format!("token_id:{id}");
        }
        // An id beyond the vocabulary has no text.
        tokenizer.decode(&[id], false).unwrap_or_default()
    }
}

/// `prompt_logprobs`: nothing about the first token, then its rank and alternatives for each.
pub(super) fn of_prompt(prompt: &[Token], top: u32, vocab_size: u32, tokenizer: &ModelTokenizer) -> Value {
    let of = |&token: &Token| {
        let candidates = (1_u32..).zip(logprob::top(token, top.max(1), vocab_size));
        let candidates = candidates.map(|(rank, (id, logprob))| {
            let text = tokenizer.decode(&[id], false).unwrap_or_default();
            (
                id.to_string(),
                json!({ "logprob": logprob, "rank": rank, "decoded_token": text }),
            )
        });
        Value::Object(candidates.collect())
    };
    let rest = prompt.iter().skip(1).map(of);
    std::iter::once(Value::Null).chain(rest).take(prompt.len()).collect()
}
