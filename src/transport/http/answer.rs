//! Shapes of the answers: whole ones and chunks, completion and chat.
//!
//! Source: vLLM 0.32.0, observed on the wire.

use std::sync::Arc;

use serde_json::{Value, json};

use super::generation::{Delta, Finish, StopReason, Usage};
use super::logprobs::{self, Logprobs, Told};
use super::plan::{Api, Plan};
use crate::model::tokenizer::ModelTokenizer;
use crate::types::{Token, Tokens};

/// What every part of one answer repeats.
pub(super) struct Envelope {
    pub(super) api: Api,
    /// `cmpl-...` or `chatcmpl-...`.
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) model: String,
    /// Ids are told beside the text.
    pub(super) token_ids: bool,
    /// Log probabilities are told too.
    pub(super) logprobs: Option<Logprobs>,
    pub(super) tokenizer: Arc<ModelTokenizer>,
    pub(super) vocab_size: u32,
}

/// One finished choice.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pub(super) text: String,
    pub(super) tokens: Vec<Token>,
    pub(super) finish: Option<Finish>,
}

impl Finished {
    pub(super) fn add(&mut self, delta: Delta) {
        self.text += &delta.text;
        self.tokens.extend(delta.token);
        self.finish = delta.finish.or(self.finish.take());
    }
}

pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
    })
}

impl Envelope {
    /// A whole answer.
    pub(super) fn whole(&self, plan: &Plan, choices: Vec<Finished>, counts: Usage) -> Value {
        let prompt_ids = |choice: usize| self.ids(&plan.prompts[choice / plan.n].0);
        let prompt_logprobs = |choice: usize| {
            plan.prompt_logprobs.map(|top| {
                let prompt = &plan.prompts[choice / plan.n].0;
                logprobs::of_prompt(prompt, top, self.vocab_size, &self.tokenizer)
            })
        };
        let chat_prompt = prompt_ids(0);
        let choices: Vec<Value> = choices
            .into_iter()
            .enumerate()
            .map(|(index, choice)| {
                let (reason, stop) = finish_fields(choice.finish.as_ref());
                let mut value = json!({
                    "index": index,
                    "logprobs": self.logprobs(&choice.tokens, plan.prompts[index / plan.n].1.chars().count()),
                    "finish_reason": reason,
                    "stop_reason": stop,
                    "token_ids": self.token_ids.then_some(choice.tokens),
                });
                match self.api {
                    Api::Completion => {
                        value["text"] = json!(choice.text);
                        value["prompt_logprobs"] = json!(prompt_logprobs(index));
                        value["prompt_token_ids"] = prompt_ids(index);
                    }
                    Api::Chat => {
                        value["message"] = json!({
                            "role": "assistant",
                            "content": choice.text,
                            "refusal": null,
                            "annotations": null,
                            "audio": null,
                            "function_call": null,
                            "tool_calls": [],
                            "reasoning": null,
                        });
                    }
                }
                value
            })
            .collect();
        let mut answer = json!({
            "id": self.id,
            "object": match self.api { Api::Completion => "text_completion", Api::Chat => "chat.completion" },
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "service_tier": null,
            "system_fingerprint": null,
            "usage": usage(counts),
            "kv_transfer_params": null,
        });
        if self.api == Api::Chat {
            answer["prompt_logprobs"] = json!(prompt_logprobs(0));
            answer["prompt_token_ids"] = chat_prompt;
        }
        answer
    }

    /// The chunk that opens a choice: the speaker's role, or the echoed prompt.
    pub(super) fn opening(&self, choice: usize, echo: &str, prompt: &Tokens) -> Option<Value> {
        let choice = match self.api {
            Api::Chat => json!({
                "index": choice,
                "delta": { "role": "assistant", "content": "" },
                "logprobs": null,
                "finish_reason": null,
            }),
            Api::Completion if echo.is_empty() => return None,
            Api::Completion => self.completion_choice(choice, echo, None, None, &Value::Null),
        };
        let mut chunk = self.chunk(&[choice]);
        if self.api == Api::Chat && self.token_ids {
            chunk["prompt_token_ids"] = self.ids(prompt);
        }
        Some(chunk)
    }

    /// A chunk with what a choice gained.
    pub(super) fn delta(&self, delta: &Delta) -> Value {
        let logprobs = self.logprobs(delta.token.as_slice(), delta.text_offset);
        let choice = match self.api {
            Api::Completion => {
                let finish = delta.finish.as_ref();
                self.completion_choice(delta.choice, &delta.text, delta.token, finish, &logprobs)
            }
            Api::Chat => {
                let (reason, stop) = finish_fields(delta.finish.as_ref());
                let mut value = json!({
                    "index": delta.choice,
                    "delta": { "content": delta.text },
                    "logprobs": logprobs,
                    "finish_reason": reason,
                    "token_ids": self.token_ids.then_some(delta.token).flatten().map(|token| [token]),
                });
                if delta.finish.is_some() {
                    value["stop_reason"] = stop;
                }
                value
            }
        };
        self.chunk(&[choice])
    }

    /// A chunk around choices; none for the counts at the end.
    pub(super) fn chunk(&self, choices: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": match self.api { Api::Completion => "text_completion", Api::Chat => "chat.completion.chunk" },
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn logprobs(&self, tokens: &[Token], text_offset: usize) -> Value {
        match self.logprobs {
            Some(logprobs) if !tokens.is_empty() => {
                logprobs.write(self.api, Told { tokens, text_offset }, &self.tokenizer)
            }
            Some(_) | None => Value::Null,
        }
    }

    fn completion_choice(
        &self,
        index: usize,
        text: &str,
        token: Option<Token>,
        finish: Option<&Finish>,
        logprobs: &Value,
    ) -> Value {
        let (reason, stop) = finish_fields(finish);
        json!({
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
            "stop_reason": stop,
            "token_ids": self.token_ids.then_some(token).flatten().map(|token| [token]),
        })
    }

    fn ids(&self, ids: &Tokens) -> Value {
        if self.token_ids { json!(ids[..]) } else { Value::Null }
    }
}

fn finish_fields(finish: Option<&Finish>) -> (Option<&'static str>, Value) {
    finish.map_or((None, Value::Null), |finish| {
        let stop = match &finish.stop {
            StopReason::None => Value::Null,
            StopReason::Token(token) => json!(token),
            StopReason::Text(text) => json!(text),
        };
        (Some(finish.reason), stop)
    })
}
