//! The pool of pages: who takes them, who gives them back, and what is told of that.

use super::super::{PageChange, PageChangeKind, Pass};
use super::Sglang;

impl Sglang {
    /// Takes pages, which are free.
    pub(super) fn take_free(&mut self, pages: u32, kind: PageChangeKind) {
        debug_assert!(self.free_pages >= pages, "admission counted the pages");
        self.free_pages = self.free_pages.saturating_sub(pages);
        self.note_pages(kind, pages);
    }

    /// Gives pages back.
    pub(super) fn give_back(&mut self, pages: u32, kind: PageChangeKind) {
        self.free_pages += pages;
        self.note_pages(kind, pages);
    }

    /// Writes down a change that has just been made, if somebody wants to see it.
    pub(super) fn note_pages(&mut self, kind: PageChangeKind, pages: u32) {
        let Some(changes) = self.page_changes.as_mut().filter(|_| pages > 0) else {
            return;
        };
        let tokens = |pages: u64| pages * u64::from(self.rules.page);
        changes.push(PageChange {
            kind,
            tokens: tokens(u64::from(pages)),
            available_tokens: tokens(u64::from(self.free_pages)),
            evictable_tokens: tokens(self.cache.evictable_pages()),
            protected_tokens: tokens(self.cache.protected_pages()),
        });
    }

    /// Moves what was written down since the last pass into this one.
    pub(super) fn put_page_changes(&mut self, pass: &mut Pass) {
        if let Some(changes) = &mut self.page_changes {
            pass.page_changes.append(changes);
        }
    }
}
