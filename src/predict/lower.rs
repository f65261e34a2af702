//! A document as the flags of a replay: there is one way to run things, and this is the translation to it.

use clap::Parser;
use serde_json::{Map, Value, json};

use crate::cli::{ReplayArgs, RouterMode, Stack, TraceFormat, WekaTimes};
use crate::engine::EngineConfig;
use crate::plain_words::number;
use crate::replay_run;

use super::document::{
    Backend, Capacity, ContextLength, Document, Engine, Format, KvTransfer, Load, Mode, NestedBasis, PrefillLoadModel,
    Router, RouterPolicy, Source, Stop, Timing, Worker,
};
use super::planner;
use super::{PredictError, measured, names};

/// Requests or sessions unless the document says otherwise.
const COUNT: u32 = 100;

/// A replay and what it runs on.
#[derive(Debug, Clone)]
pub struct Lowered {
    /// The replay.
    pub args: ReplayArgs,
    /// GPUs of a prefill worker (0 without such a pool) and of a decode or aggregated one.
    pub gpus_per_worker: (u32, u32),
    /// GPUs of all workers.
    pub gpus: u32,
}

fn wrong<T>(what: impl Into<String>) -> Result<T, PredictError> {
    Err(PredictError::Config(what.into()))
}

/// Translates a document.
///
/// # Errors
/// [`PredictError::Config`] names the key.
pub fn lower(document: &Document, stack: Stack) -> Result<Lowered, PredictError> {
    check_stack(document, stack)?;
    let mut args = ReplayArgs::try_parse_from(["replay"]).map_err(|error| PredictError::Config(error.to_string()))?;
    let (gpus_per_worker, gpus) = engine(&mut args, &document.engine)?;
    traffic(&mut args, document)?;
    args.planner_config = planner::configuration(document, gpus_per_worker)?;
    if let Some(found) = &document.router {
        router(&mut args, found, &document.engine)?;
    }
    if let Some(sla) = document.evaluation.as_ref().and_then(|evaluation| evaluation.sla) {
        if sla.e2e_ms.is_some() && (sla.ttft_ms.is_some() || sla.itl_ms.is_some()) {
            return wrong("evaluation.sla: e2e_ms stands alone; leave out ttft_ms and itl_ms");
        }
        for (key, bound) in [("ttft_ms", sla.ttft_ms), ("itl_ms", sla.itl_ms), ("e2e_ms", sla.e2e_ms)] {
            if let Some(bound) = bound.filter(|bound| !bound.is_finite() || *bound <= 0.0) {
                return wrong(format!(
                    "evaluation.sla.{key} is {}, expected ms above 0",
                    number(bound)
                ));
            }
        }
        (args.sla_ttft_ms, args.sla_itl_ms, args.sla_e2e_ms) = (sla.ttft_ms, sla.itl_ms, sla.e2e_ms);
    }
    // What a value may be is looked at in one place; here it only has another name.
    replay_run::check(&args).map_err(|error| PredictError::Config(names::of_document(&error.to_string(), document)))?;
    Ok(Lowered {
        args,
        gpus_per_worker,
        gpus,
    })
}

/// Whether a document has only sections of its stack.
///
/// # Errors
/// [`PredictError::Config`].
pub(crate) fn check_stack(document: &Document, stack: Stack) -> Result<(), PredictError> {
    if stack == Stack::Engine && (document.router.is_some() || document.planner.is_some()) {
        return wrong("router and planner belong to --stack dynamo; use it or leave the sections out");
    }
    Ok(())
}

/// GPUs of one worker.
fn gpus_of(path: &str, worker: &Worker) -> Result<u32, PredictError> {
    let sizes = worker.parallelism;
    let parts = [
        ("replicas", sizes.replicas),
        ("tensor", sizes.tensor),
        ("pipeline", sizes.pipeline),
        ("attention_data", sizes.attention_data),
        ("moe_tensor", sizes.moe_tensor),
        ("moe_expert", sizes.moe_expert),
    ];
    if let Some((key, _)) = parts.iter().find(|(_, size)| *size == 0) {
        return wrong(format!("{path}.parallelism.{key} is 0, expected at least 1"));
    }
    let gpus = sizes.tensor.checked_mul(sizes.pipeline);
    let gpus = gpus.and_then(|gpus| gpus.checked_mul(sizes.attention_data));
    gpus.filter(|gpus| gpus.checked_mul(sizes.replicas).is_some())
        .ok_or_else(|| PredictError::Config(format!("{path}.parallelism: more GPUs than can be counted")))
}

