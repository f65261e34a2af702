//! Asks the evaluator of `aisimulate-core` how long the passes of a plan take.
//!
//! Its tables are read when they are first asked for, so passes of every kind are tried at the start. One evaluator serves
//! all ranks with the same plan: it reads the measurements once and keeps what it was asked.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aisimulate_core::perfmodel::engine::Engine;
use aisimulate_core::perfmodel::engine::spec::EngineSpec;
use serde_json::Value;

use super::timing::{Reach, TimingError};
use super::{AicModel, plan};
use crate::engine::{DecodeBatch, PassTiming, PrefillBatch, TimingOfRanks};

/// Every evaluator of this process, with its plan and the directory of its measurements: configurations are few.
static OPEN: Mutex<Vec<(String, PathBuf, Arc<Evaluators>)>> = Mutex::new(Vec::new());

/// One part of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// `requests` with `len` tokens each, `prefix` of them there before.
    Prefill { requests: u32, len: u32, prefix: u32 },
    /// One more token for each of `requests` with `len` tokens.
    Decode { requests: u32, len: u32 },
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Prefill { .. } => "prefill",
            Self::Decode { .. } => "decode",
        }
    }

    /// Its kind and size, in powers of two: passes that a table has or lacks together, roughly.
    fn class(self) -> (&'static str, u32, u32) {
        let (Self::Prefill { requests, len, .. } | Self::Decode { requests, len }) = self;
        (self.name(), requests.max(1).ilog2(), len.max(1).ilog2())
    }

    fn words(self) -> String {
        match self {
            Self::Prefill { requests, len, prefix } => {
                format!("prefill of {requests} x {len} tokens, {prefix} of each cached")
            }
            Self::Decode { requests, len } => format!("decode of {requests} x {len} tokens"),
        }
    }
}

/// A loaded plan.
struct Evaluator {
    engine: Engine,
    /// For logs.
    what: String,
    /// The shortest prefill and decode pass, ms: what ranks take before they know better.
    shortest: (f64, f64),
    /// Classes of passes whose failure was logged.
    told: Mutex<BTreeSet<(&'static str, u32, u32)>>,
}

/// The evaluator of `model`, tried as far as `reach` goes.
pub(super) fn open(model: &AicModel, reach: Reach) -> Result<Arc<Evaluators>, TimingError> {
    let plan = plan(model)?;
    let resolved = plan["engine"]["backend_version"].as_str();
    let version = resolved.unwrap_or(&model.backend_version).to_owned();
    let failed = |why: String| TimingError::Evaluator {
        of: format!(
            "{} on {} ({} {version}, measurements in {})",
            model.plan.as_ref().unwrap_or(&model.model_path).display(),
            model.system,
            model.backend.name(),
            model.systems_path.display()
        ),
        why: one_line(&why),
    };
    let what = format!("{} on {}", model.model_path.display(), model.system);
    let evaluator = of_process(plan, &model.systems_path, what).map_err(failed)?;
    evaluator.0.probe(reach).map_err(failed)?;
    Ok(evaluator)
}

fn of_process(plan: Value, systems_path: &Path, what: String) -> Result<Arc<Evaluators>, String> {
    let text = plan.to_string();
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., evaluator)) = open.iter().find(|(of, at, _)| *of == text && at == systems_path) {
        return Ok(Arc::clone(evaluator));
    }
    let evaluator = Arc::new(Evaluators(Arc::new(Evaluator::load(plan, systems_path, what)?)));
    open.push((text, systems_path.to_owned(), Arc::clone(&evaluator)));
    Ok(evaluator)
}

/// What the evaluator says, or that it panicked: its input is files.
fn guarded<T, E: std::fmt::Display>(ask: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("the evaluator panicked; its message is above".to_owned()),
    }
}

