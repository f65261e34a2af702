//! What a request generates: seeded token ids and the place where the answer ends.
//!
//! The token at absolute position `p` (prompt included) is a pure function of engine seed, request key and `p`, so tokens
//! are never stored: they are drawn again when a block is hashed, and a request that migrates goes on with the same
//! stream. Drawing is O(1); finding the end of an answer looks ahead at most a block per block.

use super::reasoning::{Reasoning, Span};
use crate::types::{EngineRequest, FinishReason, Token, Tokens};

/// Where generated ids come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenSource {
    /// Seeded ids within `token_ids`.
    #[default]
    Seeded,
    /// The ids that the Dynamo 1.6.1 engine core generates inside for a request whose UUID has the integer value `key`:
    /// the low half of `xxh3_64(uuid big-endian ++ index little-endian)`, the index counting from the first generated token. Any 32-bit id; for comparison with it.
    Peer,
}

/// Mean length of an answer that has no `max_tokens`: at each position eos has this chance, one in so many.
const NATURAL_LENGTH_TOKENS: u64 = 256;
/// Draws before a masked id is replaced by the next unmasked one.
const REDRAWS: u64 = 64;
/// Separates the draws that decide on eos from those of token ids.
const END_DRAWS: u64 = 0x454f_5300_0000_0000;

/// Draws token ids for all requests of an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Generator {
    source: TokenSource,
    seed: u64,
    first: Token,
    count: u32,
    reasoning: Option<Reasoning>,
}

impl Generator {
    /// Ids from `range.0 .. range.1`, which is not empty.
    pub(crate) fn new(source: TokenSource, seed: u64, range: (Token, Token)) -> Self {
        Self {
            source,
            seed,
            first: range.0,
            count: range.1 - range.0,
            reasoning: None,
        }
    }

    /// The same with a span of reasoning at the start of each answer.
    pub(crate) fn thinking(self, reasoning: Option<Reasoning>) -> Self {
        Self { reasoning, ..self }
    }

    /// Start of a request's stream.
    pub(super) fn stream(self, key: u64) -> u64 {
        mix(self.seed ^ mix(key))
    }

    /// The unmasked id at a position of a seeded stream.
    pub(crate) fn token(self, stream: u64, position: u32) -> Token {
        self.scale(draw(stream, position, 0))
    }

    /// The id at a position when some ids must not come: drawn again, and if that does not help the next free id above.
    fn token_except(self, stream: u64, position: u32, masked: impl Fn(Token) -> bool) -> Token {
        let token = self.token(stream, position);
        if !masked(token) {
            return token;
        }
        let again = (1..REDRAWS).map(|attempt| self.scale(draw(stream, position, attempt)));
        let above = (0..self.count).map(|step| self.first + (token - self.first + step) % self.count);
        again.chain(above).find(|&token| !masked(token)).unwrap_or(token)
    }

    fn scale(self, bits: u64) -> Token {
        let offset = ((bits >> 32) * u64::from(self.count)) >> 32;
        self.first + u32::try_from(offset).unwrap_or(0)
    }

    fn contains(self, token: Token) -> bool {
        token >= self.first && token - self.first < self.count
    }
}

/// Id number `index` of an answer in the peer's engine core.
fn peer_token(key: u64, index: u32) -> Token {
    let mut bytes = [0; 24];
    bytes[8..16].copy_from_slice(&key.to_be_bytes());
    bytes[16..].copy_from_slice(&u64::from(index).to_le_bytes());
    let [a, b, c, d, ..] = xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes();
    Token::from_le_bytes([a, b, c, d])
}

fn draw(stream: u64, position: u32, attempt: u64) -> u64 {
    mix(stream.wrapping_add(mix(u64::from(position) | attempt << 32)))
}

/// Finaliser of `SplitMix64`: a bijection that spreads every input bit.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Ids that may come only to end an answer. Ids outside the drawing range that mark no reasoning never come and are left
/// out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Masks {
    eos: Vec<Token>,
    stop: Vec<Token>,
    min_tokens: u32,
    /// Answer tokens up to here are known not to be stop ids.
    scanned: u32,
}

/// The answer of one request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    stream: u64,
    prompt_len: u32,
    planned: Option<Tokens>,
    masks: Option<Box<Masks>>,
    thinking: Option<Span>,
    /// Request key when ids are the peer's.
    peer_key: Option<u64>,
    /// Id that replaces the last drawn one when the answer ends by eos.
    eos: Option<Token>,
    end: u32,
    reason: FinishReason,
}

