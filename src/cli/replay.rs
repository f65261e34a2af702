//! Flags of `ghostfleet replay`: those of `python -m dynamo.replay`, letter for letter, and our own behind them.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::measurements::Measurements;
use super::numbers;
use crate::engine::Semantics;

/// Replay a trace or synthetic load in virtual time.
///
/// Give trace files, or --input-tokens, --output-tokens and --request-count with one of --replay-concurrency,
/// --request-rate and --arrival-interval-ms. A flag given twice means its last value; the beginning of a flag, as far as no
/// other begins like it, means the flag.
#[derive(Debug, Clone, Parser)]
#[command(args_override_self = true, infer_long_args = true)]
pub struct ReplayArgs {
    /// Trace; several shards only with --trace-format dynamo or weka.
    #[arg(value_name = "TRACE")]
    pub trace_files: Vec<PathBuf>,
    /// Form of the trace.
    #[arg(long, value_enum, default_value_t = TraceFormat::Mooncake)]
    pub trace_format: TraceFormat,
    /// Tokens per hash id [default: 512; for --trace-format dynamo what the trace says].
    #[arg(long, value_name = "TOKENS", value_parser = numbers::count)]
    pub trace_block_size: Option<u32>,
    /// Share of first prompts that a group has in common, 0 to 1; only for that of tool calls.
    #[arg(long, value_name = "RATIO", default_value_t = 0.0, value_parser = numbers::real)]
    pub trace_shared_prefix_ratio: f64,
    /// Such groups; 0: nothing is shared.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = numbers::count)]
    pub trace_num_prefix_groups: u32,
    /// Synthetic load: prompt tokens of each request.
    #[arg(long, value_name = "TOKENS", value_parser = numbers::count)]
    pub input_tokens: Option<u32>,
    /// Synthetic load: tokens to generate for each.
    #[arg(long, value_name = "TOKENS", value_parser = numbers::count)]
    pub output_tokens: Option<u32>,
    /// Synthetic load: requests, or sessions with --turns-per-session above 1.
    #[arg(long, value_name = "N", value_parser = numbers::count)]
    pub request_count: Option<u32>,
    /// Synthetic load: Poisson arrivals, mean requests per second.
    #[arg(long, value_name = "PER_SECOND", allow_negative_numbers = true, value_parser = numbers::real)]
    pub request_rate: Option<f64>,
    /// Synthetic load: even arrivals, ms; 0: all at once.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = numbers::real)]
    pub arrival_interval_ms: Option<f64>,
    /// Seed of the arrival times.
    #[arg(long, value_name = "SEED", default_value_t = 42, value_parser = numbers::whole)]
    pub arrival_seed: u64,
    /// Synthetic load: requests of a session, one after the other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = numbers::count)]
    pub turns_per_session: u32,
    /// Synthetic load: share of each prompt that a group has in common, 0 to 1.
    #[arg(long, value_name = "RATIO", default_value_t = 0.0, allow_negative_numbers = true, value_parser = numbers::real)]
    pub shared_prefix_ratio: f64,
    /// Synthetic load: such groups; 0: nothing is shared.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = numbers::count)]
    pub num_prefix_groups: u32,
    /// Synthetic load: wait between the turns of a session, ms.
    #[arg(long, value_name = "MS", default_value_t = 0.0, allow_negative_numbers = true, value_parser = numbers::real)]
    pub inter_turn_delay_ms: f64,
    /// Closed loop: so many requests (sessions) at a time; time stamps do not count.
    #[arg(long, value_name = "N", value_parser = numbers::places)]
    pub replay_concurrency: Option<usize>,
    /// Divide arrival times and waits by this.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true, value_parser = numbers::real)]
    pub arrival_speedup_ratio: f64,
    /// Workers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = numbers::count)]
    pub num_workers: u32,
    /// Prefill workers of a disaggregated fleet.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = numbers::count)]
    pub num_prefill_workers: u32,
    /// Decode workers of a disaggregated fleet.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = numbers::count)]
    pub num_decode_workers: u32,
    /// Engine arguments as JSON, flat (1.4.2) or nested (1.6.1).
    #[arg(long, value_name = "JSON")]
    pub extra_engine_args: Option<String>,
    /// Engine arguments of prefill workers as JSON.
    #[arg(long, value_name = "JSON")]
    pub prefill_engine_args: Option<String>,
    /// Engine arguments of decode workers as JSON.
    #[arg(long, value_name = "JSON")]
    pub decode_engine_args: Option<String>,
    /// Virtual time, or real time against live workers.
    #[arg(long, value_enum, default_value_t = ReplayMode::Offline)]
    pub replay_mode: ReplayMode,
    /// Who decides where a request goes.
    #[arg(long, value_enum, default_value_t = RouterMode::RoundRobin)]
    pub router_mode: RouterMode,
    /// Router configuration as JSON.
    #[arg(long, value_name = "JSON")]
    pub router_config: Option<String>,
    /// Policy classes of the router queue, YAML; `DYN_ROUTER_POLICY_CONFIG` in the environment means the same.
    #[arg(long, value_name = "FILE")]
    pub router_policy_config: Option<PathBuf>,
    /// Model profile of the policy file.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Router-side model of prefill times: backend. Needs --aic-system and --aic-model-path.
    #[arg(long, value_name = "NAME")]
    pub aic_backend: Option<String>,
    /// Router-side model: hardware.
    #[arg(long, value_name = "NAME")]
    pub aic_system: Option<String>,
    /// Router-side model: model.
    #[arg(long, value_name = "NAME")]
    pub aic_model_path: Option<String>,
    /// Router-side model: release of the backend.
    #[arg(long, value_name = "VERSION")]
    pub aic_backend_version: Option<String>,
    /// Router-side model: tensor parallelism.
    #[arg(long, value_name = "N", value_parser = numbers::count)]
    pub aic_tp_size: Option<u32>,
    /// Router-side model: tensor parallelism of experts.
    #[arg(long, value_name = "N", value_parser = numbers::count)]
    pub aic_moe_tp_size: Option<u32>,
    /// Router-side model: expert parallelism.
    #[arg(long, value_name = "N", value_parser = numbers::count)]
    pub aic_moe_ep_size: Option<u32>,
    /// Router-side model: data parallelism of attention.
    #[arg(long, value_name = "N", value_parser = numbers::count)]
    pub aic_attention_dp_size: Option<u32>,
    /// Router-side model: number format of matrix products; auto: not set.
    #[arg(long, value_name = "DTYPE")]
    pub aic_gemm_dtype: Option<String>,
    /// Router-side model: number format of experts; auto: not set.
    #[arg(long, value_name = "DTYPE")]
    pub aic_moe_dtype: Option<String>,
    /// Router-side model: number format of attention; auto: not set.
    #[arg(long, value_name = "DTYPE")]
    pub aic_fmha_dtype: Option<String>,
    /// Router-side model: number format of the KV cache; auto: not set.
    #[arg(long, value_name = "DTYPE")]
    pub aic_kv_cache_dtype: Option<String>,
    /// Router-side model: number format of communication; auto: not set.
    #[arg(long, value_name = "DTYPE")]
    pub aic_comm_dtype: Option<String>,
    /// Router-side model: drafted tokens.
    #[arg(long, value_name = "N", value_parser = numbers::count)]
    pub aic_nextn: Option<u32>,
    /// Router-side model: chances of the drafted tokens, comma-separated.
    #[arg(long, value_name = "RATES")]
    pub aic_nextn_accept_rates: Option<String>,
    #[allow(missing_docs)]
    #[command(flatten)]
    pub measurements: Measurements,
    /// Scale workers while the replay runs: path or text, JSON or YAML.
    ///
    /// A configuration of Dynamo's planner, `{mode: agg|disagg, optimization_target: throughput|latency|load|sla, ...}`,
    /// with the keys and defaults of release 1.4.2, whose rules decide. Keys about Kubernetes, Prometheus and the planner's
    /// own reports mean nothing here; for sla the speed of engines is learned from their passes, and throughput scales with
    /// `load_predictor` constant or kalman. Or a script,
    /// `{initial_tick_ms: MS, ticks: [{target_prefill: N, target_decode: N, next_tick_ms: MS}, ...]}`. Or an outside
    /// program, `{command: [PROGRAM, ARGUMENT, ...], config: ANYTHING, timeout_seconds: 60}`, which reads and
    /// writes lines of JSON: `{"type":"start","config":...}` is answered by `{"initial_tick_ms": MS}`, and each
    /// `{"type":"tick","snapshot":{...}}` by `{"target_prefill": N, "target_decode": N, "next_tick_ms": MS}`. Numbers that
    /// are left out change nothing; without a next tick there is none. `{"type":"end"}` comes last and wants no answer.
    #[arg(long, value_name = "CONFIG")]
    pub planner_config: Option<String>,
    /// Sweep points for the planner's start.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = numbers::count)]
    pub benchmark_granularity: u32,
    /// End at this virtual time, s; passes under way still count. Trace files and --replay-mode offline only.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = numbers::real)]
    pub max_sim_time_seconds: Option<f64>,
    /// Good service: time to the first token, ms.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = numbers::real)]
    pub sla_ttft_ms: Option<f64>,
    /// Good service: mean time between tokens, ms.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = numbers::real)]
    pub sla_itl_ms: Option<f64>,
    /// Good service: arrival to last token, ms. Beside --sla-ttft-ms and --sla-itl-ms every bound that is given counts;
    /// Dynamo 1.6.1 itself and the YAML form of predict take it alone.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = numbers::real)]
    pub sla_e2e_ms: Option<f64>,
    /// Where the report goes: a file, or a directory for a name with the time in it [default: the current directory].
    #[arg(long, value_name = "PATH")]
    pub report_json: Option<PathBuf>,
    /// One line of JSON per request. Trace files only.
    #[arg(long, value_name = "FILE")]
    pub report_jsonl: Option<PathBuf>,

