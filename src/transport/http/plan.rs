//! From a request's body to what is to be generated: every check is made here, before anything is submitted.

use std::sync::Arc;

use serde_json::Value;

use super::FaceModel;
use super::body::{ChatBody, CompletionBody, Conversation, Prompt, SamplingBody};
use super::error::ApiError;
use super::logprobs::{self, Logprobs};
use crate::model::tokenizer::{Chat, ModelTokenizer};
use crate::transport::intake::{next_request_id, token_key};
use crate::transport::recorded;
use crate::types::{EngineRequest, HashSalt, StopRule, Tokens};

/// Most answers of one HTTP request: prompts times `n`.
const MAX_CHOICES: usize = 1024;
/// Most stop strings and stop ids, and the longest stop string in bytes.
const MAX_STOPS: usize = 256;
const MAX_STOP_BYTES: usize = 4096;
/// What a completion gets when it does not say. Source: vLLM 0.32.0.
const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// Which of the two APIs is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Completion,
    Chat,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) api: Api,
    /// Name that the client used, or the default one.
    pub(super) model: String,
    /// The LoRA adapter that it names.
    pub(super) adapter: Option<Arc<str>>,
    /// Prompts with the text to echo, if any.
    pub(super) prompts: Vec<(Tokens, String)>,
    /// Answers per prompt.
    pub(super) n: usize,
    pub(super) stop: StopRule,
    pub(super) stop_strings: Arc<[String]>,
    pub(super) include_stop: bool,
    pub(super) skip_special_tokens: bool,
    pub(super) return_token_ids: bool,
    pub(super) logprobs: Option<Logprobs>,
    /// Alternatives per prompt token.
    pub(super) prompt_logprobs: Option<u32>,
    /// Name of the recorded answer to give.
    pub(super) wanted_answer: Option<String>,
    pub(super) seed: Option<i64>,
    pub(super) priority: i32,
    pub(super) cache_salt: Option<Arc<str>>,
    /// By which SGLang may order its queue; a header has it, not the body.
    pub(super) routing_key: Option<Arc<str>>,
    /// `None`: the answer is sent as a whole.
    pub(super) stream: Option<StreamPlan>,
}

/// What a stream tells beside the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamPlan {
    /// Counts at the end.
    pub(super) usage: bool,
    /// Counts in each chunk.
    pub(super) continuous_usage: bool,
}

