//! A pool that has lost pages.

use crate::types::KvEvent;

use super::Sglang;

impl Sglang {
    /// Keeps `pages` pages from requests, or as many of them as are free or can be freed.
    pub(super) fn withhold(&mut self, pages: u32) -> Vec<KvEvent> {
        self.free_pages += self.withheld.saturating_sub(pages);
        self.withheld = self.withheld.min(pages);
        let wanted = pages - self.withheld;
        // Evicts what is there to evict, which may be less.
        self.make_room(u64::from(wanted) * u64::from(self.rules.page));
        let taken = wanted.min(self.free_pages);
        self.free_pages -= taken;
        self.withheld += taken;
        // Fewer pages admit nobody whom more did not; more may.
        self.full &= taken > 0;
        self.desk.room_came();
        let mut events = Vec::new();
        self.cache.take_events(&mut events);
        if !self.rules.publishes {
            events.clear();
        }
        events
    }
}