fn engine(args: &mut ReplayArgs, engine: &Engine) -> Result<((u32, u32), u32), PredictError> {
    let workers = &engine.workers;
    match engine.mode {
        Mode::Aggregated => {
            if workers.prefill.is_some() || workers.decode.is_some() {
                return wrong("engine.workers: prefill and decode belong to mode disaggregated");
            }
            if engine.kv_transfer.is_some() {
                return wrong("engine.kv_transfer belongs to mode disaggregated");
            }
            let worker = workers.aggregated.clone().unwrap_or_default();
            let path = "engine.workers.aggregated";
            let gpus = gpus_of(path, &worker)?;
            args.num_workers = worker.parallelism.replicas;
            let measured = measured::is_asked_for(&worker);
            args.extra_engine_args = Some(arguments(path, engine, (&worker, measured), "aggregated")?);
            Ok(((0, gpus), gpus * worker.parallelism.replicas))
        }
        Mode::Disaggregated => {
            if workers.aggregated.is_some() {
                return wrong("engine.workers.aggregated belongs to mode aggregated");
            }
            let (prefill, decode) = (workers.prefill.clone(), workers.decode.clone());
            let (prefill, decode) = (prefill.unwrap_or_default(), decode.unwrap_or_default());
            let of_prefill = gpus_of("engine.workers.prefill", &prefill)?;
            let of_decode = gpus_of("engine.workers.decode", &decode)?;
            args.num_prefill_workers = prefill.parallelism.replicas;
            args.num_decode_workers = decode.parallelism.replicas;
            let with = |worker| (worker, measured::is_asked_for(worker));
            let of = (with(&prefill), with(&decode));
            args.prefill_engine_args = Some(arguments("engine.workers.prefill", engine, of.0, "prefill")?);
            args.decode_engine_args = Some(arguments("engine.workers.decode", engine, of.1, "decode")?);
            let gpus =
                (of_prefill * prefill.parallelism.replicas).saturating_add(of_decode * decode.parallelism.replicas);
            Ok(((of_prefill, of_decode), gpus))
        }
    }
}

/// Engine arguments of a pool as JSON.
fn arguments(
    path: &str,
    engine: &Engine,
    (worker, measured): (&Worker, bool),
    role: &str,
) -> Result<String, PredictError> {
    let mut found = Map::new();
    let mut put = |key: &str, value: Value| {
        found.insert(key.to_owned(), value);
    };
    let sequences = if role == "prefill" { 1 } else { 256 };
    put("backend", json!(engine.backend));
    put("worker_type", role.into());
    put(
        "max_num_seqs",
        worker.scheduler.max_sequences.unwrap_or(sequences).into(),
    );
    put(
        "max_num_batched_tokens",
        worker.scheduler.max_batched_tokens.unwrap_or(8192).into(),
    );
    put("enable_prefix_caching", worker.kv_cache.prefix_caching.into());
    if let Some(size) = worker.kv_cache.block_size {
        put("block_size", size.into());
    }
    match &worker.kv_cache.capacity {
        Capacity::Fixed { blocks } => put("num_gpu_blocks", (*blocks).into()),
        Capacity::Default { memory_fraction } => {
            if let Some(share) = memory_fraction.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
                return wrong(format!(
                    "{path}.kv_cache.capacity.memory_fraction is {}, expected above 0 to 1",
                    number(share)
                ));
            }
        }
    }
    match engine.context_length {
        ContextLength::Max => {}
        ContextLength::Tokens(tokens) if engine.backend == Backend::Vllm => put("max_model_len", tokens.into()),
        ContextLength::Tokens(_) => return wrong("engine.context_length works with backend vllm; use max"),
    }
    match worker.timing {
        Timing::Default {} if measured => put("timing_model", measured::timing_model(path, engine, worker, role)?),
        Timing::Default {} | Timing::Polynomial {} => put("timing_model", json!({"type": "polynomial"})),
        Timing::Fixed { prefill_ms, decode_ms } => put(
            "timing_model",
            json!({"type": "fixed", "prefill_ms": prefill_ms, "decode_ms": decode_ms}),
        ),
    }
    if let Some(KvTransfer {
        bytes_per_token,
        bandwidth_gb_per_second,
        timing_mode,
    }) = &engine.kv_transfer
    {
        if let Some(bytes) = bytes_per_token.0.or(worker.kv_cache.bytes_per_token.0) {
            put("kv_transfer_bytes_per_token", bytes.into());
        } else if bandwidth_gb_per_second.is_some() {
            return wrong("engine.kv_transfer.bytes_per_token is auto, but the model is not known here; give bytes");
        }
        if let Some(bandwidth) = bandwidth_gb_per_second {
            put("kv_transfer_bandwidth", (*bandwidth).into());
        }
        put("kv_transfer_timing_mode", json!(timing_mode));
    }
    if !worker.startup_seconds.is_finite() || worker.startup_seconds < 0.0 {
        let seconds = worker.startup_seconds;
        return wrong(format!(
            "{path}.startup_seconds is {}, expected seconds from 0 on",
            number(seconds)
        ));
    }
    let mut document = json!({"engine": found, "dp_size": worker.parallelism.attention_data});
    if worker.startup_seconds > 0.0 {
        document["startup_time"] = worker.startup_seconds.into();
    }
    Ok(document.to_string())
}

