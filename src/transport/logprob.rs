//! Log probabilities of emulated tokens: a function of the id, so that they repeat.
//!
//! Nothing is really more likely than anything else, but clients that ask want numbers of the right shape: the sampled
//! token is always the likeliest, its neighbours in the vocabulary follow. Source of the formula: the native SGLang
//! requests of Dynamo 1.6.1.

use crate::types::Token;

/// Most alternatives per token. Source: `max_logprobs` of vLLM 0.32.0.
pub const MAX_TOP: u32 = 20;

/// Log probability of a sampled token.
pub fn sampled(token: Token) -> f64 {
    -0.1 * f64::from(token % 10 + 1)
}

/// The `count` likeliest ids at the place of a sampled token, likeliest first, with their log probabilities; ids wrap at the
/// end of a vocabulary of `vocabulary` ids.
pub fn top(token: Token, count: u32, vocabulary: Token) -> impl Iterator<Item = (Token, f64)> {
    let vocabulary = u64::from(vocabulary.max(1));
    (0..count).map(move |rank| {
        let id = (u64::from(token) + u64::from(rank)) % vocabulary.max(u64::from(token) + 1);
        (
            Token::try_from(id).unwrap_or(token),
            sampled(token) - 0.01 * f64::from(rank),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampled_token_is_the_likeliest() {
        assert!((sampled(1234) + 0.5).abs() < 1e-12);
        let candidates: Vec<_> = top(1234, 3, 2000).collect();
        assert_eq!(
            candidates.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
            [1234, 1235, 1236]
        );
        assert!(candidates.is_sorted_by(|a, b| a.1 > b.1));
        assert!((candidates[2].1 + 0.52).abs() < 1e-12);
    }

    #[test]
    fn ids_stay_in_the_vocabulary() {
        let ids = |token, vocabulary| top(token, 4, vocabulary).map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(1998, 2000), [1998, 1999, 0, 1]);
        // A recorded answer may hold an id beyond it.
        assert_eq!(ids(5000, 2000)[0], 5000);
        assert_eq!(ids(u32::MAX, u32::MAX)[0], u32::MAX);
    }
}
