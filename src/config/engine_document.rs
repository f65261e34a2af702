//! An engine document on its own: what `replay`, and comparisons with the peer, build engines from.
//!
//! It is read, completed and checked by the same rules as the settings of `serve`. As in the peer, whose form it has, the
//! engine is the peer's emulator, and its release follows from the dialect.

use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;
use super::aic::{self, AicTiming};
use super::choices::{Finite, TransferTiming};
use super::engine_args;
use super::group;
use super::layers::{Layered, Origin};
use super::parallelism;
use super::rules::{check_built_in, check_ranges, refused};
use super::settings::Settings;
use crate::engine::{EngineConfig, Fidelity, KvTransfer, Semantics};

/// A checked engine document. What it says about sockets, and about what clients see of the tokens, is accepted and
/// has no effect on an engine alone.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineDocument {
    /// One rank; its role is what `worker_type` says.
    pub engine: EngineConfig,
    /// Data-parallel ranks.
    pub data_parallel_size: u32,
    /// GPUs of all ranks of a worker: passes are as fast with any number of them.
    pub gpus: u32,
    /// From registration to readiness.
    pub startup_time: Duration,
    /// The link between prefill and decode workers.
    pub transfer: KvTransfer,
    /// Tokens that a transfer is charged for.
    pub transfer_timing: TransferTiming,
    /// Queue policy of the replay's router, by its name.
    pub router_queue_policy: Option<String>,
    /// The measured profile that it names, a file or a directory.
    pub profile: Option<PathBuf>,
    /// Passes take as long as on measured GPUs; `engine` does not know yet.
    pub aic: Option<AicTiming>,
}

impl EngineDocument {
    /// Reads a document, the JSON text itself or the path of a file, in either dialect; `flag` is what names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`] names the flag, the path of the key and what is expected.
    pub fn read(flag: &'static str, document: &str) -> Result<Self, ConfigError> {
        Self::read_over(flag, document, &Settings::default())
    }

    /// The same over settings that the document does not have, as of where measurements are.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_over(flag: &'static str, document: &str, beside: &Settings) -> Result<Self, ConfigError> {
        let named_by = Origin::DocumentFlag(flag);
        let document = engine_args::read(document, &named_by)?;
        let mut layered = Layered::default();
        let peer = Settings {
            scheduler_fidelity: Some(Fidelity::Mocker),
            semantics: Some(if document.nested {
                Semantics::V1_6_1
            } else {
                Semantics::V1_4_2
            }),
            // Unlimited unless the document says otherwise, as in the peer.
            kv_transfer_bandwidth: None,
            ..Settings::defaults()
        };
        layered.put(&peer, &Origin::Default);
        layered.put(beside, &Origin::Flag);
        layered.put_document(document, &named_by);
        let layered = layered.complete()?;
        check_ranges(&layered)?;
        let mut s = layered.settings()?;
        check_built_in(&layered, false)?;
        let aic = aic::request(&layered, &s)?;
        let gpus = parallelism::take(&layered, &mut s, aic.as_ref())?;
        group::check_together(&layered, &s)?;
        check_worker_type(&layered)?;
        let engine = group::engine(&layered, &s)?;
        Ok(Self {
            // The peer's engine never sees the markers: only clients do.
            engine: EngineConfig {
                reasoning: None,
                ..engine
            },
            data_parallel_size: s.data_parallel_size.unwrap_or(1),
            gpus,
            startup_time: group::startup_time(&layered, &s)?,
            transfer: KvTransfer {
                bytes_per_token: s.kv_bytes_per_token,
                bandwidth_gb_s: s.kv_transfer_bandwidth.map(Finite::get),
            },
            transfer_timing: s.kv_transfer_timing_mode.unwrap_or(TransferTiming::FullPrompt),
            router_queue_policy: s.router_queue_policy,
            profile: s.planner_profile_data,
            aic,
        })
    }

    /// Gives the engine the measured pass times that the document asks for, if it does.
    ///
    /// # Errors
    /// As [`AicTiming::settle`].
    pub fn settle(&mut self) -> Result<(), ConfigError> {
        if let Some(aic) = &self.aic {
            self.engine = aic.settle(self.engine.clone(), None)?;
        }
        Ok(())
    }
}

