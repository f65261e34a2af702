//! Pairs of workers that cannot hand KV to each other: each is said once, not with each request.

use std::collections::BTreeSet;

/// Most that are remembered; what comes after is not said any more.
const MAX: usize = 64;

/// Peers of one actor that it has been said of.
#[derive(Debug, Default)]
pub(super) struct Disagreements(BTreeSet<String>);

impl Disagreements {
    /// Whether this peer has not been said yet; it counts as said from now on.
    pub(super) fn is_new(&mut self, peer: &str) -> bool {
        self.0.len() < MAX && !self.0.contains(peer) && self.0.insert(peer.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_is_said_once_and_their_number_is_bounded() {
        let mut said = Disagreements::default();
        assert!(said.is_new("a:1") && !said.is_new("a:1") && said.is_new("a:2"));
        let more = (0..1000).filter(|n| said.is_new(&format!("b:{n}"))).count();
        assert_eq!(more, MAX - 2);
    }
}
