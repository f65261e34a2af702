//! The request: what a frontend sends to a `generate` endpoint, decoded leniently.
//!
//! Unknown keys are skipped, every key but `token_ids` may be absent or null, `token_ids` is a list or (MessagePack, an
//! opt-in of 1.6.1) one byte string of little-endian 32-bit ids. Source: Dynamo 1.6.1, golden vector G2.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use super::Codec;
use crate::transport::intake::{Leg, token_key};
use crate::transport::rendezvous::{Identity, Meeting};
use crate::transport::{logprob, recorded};
use crate::types::{DpRank, EngineRequest, HashSalt, RequestId, StopRule, Token};

/// A request that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed request: {0}")]
pub struct RequestError(String);

/// Wire form. Fields that the worker does not use yet are left to serde's skipping.
#[derive(Debug, Default, Deserialize)]
pub struct PreprocessedRequest {
    /// Model name the client asked for.
    #[serde(default)]
    pub model: Option<String>,
    /// Prompt.
    #[serde(deserialize_with = "token_ids")]
    pub token_ids: Vec<Token>,
    /// When to end.
    #[serde(default)]
    pub stop_conditions: Option<StopConditions>,
    /// Ids that end a sentence for this model.
    #[serde(default)]
    pub eos_token_ids: Option<Vec<Token>>,
    /// Router's choices and hints.
    #[serde(default)]
    pub routing: Option<Routing>,
    /// Where the legs of a disaggregated request meet.
    #[serde(default)]
    pub bootstrap_info: Option<BootstrapInfo>,
    /// What the prefill leg brought, when it came before this one.
    #[serde(default)]
    pub prefill_result: Option<serde::de::IgnoredAny>,
    /// How to draw tokens.
    #[serde(default)]
    pub sampling_options: Option<SamplingOptions>,
    /// What to tell beside the tokens.
    #[serde(default)]
    pub output_options: Option<OutputOptions>,
    /// Words to the worker, such as which recorded answer to give.
    #[serde(default)]
    pub annotations: Option<Vec<String>>,
}

/// `bootstrap_info` on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BootstrapInfo {
    /// Host of the prefill worker.
    pub bootstrap_host: String,
    /// Its rendezvous port.
    pub bootstrap_port: u16,
    /// Room of the router's making.
    pub bootstrap_room: u64,
    /// What both sides are paired by: 16 bytes in MessagePack, a hyphenated text in JSON.
    #[serde(default, deserialize_with = "handoff_id")]
    pub handoff_id: Option<Uuid>,
}

/// `sampling_options` on the wire, as far as they mean something for emulated tokens.
#[derive(Debug, Default, Deserialize)]
pub struct SamplingOptions {
    /// Answers to one prompt.
    #[serde(default)]
    pub n: Option<u32>,
    /// Answers to choose from.
    #[serde(default)]
    pub best_of: Option<u32>,
    /// Follow several answers at a time.
    #[serde(default)]
    pub use_beam_search: Option<bool>,
    /// The same seed gives the same answer.
    #[serde(default)]
    pub seed: Option<i64>,
}

/// `output_options` on the wire.
#[derive(Debug, Default, Deserialize)]
pub struct OutputOptions {
    /// Alternatives to tell with each token; 0: the token's own log probability alone.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// The same of the prompt.
    #[serde(default)]
    pub prompt_logprobs: Option<u32>,
}

/// What is to be told beside the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Answers, at least 1.
    pub choices: u32,
    /// Alternatives to tell with each token; `None`: no log probabilities.
    pub logprobs: Option<u32>,
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            choices: 1,
            logprobs: None,
        }
    }
}

/// Most answers to one request.
const MAX_CHOICES: u32 = 128;

/// `stop_conditions` on the wire.
#[derive(Debug, Default, Deserialize)]
pub struct StopConditions {
    /// Most tokens to generate.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Fewest tokens before eos or a stop id.
    #[serde(default)]
    pub min_tokens: Option<u32>,
    /// Never stop at eos.
    #[serde(default)]
    pub ignore_eos: Option<bool>,
    /// Most tokens of reasoning.
    #[serde(default)]
    pub max_thinking_tokens: Option<u32>,
    /// Stop ids of the client.
    #[serde(default)]
    pub stop_token_ids: Option<Vec<Token>>,
    /// Stop ids that stay in the answer.
    #[serde(default)]
    pub stop_token_ids_visible: Option<Vec<Token>>,
    /// Stop ids that the client never sees, the model's eos ids among them.
    #[serde(default)]
    pub stop_token_ids_hidden: Option<Vec<Token>>,
}

/// `routing` on the wire.
#[derive(Debug, Default, Deserialize)]
pub struct Routing {
    /// Rank chosen by the router.
    #[serde(default)]
    pub dp_rank: Option<u32>,
    /// LoRA adapter.
    #[serde(default)]
    pub lora_name: Option<String>,
    /// Cache namespace.
    #[serde(default)]
    pub cache_salt: Option<String>,
    /// Greater is more urgent: what clients mean, which workers turn round for their engines.
    #[serde(default)]
    pub priority: Option<i32>,
}

