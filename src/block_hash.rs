//! Block hashes: what a KV block is called on the wire and in every prefix cache.
//!
//! XXH3-64 throughout, integers little-endian:
//!
//! ```text
//! seed     = 1337 + xxh3(lora name, seed 0) + xxh3(cache salt, seed 1)      each only when non-empty, wrapping
//! local    = xxh3(u32 tokens of the block ++ u64 multimodal hashes, ascending; seed)
//! sequence = local for the first block, else xxh3(u64 previous sequence hash ++ u64 local; 1337)
//! ```
//!
//! Source: Dynamo 1.6.1 (the router recomputes `local`, so it has to match bit by bit).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::types::{HashSalt, LocalHash, SequenceHash, StoredBlock, Token};

const SEED: u64 = 1337;

/// Hashes blocks of one salt; keeps its byte buffer between calls.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    seed: u64,
    bytes: Vec<u8>,
}

impl BlockHasher {
    /// A hasher for requests with this LoRA adapter and cache namespace.
    pub fn new(salt: &HashSalt) -> Self {
        Self::with_seed(salted_seed(salt))
    }

    /// A hasher for a seed from [`salted_seed`].
    pub fn with_seed(seed: u64) -> Self {
        Self {
            seed,
            bytes: Vec::new(),
        }
    }

    /// Changes the salt and keeps the buffer.
    pub fn reseed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Hash of one full block of plain tokens.
    pub fn local(&mut self, tokens: &[Token]) -> LocalHash {
        self.local_with_media(tokens, &mut [])
    }

    /// Hash of one full block that contains (parts of) multimodal objects; sorts their hashes in place.
    pub fn local_with_media(&mut self, tokens: &[Token], media: &mut [u64]) -> LocalHash {
        media.sort_unstable();
        self.bytes.clear();
        self.bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        self.bytes.extend(media.iter().flat_map(|hash| hash.to_le_bytes()));
        LocalHash(xxh3_64_with_seed(&self.bytes, self.seed))
    }
}

/// Seed of the local hashes of requests with this LoRA adapter and cache namespace.
pub fn salted_seed(salt: &HashSalt) -> u64 {
    let part = |name: Option<&str>, seed| match name {
        None | Some("") => 0,
        Some(name) => xxh3_64_with_seed(name.as_bytes(), seed),
    };
    SEED.wrapping_add(part(salt.lora_name.as_deref(), 0))
        .wrapping_add(part(salt.cache_salt.as_deref(), 1))
}

/// Identity of the block with hash `local` behind `parent` (`None`: first block).
pub fn chain(parent: Option<SequenceHash>, local: LocalHash) -> SequenceHash {
    let Some(parent) = parent else {
        return SequenceHash(local.0);
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
    bytes[8..].copy_from_slice(&local.0.to_le_bytes());
    SequenceHash(xxh3_64_with_seed(&bytes, SEED))
}

/// Every full block of `tokens`, root first. With `eagle` a block is hashed together with the token that follows it, and
/// is full only when that token exists.
pub fn hash_blocks(tokens: &[Token], block_size: usize, salt: &HashSalt, eagle: bool) -> Vec<StoredBlock> {
    let window = block_size + usize::from(eagle);
    let mut hasher = BlockHasher::new(salt);
    let mut parent = None;
    let mut blocks = Vec::new();
    let mut start = 0;
    while block_size > 0 && start + window <= tokens.len() {
        let tokens_hash = hasher.local(&tokens[start..start + window]);
        let block_hash = chain(parent, tokens_hash);
        blocks.push(StoredBlock {
            block_hash,
            tokens_hash,
        });
        parent = Some(block_hash);
        start += block_size;
    }
    blocks
}

#[cfg(test)]
mod tests {
    //! Values computed by the Dynamo 1.6.1 bindings; the plain ones were also seen in events of the 1.4.2 mocker.

    use super::*;

    fn tokens(range: std::ops::RangeInclusive<u32>) -> Vec<Token> {
        range.collect()
    }

    fn salt(lora: Option<&str>, namespace: Option<&str>) -> HashSalt {
        HashSalt {
            lora_name: lora.map(Into::into),
            cache_salt: namespace.map(Into::into),
        }
    }

    fn locals(tokens: &[Token], salt: &HashSalt, eagle: bool) -> Vec<u64> {
        hash_blocks(tokens, 4, salt, eagle)
            .iter()
            .map(|block| block.tokens_hash.0)
            .collect()
    }

    #[test]
    fn plain_blocks_hash_as_recorded() {
        let blocks = hash_blocks(&tokens(1..=12), 4, &HashSalt::default(), false);
        let local: Vec<u64> = blocks.iter().map(|block| block.tokens_hash.0).collect();
        let sequence: Vec<u64> = blocks.iter().map(|block| block.block_hash.0).collect();
        assert_eq!(
            local,
            [
                14_643_705_804_678_351_452,
                16_777_012_769_546_811_212,
                483_935_686_894_639_516
            ]
        );
        assert_eq!(
            sequence,
            [
                14_643_705_804_678_351_452,
                4_945_711_292_740_353_085,
                12_583_592_247_330_656_132
            ]
        );
        assert_eq!(local[0], 0xcb38_e4d7_fb2d_ca5c);
        let blocks = hash_blocks(&tokens(11..=22), 4, &HashSalt::default(), false);
        let local: Vec<u64> = blocks.iter().map(|block| block.tokens_hash.0).collect();
        let sequence: Vec<u64> = blocks.iter().map(|block| block.block_hash.0).collect();
        assert_eq!(
            local,
            [
                12_919_676_645_027_904_487,
                9_057_567_979_291_192_136,
                13_357_343_423_898_611_186
            ]
        );
        assert_eq!(
            sequence,
            [
                12_919_676_645_027_904_487,
                12_175_056_332_449_903_455,
                3_836_361_990_172_540_543
            ]
        );
    }

    #[test]
    fn lora_and_namespace_change_the_seed() {
        let prompt = tokens(1..=8);
        let lora = locals(&prompt, &salt(Some("adapter-a"), None), false);
        assert_eq!(lora, [11_381_080_598_872_079_209, 5_698_110_331_184_095_209]);
        let namespace = locals(&prompt, &salt(None, Some("tenant-1")), false);
        assert_eq!(namespace, [12_236_259_103_925_738_072, 16_244_233_118_725_531_467]);
        let both = locals(&prompt, &salt(Some("adapter-a"), Some("tenant-1")), false);
        assert_eq!(both, [5_419_529_179_100_330_851, 8_208_374_588_024_910_845]);
        assert_eq!(
            locals(&prompt, &salt(Some(""), Some("")), false),
            locals(&prompt, &HashSalt::default(), false)
        );
    }

    #[test]
    fn multimodal_hashes_are_appended_in_ascending_order() {
        let mut hasher = BlockHasher::new(&HashSalt::default());
        let hash = hasher.local_with_media(&[1, 2, 3, 4], &mut [0xDEAD_BEEF]);
        assert_eq!(hash, LocalHash(15_207_512_089_340_001_072));
        let hash = hasher.local_with_media(&[1, 2, 3, 4], &mut [7, 3]);
        assert_eq!(hash, LocalHash(3_497_545_641_356_191_295));
    }

    #[test]
    fn eagle_windows_overlap_by_one_token() {
        let hashes = locals(&tokens(1..=9), &HashSalt::default(), true);
        assert_eq!(hashes, [1_914_873_892_905_420_881, 1_929_047_464_662_796_003]);
    }
}
