//! Reasoning spans: an answer that begins by thinking.
//!
//! The first token of the span is the start marker, its last one the end marker, all others are drawn as ever. The length is
//! a share of the tokens that were asked for. A request that migrates is a new one with a longer prompt: it thinks
//! again, as the peer's does. Source: Dynamo 1.6.1 (and 1.4.2).

use crate::types::Token;

/// A span at the start of each answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reasoning {
    /// First token of the span.
    pub start_token: Token,
    /// Last token of the span.
    pub end_token: Token,
    /// Share of the answer, 0 to 1.
    pub ratio: f64,
}

/// The span of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start_token: Token,
    end_token: Token,
    len: u32,
}

impl Reasoning {
    /// The span of an answer of `wanted` tokens that thinks for at most `most` tokens. `None`: too short for both markers.
    pub(crate) fn span(&self, wanted: u32, most: Option<u32>) -> Option<Span> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let share = (f64::from(wanted) * self.ratio).floor() as u32;
        if wanted < 2 || share == 0 {
            return None;
        }
        let len = share.clamp(2, wanted).min(most.unwrap_or(u32::MAX));
        (len >= 2).then_some(Span {
            start_token: self.start_token,
            end_token: self.end_token,
            len,
        })
    }
}

impl Span {
    /// Whether `id` is one of its markers.
    pub(crate) fn marks(self, id: Token) -> bool {
        id == self.start_token || id == self.end_token
    }

    /// The marker at position `index` of the answer, if there is one.
    pub(crate) fn marker(self, index: u32) -> Option<Token> {
        match index {
            0 => Some(self.start_token),
            _ if index + 1 == self.len => Some(self.end_token),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markers(wanted: u32, ratio: f64, most: Option<u32>) -> Vec<u32> {
        let reasoning = Reasoning {
            start_token: 1,
            end_token: 2,
            ratio,
        };
        let span = reasoning.span(wanted, most);
        (0..wanted)
            .filter(|&at| span.is_some_and(|span| span.marker(at).is_some()))
            .collect()
    }

    #[test]
    fn the_span_has_the_peers_length() {
        // As recorded: 8 tokens, half of them.
        assert_eq!(markers(8, 0.5, None), [0, 3]);
        assert_eq!(markers(8, 1.0, None), [0, 7]);
        // Both markers need their place.
        assert_eq!(markers(3, 0.4, None), [0, 1]);
        assert_eq!(markers(2, 0.5, None), [0, 1]);
        for nothing in [markers(1, 1.0, None), markers(8, 0.1, None), markers(8, 0.0, None)] {
            assert!(nothing.is_empty());
        }
    }

    #[test]
    fn a_request_may_bound_its_thinking() {
        assert_eq!(markers(100, 0.5, Some(10)), [0, 9]);
        assert_eq!(markers(100, 0.5, Some(80)), [0, 49]);
        assert!(markers(100, 0.5, Some(1)).is_empty());
        assert!(markers(100, 0.5, Some(0)).is_empty());
    }
}