impl Answer {
    /// The answer to `request` in a context of at most `max_len` tokens, prompt included, and of at most `most` tokens.
    pub(crate) fn new(request: &EngineRequest, generator: Generator, max_len: u32, most: u32) -> Self {
        let prompt_len = request.prompt.len();
        let room = max_len.saturating_sub(prompt_len).min(most);
        let rule = &request.stop;
        let stream = generator.stream(request.key);
        let mut answer = Self {
            stream,
            prompt_len,
            planned: request.planned.clone(),
            masks: None,
            thinking: None,
            peer_key: (generator.source == TokenSource::Peer).then_some(request.key),
            eos: None,
            end: room,
            reason: FinishReason::Length,
        };
        if let Some(planned) = &request.planned {
            answer.end = room.min(u32::try_from(planned.len()).unwrap_or(u32::MAX));
            return answer;
        }
        if let Some(max_tokens) = rule.max_tokens {
            answer.end = room.min(max_tokens);
        } else if !rule.ignore_eos {
            let natural = natural_length(stream, prompt_len, rule.min_tokens, room);
            if let Some(length) = natural {
                answer.end = length;
                if !rule.eos_token_ids.is_empty() {
                    let pick = draw(stream, prompt_len + length, END_DRAWS) % rule.eos_token_ids.len() as u64;
                    answer.eos = usize::try_from(pick).ok().map(|at| rule.eos_token_ids[at]);
                    answer.reason = FinishReason::Eos;
                }
            }
        }
        // The peer takes what was asked for, not what the context leaves of it.
        answer.thinking = generator
            .reasoning
            .and_then(|reasoning| reasoning.span(rule.max_tokens.unwrap_or(answer.end), rule.max_thinking_tokens));
        let within = |ids: &[Token]| {
            ids.iter()
                .copied()
                .filter(|&id| generator.contains(id))
                .collect::<Vec<_>>()
        };
        // A marker is generated like any other token, so as a stop id it stops.
        let is_marker = |id: &Token| !generator.contains(*id) && answer.thinking.is_some_and(|span| span.marks(*id));
        let mut stop = within(&rule.stop_token_ids);
        stop.extend(rule.stop_token_ids.iter().copied().filter(is_marker));
        let masks = Masks {
            eos: within(&rule.eos_token_ids),
            stop,
            min_tokens: rule.min_tokens,
            scanned: rule.min_tokens,
        };
        if !masks.eos.is_empty() || !masks.stop.is_empty() {
            answer.masks = Some(Box::new(masks));
        }
        answer
    }

    /// Start of the stream if every token is simply [`Generator::token`] of it, except perhaps the last one.
    pub(crate) fn plain_stream(&self) -> Option<u64> {
        let drawn = self.planned.is_none() && self.peer_key.is_none();
        let plain = drawn && self.masks.is_none() && self.thinking.is_none() && self.eos.is_none() && self.end > 0;
        plain.then_some(self.stream)
    }

    /// Tokens until the end as far as known, and why it ends there. May shrink, see [`Self::look_ahead`].
    pub(crate) fn end(&self) -> (u32, FinishReason) {
        (self.end, self.reason)
    }

    /// Draws the answer up to token `index` and cuts it behind the first stop id.
    pub(crate) fn look_ahead(&mut self, generator: Generator, index: u32) {
        let Some(masks) = self.masks.as_deref() else { return };
        if masks.stop.is_empty() || masks.scanned > index {
            return;
        }
        let upto = self.end.min(index.saturating_add(1));
        let hit = (masks.scanned..upto).find(|&at| {
            let token = self.token(generator, at);
            let eos_end = self.eos.is_some() && at + 1 == self.end;
            !eos_end && masks.stop.contains(&token)
        });
        if let Some(at) = hit {
            self.end = at + 1;
            self.reason = FinishReason::Stop;
            self.eos = None;
        }
        if let Some(masks) = self.masks.as_deref_mut() {
            masks.scanned = if hit.is_some() {
                u32::MAX
            } else {
                upto.max(masks.scanned)
            };
        }
    }