impl Plan {
    pub(super) fn completion(model: &FaceModel, body: CompletionBody) -> Result<Self, ApiError> {
        let name = model.resolve_name(body.model)?;
        if body.suffix.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::bad_value("suffix", "suffix is not supported"));
        }
        let top = logprobs::count("logprobs", "sample", body.logprobs)?;
        let echo = body.echo == Some(true);
        if echo && top.is_some() {
            let message = "logprobs together with echo is not supported; use prompt_logprobs for those of the prompt";
            return Err(ApiError::bad_value("logprobs", message));
        }
        let keep = kept_tokens(model, body.sampling.truncate_prompt_tokens)?;
        let add_special_tokens = body.add_special_tokens != Some(false);
        let prompts = body.prompt.0.into_iter().map(|prompt| {
            let (ids, text) = match prompt {
                Prompt::Text(text) => (
                    encode(&model.tokenizer, &text, add_special_tokens)?,
                    echo.then_some(text),
                ),
                Prompt::Ids(ids) => {
                    let text = echo.then(|| model.tokenizer.decode(&ids, false)).transpose();
                    (ids, text.map_err(|error| ApiError::internal(error.to_string()))?)
                }
            };
            let ids = keep_last(ids, keep);
            check_prompt(model, &ids)?;
            Ok((Tokens::from(ids), text.unwrap_or_default()))
        });
        let prompts = prompts.collect::<Result<Vec<_>, ApiError>>()?;
        let max_tokens = body.sampling.max_tokens;
        let default = Some(DEFAULT_COMPLETION_TOKENS);
        Self::new(
            model,
            Api::Completion,
            name,
            prompts,
            body.sampling,
            top,
            ("max_tokens", max_tokens, default),
        )
    }

    pub(super) fn chat(model: &FaceModel, body: ChatBody) -> Result<Self, ApiError> {
        let name = model.resolve_name(body.model)?;
        let top = logprobs::count("top_logprobs", "sample", body.top_logprobs)?;
        let asked = body.logprobs == Some(true);
        if top.is_some_and(|top| top > 0) && !asked {
            let message = "when using `top_logprobs`, `logprobs` must be set to true.";
            return Err(ApiError::bad_value("top_logprobs", message));
        }
        let top = asked.then_some(top.unwrap_or(0));
        if body.echo == Some(true) {
            return Err(ApiError::bad_value("echo", "echo is supported by /v1/completions only"));
        }
        let keep = kept_tokens(model, body.sampling.truncate_prompt_tokens)?;
        let ids = keep_last(chat_tokens(&model.tokenizer, &body.conversation)?, keep);
        check_prompt(model, &ids)?;
        let limit = match body.max_completion_tokens {
            Some(limit) => ("max_completion_tokens", Some(limit), None),
            None => ("max_tokens", body.sampling.max_tokens, None),
        };
        Self::new(
            model,
            Api::Chat,
            name,
            vec![(Tokens::from(ids), String::new())],
            body.sampling,
            top,
            limit,
        )
    }

    fn new(
        model: &FaceModel,
        api: Api,
        (name, adapter): (String, Option<Arc<str>>),
        prompts: Vec<(Tokens, String)>,
        sampling: SamplingBody,
        top_logprobs: Option<u32>,
        (limit_name, limit, default_limit): (&'static str, Option<i64>, Option<u32>),
    ) -> Result<Self, ApiError> {
        let prompt_logprobs = logprobs::count("prompt_logprobs", "prompt", sampling.prompt_logprobs)?;
        if prompt_logprobs.is_some() && sampling.stream == Some(true) {
            let message = "`prompt_logprobs` are not available when `stream=True`.";
            return Err(ApiError::bad_value("prompt_logprobs", message));
        }
        if sampling.use_beam_search == Some(true) {
            let message = "use_beam_search is not supported; emulated answers have no beams";
            return Err(ApiError::bad_value("use_beam_search", message));
        }
        if sampling
            .best_of
            .is_some_and(|best_of| best_of > sampling.n.unwrap_or(1))
        {
            let message = "best_of above n is not supported; all emulated answers are equally good";
            return Err(ApiError::bad_value("best_of", message));
        }
        let n = sampling.n.unwrap_or(1);
        let n = usize::try_from(n)
            .ok()
            .filter(|n| *n > 0 && n.saturating_mul(prompts.len()) <= MAX_CHOICES);
        let n = n.ok_or_else(|| {
            let message = format!("n must be at least 1, and prompts x n at most {MAX_CHOICES}");
            ApiError::bad_value("n", message)
        })?;
        let longest = prompts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
        let max_tokens = max_tokens(model, longest, limit_name, limit, default_limit)?;
        let min_tokens = sampling.min_tokens.unwrap_or(0);
        let min_tokens = u32::try_from(min_tokens)
            .ok()
            .filter(|min| max_tokens.is_none_or(|max| *min <= max));
        let min_tokens = min_tokens
            .ok_or_else(|| ApiError::bad_value("min_tokens", "min_tokens must be between 0 and max_tokens"))?;
        let stop_token_ids = sampling.stop_token_ids.unwrap_or_default();
        if stop_token_ids.len() > MAX_STOPS {
            return Err(ApiError::bad_value(
                "stop_token_ids",
                format!("more than {MAX_STOPS} stop token ids"),
            ));
        }
        let options = sampling.stream_options.unwrap_or_default();
        let usage = options.include_usage == Some(true);
        Ok(Self {
            api,
            model: name,
            adapter,
            prompts,
            n,
            stop: StopRule {
                max_tokens,
                min_tokens,
                max_thinking_tokens: None,
                ignore_eos: sampling.ignore_eos == Some(true),
                eos_token_ids: model.eos_token_ids.clone(),
                stop_token_ids,
            },
            stop_strings: stop_strings(sampling.stop.map(super::body::OneOrMany::into_vec).unwrap_or_default())?,
            include_stop: sampling.include_stop_str_in_output == Some(true),
            skip_special_tokens: sampling.skip_special_tokens != Some(false),
            return_token_ids: sampling.return_token_ids == Some(true),
            logprobs: top_logprobs.map(|top| Logprobs {
                top,
                as_ids: sampling.return_tokens_as_token_ids == Some(true),
                vocab_size: model.vocab_size,
            }),
            prompt_logprobs,
            wanted_answer: {
                let annotations = sampling.nvext.and_then(|nvext| nvext.annotations).unwrap_or_default();
                recorded::wanted(annotations.iter().map(String::as_str)).map(str::to_owned)
            },
            seed: sampling.seed,
            priority: clamped(sampling.priority.unwrap_or(0)),
            cache_salt: sampling.cache_salt.filter(|salt| !salt.is_empty()).map(Arc::from),
            routing_key: None,
            stream: (sampling.stream == Some(true)).then_some(StreamPlan {
                usage,
                continuous_usage: usage && options.continuous_usage_stats == Some(true),
            }),
        })
    }

    /// The engine's requests, one per choice, with the recorded answer that was asked for. Generated tokens depend on `seed`
    /// where one is given, else on the request's id: the same seed gives the same answers.
    pub(super) fn engine_requests(&self, client_id: &str, planned: Option<&Tokens>) -> Vec<EngineRequest> {
        let choices = self
            .prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, self.n));
        let requests = choices.enumerate().map(|(choice, (prompt, _))| EngineRequest {
            id: next_request_id(),
            key: token_key(self.seed, client_id, choice),
            prompt: Arc::clone(prompt).into(),
            stop: self.stop.clone(),
            planned: planned.cloned(),
            priority: self.priority,
            salt: HashSalt {
                lora_name: self.adapter.clone(),
                cache_salt: self.cache_salt.clone(),
            },
            routing_key: self.routing_key.clone(),
        });
        requests.collect()
    }
}