/// Errors of the evaluator may have several lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Evaluator {
    fn load(plan: Value, systems_path: &Path, what: String) -> Result<Self, String> {
        let spec: EngineSpec =
            serde_json::from_value(plan).map_err(|error| format!("the plan is not understood: {error}"))?;
        let engine = guarded(|| Engine::from_spec_bytes(&spec.to_bincode()?, systems_path))?;
        let mut evaluator = Self {
            engine,
            what,
            shortest: (0.0, 0.0),
            told: Mutex::default(),
        };
        let of = |phase: Phase| evaluator.tried(phase);
        evaluator.shortest = (
            of(Phase::Prefill {
                requests: 1,
                len: 1,
                prefix: 0,
            })?,
            of(Phase::Decode { requests: 1, len: 1 })?,
        );
        Ok(evaluator)
    }

    /// Tries the longest passes of a deployment and one with a cached prefix.
    fn probe(&self, reach: Reach) -> Result<(), String> {
        let prefill = |requests, len, prefix| Phase::Prefill { requests, len, prefix };
        let decode = |requests, len| Phase::Decode { requests, len };
        let few = reach.max_num_seqs.min(4);
        for phase in [
            prefill(1, reach.max_num_batched_tokens, 0),
            prefill(few, 128, 64),
            decode(reach.max_num_seqs, reach.max_model_len),
        ] {
            self.tried(phase)?;
        }
        Ok(())
    }

    /// ms of a pass that has to take some time.
    fn tried(&self, phase: Phase) -> Result<f64, String> {
        let in_words = |why: String| format!("{}: {why}", phase.words());
        match self.ask(phase) {
            Ok(ms) if ms > 0.0 => Ok(ms),
            Ok(ms) => Err(in_words(format!("takes {ms} ms"))),
            Err(why) => Err(in_words(why)),
        }
    }

    /// Finite ms of a pass.
    fn ask(&self, phase: Phase) -> Result<f64, String> {
        let ms = guarded(|| match phase {
            Phase::Prefill { requests, len, prefix } => self.engine.predict_prefill_latency(requests, len, prefix),
            // Up to the second of two tokens is one step.
            Phase::Decode { requests, len } => self.engine.predict_decode_latency(requests, len, 2),
        })?;
        if ms.is_finite() {
            Ok(ms.max(0.0))
        } else {
            Err(format!("takes {ms} ms"))
        }
    }

    /// Counts a pass without a time; logs the first of its class.
    fn tell(&self, phase: Phase, why: &str) {
        match phase {
            Phase::Prefill { .. } => {
                metrics::counter!("ghostfleet_timing_errors_total", "phase" => "prefill").increment(1);
            }
            Phase::Decode { .. } => {
                metrics::counter!("ghostfleet_timing_errors_total", "phase" => "decode").increment(1);
            }
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.insert(phase.class()) {
            tracing::warn!(
                model = self.what,
                pass = phase.words(),
                error = one_line(why),
                "the AIC performance model has no time for a pass; it takes as long as the last one that had"
            );
        }
    }
}

impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator")
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

/// An evaluator for many ranks.
#[derive(Debug)]
pub(super) struct Evaluators(Arc<Evaluator>);

impl TimingOfRanks for Evaluators {
    fn of_rank(&self) -> Arc<dyn PassTiming> {
        let (prefill, decode) = self.0.shortest;
        Arc::new(OfRank {
            evaluator: Arc::clone(&self.0),
            prefill: Last::new(prefill),
            decode: Last::new(decode),
        })
    }
}

/// What one rank asks, and the last answers that it got.
#[derive(Debug)]
struct OfRank {
    evaluator: Arc<Evaluator>,
    prefill: Last,
    decode: Last,
}

/// A duration in ms.
#[derive(Debug)]
struct Last(AtomicU64);

impl Last {
    fn new(ms: f64) -> Self {
        Self(AtomicU64::new(ms.to_bits()))
    }
}

impl OfRank {
    fn ms(&self, phase: Phase, last: &Last) -> f64 {
        match self.evaluator.ask(phase) {
            Ok(ms) => {
                last.0.store(ms.to_bits(), Ordering::Relaxed);
                ms
            }
            Err(why) => {
                self.evaluator.tell(phase, &why);
                f64::from_bits(last.0.load(Ordering::Relaxed))
            }
        }
    }
}

impl PassTiming for OfRank {
    fn prefill_ms(&self, batch: PrefillBatch) -> f64 {
        let phase = Phase::Prefill {
            requests: batch.requests,
            len: batch.mean_isl,
            prefix: batch.mean_prefix,
        };
        self.ms(phase, &self.prefill)
    }

    fn decode_ms(&self, batch: DecodeBatch) -> f64 {
        let phase = Phase::Decode {
            requests: batch.requests,
            len: batch.mean_context,
        };
        self.ms(phase, &self.decode)
    }
}
