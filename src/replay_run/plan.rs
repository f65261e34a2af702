//! Flags checked and turned into fleet, router and workload.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::cli::{ReplayArgs, ReplayMode, RouterMode, TraceFormat};
use crate::engine::Semantics;
use crate::plain_words::number;
use crate::replay::{Arrivals, FleetSpec, Harness, RouterSpec, Sla, Source, SyntheticSpec};
use crate::router::{PolicyProfile, PrefillTimes, QueuePolicy, RouterConfig};
use crate::types::SimTime;

use super::interrupt::Reading;
use super::memory;
use super::planner;
use super::pools::Pools;
use super::prefill_model;
use super::sizes::check_replicas;
use super::{RunError, Workload};

/// A checked replay.
pub(super) struct Plan {
    pools: Pools,
    router: RouterConfig,
    policy: PolicyProfile,
    prefill_times: Option<Arc<dyn PrefillTimes>>,
    /// Bytes that requests may take.
    memory: u64,
}

pub(super) fn usage<T>(what: impl Into<String>) -> Result<T, RunError> {
    Err(RunError::Usage(what.into()))
}

pub(super) fn invalid<T>(what: impl Into<String>) -> Result<T, RunError> {
    Err(RunError::Invalid(what.into()))
}

impl Plan {
    /// Checks the flags against one another, then each value.
    pub(super) fn new(args: &ReplayArgs) -> Result<Self, RunError> {
        check_workload(args)?;
        prefill_model::is_asked_for(args)?;
        check_values(args)?;
        let pools = Pools::new(args)?;
        let mut router = router_config(args)?;
        if let Some(policy) = pools.queue_policy() {
            router.router_queue_policy = queue_policy(policy)?;
        }
        check_reach(args, &pools)?;
        let prefill_times = match args.router_mode {
            RouterMode::KvRouter => prefill_model::of_router(args, &router)?,
            RouterMode::RoundRobin => None,
        };
        let policy = policy_profile(args, &router)?;
        Ok(Self {
            pools,
            router,
            policy,
            prefill_times,
            memory: memory::limit(),
        })
    }

    /// The fleet with its router.
    pub(super) fn harness(&self, args: &ReplayArgs) -> Result<Harness, RunError> {
        let fleet = self.pools.fleet(args, self.plays_sessions(args));
        let harness = Harness::new(fleet, &self.router(args))?.with_sla(sla(args));
        let mut harness = harness.with_memory_limit(self.memory);
        if keeps_records(args) {
            harness = harness.with_records();
        }
        if args.html.is_some() {
            harness = harness.with_curves();
        }
        if let Some(config) = &args.planner_config {
            harness = harness.with_planner(planner::build(
                config,
                args.planner_log.as_deref(),
                self.pools.engines(args.semantics),
            )?)?;
        }
        if let Some(limit) = max_time(args) {
            harness = harness.with_max_sim_time(limit);
        }
        Ok(harness)
    }

    fn router(&self, args: &ReplayArgs) -> RouterSpec {
        match args.router_mode {
            RouterMode::RoundRobin => RouterSpec::RoundRobin,
            RouterMode::KvRouter => RouterSpec::Kv {
                config: Box::new(self.router.clone()),
                policy: Box::new(self.policy.clone()),
                seed: args.seed,
                event_lag_ms: args.kv_event_lag_ms,
                replicas: args.router_replicas,
                prefill_times: self.prefill_times.clone(),
            },
        }
    }

    /// Whether the workload is one of sessions, as traces and all but the simplest synthetic loads are.
    fn plays_sessions(&self, args: &ReplayArgs) -> bool {
        !args.trace_files.is_empty() || !self.synthetic(args).is_simple()
    }

    /// Checks synthetic load.
    pub(super) fn check_load(&self, args: &ReplayArgs) -> Result<(), RunError> {
        if !args.trace_files.is_empty() {
            return Ok(());
        }
        let load = self.synthetic(args);
        load.validate()?;
        let (needed, there_is) = (load.least_memory(keeps_records(args)) >> 20, self.memory >> 20);
        if needed > there_is {
            return invalid(format!(
                "--request-count is {}: so many requests would take about {needed} MiB, and there are {there_is} MiB for them; \
                 give fewer, or let fewer of them be in flight with --replay-concurrency",
                load.count
            ));
        }
        Ok(())
    }

    /// The workload.
    pub(super) fn source(&self, args: &ReplayArgs) -> Result<Box<dyn Source>, RunError> {
        if args.trace_files.is_empty() {
            self.check_load(args)?;
            return Ok(self.synthetic(args).source()?);
        }
        let _reading = Reading::begin();
        let mut workload = super::workload(args)?;
        check_form(args, &workload)?;
        if let Workload::Sessions(trace) = &mut workload
            && self.pools.has_host_memory()
        {
            trace.renumber();
        }
        workload.source(args)
    }