/// A priority among those that an engine tells apart.
fn clamped(priority: i64) -> i32 {
    i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX })
}

/// How many tokens of a prompt to keep.
fn kept_tokens(model: &FaceModel, wanted: Option<i64>) -> Result<Option<usize>, ApiError> {
    match wanted {
        None => Ok(None),
        // One place is left for the answer.
        Some(-1) => Ok(Some((model.max_model_len as usize).saturating_sub(1).max(1))),
        Some(wanted) => match usize::try_from(wanted) {
            Ok(keep) if keep > 0 && keep <= model.max_model_len as usize => Ok(Some(keep)),
            Ok(_) | Err(_) => {
                let most = model.max_model_len;
                let message = format!("truncate_prompt_tokens of {wanted} must be -1 or between 1 and {most}");
                Err(ApiError::bad_value("truncate_prompt_tokens", message))
            }
        },
    }
}

fn keep_last(mut ids: Vec<u32>, keep: Option<usize>) -> Vec<u32> {
    if let Some(keep) = keep {
        ids.drain(..ids.len().saturating_sub(keep));
    }
    ids
}

pub(super) fn encode(tokenizer: &ModelTokenizer, text: &str, special: bool) -> Result<Vec<u32>, ApiError> {
    tokenizer
        .encode(text, special)
        .map_err(|error| ApiError::internal(error.to_string()))
}

/// The prompt of a chat as ids.
pub(super) fn chat_tokens(tokenizer: &ModelTokenizer, conversation: &Conversation) -> Result<Vec<u32>, ApiError> {
    if conversation.messages.is_empty() {
        return Err(ApiError::bad_value("messages", "messages is empty"));
    }
    let continue_final_message = conversation.continue_final_message == Some(true);
    if continue_final_message && conversation.add_generation_prompt == Some(true) {
        let message = "continue_final_message and add_generation_prompt exclude each other";
        return Err(ApiError::bad_value("continue_final_message", message));
    }
    let messages = conversation
        .messages
        .iter()
        .map(flat_message)
        .collect::<Result<Vec<_>, _>>()?;
    let chat = Chat {
        tools: conversation.tools.as_deref().filter(|tools| !tools.is_empty()),
        add_generation_prompt: conversation.add_generation_prompt != Some(false),
        continue_final_message,
        variables: conversation.chat_template_kwargs.as_ref(),
        ..Chat::new(&messages)
    };
    let prompt = tokenizer
        .render_chat(&chat)
        .map_err(|error| ApiError::bad_value("messages", error.to_string()))?;
    encode(tokenizer, &prompt, conversation.add_special_tokens == Some(true))
}

