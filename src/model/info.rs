//! What an engine and a card need to know of a model: limits and token ids.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::ModelError;
use super::files::Contents;
use super::kv_size::KvShape;
use crate::types::Token;

/// Limits and token ids of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Longest sequence in tokens, prompt and answer, as the config says; `None`: it does not say.
    pub context_length: Option<u32>,
    /// Number of token ids, from the config, else from the tokenizer.
    pub vocab_size: u32,
    /// Ids that end an answer, ascending.
    pub eos_token_ids: Vec<Token>,
    /// Ids with a meaning of their own (turn marks, padding, ...), ascending.
    pub special_token_ids: Vec<Token>,
    /// `lo..hi`: ids that are ordinary text, to draw generated tokens from.
    pub generated_ids: (Token, Token),
    /// Shape of the KV cache; `None`: the config does not say enough.
    pub kv_shape: Option<KvShape>,
}

/// The range that the peer's emulator draws from (Dynamo 1.6.1 `dynamo.mocker`); used where the vocabulary has it.
const PEER_IDS: (Token, Token) = (1000, 2000);
/// Larger ids are refused: no vocabulary comes near.
const MAX_TOKEN_ID: u64 = 1 << 24;
/// Keys of the context length, in order. Source: config classes of `transformers` 4.57.
const CONTEXT_KEYS: [&str; 5] = [
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
];

impl ModelInfo {
    pub(super) fn read(contents: &Contents) -> Result<Self, ModelError> {
        let config = TextConfig(&contents.config);
        let tokenizer = &contents.tokenizer;
        let vocab_size = config.number("vocab_size").unwrap_or(tokenizer.size());
        let special: BTreeSet<Token> = tokenizer
            .added_tokens
            .iter()
            .filter(|added| added.special)
            .map(|added| added.id)
            .collect();
        let generated_ids = tokenizer.text_ids(vocab_size).ok_or_else(|| {
            ModelError::broken(&contents.files.tokenizer.path, "it has no token that is ordinary text")
        })?;
        Ok(Self {
            context_length: context_length(&config, &contents.tokenizer_config),
            vocab_size,
            eos_token_ids: eos_ids(contents, &config).into_iter().collect(),
            special_token_ids: special.into_iter().collect(),
            generated_ids,
            kv_shape: KvShape::read(&config),
        })
    }
}

/// A config whose text part may be nested, as in multimodal models.
pub(super) struct TextConfig<'a>(pub(super) &'a Map<String, Value>);

impl TextConfig<'_> {
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        let nested = [
            "text_config",
            "llm_config",
            "language_config",
            "decoder",
            "thinker_config",
        ];
        let nested = nested.iter().find_map(|part| self.0.get(*part)?.get(key));
        self.0.get(key).filter(|value| !value.is_null()).or(nested)
    }

    pub(super) fn number(&self, key: &str) -> Option<u32> {
        self.get(key)
            .and_then(Value::as_u64)
            .and_then(|value| u32::try_from(value).ok())
            .filter(|value| *value > 0)
    }
}

fn context_length(config: &TextConfig<'_>, tokenizer_config: &Map<String, Value>) -> Option<u32> {
    let from_config = CONTEXT_KEYS.iter().find_map(|key| config.number(key));
    // Tokenizers without a limit carry 1e30 here, which is no u32.
    let from_tokenizer = || u32::try_from(tokenizer_config.get("model_max_length")?.as_u64()?).ok();
    from_config.or_else(from_tokenizer)
}

fn eos_ids(contents: &Contents, config: &TextConfig<'_>) -> BTreeSet<Token> {
    let mut ids = BTreeSet::new();
    for value in [
        contents.generation_config.get("eos_token_id"),
        config.get("eos_token_id"),
    ]
    .into_iter()
    .flatten()
    {
        let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        ids.extend(
            listed
                .iter()
                .filter_map(Value::as_u64)
                .filter_map(|id| Token::try_from(id).ok()),
        );
    }
    let named = contents.tokenizer_config.get("eos_token");
    let named = named.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
    let added = &contents.tokenizer.added_tokens;
    ids.extend(
        named
            .and_then(|name| added.iter().find(|added| added.content == name))
            .map(|added| added.id),
    );
    ids
}

/// What the card and the engine need of `tokenizer.json`; the vocabulary itself is not kept.
#[derive(Deserialize)]
pub(super) struct TokenizerSummary {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    model: TokenizerModel,
}

#[derive(Deserialize)]
struct AddedToken {
    id: Token,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct TokenizerModel {
    vocab: Vocab,
}

impl TokenizerSummary {
    /// One more than the largest id.
    fn size(&self) -> u32 {
        let added = self.added_tokens.iter().map(|added| added.id + 1).max().unwrap_or(0);
        added.max(u32::try_from(self.model.vocab.kinds.len()).unwrap_or(u32::MAX))
    }