impl PreprocessedRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// [`RequestError`] names what is wrong.
    pub fn decode(codec: Codec, body: &[u8]) -> Result<Self, RequestError> {
        codec.decode(body).map_err(RequestError)
    }

    /// Which part of a disaggregated request it is. `client_id` is the request's id; one that is no UUID stands for one by its digest.
    ///
    /// # Errors
    /// [`RequestError`] when the router gave no handoff id.
    pub fn leg(&self, client_id: &str) -> Result<Leg, RequestError> {
        let Some(info) = &self.bootstrap_info else {
            return Ok(match self.prefill_result {
                Some(_) => Leg::Prefilled,
                None => Leg::Whole,
            });
        };
        let handoff_id = info
            .handoff_id
            .ok_or_else(|| RequestError("bootstrap_info has no handoff_id; both legs need the same one".to_owned()))?;
        let digest = || Uuid::from_u128(xxh3_128(client_id.as_bytes()));
        Ok(Leg::Met(Box::new(Meeting {
            host: info.bootstrap_host.clone(),
            port: info.bootstrap_port,
            identity: Identity {
                handoff_id,
                bootstrap_room: info.bootstrap_room,
                request_id: client_id.parse().unwrap_or_else(|_| digest()),
            },
        })))
    }

    /// What it asks for beside the tokens.
    ///
    /// # Errors
    /// What cannot be done, in words for the client.
    pub fn asked(&self) -> Result<Asked, String> {
        let none = SamplingOptions::default();
        let sampling = self.sampling_options.as_ref().unwrap_or(&none);
        let choices = sampling.n.unwrap_or(1);
        if !(1..=MAX_CHOICES).contains(&choices) {
            return Err(format!("n must be between 1 and {MAX_CHOICES}, got {choices}"));
        }
        if let Some(best_of) = sampling.best_of.filter(|&best_of| best_of > choices) {
            return Err(format!(
                "best_of {best_of} above n is not supported; all emulated answers are equally good"
            ));
        }
        if sampling.use_beam_search == Some(true) {
            return Err("use_beam_search is not supported".to_owned());
        }
        let output = self.output_options.as_ref();
        if output.is_some_and(|output| output.prompt_logprobs.is_some()) {
            return Err("prompt_logprobs is not supported; leave it out".to_owned());
        }
        let logprobs = output.and_then(|output| output.logprobs);
        if let Some(top) = logprobs.filter(|&top| top > logprob::MAX_TOP) {
            return Err(format!(
                "logprobs of {top} is greater than the maximum {}",
                logprob::MAX_TOP
            ));
        }
        Ok(Asked { choices, logprobs })
    }

    /// Name of the recorded answer that it asks for.
    pub fn wanted_answer(&self) -> Option<&str> {
        recorded::wanted(self.annotations.iter().flatten().map(String::as_str))
    }

    /// The engine's view of it, and the rank that the router chose. The client's seed, else `client_id`, seeds the generated
    /// tokens, so that a request that migrates goes on with the same stream.
    pub fn into_engine_request(self, id: RequestId, client_id: &str) -> (EngineRequest, Option<DpRank>) {
        let stop = self.stop_conditions.unwrap_or_default();
        let eos = self.eos_token_ids.unwrap_or_default();
        let mut stop_token_ids = Vec::new();
        for list in [
            stop.stop_token_ids,
            stop.stop_token_ids_visible,
            stop.stop_token_ids_hidden,
        ] {
            stop_token_ids.extend(list.into_iter().flatten().filter(|id| !eos.contains(id)));
        }
        let routing = self.routing.unwrap_or_default();
        let salt = |text: Option<String>| text.filter(|t| !t.is_empty()).map(Arc::<str>::from);
        let seed = self.sampling_options.and_then(|sampling| sampling.seed);
        let request = EngineRequest {
            id,
            key: token_key(seed, client_id, 0),
            prompt: self.token_ids.into(),
            stop: StopRule {
                max_tokens: stop.max_tokens,
                min_tokens: stop.min_tokens.unwrap_or(0),
                max_thinking_tokens: stop.max_thinking_tokens,
                ignore_eos: stop.ignore_eos.unwrap_or(false),
                eos_token_ids: eos,
                stop_token_ids,
            },
            planned: None,
            // The engine serves smaller ones first, as vLLM does.
            priority: routing.priority.unwrap_or(0).saturating_neg(),
            salt: HashSalt {
                lora_name: salt(routing.lora_name),
                cache_salt: salt(routing.cache_salt),
            },
            // Dynamo's wire has none.
            routing_key: None,
        };
        (request, routing.dp_rank.map(DpRank))
    }
}

fn handoff_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
    struct Id;

    impl<'de> Visitor<'de> for Id {
        type Value = Option<Uuid>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a UUID as 16 bytes or as text")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
            deserializer.deserialize_any(self)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            text.parse().map(Some).map_err(E::custom)
        }

        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Uuid::from_slice(bytes).map(Some).map_err(E::custom)
        }
    }

    deserializer.deserialize_any(Id)
}