    /// Write latency distributions, curves over time and the load of each worker as one HTML page; the curves go into the
    /// JSON report too.
    #[arg(long, value_name = "FILE", help_heading = "Beyond dynamo.replay")]
    pub html: Option<PathBuf>,
    /// JSON reports of other runs to show beside this one on the HTML page; those made with --html have curves.
    #[arg(long, value_name = "REPORT", num_args = 1.., requires = "html", help_heading = "Beyond dynamo.replay")]
    pub html_compare: Vec<PathBuf>,
    /// What the times inside subagents of Weka traces count from; auto: the marker, if any lies before its marker.
    #[arg(
        long,
        value_enum,
        default_value_t = WekaTimes::Auto,
        value_name = "BASIS",
        help_heading = "Beyond dynamo.replay"
    )]
    pub weka_nested_times: WekaTimes,
    /// Like --report-jsonl, for any load.
    #[arg(long, value_name = "FILE", help_heading = "Beyond dynamo.replay")]
    pub request_records: Option<PathBuf>,
    /// Release of Dynamo whose timing rules count.
    #[arg(long, value_name = "RELEASE", default_value = "1.6.1", value_parser = semantics, help_heading = "Beyond dynamo.replay")]
    pub semantics: Semantics,
    /// Seed of the router's choice among equal workers.
    #[arg(
        long,
        value_name = "SEED",
        default_value_t = 0,
        help_heading = "Beyond dynamo.replay", value_parser = numbers::whole)]
    pub seed: u64,
    /// KV routers that share the load; each knows what went through it, and the rest with `router_replica_sync` only.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Beyond dynamo.replay", value_parser = numbers::count)]
    pub router_replicas: u32,
    /// One line of JSON per tick of the planner: what it saw and what it decided.
    #[arg(
        long,
        value_name = "FILE",
        requires = "planner_config",
        help_heading = "Beyond dynamo.replay"
    )]
    pub planner_log: Option<PathBuf>,
    /// Deal the plays of a trace of request graphs to so many lanes, at least 1, one play at a time in each: a lane
    /// takes the next play when its own has nothing left to do. Only with --trace-format `agentic_mooncake`, weka, and
    /// dynamo where requests belong to agents; they are never played with --replay-concurrency.
    #[arg(long, value_name = "N", help_heading = "Beyond dynamo.replay", value_parser = numbers::places)]
    pub agentic_lanes: Option<usize>,
    /// How long a cache change takes to reach the KV router, ms, from 0 on; ends of requests are heard at once. Only
    /// with --router-mode `kv_router` and --replay-mode offline.
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 0.0,
        help_heading = "Beyond dynamo.replay", value_parser = numbers::real)]
    pub kv_event_lag_ms: f64,
}

