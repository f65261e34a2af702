//! Values, defaults and messages of both dialects.

use super::*;
use crate::engine::{EngineKind, Fidelity, Semantics, SglangPolicy, TimingConfig};

fn flat(json: &str) -> EngineArgs {
    EngineArgs::parse_flat(json).unwrap()
}

fn refusal(json: &str) -> String {
    EngineArgs::parse(json).unwrap_err().to_string()
}

#[test]
fn empty_documents_are_the_defaults() {
    let args = flat("{}");
    assert_eq!(args.engine.semantics, Semantics::V1_4_2);
    let nested = EngineArgs::parse_nested("{}").unwrap();
    assert_eq!(nested.engine.semantics, Semantics::V1_6_1);
    for args in [args, nested] {
        assert_eq!(
            (args.engine.kind, args.engine.fidelity),
            (EngineKind::Vllm, Fidelity::Mocker)
        );
        assert_eq!((args.engine.num_gpu_blocks, args.engine.block_size), (16_384, 64));
        assert_eq!(
            (args.engine.max_num_seqs, args.engine.max_num_batched_tokens),
            (Some(256), Some(8192))
        );
        assert_eq!((args.dp_size, args.handoff_session_timeout_ms), (1, 300_000));
        assert!(!args.num_gpu_blocks_given);
    }
}

#[test]
fn block_sizes_follow_the_engine() {
    assert_eq!(flat(r#"{"engine_type":"SGLang"}"#).engine.block_size, 1);
    assert_eq!(
        flat(r#"{"engine_type":"sglang","sglang":{"page_size":16}}"#)
            .engine
            .block_size,
        16
    );
    assert_eq!(flat(r#"{"engine_type":"trtllm","block_size":0}"#).engine.block_size, 32);
    let mismatch = refusal(r#"{"engine_type":"sglang","block_size":8,"sglang":{"page_size":16}}"#);
    assert!(
        mismatch.contains("requires block_size and sglang.page_size to match"),
        "{mismatch}"
    );
}

#[test]
fn null_is_no_limit_where_it_may_be_and_an_error_elsewhere() {
    let args = flat(r#"{"max_num_seqs":null,"max_num_batched_tokens":null}"#);
    assert_eq!(
        (args.engine.max_num_seqs, args.engine.max_num_batched_tokens),
        (None, None)
    );
    let null = refusal(r#"{"engine":{"num_gpu_blocks":null}}"#);
    assert!(
        null.contains("engine.num_gpu_blocks") && null.contains("must not be null"),
        "{null}"
    );
}

#[test]
fn the_nested_dialect_reads_every_section() {
    let args = EngineArgs::parse(
        r#"{"engine":{"backend":"sglang","block_size":16,"sglang":{"schedule_policy":"lpm","chunked_prefill_size":64},
            "kv_bytes_per_token":1000,"kv_transfer_bandwidth":10.0,"kv_transfer_timing_mode":"destination_missing",
            "prefill_decode_interval":3,"timing_model":{"type":"fixed","prefill_ms":2.0,"decode_ms":1.0}},
            "dynamo":{"enable_local_indexer":true,"reasoning":{"start_thinking_token_id":5,"end_thinking_token_id":6,
            "thinking_ratio":0.5}},"dp_size":2,"startup_time":1.5}"#,
    )
    .unwrap();
    assert_eq!(args.engine.sglang.schedule_policy, SglangPolicy::Lpm);
    assert_eq!(
        (
            args.engine.sglang.chunked_prefill_size,
            args.engine.sglang.prefill_decode_interval
        ),
        (Some(64), 3)
    );
    assert_eq!(
        args.engine.timing,
        TimingConfig::Fixed {
            prefill_ms: 2.0,
            decode_ms: 1.0
        }
    );
    assert_eq!(
        (args.transfer.bytes_per_token, args.transfer.timing),
        (Some(1000), TransferTiming::DestinationMissing)
    );
    assert_eq!(
        (args.dp_size, args.startup_time_s, args.enable_local_indexer),
        (2, Some(1.5), true)
    );
    assert!(args.reasoning.is_some());
}

#[test]
fn timing_sources_are_told_apart() {
    let profile = flat(r#"{"planner_profile_data":"perf.npz"}"#).timing;
    assert_eq!(profile, TimingSource::Profile("perf.npz".into()));
    let TimingSource::Aic(identity) = flat(r#"{"aic_backend":"vllm","aic_tp_size":2}"#).timing else {
        panic!("a backend turns AIC on")
    };
    assert_eq!(
        (identity["backend"].as_str(), identity["tp_size"].as_u64()),
        (Some("vllm"), Some(2))
    );
    let external =
        r#"{"engine":{"timing_model":{"type":"external","provider":"dynamo_profile","config":{"path":"d"}}}}"#;
    assert_eq!(
        EngineArgs::parse(external).unwrap().timing,
        TimingSource::Profile("d".into())
    );
}

#[test]
fn refusals_name_the_key() {
    let cases = [
        (r#"{"engine_type":"x"}"#, "must be 'vllm', 'sglang', or 'trtllm'"),
        (r#"{"blocks":1}"#, "unknown field `blocks`"),
        (r#"{"engine":{"block_sise":1}}"#, "engine.block_sise"),
        ("{} trailing", "trailing characters"),
        (r#"{"engine":{"block_size":0}}"#, "block_size must be positive"),
        (r#"{"block_size":1}"#, "block_size must be at least two"),
        (r#"{"max_num_seqs":0}"#, "max_num_seqs must be positive"),
        (
            r#"{"speedup_ratio":-1}"#,
            "speedup_ratio must be finite and non-negative",
        ),
        (r#"{"aic_nextn":6}"#, "aic_nextn must be in 1..=5, got 6"),
        (
            r#"{"aic_nextn":1,"decode_speedup_ratio":2}"#,
            "aic_nextn requires decode_speedup_ratio=1.0",
        ),
        (
            r#"{"aic_nextn_accept_rates":"1"}"#,
            "aic_nextn_accept_rates requires aic_nextn",
        ),
        (
            r#"{"aic_nextn":1,"aic_nextn_accept_rates":"a"}"#,
            "comma-separated list of numbers",
        ),
        (r#"{"num_g3_blocks":5}"#, "num_g3_blocks requires num_g2_blocks"),
        (r#"{"is_prefill":true,"is_decode":true}"#, "cannot both be true"),
        (r#"{"dp_size":0}"#, "dp_size must be positive"),
        (r#"{"startup_time":-1}"#, "startup_time must be finite and non-negative"),
        (
            r#"{"engine":{"backend":"sglang","enable_chunked_prefill":false}}"#,
            "enable_chunked_prefill=false is not supported for backend=sglang",
        ),
        (
            r#"{"engine":{"backend":"sglang","block_size":16,"sglang":{"chunked_prefill_size":40}}}"#,
            "sglang.chunked_prefill_size must be divisible by block_size",
        ),
        (
            r#"{"engine":{"timing_model":{"type":"external","provider":"zz"}}}"#,
            "unsupported external timing provider \"zz\"",
        ),
        (r#"{"engine":{"state_cache":{}}}"#, "engine.state_cache is not modelled"),
        ("[1]", "invalid type"),
    ];
    for (json, expected) in cases {
        let text = refusal(json);
        assert!(text.contains(expected), "{json}: {text}");
    }
}