fn traffic(args: &mut ReplayArgs, document: &Document) -> Result<(), PredictError> {
    let (load, stop) = (&document.traffic.load, &document.traffic.stop);
    match &document.traffic.source {
        &Source::Synthetic {
            input_tokens,
            output_tokens,
        } => {
            synthetic(args, document, (input_tokens, output_tokens), false)?;
        }
        Source::SyntheticSession {
            new_input_tokens_per_turn,
            output_tokens_per_turn,
            session,
        } => {
            if session.turns < 2 {
                let turns = session.turns;
                return wrong(format!("traffic.source.session.turns is {turns}, expected at least 2"));
            }
            if session.shared_prefix_ratio > 0.0 && session.prefix_groups == 0 {
                return wrong(
                    "traffic.source.session.prefix_groups is 0, expected at least 1 with a shared_prefix_ratio",
                );
            }
            synthetic(
                args,
                document,
                (*new_input_tokens_per_turn, *output_tokens_per_turn),
                true,
            )?;
            args.turns_per_session = session.turns;
            args.shared_prefix_ratio = session.shared_prefix_ratio;
            args.num_prefix_groups = session.prefix_groups;
            args.inter_turn_delay_ms = session.inter_turn_delay_ms;
        }
        Source::Trace {
            paths,
            format,
            block_size,
            nested_timestamp_basis,
        } => {
            if paths.is_empty() {
                return wrong("traffic.source.paths is empty, expected files");
            }
            if nested_timestamp_basis.is_some() && *format != Format::Weka {
                return wrong("traffic.source.nested_timestamp_basis belongs to format weka");
            }
            args.trace_files.clone_from(paths);
            args.trace_block_size = *block_size;
            args.max_sim_time_seconds = stop.max_virtual_time_seconds;
            args.weka_nested_times = match nested_timestamp_basis.unwrap_or(NestedBasis::Auto) {
                NestedBasis::Auto => WekaTimes::Auto,
                NestedBasis::Absolute => WekaTimes::Absolute,
                NestedBasis::Relative => WekaTimes::Relative,
            };
            args.trace_format = match format {
                Format::Mooncake => TraceFormat::Mooncake,
                Format::MooncakeDelta => TraceFormat::MooncakeDelta,
                Format::AgenticMooncake => TraceFormat::AgenticMooncake,
                Format::AppliedComputeAgentic => TraceFormat::AppliedComputeAgentic,
                Format::Dynamo => TraceFormat::Dynamo,
                Format::Weka => TraceFormat::Weka,
            };
            trace_load(args, document, *format, load)?;
            if *stop
                != (Stop {
                    max_virtual_time_seconds: stop.max_virtual_time_seconds,
                    ..Stop::default()
                })
            {
                return wrong("traffic.stop: a trace ends where it ends; only max_virtual_time_seconds can cut it");
            }
        }
    }
    Ok(())
}