/// Reads a release.
fn semantics(text: &str) -> Result<Semantics, String> {
    match text {
        "1.6.1" => Ok(Semantics::V1_6_1),
        "1.4.2" => Ok(Semantics::V1_4_2),
        other => Err(format!("unknown release {other}; use 1.6.1 or 1.4.2")),
    }
}

/// Form of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// Mooncake rows.
    Mooncake,
    /// Mooncake rows whose later turns hold only what is new.
    MooncakeDelta,
    /// Mooncake rows that wait for one another.
    #[value(name = "agentic_mooncake")]
    AgenticMooncake,
    /// Sessions of tool calls.
    #[value(name = "applied_compute_agentic")]
    AppliedComputeAgentic,
    /// Request traces of Dynamo frontends.
    Dynamo,
    /// Conversations with agents and their subagents; files or directories.
    Weka,
}

/// What the times inside subagents of Weka traces count from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WekaTimes {
    /// Whatever fits all of them.
    Auto,
    /// The trace's begin.
    Absolute,
    /// The subagent's marker.
    Relative,
}

/// Clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayMode {
    /// Virtual.
    Offline,
    /// Real.
    Online,
}

/// Router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RouterMode {
    /// One after the other.
    #[value(name = "round_robin")]
    RoundRobin,
    /// By cached prefix and load.
    #[value(name = "kv_router")]
    KvRouter,
}
