//! Inactive blocks in up to four queues; victims come from the front of the coldest queue that has any.
//!
//! One queue is plain LRU. With four, the queue is chosen by the number of accesses at the moment when the block becomes
//! inactive, and it does not change while it stays so. Every operation is O(1).

const NONE: u32 = u32::MAX;

/// Accesses from which a block is warm, hot and very hot.
const THRESHOLDS: [u8; 3] = [3, 8, 15];

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
    tier: u8,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Tiers {
    /// By slot of the pool.
    links: Vec<Link>,
    ends: [Ends; 4],
    len: u32,
}

impl Tiers {
    pub(super) fn new() -> Self {
        let empty = Ends {
            oldest: NONE,
            newest: NONE,
        };
        Self {
            links: Vec::new(),
            ends: [empty; 4],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Appends a block that was accessed `accesses` times.
    pub(super) fn enter(&mut self, at: u32, accesses: u8) {
        let tier = THRESHOLDS.iter().filter(|&&least| accesses >= least).count();
        let ends = &mut self.ends[tier];
        let older = std::mem::replace(&mut ends.newest, at);
        match older {
            NONE => ends.oldest = at,
            older => self.links[older as usize].newer = at,
        }
        let link = Link {
            older,
            newer: NONE,
            tier: u8::try_from(tier).unwrap_or(0),
        };
        if self.links.len() <= at as usize {
            self.links.resize(at as usize + 1, link);
        }
        self.links[at as usize] = link;
        self.len += 1;
    }

    /// Takes out a block that is in.
    pub(super) fn remove(&mut self, at: u32) {
        let Link { older, newer, tier } = self.links[at as usize];
        let ends = &mut self.ends[usize::from(tier)];
        match older {
            NONE => ends.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => ends.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.len -= 1;
    }

    /// The next block to evict.
    pub(super) fn victim(&self) -> Option<u32> {
        self.ends.iter().map(|ends| ends.oldest).find(|&at| at != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_coldest_tier_leaves_first() {
        let mut tiers = Tiers::new();
        for (at, accesses) in [(0, 15), (1, 14), (2, 8), (3, 7), (4, 3), (5, 2), (6, 0)] {
            tiers.enter(at, accesses);
        }
        tiers.remove(4);
        let mut order = Vec::new();
        while let Some(at) = tiers.victim() {
            tiers.remove(at);
            order.push(at);
        }
        assert_eq!(order, [5, 6, 3, 1, 2, 0]);
        assert_eq!(tiers.len(), 0);
    }
}