/// The pace of a trace.
fn trace_load(args: &mut ReplayArgs, document: &Document, format: Format, load: &Load) -> Result<(), PredictError> {
    let graph = matches!(format, Format::AgenticMooncake | Format::Weka);
    if graph && args.max_sim_time_seconds.is_some() {
        return wrong("traffic.stop.max_virtual_time_seconds does not work with formats agentic_mooncake and weka");
    }
    if document.engine.mode == Mode::Disaggregated && (graph || format == Format::MooncakeDelta) {
        return wrong("traffic.source.format: mooncake-delta, agentic_mooncake and weka need engine.mode aggregated");
    }
    match load {
        Load::Concurrency { .. } | Load::KvCapacityFraction { .. } if graph => {
            wrong("traffic.load: request graphs set their own pace; use type trace_timestamps")
        }
        Load::Concurrency { concurrency } => {
            args.replay_concurrency = Some(at_a_time(*concurrency)?);
            Ok(())
        }
        Load::TraceTimestamps { .. } if format == Format::AppliedComputeAgentic => {
            wrong("traffic.load: format applied_compute_agentic has no time stamps; use type concurrency")
        }
        Load::TraceTimestamps { speedup, agentic_lanes } => {
            if agentic_lanes.is_some() && !graph && format != Format::Dynamo {
                return wrong("traffic.load.agentic_lanes belongs to formats agentic_mooncake, weka and dynamo");
            }
            args.arrival_speedup_ratio = *speedup;
            args.agentic_lanes = *agentic_lanes;
            Ok(())
        }
        Load::Poisson { .. } | Load::ConstantRate { .. } => {
            wrong("traffic.load: a trace takes type trace_timestamps or concurrency")
        }
        Load::KvCapacityFraction { .. } => wrong(
            "traffic.load: kv_capacity_fraction needs synthetic traffic, whose lengths are known; use type concurrency",
        ),
    }
}

/// Synthetic requests or sessions.
fn synthetic(
    args: &mut ReplayArgs,
    document: &Document,
    lengths: (u32, u32),
    sessions: bool,
) -> Result<(), PredictError> {
    let load = pace(args, document, lengths, sessions)?;
    let stop = &document.traffic.stop;
    if stop.max_virtual_time_seconds.is_some() {
        return wrong("traffic.stop.max_virtual_time_seconds cuts traces only; use a count");
    }
    let of_requests = (stop.requests, stop.requests_per_load_unit);
    let of_sessions = (stop.sessions, stop.sessions_per_load_unit);
    let (own, other, name) = if sessions {
        (of_sessions, of_requests, "sessions")
    } else {
        (of_requests, of_sessions, "requests")
    };
    if other != (None, None) {
        return wrong(format!(
            "traffic.stop: this source counts {name}; use {name} or {name}_per_load_unit"
        ));
    }
    let count = match own {
        (Some(_), Some(_)) => {
            return wrong(format!(
                "traffic.stop: {name} and {name}_per_load_unit exclude each other"
            ));
        }
        (Some(0), None) => return wrong(format!("traffic.stop.{name} is 0, expected at least 1")),
        (Some(count), None) => count,
        (None, Some(per_unit)) => scaled(per_unit, load).ok_or_else(|| {
            PredictError::Config(format!(
                "traffic.stop.{name}_per_load_unit is {}, expected a number above 0 that makes at most {} {name}",
                number(per_unit),
                u32::MAX
            ))
        })?,
        (None, None) => COUNT,
    };
    args.request_count = Some(count);
    (args.input_tokens, args.output_tokens) = (Some(lengths.0), Some(lengths.1));
    Ok(())
}

fn at_a_time(concurrency: usize) -> Result<usize, PredictError> {
    if concurrency == 0 {
        return wrong("traffic.load.concurrency is 0, expected at least 1");
    }
    Ok(concurrency)
}

/// At least 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn scaled(per_unit: f64, load: f64) -> Option<u32> {
    let count = (per_unit * load).round();
    let sensible = per_unit.is_finite() && per_unit > 0.0 && count <= f64::from(u32::MAX);
    sensible.then_some((count as u32).max(1))
}

/// Sets the pace of synthetic traffic; returns how many units of load it is.
#[allow(clippy::cast_precision_loss)]
fn pace(args: &mut ReplayArgs, document: &Document, lengths: (u32, u32), sessions: bool) -> Result<f64, PredictError> {
    let rate = |requests: Option<f64>, of_sessions: Option<f64>| {
        let (own, other, name) = if sessions {
            (of_sessions, requests, "sessions_per_second")
        } else {
            (requests, of_sessions, "requests_per_second")
        };
        match (own, other) {
            (Some(rate), None) if rate.is_finite() && rate > 0.0 => Ok(rate),
            (Some(rate), None) => wrong(format!(
                "traffic.load.{name} is {}, expected a finite number above 0",
                number(rate)
            )),
            _ => wrong(format!("traffic.load: this source needs {name}, and only that")),
        }
    };
    match &document.traffic.load {
        Load::Concurrency { concurrency } => {
            args.replay_concurrency = Some(at_a_time(*concurrency)?);
            Ok(*concurrency as f64)
        }
        Load::Poisson {
            requests_per_second,
            sessions_per_second,
            seed,
        } => {
            let rate = rate(*requests_per_second, *sessions_per_second)?;
            args.request_rate = Some(rate);
            args.arrival_seed = *seed;
            Ok(rate)
        }
        Load::ConstantRate {
            requests_per_second,
            sessions_per_second,
        } => {
            let rate = rate(*requests_per_second, *sessions_per_second)?;
            args.arrival_interval_ms = Some(1e3 / rate);
            Ok(rate)
        }
        Load::TraceTimestamps { .. } => {
            wrong("traffic.load: trace_timestamps needs a trace; use concurrency or a rate")
        }
        Load::KvCapacityFraction { fraction } => {
            let concurrency = filling(document, *fraction, lengths)?;
            args.replay_concurrency = Some(concurrency);
            Ok(concurrency as f64)
        }
    }
}