/// Room reserved up front for a list of ids, whatever length the sender announces.
const MAX_RESERVE: usize = 64 * 1024;

fn token_ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Token>, D::Error> {
    struct Ids;

    impl<'de> Visitor<'de> for Ids {
        type Value = Vec<Token>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("token_ids as a list of ids or as bytes of little-endian 32-bit ids")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut ids = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(MAX_RESERVE));
            while let Some(id) = seq.next_element()? {
                ids.push(id);
            }
            Ok(ids)
        }

        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            let (ids, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(E::invalid_length(bytes.len(), &"a multiple of 4 bytes"));
            }
            Ok(ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
        }
    }

    deserializer.deserialize_any(Ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_token_list_is_enough() {
        let body =
            rmp_serde::to_vec_named(&serde_json::json!({"token_ids": [1, 2, 3], "surprise": {"a": [1]}})).unwrap();
        let request = PreprocessedRequest::decode(Codec::Msgpack, &body).unwrap();
        assert_eq!(request.token_ids, [1, 2, 3]);
        let (request, rank) = request.into_engine_request(RequestId(1), "a");
        assert_eq!((request.stop.max_tokens, rank), (None, None));
    }

    #[test]
    fn packed_ids_are_little_endian_words() {
        // {"token_ids": bin(8) 1, 300}
        let mut body = vec![0x81, 0xa9];
        body.extend_from_slice(b"token_ids");
        body.extend_from_slice(&[0xc4, 8, 1, 0, 0, 0, 0x2c, 1, 0, 0]);
        assert_eq!(
            PreprocessedRequest::decode(Codec::Msgpack, &body).unwrap().token_ids,
            [1, 300]
        );
        let last = body.len() - 9;
        body[last] = 7;
        body.truncate(body.len() - 1);
        assert!(PreprocessedRequest::decode(Codec::Msgpack, &body).is_err());
    }

    #[test]
    fn eos_ids_are_kept_apart_from_stop_ids() {
        let body = br#"{"token_ids":[1],"eos_token_ids":[2],"routing":{"dp_rank":1,"priority":3,"cache_salt":"t"},
            "stop_conditions":{"max_tokens":5,"min_tokens":null,"stop_token_ids_hidden":[2],"stop_token_ids":[9]}}"#;
        let request = PreprocessedRequest::decode(Codec::Json, body).unwrap();
        let (request, rank) = request.into_engine_request(RequestId(1), "a");
        assert_eq!(
            (request.stop.eos_token_ids, request.stop.stop_token_ids),
            (vec![2], vec![9])
        );
        assert_eq!(
            (rank, request.priority),
            (Some(DpRank(1)), -3),
            "greater is more urgent"
        );
        assert_eq!(request.salt.cache_salt.as_deref(), Some("t"));
    }

    #[test]
    fn the_token_stream_depends_on_the_client_id() {
        let key = |id: &str| {
            PreprocessedRequest::default()
                .into_engine_request(RequestId(1), id)
                .0
                .key
        };
        assert_eq!(key("a"), key("a"));
        assert_ne!(key("a"), key("b"));
    }

    #[test]
    fn a_seed_decides_the_tokens_whatever_the_id() {
        let key = |seed: &str, id: &str| {
            let body = format!(r#"{{"token_ids":[1],"sampling_options":{{"seed":{seed}}}}}"#);
            let request = PreprocessedRequest::decode(Codec::Json, body.as_bytes()).unwrap();
            request.into_engine_request(RequestId(1), id).0.key
        };
        assert_eq!(key("7", "a"), key("7", "b"));
        assert_ne!(key("7", "a"), key("8", "a"));
        assert_ne!(key("null", "a"), key("null", "b"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_the_rest_is_told() {
        let asked = |body: &str| {
            let body = format!(r#"{{"token_ids":[1],{body}}}"#);
            PreprocessedRequest::decode(Codec::Json, body.as_bytes())
                .unwrap()
                .asked()
        };
        let three = Asked {
            choices: 3,
            logprobs: Some(0),
        };
        assert_eq!(
            asked(r#""sampling_options":{"n":3,"best_of":3},"output_options":{"logprobs":0}"#),
            Ok(three)
        );
        for (body, word) in [
            (r#""sampling_options":{"n":0}"#, "between 1 and 128"),
            (r#""sampling_options":{"n":1,"best_of":4}"#, "best_of 4"),
            (r#""sampling_options":{"use_beam_search":true}"#, "use_beam_search"),
            (r#""output_options":{"prompt_logprobs":1}"#, "prompt_logprobs"),
            (r#""output_options":{"logprobs":21}"#, "maximum 20"),
        ] {
            let error = asked(body).unwrap_err();
            assert!(error.contains(word), "{body}: {error}");
        }
    }

    #[test]
    fn a_huge_announced_list_reserves_little_and_fails() {
        let mut body = vec![0x81, 0xa9];
        body.extend_from_slice(b"token_ids");
        body.extend_from_slice(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1]);
        assert!(PreprocessedRequest::decode(Codec::Msgpack, &body).is_err());
    }
}
