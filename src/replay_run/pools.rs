//! Engine arguments of the flags: one pool of workers, or a prefill and a decode pool.

use crate::cli::{ReplayArgs, ReplayMode, RouterMode, TraceFormat};
use crate::config::{ConfigError, EngineDocument, TransferTiming};
use crate::engine::{EngineKind, Semantics, WorkerRole};
use crate::replay::dynamo_planner::{Capabilities, DynamoPlanner, PlannerConfig};
use crate::replay::{FleetSpec, PoolSpec, PrefillSpec};

use super::RunError;
use super::decisions::Sides;
use super::plan::invalid;
use super::sizes::check_pool;

/// Engines of each pool.
pub(super) struct Pools {
    /// Those that answer: aggregated, or decode.
    serving: EngineDocument,
    prefill: Option<EngineDocument>,
}

impl Pools {
    /// Reads and checks the engine arguments.
    pub(super) fn new(args: &ReplayArgs) -> Result<Self, RunError> {
        let staged = (args.prefill_engine_args.as_deref(), args.decode_engine_args.as_deref());
        let (prefill, decode) = match staged {
            (None, None) => {
                let serving = aggregated(args)?;
                return Ok(Self { serving, prefill: None });
            }
            _ if args.extra_engine_args.is_some() => {
                return invalid(
                    "--extra-engine-args and --prefill-engine-args, --decode-engine-args exclude each other",
                );
            }
            (Some(prefill), Some(decode)) => (prefill, decode),
            _ => return invalid("--prefill-engine-args and --decode-engine-args need each other"),
        };
        let prefill = read(args, "--prefill-engine-args", Some(prefill))?;
        let decode = read(args, "--decode-engine-args", Some(decode))?;
        check_staged(args, &prefill, &decode)?;
        Ok(Self {
            serving: decode,
            prefill: Some(prefill),
        })
    }

    pub(super) fn is_disaggregated(&self) -> bool {
        self.prefill.is_some()
    }

    /// What planners have to know of them.
    pub(super) fn engines(&self, semantics: Semantics) -> Engines {
        Engines {
            prefill: self.prefill.as_ref().map(capabilities),
            serving: capabilities(&self.serving),
            dp_size: self.dp_size(),
            semantics,
        }
    }

    /// Ranks of a worker that answers.
    pub(super) fn dp_size(&self) -> u32 {
        self.serving.data_parallel_size
    }

    /// Tokens per block of the workers that a request reaches first.
    pub(super) fn block_size(&self) -> u32 {
        self.prefill.as_ref().unwrap_or(&self.serving).engine.block_size
    }

    /// Whether any worker has memory below the GPU.
    pub(super) fn has_host_memory(&self) -> bool {
        let prefill = self.prefill.iter().map(|side| &side.engine);
        prefill
            .chain([&self.serving.engine])
            .any(|engine| engine.tiers.is_some())
    }

    /// The queue policy that the engine arguments name.
    pub(super) fn queue_policy(&self) -> Option<&str> {
        let first = self.prefill.as_ref().unwrap_or(&self.serving);
        first.router_queue_policy.as_deref()
    }

    /// Whether Dynamo 1.4.2 would run this in its loop for a single worker.
    fn is_lone(&self, args: &ReplayArgs) -> bool {
        let one = self.prefill.is_none() && args.num_workers == 1 && self.serving.data_parallel_size == 1;
        let plain = args.router_mode == RouterMode::RoundRobin && args.planner_config.is_none();
        args.semantics == Semantics::V1_4_2 && one && plain
    }

    /// The fleet, for a workload of sessions or of single requests.
    pub(super) fn fleet(&self, args: &ReplayArgs, sessions: bool) -> FleetSpec {
        let old_vllm = args.semantics == Semantics::V1_4_2 && self.serving.engine.kind != EngineKind::Sglang;
        let decoders = if self.prefill.is_some() {
            args.num_decode_workers
        } else {
            args.num_workers
        };
        let prefill = self.prefill.as_ref().map(|side| PrefillSpec {
            pool: pool(side, args.num_prefill_workers),
            transfer: side.transfer,
            whole_answers: sessions && args.semantics == Semantics::V1_4_2,
            missing_only: side.transfer_timing == TransferTiming::DestinationMissing,
        });
        FleetSpec {
            serving: pool(&self.serving, decoders),
            prefill,
            events_at_start: old_vllm,
            looks_between_passes: self.is_lone(args),
        }
    }
}

/// What planners have to know of the engines.
#[derive(Debug, Clone, Copy)]
pub(super) struct Engines {
    /// Of a disaggregated fleet.
    prefill: Option<Capabilities>,
    serving: Capabilities,
    dp_size: u32,
    semantics: Semantics,
}

impl Engines {
    /// What decisions are about.
    pub(super) fn sides(&self) -> Sides {
        Sides {
            disaggregated: self.prefill.is_some(),
            dp_size: self.dp_size,
        }
    }

