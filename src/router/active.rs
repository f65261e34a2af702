//! Blocks that requests in flight use, per target; blocks that several of them share count once.

use hashbrown::HashMap;

use crate::types::SequenceHash;

/// Use of one block: target number and how many of its requests use the block.
type Users = Vec<(u32, u32)>;

/// Active blocks of all targets.
#[derive(Debug, Default)]
pub(crate) struct ActiveBlocks {
    users: HashMap<SequenceHash, Users, BlockHash>,
    counts: Vec<u32>,
}

/// Sequence hashes are hashes already.
type BlockHash = std::hash::BuildHasherDefault<AsIs>;

#[derive(Debug, Default, Clone, Copy)]
struct AsIs(u64);

impl std::hash::Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl ActiveBlocks {
    pub(crate) fn grow(&mut self, targets: usize) {
        self.counts.resize(self.counts.len().max(targets), 0);
    }

    /// Distinct blocks in use on a target.
    pub(crate) fn count(&self, target: usize) -> u32 {
        self.counts[target]
    }

    pub(crate) fn add(&mut self, target: usize, blocks: &[SequenceHash]) {
        let number = u32::try_from(target).unwrap_or(u32::MAX);
        for &block in blocks {
            let users = self.users.entry(block).or_default();
            if let Some((_, uses)) = users.iter_mut().find(|(user, _)| *user == number) {
                *uses += 1;
            } else {
                users.push((number, 1));
                self.counts[target] += 1;
            }
        }
    }

    pub(crate) fn remove(&mut self, target: usize, blocks: &[SequenceHash]) {
        let number = u32::try_from(target).unwrap_or(u32::MAX);
        for block in blocks {
            let Some(users) = self.users.get_mut(block) else {
                continue;
            };
            let Some(at) = users.iter().position(|(user, _)| *user == number) else {
                continue;
            };
            users[at].1 -= 1;
            if users[at].1 > 0 {
                continue;
            }
            users.swap_remove(at);
            self.counts[target] -= 1;
            if users.is_empty() {
                self.users.remove(block);
            }
        }
    }

    /// For each target the number of leading blocks of `prompt` in use there, into `depths` (one entry per target).
    pub(crate) fn depths(&self, prompt: &[SequenceHash], depths: &mut [u32]) {
        depths.fill(0);
        for (depth, block) in (0..).zip(prompt) {
            let Some(users) = self.users.get(block) else { return };
            let mut some = false;
            for &(target, _) in users {
                let reached = &mut depths[target as usize];
                if *reached == depth {
                    *reached += 1;
                    some = true;
                }
            }
            if !some {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_blocks_count_once_until_the_last_user_leaves() {
        let prompt: Vec<_> = (1..5).map(SequenceHash).collect();
        let mut active = ActiveBlocks::default();
        active.grow(2);
        active.add(1, &prompt);
        active.add(1, &prompt[..2]);
        assert_eq!((active.count(0), active.count(1)), (0, 4));
        let mut depths = [0; 2];
        active.depths(&prompt[..3], &mut depths);
        assert_eq!(depths, [0, 3]);
        active.remove(1, &prompt);
        active.depths(&prompt, &mut depths);
        assert_eq!((active.count(1), depths), (2, [0, 2]));
        active.remove(1, &prompt[..2]);
        assert_eq!((active.count(1), active.users.len()), (0, 0));
    }
}