    fn synthetic(&self, args: &ReplayArgs) -> SyntheticSpec {
        let arrivals = match (args.replay_concurrency, args.request_rate) {
            (Some(most), _) => Arrivals::Concurrency(most),
            (None, Some(rate)) => Arrivals::Poisson {
                rate,
                seed: args.arrival_seed,
            },
            (None, None) => Arrivals::Interval(args.arrival_interval_ms.unwrap_or(0.0)),
        };
        SyntheticSpec {
            input_tokens: args.input_tokens.unwrap_or(0),
            output_tokens: args.output_tokens.unwrap_or(0),
            count: args.request_count.unwrap_or(0),
            arrivals,
            turns: args.turns_per_session,
            shared_prefix_ratio: args.shared_prefix_ratio,
            prefix_groups: args.num_prefix_groups,
            inter_turn_delay_ms: args.inter_turn_delay_ms,
            speedup: args.arrival_speedup_ratio,
            block_size: self.pools.block_size(),
        }
    }
}

/// What a replay in real time runs.
pub struct RealTimePlan {
    /// The workers.
    pub fleet: FleetSpec,
    /// The router.
    pub router: RouterSpec,
    /// The workload.
    pub source: Box<dyn Source>,
    /// Bytes that requests may take.
    pub memory: u64,
    /// Bounds of good service.
    pub sla: Sla,
    /// A record of every request is wanted.
    pub records: bool,
    /// Curves over time are wanted.
    pub curves: bool,
    /// End of the run, whatever is left.
    pub max_time: Option<SimTime>,
}

impl RealTimePlan {
    /// Checks the flags as for an offline replay.
    ///
    /// # Errors
    /// As [`super::execute`].
    pub fn new(args: &ReplayArgs) -> Result<Self, RunError> {
        let plan = Plan::new(args)?;
        Ok(Self {
            fleet: plan.pools.fleet(args, false),
            router: plan.router(args),
            source: plan.source(args)?,
            memory: plan.memory,
            sla: sla(args),
            records: keeps_records(args),
            curves: args.html.is_some(),
            max_time: max_time(args),
        })
    }
}

fn sla(args: &ReplayArgs) -> Sla {
    Sla {
        ttft_ms: args.sla_ttft_ms,
        itl_ms: args.sla_itl_ms,
        e2e_ms: args.sla_e2e_ms,
    }
}

fn keeps_records(args: &ReplayArgs) -> bool {
    args.report_jsonl.is_some() || args.request_records.is_some()
}

/// End of the run; a trace of request graphs has none.
fn max_time(args: &ReplayArgs) -> Option<SimTime> {
    let seconds = args.max_sim_time_seconds.filter(|_| !is_graph(args.trace_format))?;
    Some(SimTime::of_ms(seconds * 1e3))
}

fn is_graph(format: TraceFormat) -> bool {
    matches!(format, TraceFormat::AgenticMooncake | TraceFormat::Weka)
}

/// A trace that is a graph of requests, or can be one.
fn may_be_graph(args: &ReplayArgs) -> bool {
    let form = is_graph(args.trace_format) || args.trace_format == TraceFormat::Dynamo;
    form && !args.trace_files.is_empty()
}

/// Trace or synthetic, and what goes with each.
fn check_workload(args: &ReplayArgs) -> Result<(), RunError> {
    let has_trace = !args.trace_files.is_empty();
    let synthetic = [
        args.input_tokens.is_some(),
        args.output_tokens.is_some(),
        args.request_count.is_some(),
    ];
    let given = synthetic.iter().filter(|given| **given).count();
    if args.trace_format == TraceFormat::Dynamo && !has_trace {
        return usage("--trace-format dynamo needs at least one trace file");
    }
    match (has_trace, given) {
        (false, 0) => {
            return usage(
                "nothing to replay; give a trace file, or --input-tokens, --output-tokens and --request-count",
            );
        }
        (true, 1..) => return usage("a trace file and synthetic load exclude each other; give one of them"),
        (false, 1 | 2) => {
            return usage("synthetic load needs all of --input-tokens, --output-tokens and --request-count");
        }
        _ => {}
    }
    let open_loop = args.request_rate.is_some() || args.arrival_interval_ms.is_some();
    if has_trace {
        check_trace_flags(args, open_loop)?;
    } else {
        let loads = [
            args.replay_concurrency.is_some(),
            args.request_rate.is_some(),
            args.arrival_interval_ms.is_some(),
        ];
        if loads.iter().filter(|given| **given).count() != 1 {
            return usage(
                "synthetic load needs exactly one of --replay-concurrency, --request-rate and --arrival-interval-ms",
            );
        }
        if args.report_jsonl.is_some() {
            return usage("--report-jsonl works with trace files only; --request-records works with any load");
        }
        if args.max_sim_time_seconds.is_some() {
            return usage(
                "--max-sim-time-seconds works with trace files only; synthetic load ends with --request-count",
            );
        }
    }
    check_planner_flags(args)
}

