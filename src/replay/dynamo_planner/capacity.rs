//! Requests per second that one worker can serve within bounds.
//!
//! Batches of every size are tried, at most 128 of them: the largest rate within the bounds, or where none is within them,
//! the largest at all. Source: `engine_perf.rs` of Dynamo 1.4.2's emulator, which its planner asks.

use super::speed::{Speed, Work, cached_share};
use super::thresholds::Role;

/// Most sizes that are tried.
const TRIES: u64 = 128;

/// Requests and what they may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) input_tokens: f64,
    pub(super) output_tokens: f64,
    /// Share of a prompt that the cache has.
    pub(super) cached: Option<f64>,
    /// Tokens per decode step.
    pub(super) accepted: f64,
    pub(super) ttft_ms: f64,
    pub(super) itl_ms: f64,
}

/// A rate, and whether it is within the bounds.
type Rate = (f64, bool);

/// The model of the engine's speed cannot tell yet.
struct NotReady;

/// What a size gives, if it can be served at all.
type Tried = Result<Option<Rate>, NotReady>;

/// The best rate; `None`: the model of the engine's speed cannot tell yet.
pub(super) fn requests_per_s(speed: &Speed, shape: Shape) -> Option<f64> {
    if shape.input_tokens <= 0.0 || (speed.role() != Role::Prefill && shape.output_tokens <= 0.0) {
        return None;
    }
    let shape = Shape {
        input_tokens: shape.input_tokens.ceil(),
        output_tokens: shape.output_tokens.ceil().max(1.0),
        accepted: shape.accepted.max(1.0),
        ..shape
    };
    let computed = (shape.input_tokens * (1.0 - cached_share(shape.cached)))
        .ceil()
        .max(1.0);
    let context = (shape.input_tokens + (shape.output_tokens / 2.0).floor()).max(1.0);
    let most = match speed.role() {
        Role::Prefill => most_prompts(speed, computed),
        Role::Decode => most_answers(speed, context),
        Role::Aggregated => most_answers(speed, context).min(f64::from(speed.batched_tokens() - 1)),
    };
    let mut best: Option<Rate> = None;
    for batch in sizes(most) {
        let rate = match speed.role() {
            Role::Prefill => of_prompts(speed, shape, batch, computed),
            Role::Decode => of_answers(speed, shape, batch, context),
            Role::Aggregated => of_both(speed, shape, batch, computed, context),
        }
        .ok()?;
        let better = |best: Rate, rate: Rate| (rate.1 && !best.1) || (rate.1 == best.1 && rate.0 > best.0);
        if let Some(rate) = rate.filter(|rate| best.is_none_or(|best| better(best, *rate))) {
            best = Some(rate);
        }
    }
    best.map(|(rate, _)| rate).filter(|rate| *rate > 0.0)
}

fn most_prompts(speed: &Speed, computed: f64) -> f64 {
    let budget = f64::from(speed.batched_tokens());
    if computed > budget {
        1.0
    } else {
        f64::from(speed.sequences()).min((budget / computed).floor())
    }
}

#[allow(clippy::cast_precision_loss)]
fn most_answers(speed: &Speed, context: f64) -> f64 {
    f64::from(speed.sequences()).min((speed.kv_tokens() as f64 / context).floor())
}

/// Batch sizes from 1 to `most`.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss
)]
fn sizes(most: f64) -> impl Iterator<Item = f64> {
    let most = most.max(0.0) as u64;
    let tries = most.min(TRIES);
    (0..tries).map(move |at| {
        let size = if most <= TRIES {
            at
        } else {
            at * (most - 1) / (TRIES - 1)
        };
        (size + 1) as f64
    })
}

fn of_prompts(speed: &Speed, shape: Shape, batch: f64, computed: f64) -> Tried {
    let ms = speed.prompts_ms(computed * batch, Work::default()).ok_or(NotReady)?;
    Ok((ms > 0.0).then(|| (batch * 1e3 / ms, ms <= shape.ttft_ms)))
}

fn of_answers(speed: &Speed, shape: Shape, batch: f64, context: f64) -> Tried {
    let pass = speed
        .pass_ms(Work {
            prompt_tokens: 0.0,
            answers: batch,
            kv_tokens: batch * context,
        })
        .ok_or(NotReady)?;
    let itl_ms = pass / shape.accepted;
    Ok((itl_ms > 0.0).then(|| (batch * 1e3 / (shape.output_tokens * itl_ms), itl_ms <= shape.itl_ms)))
}

fn of_both(speed: &Speed, shape: Shape, batch: f64, computed: f64, context: f64) -> Tried {
    let budget = f64::from(speed.batched_tokens());
    // Prompts come as fast as answers end.
    let prompts = (batch * shape.accepted * computed / shape.output_tokens).ceil();
    if prompts > (budget - batch).max(0.0) || budget <= batch {
        return Ok(None);
    }
    let answers = Work {
        prompt_tokens: 0.0,
        answers: batch,
        kv_tokens: batch * context,
    };
    let pass = speed
        .pass_ms(Work {
            prompt_tokens: prompts,
            ..answers
        })
        .ok_or(NotReady)?;
    let itl_ms = pass / shape.accepted;
    if itl_ms <= 0.0 {
        return Ok(None);
    }
    let ttft_ms = speed.prompts_ms(prompts + computed, answers).ok_or(NotReady)?;
    let within = ttft_ms <= shape.ttft_ms && itl_ms <= shape.itl_ms;
    Ok(Some((batch * 1e3 / (shape.output_tokens * itl_ms), within)))
}