/// How many at a time the load of a document is, where that is a share of the KV cache.
///
/// # Errors
/// [`PredictError::Config`].
pub(super) fn concurrency_of_fraction(document: &Document) -> Result<Option<usize>, PredictError> {
    let &Load::KvCapacityFraction { fraction } = &document.traffic.load else {
        return Ok(None);
    };
    let lengths = match &document.traffic.source {
        &Source::Synthetic {
            input_tokens,
            output_tokens,
        } => (input_tokens, output_tokens),
        &Source::SyntheticSession {
            new_input_tokens_per_turn,
            output_tokens_per_turn,
            ..
        } => (new_input_tokens_per_turn, output_tokens_per_turn),
        Source::Trace { .. } => return Ok(None),
    };
    filling(document, fraction, lengths).map(Some)
}

/// Requests at a time that fill a share of the KV cache of all decode or aggregated workers, each at its full length.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn filling(document: &Document, fraction: f64, (input, output): (u32, u32)) -> Result<usize, PredictError> {
    if !fraction.is_finite() || fraction <= 0.0 {
        return wrong(format!(
            "traffic.load.fraction is {}, expected a finite number above 0",
            number(fraction)
        ));
    }
    let workers = &document.engine.workers;
    let pool = match document.engine.mode {
        Mode::Aggregated => &workers.aggregated,
        Mode::Disaggregated => &workers.decode,
    };
    let worker = pool.clone().unwrap_or_default();
    let blocks = match worker.kv_cache.capacity {
        Capacity::Fixed { blocks } => blocks,
        Capacity::Default { .. } if measured::is_asked_for(&worker) => {
            return wrong(
                "traffic.load: kv_capacity_fraction needs a kv_cache.capacity of type fixed where passes are those of measured \
                 GPUs",
            );
        }
        Capacity::Default { .. } => EngineConfig::default().num_gpu_blocks,
    };
    let block = worker.kv_cache.block_size.unwrap_or(match document.engine.backend {
        Backend::Vllm => 64,
        Backend::Sglang => 1,
        Backend::Trtllm => 32,
    });
    let ranks = worker
        .parallelism
        .replicas
        .saturating_mul(worker.parallelism.attention_data);
    let tokens = f64::from(blocks) * f64::from(block) * f64::from(ranks);
    let requests = fraction * tokens / (f64::from(input) + f64::from(output)).max(1.0);
    Ok((requests.round() as usize).max(1))
}

fn router(args: &mut ReplayArgs, router: &Router, engine: &Engine) -> Result<(), PredictError> {
    let models_prefills = router.prefill_load_model != (PrefillLoadModel::None {});
    let weights = [
        ("overlap_score_credit", router.overlap_score_credit),
        ("prefill_load_scale", router.prefill_load_scale),
        ("temperature", router.temperature),
    ];
    if router.policy == RouterPolicy::RoundRobin {
        if models_prefills {
            return wrong("router.prefill_load_model belongs to policy kv_router");
        }
        return match weights.iter().find(|(_, weight)| weight.is_some()) {
            Some((key, _)) => wrong(format!("router.{key} belongs to policy kv_router")),
            None => Ok(()),
        };
    }
    args.router_mode = RouterMode::KvRouter;
    if models_prefills {
        let pool = match engine.mode {
            Mode::Aggregated => &engine.workers.aggregated,
            Mode::Disaggregated => &engine.workers.prefill,
        };
        measured::of_router(args, engine, &pool.clone().unwrap_or_default())?;
    }
    let mut config = Map::new();
    for (key, weight) in weights {
        let Some(weight) = weight else { continue };
        if !weight.is_finite() || weight < 0.0 {
            return wrong(format!(
                "router.{key} is {}, expected a finite number from 0 on",
                number(weight)
            ));
        }
        let key = if key == "temperature" {
            "router_temperature"
        } else {
            key
        };
        config.insert(key.to_owned(), weight.into());
    }
    args.router_config = Some(Value::Object(config).to_string());
    Ok(())
}
