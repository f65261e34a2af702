//! The place for a comparison of the router's index with what workers really have cached.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::record::Drift;
use crate::actors::control::Control;

/// A comparison in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    /// Blocks that are cached and that the index does not have.
    pub missing: u64,
    /// Blocks that the index has and that are not cached.
    pub phantom: u64,
    /// Blocks that are cached.
    pub cached: u64,
}

impl Compared {
    pub(super) fn at(self, at: f64) -> Drift {
        Drift {
            at,
            missing: self.missing,
            phantom: self.phantom,
            cached: self.cached,
        }
    }
}

/// Time that events may take to a router: a comparison looks at the caches, waits for so long, and asks then.
pub const GRACE: Duration = Duration::from_millis(300);

/// What a comparison comes to.
pub type Comparing<'a> = Pin<Box<dyn Future<Output = Result<Compared, String>> + 'a>>;

/// A source of the router's index, and the truth to hold against it.
pub trait Truth {
    /// Compares now.
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a>;

    /// Ids of requests that it has sent for that: they are none of the drill's.
    fn own_requests(&self) -> Vec<String> {
        Vec::new()
    }
}