/// A document says its role in one of two ways.
///
/// # Errors
/// [`ConfigError::Value`] names the worker type.
fn check_worker_type(layered: &Layered) -> Result<(), ConfigError> {
    let is_said = |key: &str| matches!(layered.origin(key), Some(Origin::EngineArgs { .. }));
    if is_said("disaggregation_mode") && (is_said("is_prefill_worker") || is_said("is_decode_worker")) {
        let why = "stands beside is_prefill or is_decode; give one of them";
        return Err(refused(layered, "disaggregation_mode", why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineKind, SglangPolicy, TimingConfig, WorkerRole};

    fn read(document: &str) -> EngineDocument {
        EngineDocument::read("--prefill-engine-args", document).unwrap()
    }

    #[test]
    fn an_empty_document_is_the_peers_emulator_with_its_defaults() {
        let flat = read("{}");
        assert_eq!(flat.engine.semantics, Semantics::V1_4_2);
        let nested = read(r#"{"engine": {}}"#);
        assert_eq!(nested.engine.semantics, Semantics::V1_6_1);
        for document in [flat, nested] {
            let engine = &document.engine;
            assert_eq!((engine.kind, engine.fidelity), (EngineKind::Vllm, Fidelity::Mocker));
            assert_eq!((engine.num_gpu_blocks, engine.block_size), (16_384, 64));
            let limits = (engine.max_num_seqs, engine.max_num_batched_tokens);
            assert_eq!(limits, (Some(256), Some(8192)));
            assert_eq!((document.data_parallel_size, engine.role), (1, WorkerRole::Aggregated));
        }
    }

    #[test]
    fn without_a_model_parallelism_counts_gpus_and_ranks() {
        for (document, ranks, gpus) in [
            ("{}", 1, 1),
            (r#"{"dp_size": 3}"#, 3, 3),
            (r#"{"aic_tp_size": 2, "dp_size": 2, "aic_moe_ep_size": 8}"#, 2, 4),
            (r#"{"aic_attention_dp_size": 2, "aic_system": "h200_sxm"}"#, 2, 2),
            (r#"{"aic_attention_dp_size": 2, "dp_size": 2, "aic_tp_size": 3}"#, 2, 6),
            (
                r#"{"engine": {"block_size": 64}, "tensor_parallel_size": 2, "dp_size": 2}"#,
                2,
                4,
            ),
        ] {
            let read = read(document);
            let found = (read.data_parallel_size, read.engine.data_parallel_size, read.gpus);
            assert_eq!(found, (ranks, ranks, gpus), "{document}");
        }
    }

    #[test]
    fn the_defaults_follow_the_engine() {
        assert_eq!(read(r#"{"engine_type": "SGLang"}"#).engine.block_size, 1);
        let pages = read(r#"{"engine_type": "sglang", "sglang": {"page_size": 16}}"#);
        assert_eq!(pages.engine.block_size, 16);
        assert_eq!(
            read(r#"{"engine_type": "trtllm", "block_size": 0}"#).engine.block_size,
            32
        );
        let unlimited = read(r#"{"max_num_seqs": null, "max_num_batched_tokens": null}"#).engine;
        assert_eq!((unlimited.max_num_seqs, unlimited.max_num_batched_tokens), (None, None));
    }

    #[test]
    fn every_section_of_the_nested_dialect_reaches_the_engine() {
        let document = read(
            r#"{"engine": {"backend": "sglang", "block_size": 16, "worker_type": "prefill",
                "sglang": {"schedule_policy": "lpm", "chunked_prefill_size": 64}, "kv_bytes_per_token": 1000,
                "kv_transfer_bandwidth": 10.0, "kv_transfer_timing_mode": "destination_missing",
                "prefill_decode_interval": 3, "timing_model": {"type": "fixed", "prefill_ms": 2.0, "decode_ms": 1.0}},
                "dynamo": {"bootstrap_port": 7, "router_queue_policy": "fcfs", "reasoning": {"start_thinking_token_id": 5,
                "end_thinking_token_id": 6, "thinking_ratio": 0.5}}, "dp_size": 2, "startup_time": 1.5}"#,
        );
        let sglang = document.engine.sglang;
        assert_eq!(
            (
                sglang.schedule_policy,
                sglang.chunked_prefill_size,
                sglang.prefill_decode_interval
            ),
            (SglangPolicy::Lpm, Some(64), 3)
        );
        let fixed = TimingConfig::Fixed {
            prefill_ms: 2.0,
            decode_ms: 1.0,
        };
        assert_eq!(
            (document.engine.timing, document.engine.role),
            (fixed, WorkerRole::Prefill)
        );
        let link = (document.transfer.bytes_per_token, document.transfer.bandwidth_gb_s);
        assert_eq!(link, (Some(1000), Some(10.0)));
        assert_eq!(document.transfer_timing, TransferTiming::DestinationMissing);
        assert_eq!(
            (document.data_parallel_size, document.startup_time),
            (2, Duration::from_millis(1500))
        );
        assert_eq!(document.router_queue_policy.as_deref(), Some("fcfs"));
    }

    /// Without the evaluator there is no model, and without measurements there is nothing to evaluate.
    const NO_AIC: &str = if cfg!(feature = "aic") {
        "give their directory as --aic-systems-path"
    } else {
        "this build has no AIC support"
    };

    #[test]
    fn refusals_name_the_flag_and_the_key() {
        for (document, words) in [
            (r#"{"blocks": 1}"#, ["unknown key", "`blocks`"]),
            (
                r#"{"engine": {"block_size": 0}}"#,
                ["`engine.block_size` 0", "at least 1"],
            ),
            (r#"{"block_size": 1}"#, ["`block_size` 1", "at least 2"]),
            (r#"{"max_num_seqs": 0}"#, ["`max_num_seqs` 0", "at least 1"]),
            (r#"{"speedup_ratio": -1}"#, ["`speedup_ratio` -1", "0 or greater"]),
            (r#"{"aic_nextn": 6}"#, ["`aic_nextn` 6", "1..=5"]),
            (
                r#"{"aic_nextn": 1, "aic_nextn_accept_rates": "a"}"#,
                ["`aic_nextn_accept_rates` a", "comma separated"],
            ),
            (r#"{"dp_size": 0}"#, ["`dp_size` 0", "at least 1"]),
            (r#"{"startup_time": -1}"#, ["`startup_time` -1", "0 or greater"]),
            (
                r#"{"engine": {"timing_model": {"type": "fixed", "prefill_ms": -1, "decode_ms": 1}}}"#,
                ["`engine.timing_model`", "0 or greater"],
            ),
            (r#"{"aic_backend": "vllm"}"#, ["`aic_backend` vllm", NO_AIC]),
            (
                r#"{"engine": {"timing_model": {"type": "external", "provider": "aic", "config": {"tp": 2}}}}"#,
                ["`engine.timing_model`", NO_AIC],
            ),
            (r#"{"aic_tp_size": 0}"#, ["`aic_tp_size` 0", "at least 1"]),
            (
                r#"{"engine": {}, "tensor_parallel_size": 0}"#,
                ["`tensor_parallel_size` 0", "at least 1"],
            ),
            (
                r#"{"aic_attention_dp_size": 2, "dp_size": 3}"#,
                ["`aic_attention_dp_size` 2", "dp_size, which is 3"],
            ),
            (
                r#"{"worker_type": "aggregated", "is_prefill": false}"#,
                ["`worker_type`", "give one of them"],
            ),
            ("[1]", ["--prefill-engine-args", "absent"]),
        ] {
            let error = EngineDocument::read("--prefill-engine-args", document)
                .unwrap_err()
                .to_string();
            let words = if document == "[1]" { &words[..1] } else { &words[..] };
            assert!(
                error.starts_with("--prefill-engine-args") && words.iter().all(|word| error.contains(word)),
                "{document}: {error}"
            );
        }
    }
}
