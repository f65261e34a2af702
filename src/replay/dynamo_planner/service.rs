//! The target `sla`: first token and gaps between tokens within bounds, by models of speed that learn from passes.
//!
//! *By load*: one worker more when a request that comes next would wait too long at every worker; one less when the load
//! of all, shared by the others, would leave each of them well within the bounds and its cache. *By throughput*: as many
//! workers as what is foreseen needs; with both it is the floor below which load does not scale. Source:
//! `core/load_scaling.py` and `core/throughput_scaling.py` of Dynamo 1.4.2's planner.

use super::super::planner::{ForwardMetrics, Traffic};
use super::Capabilities;
use super::capacity::{self, Shape};
use super::config::{ServiceTarget, Sides};
use super::forecast::{Forecast, Foreseen};
use super::speed::{Speed, Supposed};
use super::thresholds::Role;

/// What is known of the engines and of what comes.
#[derive(Debug, Clone)]
pub(super) struct Service {
    target: ServiceTarget,
    /// Without a model in aggregated fleets.
    prefill: Option<Speed>,
    serving: Speed,
    forecast: Option<Forecast>,
    /// Traffic since it was last looked at.
    traffic: Option<Traffic>,
    /// Latest share of prompts that was cached.
    cached: Option<f64>,
    /// Latest tokens per decode step.
    accepted: f64,
    /// Workers below which load does not scale.
    pub(super) floor: Sides<u32>,
}

/// What one side wants.
enum Wish {
    /// It cannot be judged.
    Unknown,
    Workers(u32),
}

/// Whether one worker less would do.
enum Fewer {
    Enough,
    TooFew,
    /// It cannot be told.
    Unknown,
}

impl Fewer {
    /// The first of the workers that would not do, or of which it cannot be told, decides.
    fn of(passes: &[ForwardMetrics], enough: impl Fn(&ForwardMetrics) -> Option<bool>) -> Self {
        for pass in passes {
            match enough(pass) {
                Some(true) => {}
                Some(false) => return Self::TooFew,
                None => return Self::Unknown,
            }
        }
        Self::Enough
    }
}

impl Service {
    pub(super) fn new(target: ServiceTarget, prefill: Option<Capabilities>, serving: Capabilities) -> Self {
        let role = if prefill.is_some() {
            Role::Decode
        } else {
            Role::Aggregated
        };
        Self {
            prefill: prefill.map(|engine| Speed::new(Role::Prefill, engine, target.learning)),
            serving: Speed::new(role, serving, target.learning),
            forecast: target.throughput.map(|throughput| Forecast::new(throughput.method)),
            traffic: None,
            cached: None,
            accepted: 1.0,
            floor: Sides { prefill: 1, serving: 1 },
            target,
        }
    }

    /// Takes in the traffic of one more tick.
    pub(super) fn note(&mut self, traffic: &Traffic) {
        self.traffic = Some(match &self.traffic {
            Some(before) => before.joined(traffic),
            None => *traffic,
        });
    }

    /// Learns from the latest passes.
    pub(super) fn learn(&mut self, prefill: &[ForwardMetrics], serving: &[ForwardMetrics]) {
        if let Some(model) = &mut self.prefill {
            model.learn(prefill);
        }
        self.serving.learn(serving);
    }

    /// Looks at the traffic for what it says of caches and drafts, unless forecasts do.
    pub(super) fn refresh(&mut self) {
        if self.forecast.is_none() {
            self.look();
        }
    }

    /// The traffic since it was last looked at; what it says of caches and drafts counts from now on.
    fn look(&mut self) -> Option<Traffic> {
        let traffic = self.traffic.take().filter(|traffic| traffic.duration_s > 0.0)?;
        self.cached = Some(traffic.avg_kv_hit_rate);
        if let Some(accepted) = traffic.avg_accept_length.filter(|accepted| accepted.is_finite()) {
            let drafted = match self.serving.engine().nextn {
                0 => f64::from(self.target.nextn),
                drafted => f64::from(drafted),
            };
            self.accepted = accepted.clamp(1.0, drafted + 1.0);
        }
        Some(traffic)
    }