fn check_trace_flags(args: &ReplayArgs, open_loop: bool) -> Result<(), RunError> {
    if open_loop {
        return usage("--request-rate and --arrival-interval-ms are for synthetic load; a trace has its own times");
    }
    for (flag, said) in [
        ("--turns-per-session", args.turns_per_session != 1),
        ("--shared-prefix-ratio", args.shared_prefix_ratio != 0.0),
        ("--num-prefix-groups", args.num_prefix_groups != 0),
        ("--inter-turn-delay-ms", args.inter_turn_delay_ms != 0.0),
    ] {
        if said {
            return usage(format!(
                "{flag} is for synthetic load; a trace has sessions, prompts and times of its own"
            ));
        }
    }
    let shards = matches!(args.trace_format, TraceFormat::Dynamo | TraceFormat::Weka);
    if !shards && args.trace_files.len() > 1 {
        return usage("several trace files work with --trace-format dynamo and weka only; give one file");
    }
    if args.trace_format == TraceFormat::AppliedComputeAgentic && args.replay_concurrency.is_none() {
        return usage("--trace-format applied_compute_agentic has no time stamps; give --replay-concurrency");
    }
    Ok(())
}

fn check_planner_flags(args: &ReplayArgs) -> Result<(), RunError> {
    if args.planner_config.is_none() {
        return Ok(());
    }
    if args.replay_mode == ReplayMode::Online {
        return usage("--planner-config works with --replay-mode offline only");
    }
    let plain = matches!(args.trace_format, TraceFormat::Mooncake | TraceFormat::Dynamo);
    if !plain {
        return usage("--planner-config works with --trace-format mooncake or dynamo only");
    }
    if args.report_jsonl.is_some() {
        return usage("--report-jsonl and --planner-config exclude each other");
    }
    if args.max_sim_time_seconds.is_some() {
        return usage("--max-sim-time-seconds and --planner-config exclude each other");
    }
    Ok(())
}

/// Single values.
fn check_values(args: &ReplayArgs) -> Result<(), RunError> {
    if args.router_replicas == 0 {
        return invalid("--router-replicas is 0, expected at least 1");
    }
    check_replicas(args.router_replicas).or_else(invalid)?;
    if args.replay_concurrency == Some(0) {
        return invalid("--replay-concurrency is 0, expected at least 1");
    }
    if args.trace_block_size == Some(0) && !args.trace_files.is_empty() {
        return invalid("--trace-block-size is 0, expected at least 1");
    }
    if args.model_name.as_deref() == Some("") {
        return invalid("--model-name is empty; name a model of the router policy file, or leave it out");
    }
    let speedup = args.arrival_speedup_ratio;
    if args.replay_concurrency.is_none() && (!speedup.is_finite() || speedup <= 0.0) {
        return invalid(format!(
            "--arrival-speedup-ratio is {}, expected a finite number above 0",
            number(speedup)
        ));
    }
    for (flag, value) in [
        ("--max-sim-time-seconds", args.max_sim_time_seconds),
        ("--kv-event-lag-ms", Some(args.kv_event_lag_ms)),
    ] {
        if let Some(value) = value.filter(|value| !value.is_finite() || *value < 0.0) {
            return invalid(format!(
                "{flag} is {}, expected a finite number from 0 on",
                number(value)
            ));
        }
    }
    if args
        .max_sim_time_seconds
        .is_some_and(|seconds| !(seconds * 1e3).is_finite())
    {
        return invalid("--max-sim-time-seconds is no number of ms; leave it out for a run without an end");
    }
    if args.max_sim_time_seconds.is_some() && args.replay_mode == ReplayMode::Online {
        return invalid("--max-sim-time-seconds works with --replay-mode offline only");
    }
    check_sla(args)?;
    let ratio = args.trace_shared_prefix_ratio;
    if args.trace_format == TraceFormat::AppliedComputeAgentic && !(0.0..=1.0).contains(&ratio) {
        return invalid(format!(
            "--trace-shared-prefix-ratio is {}, expected 0 to 1",
            number(ratio)
        ));
    }
    if args.agentic_lanes.is_some() && !may_be_graph(args) {
        return usage("--agentic-lanes works with --trace-format agentic_mooncake, weka and dynamo only");
    }
    let late = args.kv_event_lag_ms > 0.0;
    if late && args.router_mode == RouterMode::RoundRobin {
        return usage("--kv-event-lag-ms works with --router-mode kv_router only; a round robin looks at no cache");
    }
    if late && args.replay_mode == ReplayMode::Online {
        return usage("--kv-event-lag-ms works with --replay-mode offline only");
    }
    if is_graph(args.trace_format) && args.replay_concurrency.is_some() {
        return invalid("a trace of request graphs sets its own pace; leave out --replay-concurrency");
    }
    Ok(())
}

