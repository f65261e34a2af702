//! Random loads: prompts that share prefixes, cancels, pauses.

use ghostfleet::types::{EngineRequest, HashSalt, IdRun, Prompt, RequestId, StopRule, Token};
use proptest::prelude::*;

/// One thing that happens to an engine.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Submit(Shape),
    Steps(u8),
    /// Position among the active requests.
    Cancel(usize),
    ClearCache,
    /// Percent of the pool that no request may have from now on.
    Withhold(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) ops: Vec<Op>,
}

/// A request without its identity.
// Each is drawn for itself.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    family: u32,
    shared: u32,
    own: u32,
    pub(crate) max_tokens: Option<u32>,
    min_tokens: u32,
    stop_ids: bool,
    planned: bool,
    priority: i32,
    salted: bool,
    /// The prompt is made of runs, not of tokens.
    runs: bool,
}

impl Shape {
    /// `own` tokens of its own behind `shared` tokens that others start with, too, and an answer that ends by itself.
    pub(crate) fn open_ended(shared: u32, own: u32) -> Self {
        Self {
            family: 0,
            shared,
            own,
            max_tokens: None,
            min_tokens: 0,
            stop_ids: false,
            planned: false,
            priority: 0,
            salted: false,
            runs: false,
        }
    }

    /// The same with another beginning.
    pub(crate) fn of_family(self, family: u32) -> Self {
        Self { family, ..self }
    }

    pub(crate) fn answered(shared: u32, own: u32, tokens: u32) -> Self {
        Self {
            max_tokens: Some(tokens),
            ..Self::open_ended(shared, own)
        }
    }

    pub(crate) fn request(&self, number: u64) -> EngineRequest {
        let own = u32::try_from(number).unwrap() * 1000 + 100_000;
        let shared = (0..self.shared).map(|at| self.family * 1000 + at);
        EngineRequest {
            id: RequestId(number),
            key: number,
            prompt: self.prompt(shared.chain((0..self.own).map(|at| own + at))),
            stop: StopRule {
                max_tokens: self.max_tokens,
                min_tokens: self.min_tokens,
                max_thinking_tokens: self.priority.try_into().ok(),
                ignore_eos: false,
                eos_token_ids: vec![2, 1010],
                stop_token_ids: if self.stop_ids {
                    (1100..1150).collect()
                } else {
                    Vec::new()
                },
            },
            planned: self.planned.then(|| (0..self.max_tokens.unwrap_or(9)).collect()),
            priority: self.priority,
            salt: HashSalt {
                lora_name: self.salted.then(|| "adapter".into()),
                cache_salt: None,
            },
            routing_key: self
                .shared
                .checked_rem(3)
                .filter(|key| *key > 0)
                .map(|key| key.to_string().into()),
        }
    }
}

impl Shape {
    fn prompt(&self, tokens: impl Iterator<Item = Token>) -> Prompt {
        if !self.runs {
            return tokens.collect();
        }
        let mut runs: Vec<IdRun> = Vec::new();
        for token in tokens {
            match runs.last_mut() {
                Some(run) if run.first + run.count == token => run.count += 1,
                _ => runs.push(IdRun { first: token, count: 1 }),
            }
        }
        let own = 0..u32::try_from(runs.len()).unwrap();
        Prompt::from_runs(runs.into(), own, 1, u32::MAX)
    }
}

impl Op {
    /// The same with prompts that are made of runs.
    pub(crate) fn with_runs(&self) -> Self {
        match self {
            Self::Submit(shape) => Self::Submit(Shape {
                runs: true,
                ..shape.clone()
            }),
            other @ (Self::Steps(_) | Self::Cancel(_) | Self::ClearCache | Self::Withhold(_)) => other.clone(),
        }
    }
}

prop_compose! {
    fn shapes()(
        family in 0_u32..3,
        shared in 0_u32..70,
        own in 0_u32..60,
        max_tokens in prop::option::weighted(0.9, 0_u32..60),
        min_tokens in 0_u32..20,
        stop_ids in prop::bool::weighted(0.3),
        planned in prop::bool::weighted(0.2),
        priority in 0_i32..3,
        salted in prop::bool::weighted(0.1),
    ) -> Shape {
        Shape { family, shared, own, max_tokens, min_tokens, stop_ids, planned, priority, salted, runs: false }
    }
}

pub(crate) fn scripts() -> impl Strategy<Value = Script> {
    let op = prop_oneof![
        6 => shapes().prop_map(Op::Submit),
        5 => (1_u8..12).prop_map(Op::Steps),
        1 => any::<prop::sample::Index>().prop_map(|at| Op::Cancel(at.index(64))),
        1 => Just(Op::ClearCache),
        1 => prop::sample::select(vec![0_u32, 0, 20, 60, 100]).prop_map(Op::Withhold),
    ];
    prop::collection::vec(op, 1..40).prop_map(|ops| Script { ops })
}
