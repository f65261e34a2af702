//! Fields of the requests. Fields that are not listed are ignored, as a vLLM server ignores what it does not know.
//!
//! Source: request fields of vLLM 0.32.0.

use std::fmt;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::types::Token;

/// `POST /v1/completions`.
#[derive(Debug, Deserialize)]
pub(super) struct CompletionBody {
    pub(super) model: Option<String>,
    pub(super) prompt: Prompts,
    #[serde(default)]
    pub(super) add_special_tokens: Option<bool>,
    #[serde(default)]
    pub(super) echo: Option<bool>,
    #[serde(default)]
    pub(super) suffix: Option<String>,
    /// Number of alternatives per token.
    #[serde(default)]
    pub(super) logprobs: Option<i64>,
    #[serde(flatten)]
    pub(super) sampling: SamplingBody,
}

/// `POST /v1/chat/completions`.
#[derive(Debug, Deserialize)]
pub(super) struct ChatBody {
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) max_completion_tokens: Option<i64>,
    #[serde(default)]
    pub(super) echo: Option<bool>,
    #[serde(default)]
    pub(super) logprobs: Option<bool>,
    /// Number of alternatives per token.
    #[serde(default)]
    pub(super) top_logprobs: Option<i64>,
    #[serde(flatten)]
    pub(super) conversation: Conversation,
    #[serde(flatten)]
    pub(super) sampling: SamplingBody,
}

/// The part of a chat that makes the prompt; `/tokenize` takes it too.
#[derive(Debug, Deserialize)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Map<String, Value>>,
    #[serde(default)]
    pub(super) tools: Option<Vec<Value>>,
    #[serde(default)]
    pub(super) add_generation_prompt: Option<bool>,
    #[serde(default)]
    pub(super) continue_final_message: Option<bool>,
    #[serde(default)]
    pub(super) add_special_tokens: Option<bool>,
    #[serde(default)]
    pub(super) chat_template_kwargs: Option<Map<String, Value>>,
}

/// What both kinds of generation share.
#[derive(Debug, Deserialize)]
pub(super) struct SamplingBody {
    #[serde(default)]
    pub(super) n: Option<i64>,
    #[serde(default)]
    pub(super) max_tokens: Option<i64>,
    #[serde(default)]
    pub(super) min_tokens: Option<i64>,
    #[serde(default)]
    pub(super) ignore_eos: Option<bool>,
    #[serde(default)]
    pub(super) stop: Option<OneOrMany>,
    #[serde(default)]
    pub(super) stop_token_ids: Option<Vec<Token>>,
    #[serde(default)]
    pub(super) include_stop_str_in_output: Option<bool>,
    #[serde(default)]
    pub(super) skip_special_tokens: Option<bool>,
    #[serde(default)]
    pub(super) seed: Option<i64>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    /// Smaller is more urgent; beyond 32 bits nothing is.
    #[serde(default)]
    pub(super) priority: Option<i64>,
    #[serde(default)]
    pub(super) cache_salt: Option<String>,
    #[serde(default)]
    pub(super) prompt_logprobs: Option<i64>,
    #[serde(default)]
    pub(super) return_token_ids: Option<bool>,
    #[serde(default)]
    pub(super) return_tokens_as_token_ids: Option<bool>,
    /// Keep so many tokens at the end of the prompt; -1: as many as the context has.
    #[serde(default)]
    pub(super) truncate_prompt_tokens: Option<i64>,
    #[serde(default)]
    pub(super) best_of: Option<i64>,
    #[serde(default)]
    pub(super) use_beam_search: Option<bool>,
    /// Dynamo's extension.
    #[serde(default)]
    pub(super) nvext: Option<NvExt>,
}

/// Dynamo's extension of a request, as far as a worker itself understands it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct NvExt {
    #[serde(default)]
    pub(super) annotations: Option<Vec<String>>,
}

/// What a stream tells beside the text.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: Option<bool>,
    #[serde(default)]
    pub(super) continuous_usage_stats: Option<bool>,
}

