//! One request inside an engine: its tokens, block hashes and block table.

use crate::block_hash::{BlockHasher, chain};
use crate::types::{LocalHash, Prompt, RequestId, SequenceHash, SimTime, StoredBlock, Token};

use super::answer::{Answer, Generator};
use super::kv::logical::BlockIdentity;
use super::kv::pool::BlockTable;

/// A request from submission to its last token.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) prompt: Prompt,
    pub(crate) answer: Answer,
    pub(crate) priority: i32,
    pub(crate) arrival: SimTime,
    /// Generated tokens while the request is not decoding; a decoding one counts by its lane.
    pub(crate) generated: u32,
    /// Tokens whose KV exists or is being computed; not kept while decoding.
    pub(crate) computed: u32,
    pub(crate) table: BlockTable,
    hash_seed: u64,
    hashes: Vec<StoredBlock>,
}

impl Sequence {
    pub(crate) fn new(
        id: RequestId,
        prompt: Prompt,
        answer: Answer,
        priority: i32,
        arrival: SimTime,
        hash_seed: u64,
    ) -> Self {
        Self {
            id,
            prompt,
            answer,
            priority,
            arrival,
            generated: 0,
            computed: 0,
            table: BlockTable::default(),
            hash_seed,
            hashes: Vec::new(),
        }
    }

    pub(crate) fn prompt_len(&self) -> u32 {
        self.prompt.len()
    }

    /// The first `count` blocks, which have been hashed.
    pub(crate) fn hashed(&self, count: u32) -> &[StoredBlock] {
        &self.hashes[..count as usize]
    }

    /// Index of a block by its hash, if it has been hashed; the latest are found first.
    pub(crate) fn find_block(&self, hash: SequenceHash) -> Option<u32> {
        let index = self.hashes.iter().rposition(|block| block.block_hash == hash)?;
        u32::try_from(index).ok()
    }

    /// Seed of its block hashes: equal tokens of other salts are other tokens.
    pub(crate) fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    /// Prompt and settled answer.
    pub(crate) fn len(&self) -> u32 {
        self.prompt_len() + self.generated
    }
}

/// Hashes the blocks of sequences; owns the buffers for that.
#[derive(Debug)]
pub(crate) struct SequenceHasher {
    block_size: u32,
    generator: Generator,
    hasher: BlockHasher,
    mixed: Vec<Token>,
    /// Blocks hashed so far.
    #[cfg(test)]
    pub(crate) hashed: u64,
    /// Salt, token and hash of the last block that was one token over and over: the next one is often the same.
    alike: Option<(u64, Token, LocalHash)>,
}

impl SequenceHasher {
    pub(crate) fn new(block_size: u32, generator: Generator) -> Self {
        Self {
            block_size,
            generator,
            hasher: BlockHasher::with_seed(0),
            mixed: Vec::new(),
            #[cfg(test)]
            hashed: 0,
            alike: None,
        }
    }

    /// Block `index` of a sequence, which is full. Each block is hashed once.
    pub(crate) fn block(&mut self, sequence: &mut Sequence, index: u32) -> StoredBlock {
        while sequence.hashes.len() <= index as usize {
            let hashed = u32::try_from(sequence.hashes.len()).unwrap_or(u32::MAX);
            let block = self.hash(sequence, hashed);
            sequence.hashes.push(block);
        }
        sequence.hashes[index as usize]
    }

    /// Block `index` of a sequence, which is full, with its place.
    pub(crate) fn identity(&mut self, sequence: &mut Sequence, index: u32) -> BlockIdentity {
        let block = self.block(sequence, index);
        BlockIdentity {
            block,
            parent: (index > 0).then(|| sequence.hashes[index as usize - 1].block_hash),
            position: index,
        }
    }

    /// Appends the tokens of block `index` of a sequence, which is full.
    pub(crate) fn put_tokens(&self, sequence: &Sequence, index: u32, out: &mut Vec<Token>) {
        let start = index * self.block_size;
        let end = start + self.block_size;
        let prompt_len = sequence.prompt_len();
        sequence.prompt.append(start.min(prompt_len)..end.min(prompt_len), out);
        let generated = start.max(prompt_len) - prompt_len..end.max(prompt_len) - prompt_len;
        out.extend(generated.map(|at| sequence.answer.token(self.generator, at)));
    }

    fn hash(&mut self, sequence: &Sequence, index: u32) -> StoredBlock {
        #[cfg(test)]
        {
            self.hashed += 1;
        }
        let start = index * self.block_size;
        let end = start + self.block_size;
        let prompt_len = sequence.prompt_len();
        self.hasher.reseed(sequence.hash_seed);
        let uniform = if end <= prompt_len {
            sequence.prompt.uniform(&(start..end))
        } else {
            None
        };
        let known = self
            .alike
            .filter(|(seed, token, _)| *seed == sequence.hash_seed && Some(*token) == uniform);
        let tokens_hash = if let Some((.., hash)) = known {
            hash
        } else if end <= prompt_len {
            self.hasher.local(sequence.prompt.tokens(start..end, &mut self.mixed))
        } else {
            let mut mixed = std::mem::take(&mut self.mixed);
            mixed.clear();
            self.put_tokens(sequence, index, &mut mixed);
            self.mixed = mixed;
            self.hasher.local(&self.mixed)
        };
        if let Some(token) = uniform {
            self.alike = Some((sequence.hash_seed, token, tokens_hash));
        }
        let parent = sequence.hashes.last().map(|block| block.block_hash);
        StoredBlock {
            block_hash: chain(parent, tokens_hash),
            tokens_hash,
        }
    }
}