/// A message whose content is a string: text parts are joined by line ends, as vLLM does for templates of that kind.
fn flat_message(message: &serde_json::Map<String, Value>) -> Result<Value, ApiError> {
    let bad = |text: String| ApiError::bad_value("messages", text);
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(bad("a message has no role".to_owned()));
    }
    let mut message = message.clone();
    if let Some(Value::Array(parts)) = message.get("content") {
        let texts = parts.iter().map(|part| {
            let text = part.as_str().or_else(|| part.get("text")?.as_str());
            text.ok_or_else(|| {
                let kind = part.get("type").and_then(Value::as_str).unwrap_or("unknown");
                bad(format!("content of type {kind:?} is not supported; send text"))
            })
        });
        let text = texts.collect::<Result<Vec<_>, _>>()?.join("\n");
        message.insert("content".to_owned(), Value::from(text));
    }
    match message.get("content") {
        None | Some(Value::Null | Value::String(_)) => Ok(Value::Object(message)),
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err(bad("content must be a string or a list of parts".to_owned()))
        }
    }
}

fn check_prompt(model: &FaceModel, ids: &[u32]) -> Result<(), ApiError> {
    if ids.is_empty() {
        return Err(ApiError::bad_value(
            "prompt",
            "the prompt is empty; send at least one token",
        ));
    }
    if let Some(id) = ids.iter().find(|id| **id >= model.vocab_size) {
        let message = format!("token id {id} is out of the vocabulary of {} ids", model.vocab_size);
        return Err(ApiError::bad_value("prompt", message));
    }
    if ids.len() >= model.max_model_len as usize {
        let message = format!(
            "the prompt has {} tokens, but prompt and answer together may have {}; shorten it",
            ids.len(),
            model.max_model_len
        );
        return Err(ApiError::bad_value("prompt", message));
    }
    Ok(())
}

fn max_tokens(
    model: &FaceModel,
    prompt_tokens: usize,
    name: &'static str,
    wanted: Option<i64>,
    default: Option<u32>,
) -> Result<Option<u32>, ApiError> {
    let room = (model.max_model_len as usize).saturating_sub(prompt_tokens);
    let room = u32::try_from(room).unwrap_or(u32::MAX);
    let Some(wanted) = wanted else {
        return Ok(default.map(|default| default.min(room)));
    };
    match u32::try_from(wanted) {
        Ok(0) | Err(_) if wanted <= 0 => Err(ApiError::bad_value(
            name,
            format!("{name} must be at least 1, not {wanted}"),
        )),
        Ok(wanted) if wanted <= room => Ok(Some(wanted)),
        Ok(_) | Err(_) => {
            let message = format!(
                "{name} of {wanted} is too large: the model's context has {} tokens and the prompt {prompt_tokens}, which \
                 leaves {room}",
                model.max_model_len
            );
            Err(ApiError::bad_value(name, message))
        }
    }
}

fn stop_strings(stops: Vec<String>) -> Result<Arc<[String]>, ApiError> {
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::bad_value("stop", "stop has an empty string"));
    }
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
        let message = format!("stop may have {MAX_STOPS} strings of {MAX_STOP_BYTES} bytes");
        return Err(ApiError::bad_value("stop", message));
    }
    Ok(stops.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_of_any_size_is_one_that_engines_tell_apart() {
        assert_eq!([-7, 0, 7].map(clamped), [-7, 0, 7]);
        assert_eq!(clamped(i64::MAX), i32::MAX);
        assert_eq!(clamped(i64::MIN), i32::MIN);
    }
}