    /// Dynamo's planner for them.
    pub(super) fn planner(&self, config: PlannerConfig) -> DynamoPlanner {
        let config = match self.semantics {
            Semantics::V1_4_2 => config.of_1_4_2(),
            Semantics::V1_6_1 => config,
        };
        DynamoPlanner::new(config, self.prefill, self.serving)
    }
}

fn capabilities(document: &EngineDocument) -> Capabilities {
    let (engine, ranks) = (&document.engine, document.data_parallel_size);
    Capabilities {
        gpus: document.gpus,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        max_num_seqs: engine.max_num_seqs,
        context_length: engine.max_model_len,
        max_kv_tokens: u64::from(engine.num_gpu_blocks) * u64::from(engine.block_size) * u64::from(ranks),
        nextn: engine.speculation.as_ref().map_or(0, |speculation| speculation.nextn),
    }
}

fn pool(document: &EngineDocument, workers: u32) -> PoolSpec {
    PoolSpec {
        engine: document.engine.clone(),
        workers,
        dp_size: document.data_parallel_size,
        gpus_per_worker: document.gpus,
        startup: document.startup_time,
    }
}

/// Engine arguments of one flag, with the timing rules of the wanted release.
fn read(args: &ReplayArgs, flag: &'static str, document: Option<&str>) -> Result<EngineDocument, RunError> {
    let invalid = |error: ConfigError| RunError::Invalid(error.to_string());
    let mut document =
        EngineDocument::read_over(flag, document.unwrap_or("{}"), &args.measurements.settings()).map_err(invalid)?;
    document.engine.semantics = args.semantics;
    document.settle().map_err(invalid)?;
    let checked = document.engine.validate();
    checked.map_err(|error| RunError::Invalid(format!("{flag}: {error}")))?;
    Ok(document)
}

/// The engine of an aggregated fleet.
fn aggregated(args: &ReplayArgs) -> Result<EngineDocument, RunError> {
    if args.num_prefill_workers != 1 || args.num_decode_workers != 1 {
        return invalid(
            "--num-prefill-workers and --num-decode-workers are for disaggregated fleets; use --num-workers",
        );
    }
    if args.num_workers == 0 {
        return invalid("--num-workers is 0, expected at least 1");
    }
    let engine = read(args, "--extra-engine-args", args.extra_engine_args.as_deref())?;
    if engine.engine.role != WorkerRole::Aggregated {
        return invalid(format!(
            "--extra-engine-args: worker_type is {:?}, expected aggregated",
            engine.engine.role
        ));
    }
    check_pool("--num-workers", args.num_workers, engine.data_parallel_size).or_else(invalid)?;
    Ok(engine)
}

fn check_staged(args: &ReplayArgs, prefill: &EngineDocument, decode: &EngineDocument) -> Result<(), RunError> {
    if args.num_workers != 1 {
        return invalid("--num-workers is for aggregated fleets; use --num-prefill-workers and --num-decode-workers");
    }
    if args.num_prefill_workers == 0 || args.num_decode_workers == 0 {
        return invalid("--num-prefill-workers and --num-decode-workers must be at least 1");
    }
    for (flag, side, wanted) in [
        ("--prefill-engine-args", prefill, WorkerRole::Prefill),
        ("--decode-engine-args", decode, WorkerRole::Decode),
    ] {
        if side.engine.role != wanted {
            let found = side.engine.role;
            return invalid(format!("{flag}: worker_type is {found:?}, expected {wanted:?}"));
        }
    }
    check_pool("--num-prefill-workers", args.num_prefill_workers, 1).or_else(invalid)?;
    check_pool("--num-decode-workers", args.num_decode_workers, 1).or_else(invalid)?;
    if prefill.engine.block_size != decode.engine.block_size {
        let (left, right) = (prefill.engine.block_size, decode.engine.block_size);
        return invalid(format!(
            "block_size differs between prefill and decode engines: {left} and {right}"
        ));
    }
    if prefill.engine.kind != decode.engine.kind {
        let (left, right) = (prefill.engine.kind, decode.engine.kind);
        return invalid(format!(
            "engine_type differs between prefill and decode engines: {left:?} and {right:?}"
        ));
    }
    if prefill.engine.kind == EngineKind::Trtllm {
        return invalid("disaggregated replay does not work with engine_type trtllm");
    }
    if (prefill.data_parallel_size, decode.data_parallel_size) != (1, 1) {
        let (left, right) = (prefill.data_parallel_size, decode.data_parallel_size);
        return invalid(format!(
            "disaggregated replay needs dp_size 1 on both sides, got {left} and {right}"
        ));
    }
    if args.replay_mode == ReplayMode::Online && args.semantics == Semantics::V1_4_2 {
        return invalid("disaggregated replay of Dynamo 1.4.2 works with --replay-mode offline only");
    }
    match args.trace_format {
        TraceFormat::AgenticMooncake | TraceFormat::Weka => {
            invalid("a trace of request graphs needs an aggregated fleet")
        }
        TraceFormat::MooncakeDelta => invalid("--trace-format mooncake-delta needs an aggregated fleet"),
        TraceFormat::Mooncake | TraceFormat::AppliedComputeAgentic | TraceFormat::Dynamo => Ok(()),
    }
}