    /// Workers that what is foreseen needs, at least `least`; `None`: it cannot be told.
    pub(super) fn by_throughput(&mut self, now: Sides<u32>, least: Sides<u32>) -> Option<Sides<u32>> {
        let traffic = self.look()?;
        let foreseen = self.forecast.as_mut()?.after(&traffic);
        let per_s = foreseen.requests / traffic.duration_s;
        let serving = self.workers(&self.serving, foreseen, per_s)?;
        let prefill = match &self.prefill {
            Some(model) => self.workers(model, foreseen, per_s)?,
            None => 0,
        };
        let most = self.target.throughput.and_then(|throughput| throughput.most_steps);
        let step = |wanted: u32, now: u32| match most {
            Some(most) => wanted.clamp(now.saturating_sub(most), now.saturating_add(most)),
            None => wanted,
        };
        Some(Sides {
            prefill: step(prefill.max(least.prefill), now.prefill).max(least.prefill),
            serving: step(serving.max(least.serving), now.serving).max(least.serving),
        })
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn workers(&self, model: &Speed, foreseen: Foreseen, per_s: f64) -> Option<u32> {
        if model.role() == Role::Aggregated && model.engine().max_num_batched_tokens.is_none() {
            return None;
        }
        let each = capacity::requests_per_s(
            model,
            Shape {
                input_tokens: foreseen.input_tokens,
                output_tokens: foreseen.output_tokens,
                cached: self.cached,
                accepted: self.accepted,
                ttft_ms: self.target.ttft_ms,
                itl_ms: self.target.itl_ms,
            },
        )?;
        Some((per_s / each).ceil() as u32)
    }

    /// Workers that the load asks for; `None`: nothing is known yet.
    pub(super) fn by_load(
        &self,
        passes: Sides<&[ForwardMetrics]>,
        now: Sides<u32>,
        least: Sides<u32>,
    ) -> Option<Sides<u32>> {
        let Some(model) = &self.prefill else {
            let serving = self.aggregated(passes.serving, now.serving, least.serving)?;
            return Some(Sides { prefill: 0, serving });
        };
        let or_now = |wish: Option<Wish>, now| match wish {
            Some(Wish::Workers(wanted)) => wanted,
            Some(Wish::Unknown) | None => now,
        };
        let prefill = side(model, passes.prefill, now.prefill);
        let prefill = prefill.map(|at| self.by_first_token(&at, least.prefill));
        let serving = side(&self.serving, passes.serving, now.serving);
        let serving = serving.map(|at| self.by_gap(&at, least.serving));
        Some(Sides {
            prefill: or_now(prefill, now.prefill),
            serving: or_now(serving, now.serving),
        })
    }

    /// Workers that do both: more for either reason, less for both.
    fn aggregated(&self, passes: &[ForwardMetrics], now: u32, least: u32) -> Option<u32> {
        let at = side(&self.serving, passes, now)?;
        let prompts = self.by_first_token(&at, least);
        let answers = self.by_gap(&at, least);
        Some(match (prompts, answers) {
            (Wish::Workers(prompts), _) if prompts > now => prompts,
            (_, Wish::Workers(answers)) if answers > now => answers,
            (Wish::Workers(prompts), Wish::Workers(answers)) if prompts < now && answers < now => prompts.max(answers),
            (Wish::Unknown, Wish::Workers(answers)) => answers,
            (_, Wish::Workers(_) | Wish::Unknown) => now,
        })
    }

    /// By the wait for a first token.
    fn by_first_token(&self, at: &At, least: u32) -> Wish {
        if at.model.engine().max_num_batched_tokens.is_none() {
            return Wish::Unknown;
        }
        let bound = self.target.ttft_ms;
        let wait = |pass: &ForwardMetrics, supposed| at.model.first_token_ms(pass, self.cached, supposed);
        let waits: Vec<f64> = at
            .passes
            .iter()
            .filter_map(|pass| wait(pass, Supposed::AS_IS))
            .collect();
        let fewer = Fewer::of(at.passes, |pass| {
            let alone = wait(pass, at.shared().with_queue(0.0))?;
            let shared = wait(pass, at.shared())?;
            // The prompt's own time stays what it is however many workers there are.
            let slack = (bound - alone) * self.target.sensitivity;
            Some(slack > 0.0 && shared - alone < slack)
        });
        at.wish(&waits, bound, &fewer, least)
    }

    /// By the gap between tokens.
    fn by_gap(&self, at: &At, least: u32) -> Wish {
        let bound = self.target.itl_ms;
        let gap = |pass: &ForwardMetrics, supposed| Some(at.model.token_ms(pass, supposed)? / self.accepted);
        let now = Supposed {
            with_queued_answers: true,
            ..Supposed::AS_IS
        };
        let gaps: Vec<f64> = at.passes.iter().filter_map(|pass| gap(pass, now)).collect();
        let prompts_too = at.model.role() == Role::Aggregated;
        let fewer = Fewer::of(at.passes, |pass| {
            let mut kv = pass.sum_decode_kv_tokens + pass.sum_queued_decode_kv_tokens;
            if prompts_too {
                kv += pass.sum_queued_prefill_tokens;
            }
            let shared = Supposed {
                with_queued_prompts: prompts_too,
                ..at.shared()
            };
            #[allow(clippy::cast_precision_loss)]
            let fits = (kv as f64 * at.share).floor() < at.model.engine().max_kv_tokens as f64;
            if !fits {
                return Some(false);
            }
            Some(gap(pass, shared)? < bound * self.target.sensitivity)
        });
        at.wish(&gaps, bound, &fewer, least)
    }
}

/// A side under judgement.
struct At<'a> {
    model: &'a Speed,
    passes: &'a [ForwardMetrics],
    workers: u32,
    /// Load of a worker when there is one less.
    share: f64,
}

fn side<'a>(model: &'a Speed, passes: &'a [ForwardMetrics], workers: u32) -> Option<At<'a>> {
    (model.is_ready() && workers > 0 && !passes.is_empty()).then(|| At {
        model,
        passes,
        workers,
        share: f64::from(workers) / f64::from((workers - 1).max(1)),
    })
}

impl At<'_> {
    /// What is supposed of each worker when there is one less.
    fn shared(&self) -> Supposed {
        Supposed {
            queue: self.share,
            answers: self.share,
            with_queued_answers: true,
            with_queued_prompts: false,
        }
    }

    /// One more when every worker takes longer than `bound`, one less when that would do.
    fn wish(&self, found: &[f64], bound: f64, fewer: &Fewer, least: u32) -> Wish {
        if found.is_empty() {
            return Wish::Unknown;
        }
        if found.iter().all(|ms| *ms > bound) {
            return Wish::Workers(self.workers + 1);
        }
        match fewer {
            Fewer::Enough if self.workers > 1 => Wish::Workers(least.max(self.workers - 1)),
            Fewer::TooFew if self.workers > 1 => Wish::Workers(self.workers),
            Fewer::Enough | Fewer::TooFew | Fewer::Unknown => Wish::Unknown,
        }
    }
}

impl Supposed {
    /// What runs, runs, and what is queued is queued.
    const AS_IS: Self = Self {
        queue: 1.0,
        answers: 1.0,
        with_queued_answers: false,
        with_queued_prompts: false,
    };

    fn with_queue(self, queue: f64) -> Self {
        Self { queue, ..self }
    }
}