/// Bounds of good service; any of them may be given together, as with the flags of Dynamo 1.4.2, which takes 0, too.
fn check_sla(args: &ReplayArgs) -> Result<(), RunError> {
    let bounds = [
        ("--sla-ttft-ms", args.sla_ttft_ms),
        ("--sla-itl-ms", args.sla_itl_ms),
        ("--sla-e2e-ms", args.sla_e2e_ms),
    ];
    let takes_zero = args.semantics == Semantics::V1_4_2;
    for (flag, bound) in bounds {
        let fits = |bound: f64| bound.is_finite() && (bound > 0.0 || takes_zero && bound == 0.0);
        if let Some(bound) = bound.filter(|&bound| !fits(bound)) {
            let least = if takes_zero { "from 0 on" } else { "above 0" };
            return invalid(format!("{flag} is {}, expected ms {least}", number(bound)));
        }
    }
    Ok(())
}

/// Reads the name of a queue policy.
fn queue_policy(name: &str) -> Result<QueuePolicy, RunError> {
    serde_json::from_value(name.into())
        .map_err(|error| RunError::Invalid(format!("router_queue_policy in the engine arguments: {error}")))
}

/// The file with policy classes of the router's queue: that of the flag or the environment, else that of the configuration.
pub(super) fn policy_file(args: &ReplayArgs, router: &RouterConfig) -> Option<PathBuf> {
    let given = args.router_policy_config.clone();
    let given = given.or_else(|| std::env::var_os("DYN_ROUTER_POLICY_CONFIG").map(PathBuf::from));
    given.or_else(|| router.router_policy_config.as_ref().map(PathBuf::from))
}

/// What `--router-config` says, or the defaults.
fn router_config(args: &ReplayArgs) -> Result<RouterConfig, RunError> {
    let Some(json) = &args.router_config else {
        return Ok(RouterConfig::default());
    };
    let config = RouterConfig::parse(json)?;
    // The null of 1.6.1 means what 1.4.2 calls 0.
    let is_null = || {
        serde_json::from_str::<Value>(json).is_ok_and(|said| said.get("shared_cache_multiplier") == Some(&Value::Null))
    };
    if args.semantics == Semantics::V1_4_2 && is_null() {
        return invalid("router config: shared_cache_multiplier is null, expected a number with --semantics 1.4.2");
    }
    Ok(config)
}

/// Policy classes of the router's queue.
fn policy_profile(args: &ReplayArgs, router: &RouterConfig) -> Result<PolicyProfile, RunError> {
    let Some(path) = policy_file(args, router) else {
        return Ok(PolicyProfile::of_config(router));
    };
    let read = std::fs::read_to_string(&path);
    let text = read.map_err(|error| RunError::Invalid(format!("router policy file {}: {error}", path.display())))?;
    Ok(PolicyProfile::parse(&text, args.model_name.as_deref(), router)?)
}

/// Graphs come in forms that only one release reads.
fn check_form(args: &ReplayArgs, workload: &Workload) -> Result<(), RunError> {
    match workload {
        Workload::Graph(graph) if graph.rules != args.semantics => invalid(match graph.rules {
            Semantics::V1_4_2 => {
                "an agentic Mooncake trace without a header is the form of Dynamo 1.4.2; replay it with --semantics 1.4.2, or \
                 bring it into the form of 1.6.1 with ghostfleet trace convert"
            }
            Semantics::V1_6_1 => "this form of trace is of Dynamo 1.6.1; leave out --semantics",
        }),
        Workload::Sessions(_) | Workload::Stream { .. } if args.agentic_lanes.is_some() => {
            invalid("--agentic-lanes works with traces of agents only; the requests of this one do not belong to any")
        }
        Workload::Graph(_) | Workload::Sessions(_) | Workload::Stream { .. } => Ok(()),
    }
}

/// What this build does not do, said before any work.
fn check_reach(args: &ReplayArgs, pools: &Pools) -> Result<(), RunError> {
    let one_target = !pools.is_disaggregated() && args.num_workers.saturating_mul(pools.dp_size()) < 2;
    if args.router_mode == RouterMode::KvRouter && one_target && args.planner_config.is_none() {
        return Err(crate::replay::ReplayError::OneTarget.into());
    }
    Ok(())
}
