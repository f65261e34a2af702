//! A one-way connection between two tiers.

use std::time::Duration;

use crate::types::SimTime;

/// Bytes go one transfer after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    /// 0: no time.
    bytes_per_second: f64,
    free_at: SimTime,
}

impl Link {
    /// `gb_s` GB/s, 1 GB = 1e9 bytes; 0: instant.
    pub(super) fn new(gb_s: f64) -> Self {
        Self {
            bytes_per_second: gb_s * 1e9,
            free_at: SimTime::ZERO,
        }
    }

    /// When `bytes` that are ready at `from` have arrived.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn send(&mut self, from: SimTime, bytes: u64) -> SimTime {
        let time = if self.bytes_per_second > 0.0 {
            Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second).unwrap_or(Duration::ZERO)
        } else {
            Duration::ZERO
        };
        self.free_at = self.free_at.max(from) + time;
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_queue_and_instant_links_take_no_time() {
        let mut link = Link::new(2.0);
        let ms = |ms: u64| SimTime(ms * 1_000_000);
        assert_eq!(link.send(ms(1), 4_000_000), ms(3));
        assert_eq!(link.send(ms(2), 2_000_000), ms(4), "behind the first");
        assert_eq!(link.send(ms(9), 2_000_000), ms(10));
        assert_eq!(Link::new(0.0).send(ms(5), u64::MAX), ms(5));
    }
}
