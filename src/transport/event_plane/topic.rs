//! Topics of the event plane. The names of subjects and discovery keys are discovery's business.

use std::fmt;

/// What a stream of messages is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    /// Changes of a rank's prefix cache.
    KvEvents,
    /// Load of a worker's ranks.
    KvMetrics,
    /// What each forward pass did.
    ForwardPasses,
}

impl Topic {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KvEvents => "kv-events",
            Self::KvMetrics => "kv_metrics",
            Self::ForwardPasses => "forward-pass-metrics",
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