    /// Token `index` of the answer, from 0.
    pub(crate) fn token(&self, generator: Generator, index: u32) -> Token {
        // Who decodes a prompt that was handed over has one token at least, also of an empty plan: that one is drawn.
        if let Some(&token) = self.planned.as_ref().and_then(|planned| planned.get(index as usize)) {
            return token;
        }
        if let (Some(eos), true) = (self.eos, index + 1 == self.end) {
            return eos;
        }
        if let Some(marker) = self.thinking.and_then(|span| span.marker(index)) {
            return marker;
        }
        if let Some(key) = self.peer_key {
            return peer_token(key, index);
        }
        let position = self.prompt_len + index;
        match self.masks.as_deref() {
            None => generator.token(self.stream, position),
            Some(masks) => generator.token_except(self.stream, position, |token| {
                masks.eos.contains(&token) || (index < masks.min_tokens && masks.stop.contains(&token))
            }),
        }
    }
}

/// Answer tokens up to and with the first position at which the stream ends by itself; memoryless, so that it does not
/// depend on how many of the tokens before were already part of the prompt. `None`: not within `room`.
fn natural_length(stream: u64, prompt_len: u32, min_tokens: u32, room: u32) -> Option<u32> {
    (min_tokens..room)
        .find(|&index| draw(stream, prompt_len + index, END_DRAWS).is_multiple_of(NATURAL_LENGTH_TOKENS))
        .map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{HashSalt, RequestId, StopRule};

    fn generator() -> Generator {
        Generator::new(TokenSource::Seeded, 7, (1000, 1016))
    }

    fn request(prompt_len: u32, stop: StopRule) -> EngineRequest {
        EngineRequest {
            id: RequestId(1),
            key: 99,
            prompt: (0..prompt_len).collect(),
            stop,
            planned: None,
            priority: 0,
            salt: HashSalt::default(),
            routing_key: None,
        }
    }

    fn tokens(answer: &mut Answer) -> (Vec<Token>, FinishReason) {
        let mut drawn = Vec::new();
        loop {
            let index = u32::try_from(drawn.len()).unwrap();
            answer.look_ahead(generator(), index);
            let (end, reason) = answer.end();
            if index == end {
                return (drawn, reason);
            }
            drawn.push(answer.token(generator(), index));
        }
    }

    #[test]
    fn a_migrated_request_goes_on_with_the_same_stream() {
        let rule = StopRule {
            max_tokens: Some(20),
            ..StopRule::default()
        };
        let (whole, _) = tokens(&mut Answer::new(
            &request(10, rule.clone()),
            generator(),
            u32::MAX,
            u32::MAX,
        ));
        let rest = StopRule {
            max_tokens: Some(12),
            ..rule
        };
        let (tail, _) = tokens(&mut Answer::new(&request(18, rest), generator(), u32::MAX, u32::MAX));
        assert_eq!(whole[8..], tail);
        assert!(whole.iter().all(|token| (1000..1016).contains(token)));
    }

    #[test]
    fn stop_ids_end_the_answer_but_not_before_min_tokens() {
        let stops = StopRule {
            max_tokens: Some(500),
            min_tokens: 40,
            stop_token_ids: vec![1003, 1004, 77],
            eos_token_ids: vec![1005],
            ..StopRule::default()
        };
        let (drawn, reason) = tokens(&mut Answer::new(
            &request(5, stops.clone()),
            generator(),
            u32::MAX,
            u32::MAX,
        ));
        assert_eq!(reason, FinishReason::Stop);
        assert!(drawn.len() > 40 && drawn.len() < 500);
        let (last, before) = drawn.split_last().unwrap();
        assert!(stops.stop_token_ids.contains(last));
        assert!(!before.iter().any(|token| stops.stop_token_ids.contains(token)));
        assert!(!drawn.contains(&1005), "with max_tokens eos never comes");
    }

    #[test]
    fn without_max_tokens_the_answer_ends_by_eos() {
        let rule = StopRule {
            eos_token_ids: vec![2, 3],
            min_tokens: 5,
            ..StopRule::default()
        };
        let mut lengths = Vec::new();
        for key in 0..200 {
            let mut request = request(5, rule.clone());
            request.key = key;
            let (drawn, reason) = tokens(&mut Answer::new(&request, generator(), 4000, u32::MAX));
            assert_eq!(reason, FinishReason::Eos);
            let eos: Vec<usize> = (0..drawn.len()).filter(|&at| drawn[at] <= 3).collect();
            assert_eq!(eos, [drawn.len() - 1]);
            assert!(drawn.len() > 5);
            lengths.push(drawn.len());
        }
        let mean = lengths.iter().sum::<usize>() / lengths.len();
        assert!((200..320).contains(&mean), "{mean}");
    }

    #[test]
    fn ignored_eos_runs_to_the_context_length_and_max_tokens_cuts() {
        let mut rule = StopRule {
            eos_token_ids: vec![1001],
            ignore_eos: true,
            ..StopRule::default()
        };
        let (drawn, reason) = tokens(&mut Answer::new(&request(5, rule.clone()), generator(), 405, u32::MAX));
        assert_eq!((drawn.len(), reason), (400, FinishReason::Length));
        assert!(!drawn.contains(&1001));
        rule.max_tokens = Some(3);
        let (drawn, reason) = tokens(&mut Answer::new(&request(5, rule), generator(), 405, u32::MAX));
        assert_eq!((drawn.len(), reason), (3, FinishReason::Length));
    }

    #[test]
    fn the_peers_ids_come_out_as_recorded() {
        // First tokens of the requests with the UUIDs 1, 2 and 3.
        assert_eq!(
            [1, 2, 3].map(|key| peer_token(key, 0)),
            [2_515_880_452, 1_927_195_132, 1_091_293_017]
        );
        assert_eq!(peer_token(1, 1), 3_600_266_899);
    }

    #[test]
    fn reasoning_marks_its_span_and_leaves_the_other_tokens_alone() {
        let thinking = generator().thinking(Some(Reasoning {
            start_token: 7,
            end_token: 9,
            ratio: 0.5,
        }));
        let rule = StopRule {
            max_tokens: Some(20),
            ..StopRule::default()
        };
        let drawn = |generator, rule: &StopRule| -> Vec<Token> {
            let answer = Answer::new(&request(5, rule.clone()), generator, u32::MAX, u32::MAX);
            assert!(answer.plain_stream().is_none() || answer.thinking.is_none());
            (0..answer.end().0).map(|at| answer.token(generator, at)).collect()
        };
        let (plain, marked) = (drawn(generator(), &rule), drawn(thinking, &rule));
        assert_eq!((marked[0], marked[9]), (7, 9));
        let others = |at: &usize| ![0, 9].contains(at);
        assert!((0..20).filter(others).all(|at| plain[at] == marked[at]));
        let bounded = StopRule {
            max_thinking_tokens: Some(4),
            ..rule
        };
        assert_eq!(drawn(thinking, &bounded)[3], 9);
        let mut planned = request(5, bounded);
        planned.planned = Some([4, 5, 6].into());
        let answer = Answer::new(&planned, thinking, 100, u32::MAX);
        assert_eq!(answer.token(thinking, 0), 4, "a recorded answer has its own reasoning");
    }

    #[test]
    fn a_marker_that_is_a_stop_id_stops_unless_it_comes_too_early() {
        let thinking = generator().thinking(Some(Reasoning {
            start_token: 7,
            end_token: 9,
            ratio: 0.5,
        }));
        let ends = |stop: &[Token], min_tokens| {
            let rule = StopRule {
                max_tokens: Some(8),
                min_tokens,
                stop_token_ids: stop.to_vec(),
                ..StopRule::default()
            };
            let mut answer = Answer::new(&request(5, rule), thinking, u32::MAX, u32::MAX);
            answer.look_ahead(thinking, 7);
            answer.end()
        };
        assert_eq!(ends(&[7], 0), (1, FinishReason::Stop));
        assert_eq!(ends(&[9], 0), (4, FinishReason::Stop));
        assert_eq!(ends(&[7, 9], 2), (4, FinishReason::Stop));
        assert_eq!(ends(&[7, 9], 4), (8, FinishReason::Length));
        assert_eq!(ends(&[8], 0), (8, FinishReason::Length));
    }

    #[test]
    fn planned_tokens_come_as_they_are() {
        let mut planned = request(5, StopRule::default());
        planned.planned = Some([4, 5, 6].into());
        assert_eq!(
            tokens(&mut Answer::new(&planned, generator(), 100, u32::MAX)).0,
            [4, 5, 6]
        );
        assert_eq!(tokens(&mut Answer::new(&planned, generator(), 7, u32::MAX)).0, [4, 5]);
    }

    #[test]
    fn masks_that_leave_one_id_find_it() {
        let rule = StopRule {
            max_tokens: Some(50),
            eos_token_ids: (1000..1015).collect(),
            ..StopRule::default()
        };
        let (drawn, _) = tokens(&mut Answer::new(&request(5, rule), generator(), 100, u32::MAX));
        assert!(drawn.iter().all(|&token| token == 1015));
    }
}