    /// Ids below `vocab_size` that are ordinary text: the peer's range where all of it is ordinary, else the longest run
    /// of ids that are longer than one character (single ones are often the bytes of a byte-level vocabulary, which
    /// make no text when drawn at random), else the longest run of ordinary ids.
    fn text_ids(&self, vocab_size: u32) -> Option<(Token, Token)> {
        let mut kinds = self.model.vocab.kinds.clone();
        kinds.truncate(vocab_size as usize);
        for added in &self.added_tokens {
            if let Some(kind) = kinds.get_mut(added.id as usize) {
                *kind = Kind::Hole;
            }
        }
        let peer = kinds.get(PEER_IDS.0 as usize..PEER_IDS.1 as usize);
        if peer.is_some_and(|peer| peer.iter().all(|kind| *kind != Kind::Hole)) {
            return Some(PEER_IDS);
        }
        longest_run(&kinds, |kind| kind == Kind::Longer).or_else(|| longest_run(&kinds, |kind| kind != Kind::Hole))
    }
}

fn longest_run(kinds: &[Kind], fits: impl Fn(Kind) -> bool) -> Option<(Token, Token)> {
    let mut best = 0..0;
    let mut start = 0;
    for (id, kind) in kinds.iter().enumerate() {
        if !fits(*kind) {
            start = id + 1;
        } else if id + 1 - start > best.len() {
            best = start..id + 1;
        }
    }
    let as_token = |id: usize| Token::try_from(id).ok();
    if best.is_empty() {
        None
    } else {
        Some((as_token(best.start)?, as_token(best.end)?))
    }
}

/// What is at an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing, or no ordinary text.
    Hole,
    /// One character or one byte.
    Single,
    /// Longer text.
    Longer,
}

/// A vocabulary as a kind per id, read without keeping the texts: an object text -> id (BPE, word level, word piece) or
/// a list of `[text, score]` in id order (unigram).
struct Vocab {
    kinds: Vec<Kind>,
}

impl Vocab {
    fn note(&mut self, text: &str, id: u64) {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        if index >= self.kinds.len() {
            self.kinds.resize(index + 1, Kind::Hole);
        }
        let byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
        self.kinds[index] = if byte || text.chars().nth(1).is_none() {
            Kind::Single
        } else {
            Kind::Longer
        };
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VocabVisitor)
    }
}

struct VocabVisitor;

impl<'de> Visitor<'de> for VocabVisitor {
    type Value = Vocab;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary: an object of ids or a list of [text, score]")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut vocab = Vocab { kinds: Vec::new() };
        while let Some((text, id)) = map.next_entry::<std::borrow::Cow<'_, str>, u64>()? {
            if id > MAX_TOKEN_ID {
                return Err(serde::de::Error::custom(format!(
                    "token id {id} is larger than {MAX_TOKEN_ID}"
                )));
            }
            vocab.note(&text, id);
        }
        Ok(vocab)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
        let mut vocab = Vocab { kinds: Vec::new() };
        while let Some((text, _)) = list.next_element::<(std::borrow::Cow<'_, str>, IgnoredAny)>()? {
            vocab.note(&text, vocab.kinds.len() as u64);
        }
        Ok(vocab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(json: &str) -> TokenizerSummary {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn generated_ids_keep_clear_of_special_tokens_and_bytes() {
        let tokenizer = summary(
            r#"{"added_tokens":[{"id":4,"content":"<s>","special":true}],
                "model":{"vocab":{"a":0,"b":1,"ab":2,"abc":3,"<s>":4,"bc":5,"ca":6,"cab":7,"<0x0A>":8,"cb":10}}}"#,
        );
        assert_eq!(tokenizer.text_ids(100), Some((5, 8)));
        assert_eq!(
            tokenizer.text_ids(7),
            Some((2, 4)),
            "ids past the model's vocabulary are not used"
        );
        assert_eq!(tokenizer.size(), 11);
    }

    #[test]
    fn the_peers_range_is_used_where_it_is_ordinary() {
        let vocab: Map<String, Value> = (0..3000).map(|id| (format!("t{id}"), Value::from(id))).collect();
        let json = serde_json::json!({"model": {"vocab": vocab}}).to_string();
        assert_eq!(summary(&json).text_ids(3000), Some((1000, 2000)));
        assert_eq!(summary(&json).text_ids(1500), Some((0, 1500)));
    }

    #[test]
    fn a_unigram_vocabulary_is_a_list() {
        let tokenizer = summary(r#"{"model":{"vocab":[["<unk>",0.0],["x",-1.0],["the",-2.0],["of",-3.5]]}}"#);
        assert_eq!(tokenizer.size(), 4);
        assert_eq!(tokenizer.text_ids(4), Some((2, 4)));
    }

    #[test]
    fn an_absurd_id_is_an_error() {
        assert!(serde_json::from_str::<TokenizerSummary>(r#"{"model":{"vocab":{"x":4000000000}}}"#).is_err());
        assert!(serde_json::from_str::<TokenizerSummary>(r#"{"model":{"vocab":{"x":-1}}}"#).is_err());
    }

    #[test]
    fn a_vocabulary_of_bytes_alone_is_drawn_from_all_the_same() {
        assert_eq!(
            summary(r#"{"model":{"vocab":{"a":0,"b":1}}}"#).text_ids(2),
            Some((0, 2))
        );
        assert_eq!(summary(r#"{"model":{"vocab":{}}}"#).text_ids(2), None);
    }
}
