//! The stream that an engine itself publishes, as vLLM does, for routers and indexers outside Dynamo's event plane.
//!
//! PUB, three frames: topic, sequence number (u64 big-endian, from 0), msgpack batch. A batch is the array
//! `[seconds since 1970, [events], data-parallel rank]`, one per pass that changed the cache.
//!
//! Replay, ROUTER: `[empty, first wanted sequence]` is answered with one message per kept batch, then an end marker whose
//! sequence is `ffffffffffffffff`; see [`replay`].
//!
//! | [`Encoding`] | Event |
//! |---|---|
//! | `Map` | map with `type`, then the fields below by name |
//! | `Array` | array: type, then the fields up to `extra_keys` in this order |
//! | `Sglang` | array: type, then the fields up to `medium` with signed hashes, and `{"cache_salt"}` where there is one |
//!
//! `BlockStored`: `block_hashes`, `parent_block_hash`, `token_ids`, `block_size`, `lora_id` (nil), `medium`, `lora_name`,
//! `extra_keys` (one entry per block), `group_idx`, `kv_cache_spec_kind`. `BlockRemoved`: `block_hashes`, `medium`,
//! `group_idx`. `AllBlocksCleared`: nothing.
//!
//! An SGLang engine begins with `AllBlocksCleared`. Its form has no place for LoRA names.
//!
//! Source: vLLM 0.32.0 (recorded), earlier releases for the array form; SGLang 0.5.23.

pub mod replay;

use bytes::Bytes;

use super::msgpack::{
    put_array_len, put_f64, put_int, put_map_len, put_nil, put_optional_str, put_optional_uint, put_str, put_uint,
};
use crate::types::{DpRank, HashSalt, SequenceHash, Token};

/// Where cached blocks are: the only tier that an emulated rank announces.
const MEDIUM: &str = "GPU";

/// Cache namespaces are told to Dynamo's converter by this prefix; other readers see an opaque key.
const NAMESPACE_KEY: &str = "dynamo-cache-salt:";

/// How events are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Maps by field name (vLLM 0.32).
    #[default]
    Map,
    /// Positional arrays (older vLLM).
    Array,
    /// SGLang's positional arrays.
    Sglang,
}

impl Encoding {
    /// Whether a new stream begins with a clear.
    pub fn begins_with_clear(self) -> bool {
        match self {
            Self::Map | Self::Array => false,
            Self::Sglang => true,
        }
    }
}

/// One change of a rank's cache, with what is needed to write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeEvent {
    /// A chain of blocks became visible.
    Stored {
        /// Block before the first one.
        parent: Option<SequenceHash>,
        /// The chain, root side first.
        hashes: Vec<SequenceHash>,
        /// Token ids of all blocks, `hashes.len() * block_size` of them.
        tokens: Vec<Token>,
        /// Salt of the chain.
        salt: HashSalt,
    },
    /// Blocks left the cache.
    Removed {
        /// Their identities.
        hashes: Vec<SequenceHash>,
    },
    /// The whole cache was dropped.
    Cleared,
}

/// Writes batches of one rank.
#[derive(Debug, Clone, Copy)]
pub struct BatchEncoder {
    /// Form of the events.
    pub encoding: Encoding,
    /// Tokens per block.
    pub block_size: u32,
    /// Which rank.
    pub rank: DpRank,
}

impl BatchEncoder {
    /// The batch as msgpack; `seconds` since 1970.
    pub fn batch(&self, seconds: f64, events: &[NativeEvent]) -> Bytes {
        let mut out = Vec::with_capacity(64 + events.iter().map(size_hint).sum::<usize>());
        put_array_len(&mut out, 3);
        put_f64(&mut out, seconds);
        put_array_len(&mut out, events.len());
        for event in events {
            match self.encoding {
                Encoding::Map => self.put_map(&mut out, event),
                Encoding::Array => self.put_array(&mut out, event),
                Encoding::Sglang => self.put_sglang(&mut out, event),
            }
        }
        put_uint(&mut out, u64::from(self.rank.0));
        Bytes::from(out)
    }

