//! The tokens that engines give, foretold: for whoever checks that an answer arrives as it was given.

use super::EngineConfig;
use super::answer::{Generator, TokenSource};
use crate::types::Token;

/// Tokens that nothing but seed, request and position decide: the same on every worker, before and after a request moves.
#[derive(Debug, Clone, Copy)]
pub struct SeededTokens(Generator);

impl SeededTokens {
    /// Those of engines with this configuration; `None`: other things decide, a span of reasoning whose place depends on
    /// where the answer began, or another emulator's rule.
    pub fn of(config: &EngineConfig) -> Option<Self> {
        let decide = config.reasoning.is_none() && config.token_source == TokenSource::Seeded;
        decide.then(|| Self(Generator::new(config.token_source, config.seed, config.token_ids)))
    }

    /// The token at a position, prompt included, of the answer to the request with this key, where no id is kept from
    /// coming (as eos is, if it is among those that are drawn).
    pub fn token(self, key: u64, position: u32) -> Token {
        self.0.token(self.0.stream(key), position)
    }
}

#[cfg(test)]
mod tests {
    use super::super::answer::Answer;
    use super::*;
    use crate::engine::reasoning::Reasoning;
    use crate::types::{EngineRequest, HashSalt, RequestId, StopRule};

    #[test]
    fn what_is_foretold_is_what_is_given() {
        let config = EngineConfig {
            seed: 9,
            token_ids: (300, 900),
            ..EngineConfig::default()
        };
        let tokens = SeededTokens::of(&config).unwrap();
        let generator = Generator::new(config.token_source, config.seed, config.token_ids);
        let request = EngineRequest {
            id: RequestId(1),
            key: 77,
            prompt: (0..5).collect(),
            stop: StopRule {
                max_tokens: Some(20),
                min_tokens: 20,
                ignore_eos: true,
                eos_token_ids: vec![2],
                ..StopRule::default()
            },
            planned: None,
            priority: 0,
            salt: HashSalt::default(),
            routing_key: None,
        };
        let answer = Answer::new(&request, generator, u32::MAX, u32::MAX);
        for index in 0..20 {
            assert_eq!(tokens.token(77, 5 + index), answer.token(generator, index));
        }
    }

    #[test]
    fn reasoning_and_the_ids_of_another_emulator_are_not_foretold() {
        let reasoning = Some(Reasoning {
            start_token: 7,
            end_token: 9,
            ratio: 0.5,
        });
        let thinks = EngineConfig {
            reasoning,
            ..EngineConfig::default()
        };
        let peer = EngineConfig {
            token_source: TokenSource::Peer,
            ..EngineConfig::default()
        };
        assert!(SeededTokens::of(&thinks).is_none() && SeededTokens::of(&peer).is_none());
    }
}
