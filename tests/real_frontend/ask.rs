//! Request bodies.

use serde_json::{Value, json};

use crate::fleet::MODEL;

/// Paths.
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// A chat of one message that asks which worker served it.
pub(crate) fn chat(message: &str, max_tokens: u32) -> Value {
    json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": message}],
        "max_tokens": max_tokens,
        "nvext": {"extra_fields": ["worker_id"]},
    })
}

/// A completion of exactly these tokens that asks which worker served it and how much of the prompt it had cached.
pub(crate) fn completion(prompt: &[u32], max_tokens: u32) -> Value {
    json!({
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "nvext": {"extra_fields": ["worker_id", "timing"]},
    })
}

/// A prompt of `len` ordinary tokens. Different topics differ from the first block on.
pub(crate) fn prompt(topic: u32, len: u32) -> Vec<u32> {
    (0..len)
        .map(|i| 300 + (topic.wrapping_mul(7919) + i * 31) % 1500)
        .collect()
}