    fn put_map(&self, out: &mut Vec<u8>, event: &NativeEvent) {
        let key = put_str;
        match event {
            NativeEvent::Stored {
                parent,
                hashes,
                tokens,
                salt,
            } => {
                put_map_len(out, 11);
                key(out, "type");
                put_str(out, "BlockStored");
                key(out, "block_hashes");
                put_hashes(out, hashes);
                key(out, "parent_block_hash");
                put_optional_uint(out, parent.map(|hash| hash.0));
                key(out, "token_ids");
                put_tokens(out, tokens);
                key(out, "block_size");
                put_uint(out, u64::from(self.block_size));
                key(out, "lora_id");
                put_nil(out);
                key(out, "medium");
                put_str(out, MEDIUM);
                key(out, "lora_name");
                put_optional_str(out, salt.lora_name.as_deref());
                key(out, "extra_keys");
                put_extra_keys(out, salt, parent.is_none(), hashes.len());
                key(out, "group_idx");
                put_uint(out, 0);
                key(out, "kv_cache_spec_kind");
                put_str(out, "full_attention");
            }
            NativeEvent::Removed { hashes } => {
                put_map_len(out, 4);
                key(out, "type");
                put_str(out, "BlockRemoved");
                key(out, "block_hashes");
                put_hashes(out, hashes);
                key(out, "medium");
                put_str(out, MEDIUM);
                key(out, "group_idx");
                put_uint(out, 0);
            }
            NativeEvent::Cleared => {
                put_map_len(out, 1);
                key(out, "type");
                put_str(out, "AllBlocksCleared");
            }
        }
    }

    fn put_array(&self, out: &mut Vec<u8>, event: &NativeEvent) {
        match event {
            NativeEvent::Stored {
                parent,
                hashes,
                tokens,
                salt,
            } => {
                put_array_len(out, 9);
                put_str(out, "BlockStored");
                put_hashes(out, hashes);
                put_optional_uint(out, parent.map(|hash| hash.0));
                put_tokens(out, tokens);
                put_uint(out, u64::from(self.block_size));
                put_nil(out);
                put_str(out, MEDIUM);
                put_optional_str(out, salt.lora_name.as_deref());
                put_extra_keys(out, salt, parent.is_none(), hashes.len());
            }
            NativeEvent::Removed { hashes } => {
                put_array_len(out, 3);
                put_str(out, "BlockRemoved");
                put_hashes(out, hashes);
                put_str(out, MEDIUM);
            }
            NativeEvent::Cleared => {
                put_array_len(out, 1);
                put_str(out, "AllBlocksCleared");
            }
        }
    }

    fn put_sglang(&self, out: &mut Vec<u8>, event: &NativeEvent) {
        match event {
            NativeEvent::Stored {
                parent,
                hashes,
                tokens,
                salt,
            } => {
                put_array_len(out, 7 + usize::from(salt.cache_salt.is_some()));
                put_str(out, "BlockStored");
                put_signed_hashes(out, hashes);
                match parent {
                    Some(parent) => put_int(out, parent.0.cast_signed()),
                    None => put_nil(out),
                }
                put_tokens(out, tokens);
                put_uint(out, u64::from(self.block_size));
                put_nil(out);
                put_str(out, MEDIUM);
                if let Some(cache_salt) = &salt.cache_salt {
                    put_map_len(out, 1);
                    put_str(out, "cache_salt");
                    put_str(out, cache_salt);
                }
            }
            NativeEvent::Removed { hashes } => {
                put_array_len(out, 3);
                put_str(out, "BlockRemoved");
                put_signed_hashes(out, hashes);
                put_str(out, MEDIUM);
            }
            NativeEvent::Cleared => {
                put_array_len(out, 1);
                put_str(out, "AllBlocksCleared");
            }
        }
    }
}

fn size_hint(event: &NativeEvent) -> usize {
    match event {
        NativeEvent::Stored { hashes, tokens, .. } => 192 + 10 * hashes.len() + 3 * tokens.len(),
        NativeEvent::Removed { hashes } => 64 + 9 * hashes.len(),
        NativeEvent::Cleared => 24,
    }
}

fn put_hashes(out: &mut Vec<u8>, hashes: &[SequenceHash]) {
    put_array_len(out, hashes.len());
    for hash in hashes {
        put_uint(out, hash.0);
    }
}

fn put_signed_hashes(out: &mut Vec<u8>, hashes: &[SequenceHash]) {
    put_array_len(out, hashes.len());
    for hash in hashes {
        put_int(out, hash.0.cast_signed());
    }
}

fn put_tokens(out: &mut Vec<u8>, tokens: &[Token]) {
    put_array_len(out, tokens.len());
    for &token in tokens {
        put_uint(out, u64::from(token));
    }
}

/// The LoRA name goes into every block's key, the cache namespace into that of the first block of a sequence.
fn put_extra_keys(out: &mut Vec<u8>, salt: &HashSalt, from_root: bool, blocks: usize) {
    put_array_len(out, blocks);
    for index in 0..blocks {
        let namespace = salt.cache_salt.as_deref().filter(|_| from_root && index == 0);
        let keys = usize::from(salt.lora_name.is_some()) + usize::from(namespace.is_some());
        if keys == 0 {
            put_nil(out);
            continue;
        }
        put_array_len(out, keys);
        if let Some(name) = &salt.lora_name {
            put_str(out, name);
        }
        if let Some(namespace) = namespace {
            put_str(out, &format!("{NAMESPACE_KEY}{namespace}"));
        }
    }
}

#[cfg(test)]
mod tests;
