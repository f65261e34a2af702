//! Flags that change nothing in what is asked for.
//!
//! They are told and not refused: the peer takes them without a word, and its command lines have to run here.

use crate::cli::{ReplayArgs, RouterMode, TraceFormat, WekaTimes};
use crate::router::RouterConfig;

use super::plan;

/// A line for each flag that is said, as far as it differs from its default, and does nothing.
pub(super) fn flags(args: &ReplayArgs) -> Vec<String> {
    let trace = !args.trace_files.is_empty();
    let form = |format: TraceFormat| trace && args.trace_format == format;
    let graph = form(TraceFormat::AgenticMooncake) || form(TraceFormat::Weka);
    let said = |value: f64| value != 0.0;
    let shares = (said(args.shared_prefix_ratio), args.num_prefix_groups != 0);
    let tool_calls = form(TraceFormat::AppliedComputeAgentic);
    let of_trace = "without a trace";
    let found = [
        (
            "--trace-format",
            !trace && args.trace_format != TraceFormat::Mooncake,
            of_trace,
        ),
        (
            "--trace-block-size",
            !trace && args.trace_block_size.is_some(),
            of_trace,
        ),
        (
            "--trace-shared-prefix-ratio",
            !tool_calls && said(args.trace_shared_prefix_ratio),
            "without --trace-format applied_compute_agentic",
        ),
        (
            "--trace-num-prefix-groups",
            !tool_calls && args.trace_num_prefix_groups != 0,
            "without --trace-format applied_compute_agentic",
        ),
        (
            "--weka-nested-times",
            !form(TraceFormat::Weka) && args.weka_nested_times != WekaTimes::Auto,
            "without --trace-format weka",
        ),
        (
            "--arrival-seed",
            args.request_rate.is_none() && args.arrival_seed != 42,
            "without --request-rate",
        ),
        (
            "--inter-turn-delay-ms",
            !trace && args.turns_per_session == 1 && said(args.inter_turn_delay_ms),
            "without --turns-per-session above 1",
        ),
        (
            "--arrival-speedup-ratio",
            args.replay_concurrency.is_some() && args.arrival_speedup_ratio.total_cmp(&1.0).is_ne(),
            "with --replay-concurrency, which waits for no arrival",
        ),
        (
            "--shared-prefix-ratio",
            !trace && shares == (true, false),
            "without --num-prefix-groups",
        ),
        (
            "--num-prefix-groups",
            !trace && shares == (false, true),
            "without --shared-prefix-ratio",
        ),
        (
            "--max-sim-time-seconds",
            graph && args.max_sim_time_seconds.is_some(),
            "with a trace of request graphs, which is played to its end",
        ),
    ];
    let idle = found.into_iter().chain(of_router(args)).filter(|(_, idle, _)| *idle);
    idle.map(|(flag, _, when)| format!("{flag} does nothing {when}"))
        .collect()
}

/// Flags of the router and the planner: whether each does nothing, and when that is so.
fn of_router(args: &ReplayArgs) -> [(&'static str, bool, &'static str); 7] {
    let round_robin = args.router_mode == RouterMode::RoundRobin;
    let router = args.router_config.as_deref().map(RouterConfig::parse);
    let router = router.and_then(Result::ok).unwrap_or_default();
    let no_policy = round_robin || plan::policy_file(args, &router).is_none();
    let of_router = "without --router-mode kv_router";
    [
        (
            "--router-config",
            round_robin && args.router_config.is_some(),
            of_router,
        ),
        (
            "--router-policy-config",
            round_robin && args.router_policy_config.is_some(),
            of_router,
        ),
        ("--router-replicas", round_robin && args.router_replicas != 1, of_router),
        ("--seed", round_robin && args.seed != 0, of_router),
        ("--aic-backend", round_robin && args.aic_backend.is_some(), of_router),
        (
            "--model-name",
            no_policy && args.model_name.is_some(),
            "without a router policy file and --router-mode kv_router",
        ),
        (
            "--benchmark-granularity",
            args.benchmark_granularity != 8,
            "here: a pass of the AIC performance model is looked up as it is",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(arguments: &[&str]) -> Vec<String> {
        flags(&ReplayArgs::try_parse_from([&["replay"], arguments].concat()).unwrap())
    }

    #[test]
    fn each_flag_that_changes_nothing_is_told() {
        for (arguments, expected) in [
            (
                &["--trace-format=weka"][..],
                "--trace-format does nothing without a trace",
            ),
            (
                &["--trace-block-size=4"],
                "--trace-block-size does nothing without a trace",
            ),
            (
                &["t", "--trace-shared-prefix-ratio=0.5"],
                "--trace-shared-prefix-ratio does nothing without --trace-format applied_compute_agentic",
            ),
            (
                &["t", "--trace-num-prefix-groups=5"],
                "--trace-num-prefix-groups does nothing without --trace-format applied_compute_agentic",
            ),
            (
                &["--weka-nested-times=absolute"],
                "--weka-nested-times does nothing without --trace-format weka",
            ),
            (
                &["--arrival-seed=1"],
                "--arrival-seed does nothing without --request-rate",
            ),
            (
                &["--inter-turn-delay-ms=2"],
                "--inter-turn-delay-ms does nothing without --turns-per-session above 1",
            ),
            (
                &["--replay-concurrency=2", "--arrival-speedup-ratio=0"],
                "--arrival-speedup-ratio does nothing with --replay-concurrency",
            ),
            (
                &["--shared-prefix-ratio=0.5"],
                "--shared-prefix-ratio does nothing without --num-prefix-groups",
            ),
            (
                &["--num-prefix-groups=5"],
                "--num-prefix-groups does nothing without --shared-prefix-ratio",
            ),
            (
                &["t", "--trace-format=weka", "--max-sim-time-seconds=1"],
                "--max-sim-time-seconds does nothing with a trace of request graphs",
            ),
            (
                &["--router-config={}"],
                "--router-config does nothing without --router-mode kv_router",
            ),
            (
                &["--router-replicas=2"],
                "--router-replicas does nothing without --router-mode kv_router",
            ),
            (&["--seed=2"], "--seed does nothing without --router-mode kv_router"),
            (
                &["--model-name=m", "--router-mode=kv_router"],
                "--model-name does nothing without a router policy file",
            ),
            (
                &["--benchmark-granularity=0"],
                "--benchmark-granularity does nothing here",
            ),
        ] {
            let found = said(arguments);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(expected), "{found:?}");
        }
        let used = [
            "--router-mode=kv_router",
            "--router-config={}",
            "--router-policy-config=p",
            "--model-name=m",
            "--seed=3",
            "--shared-prefix-ratio=0.5",
            "--num-prefix-groups=2",
            "--turns-per-session=2",
            "--inter-turn-delay-ms=2",
            "--request-rate=2",
            "--arrival-seed=3",
        ];
        assert_eq!(said(&used), Vec::<String>::new());
    }
}
