//! Text to token ids and back, for planes that carry text. Loaded only when a fleet has such a plane: a large vocabulary
//! costs tens of MiB.

use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use super::template::{ChatTemplate, ChatTemplateError};
use super::{Model, ModelError};
use crate::types::Token;

/// A model's tokenizer with its chat template. Shared by all workers of a fleet.
pub struct ModelTokenizer {
    inner: Tokenizer,
    template: Option<ChatTemplate>,
}

/// Text or ids that the tokenizer does not take.
#[derive(Debug, thiserror::Error)]
#[error("the tokenizer fails: {0}")]
pub struct TokenizeError(String);

impl ModelTokenizer {
    /// Loads `tokenizer.json` and the chat template.
    ///
    /// # Errors
    /// [`ModelError::Broken`] with the file's name.
    pub fn load(model: &Model) -> Result<Self, ModelError> {
        let path = &model.files.tokenizer.path;
        let bytes = std::fs::read(path).map_err(|source| ModelError::unreadable(path, source))?;
        let mut inner = Tokenizer::from_bytes(bytes).map_err(|error| ModelError::broken(path, &error))?;
        // Files may ask for both; a server never cuts or fills prompts on its own.
        inner
            .with_truncation(None)
            .map_err(|error| ModelError::broken(path, &error))?;
        inner.with_padding(None);
        Ok(Self {
            inner,
            template: ChatTemplate::load(model)?,
        })
    }

    /// Ids of a text. `add_special_tokens`: with what the model puts around a prompt (a BOS token, ...).
    ///
    /// # Errors
    /// [`TokenizeError`].
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<Token>, TokenizeError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens);
        encoding
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizeError(error.to_string()))
    }

    /// Text of ids; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary are left out.
    ///
    /// # Errors
    /// [`TokenizeError`].
    pub fn decode(&self, ids: &[Token], skip_special_tokens: bool) -> Result<String, TokenizeError> {
        self.inner
            .decode(ids, skip_special_tokens)
            .map_err(|error| TokenizeError(error.to_string()))
    }

    /// The vocabulary's own text of an id.
    pub fn token_text(&self, id: Token) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The prompt of a chat: see [`ChatTemplate::render`].
    ///
    /// # Errors
    /// [`ChatTemplateError`].
    pub fn render_chat(&self, chat: &Chat<'_>) -> Result<String, ChatTemplateError> {
        self.template
            .as_ref()
            .ok_or(ChatTemplateError::NoTemplate)?
            .render(chat)
    }
}

/// A chat to be formatted.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// Messages: objects with `role` and `content` (a string or null), and whatever else the template knows.
    pub messages: &'a [Value],
    /// Tools on offer.
    pub tools: Option<&'a [Value]>,
    /// End with the start of an assistant's turn.
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the answer goes on with it.
    pub continue_final_message: bool,
    /// Further variables for the template.
    pub variables: Option<&'a Map<String, Value>>,
}

impl<'a> Chat<'a> {
    /// Messages with the usual settings: a new assistant's turn, no tools.
    pub fn new(messages: &'a [Value]) -> Self {
        Self {
            messages,
            tools: None,
            add_generation_prompt: true,
            continue_final_message: false,
            variables: None,
        }
    }
}