/// A string or a list of strings.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`stop` must be a string or a list of strings")]
pub(super) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(super) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// `POST /tokenize` without the chat, which is read as a [`Conversation`] when there is no `prompt`.
#[derive(Debug, Deserialize)]
pub(super) struct TokenizeBody {
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) prompt: Option<String>,
    #[serde(default)]
    pub(super) add_special_tokens: Option<bool>,
    #[serde(default)]
    pub(super) return_token_strs: Option<bool>,
}

/// Answer to `POST /tokenize`.
#[derive(Debug, Serialize)]
pub(super) struct Tokenized {
    pub(super) count: usize,
    pub(super) max_model_len: u32,
    pub(super) tokens: Vec<Token>,
    pub(super) token_strs: Option<Vec<String>>,
}

/// `POST /detokenize`.
#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeBody {
    pub(super) model: Option<String>,
    pub(super) tokens: Vec<Token>,
}

/// A prompt as it was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    Text(String),
    Ids(Vec<Token>),
}

/// `prompt`: a string, a list of ids, or a list of strings and lists of ids.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompts(pub(super) Vec<Prompt>);

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt: a string, a list of token ids, or a list of such prompts")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts(vec![Prompt::Text(text.to_owned())]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompts, A::Error> {
        let mut ids = Vec::new();
        let mut prompts = Vec::new();
        while let Some(item) = list.next_element()? {
            match item {
                Item::Id(id) => ids.push(id),
                Item::Prompt(prompt) => prompts.push(prompt),
            }
        }
        match (ids.is_empty(), prompts.is_empty()) {
            (false, false) => Err(serde::de::Error::custom("prompt mixes token ids with whole prompts")),
            (true, true) => Err(serde::de::Error::custom("prompt is an empty list")),
            (false, true) => Ok(Prompts(vec![Prompt::Ids(ids)])),
            (true, false) => Ok(Prompts(prompts)),
        }
    }
}

/// Element of a list under `prompt`.
enum Item {
    Id(Token),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ItemVisitor;

        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a token id, a string or a list of token ids")
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
                Token::try_from(id)
                    .map(Item::Id)
                    .map_err(|_| E::custom(format!("token id {id} is too large")))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Prompt(Prompt::Text(text.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Item::Prompt(Prompt::Ids(ids)))
            }
        }

        deserializer.deserialize_any(ItemVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(json: &str) -> Result<Vec<Prompt>, String> {
        serde_json::from_str::<Prompts>(json)
            .map(|prompts| prompts.0)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_prompt_takes_its_four_forms() {
        assert_eq!(prompts(r#""hi""#).unwrap(), [Prompt::Text("hi".into())]);
        assert_eq!(prompts("[1,2]").unwrap(), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(
            prompts(r#"["a","b"]"#).unwrap(),
            [Prompt::Text("a".into()), Prompt::Text("b".into())]
        );
        assert_eq!(
            prompts("[[1],[2,3]]").unwrap(),
            [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]
        );
    }

    #[test]
    fn other_prompts_are_errors_that_say_what_is_wrong() {
        for (json, text) in [
            ("[]", "empty list"),
            (r#"[1,"a"]"#, "mixes"),
            ("5", "expected a prompt"),
            ("[-1]", "expected a token id"),
            ("[4294967296]", "too large"),
            ("[[1.5]]", "expected u32"),
            ("null", "expected a prompt"),
        ] {
            let error = prompts(json).unwrap_err();
            assert!(error.contains(text), "{json}: {error}");
        }
    }

    #[test]
    fn fields_may_be_null_or_unknown() {
        let body: CompletionBody = serde_json::from_str(
            r#"{"prompt":"x","model":null,"max_tokens":null,"stop":null,"logprobs":null,"surprise":{"a":[1]},"stream":null}"#,
        )
        .unwrap();
        assert!(body.sampling.max_tokens.is_none() && body.sampling.stop.is_none());
    }
}
