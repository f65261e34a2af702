//! What has come of all faults of a fleet, those included that are not listed any more.

use std::sync::Arc;

use serde::Serialize;

use super::table::OpenFault;

/// Sums over all faults since a fleet's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Faults that were added.
    pub added: u64,
    /// Those of them that were removed.
    pub removed: u64,
    /// Those of them that were over and made way in the list for newer ones.
    pub forgotten: u64,
    /// How often gates have asked for any of them.
    pub asked: u64,
    /// How often any of them has happened.
    pub happened: u64,
}

/// Faults that are not listed any more.
#[derive(Debug, Default)]
pub(super) struct Bygone {
    removed: u64,
    forgotten: u64,
    asked: u64,
    happened: u64,
    /// Somebody may still count them: an answer that is to be cut later on, a restart under way.
    late: Vec<Arc<OpenFault>>,
}

impl Bygone {
    /// Somebody has removed a fault.
    pub(super) fn remove(&mut self, struck: impl Iterator<Item = Arc<OpenFault>>) {
        self.removed += 1;
        self.late.extend(struck);
    }

    /// A fault that was over has made way.
    pub(super) fn forget(&mut self, struck: impl Iterator<Item = Arc<OpenFault>>) {
        self.forgotten += 1;
        self.late.extend(struck);
    }

    /// Adds up what nobody can count any more.
    pub(super) fn settle(&mut self) {
        let (asked, happened) = (&mut self.asked, &mut self.happened);
        self.late.retain(|open| {
            let is_late = Arc::strong_count(open) > 1;
            if !is_late {
                *asked += open.asked();
                *happened += open.happened();
            }
            is_late
        });
    }

    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        self.late.is_empty()
    }

    /// With those that are `listed`; so many were `added` in all.
    pub(super) fn sums<'a>(&'a self, added: u64, listed: impl Iterator<Item = &'a OpenFault>) -> Sums {
        let mut sums = Sums {
            added,
            removed: self.removed,
            forgotten: self.forgotten,
            asked: self.asked,
            happened: self.happened,
        };
        for open in listed.chain(self.late.iter().map(AsRef::as_ref)) {
            sums.asked += open.asked();
            sums.happened += open.happened();
        }
        sums
    }
}
