//! Every setting of `serve`, once: the same struct is the command line, the TOML file, one `[[group]]` table of it, the
//! environment's contribution and the defaults. Absent means "not said here"; [`super::layers`] decides who wins.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::choices::{
    DisaggregationMode, DiscoveryBackend, DiskScope, EventPlane, Finite, HostScope, Limit, NativeMode, NatsConnections,
    Ports, Reasoning, RequestPlane, ResponsePlane, SchedulingPolicy, StartingStatus, TimingModel, TransferTiming, json,
    ports, table_or_json, word,
};
use super::labels::Labels;
use crate::engine::{
    CapacityPolicy, EngineKind, EvictionBackend, Fidelity, G1Backend, PreemptionMode, RadixEviction, Semantics,
    SglangPolicy,
};
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::event_plane::native::Encoding;
use crate::transport::request_plane::Codec;

/// All settings. Field names are the TOML keys; with dashes they are the flags.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Model: a local directory, or a Hugging Face id such as Qwen/Qwen3-0.6B (only config and tokenizer files are
    /// downloaded).
    #[arg(long, value_name = "DIR|ID")]
    pub model_path: Option<String>,

    /// Name that clients ask for [default: the model path as given].
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,

    /// Endpoint to serve, as `dyn://namespace.component.endpoint` [default: component backend, endpoint generate].
    #[arg(long, value_name = "DYN")]
    pub endpoint: Option<String>,

    /// Namespace of the default endpoint.
    #[arg(skip)]
    pub namespace: Option<String>,

    /// Workers in this process.
    #[arg(long, value_name = "N")]
    pub num_workers: Option<u32>,

    /// Data-parallel ranks per worker, each with its own scheduler and KV pool.
    #[arg(long, value_name = "N")]
    pub data_parallel_size: Option<u32>,

    /// Engine settings as JSON, inline or in a file, in the form of Dynamo 1.4.2 (flat) or 1.6.1 (nested). Flags given
    /// beside it win over it.
    #[arg(long, value_name = "JSON|FILE")]
    pub extra_engine_args: Option<String>,

    /// Whose scheduler a worker has.
    #[arg(long, value_name = "ENGINE", value_parser = word::<EngineKind>)]
    pub engine_type: Option<EngineKind>,

    /// Follow the real engine or Dynamo's emulator of it (mocker) where they differ.
    #[arg(long, value_name = "WHOSE", value_parser = word::<Fidelity>)]
    pub scheduler_fidelity: Option<Fidelity>,

    /// Release of Dynamo whose timing rules the emulated scheduler follows.
    #[arg(long, value_name = "RELEASE", value_parser = word::<Semantics>)]
    pub semantics: Option<Semantics>,

    /// KV cache blocks per rank.
    #[arg(long = "num-gpu-blocks-override", value_name = "BLOCKS")]
    pub num_gpu_blocks_override: Option<u32>,

    /// Tokens per KV block [default: 64 for vllm, 1 or the page size for sglang, 32 for trtllm].
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<u32>,

    /// Longest sequence, prompt and answer, in tokens [default: the model's context length].
    #[arg(long, value_name = "TOKENS")]
    pub max_model_len: Option<u32>,

    /// Most requests in the running batch of a rank, or `unlimited`.
    #[arg(long, value_name = "N")]
    pub max_num_seqs: Option<Limit>,

    /// Token budget of one forward pass, or `unlimited`.
    #[arg(long, value_name = "TOKENS")]
    pub max_num_batched_tokens: Option<Limit>,

    /// Reuse the KV blocks of equal prefixes; --no-enable-prefix-caching turns it off.
    #[arg(
        long,
        num_args = 0,
        default_missing_value = "true",
        overrides_with = "no_enable_prefix_caching"
    )]
    pub enable_prefix_caching: Option<bool>,

    /// Turn prefix caching off.
    #[arg(long, hide = true, overrides_with = "enable_prefix_caching")]
    #[serde(skip)]
    pub no_enable_prefix_caching: bool,

    /// Compute long prompts over several passes; --no-enable-chunked-prefill turns it off.
    #[arg(
        long,
        num_args = 0,
        default_missing_value = "true",
        overrides_with = "no_enable_chunked_prefill"
    )]
    pub enable_chunked_prefill: Option<bool>,

    /// Turn chunked prefill off.
    #[arg(long, hide = true, overrides_with = "enable_chunked_prefill")]
    #[serde(skip)]
    pub no_enable_chunked_prefill: bool,

    /// Which running request gives way when blocks run out: the last admitted (lifo) or the first (fifo).
    #[arg(long, value_name = "MODE", value_parser = word::<PreemptionMode>)]
    pub preemption_mode: Option<PreemptionMode>,

    /// Which waiting request is admitted first.
    #[arg(long, value_name = "POLICY")]
    pub scheduling_policy: Option<SchedulingPolicy>,

    /// Share of the KV blocks that an admission leaves free while something runs, from 0 up to 1.
    #[arg(long, value_name = "SHARE")]
    pub watermark: Option<Finite>,

    /// Most prompt tokens of one request per pass while others are in the system; 0: no limit.
    #[arg(long, value_name = "TOKENS")]
    pub long_prefill_token_threshold: Option<u32>,

    /// That threshold is never below an equal share of --max-num-batched-tokens for each request.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub long_prefill_token_threshold_adaptive: Option<bool>,

    /// Admit a request only if all its known tokens fit in the cache, not just its first chunk; --no-scheduler-reserve-full-isl turns it off.
    #[arg(
        long,
        num_args = 0,
        default_missing_value = "true",
        overrides_with = "no_scheduler_reserve_full_isl"
    )]
    pub scheduler_reserve_full_isl: Option<bool>,

    /// The opposite.
    #[arg(long, hide = true, overrides_with = "scheduler_reserve_full_isl")]
    #[serde(skip)]
    pub no_scheduler_reserve_full_isl: bool,

    /// In a data-parallel group prefills start in every n-th pass only while others decode.
    #[arg(long, value_name = "N")]
    pub prefill_schedule_interval: Option<u32>,

    /// Order of SGLang's waiting queue (routing-key: by the header X-SMG-Routing-Key of requests to the HTTP face).
    #[arg(long, value_name = "POLICY", value_parser = word::<SglangPolicy>)]
    pub sglang_schedule_policy: Option<SglangPolicy>,

    /// SGLang's page size; the same as --block-size.
    #[arg(long, value_name = "TOKENS")]
    pub sglang_page_size: Option<u32>,

    /// Prompt tokens per SGLang prefill pass [default: 16384].
    #[arg(long, value_name = "TOKENS")]
    pub sglang_max_prefill_tokens: Option<u32>,

    /// Prompt tokens of one chunk in SGLang; whole pages [default: 8192].
    #[arg(long, value_name = "TOKENS")]
    pub sglang_chunked_prefill_size: Option<u32>,

    /// Most output tokens that an SGLang admission sets aside per request [default: 4096].
    #[arg(long, value_name = "TOKENS")]
    pub sglang_clip_max_new_tokens: Option<u32>,

    /// How much of the outputs still to come an SGLang admission sets aside [default: 1].
    #[arg(long, value_name = "X")]
    pub sglang_schedule_conservativeness: Option<Finite>,

    /// Which unused leaf of SGLang's radix cache leaves first.
    #[arg(long, value_name = "POLICY", value_parser = word::<RadixEviction>)]
    pub sglang_radix_eviction_policy: Option<RadixEviction>,

    /// With tlru: tokens that a conversation's next prompt can compute in time.
    #[arg(long, value_name = "TOKENS")]
    pub sglang_tlru_threshold: Option<u32>,

    /// With tlru: tokens that the next prompt is expected to bring [default: 0].
    #[arg(long, value_name = "TOKENS")]
    pub sglang_tlru_next_prompt_estimate: Option<u32>,

    /// Decode passes between two SGLang prefill passes at least.
    #[arg(long, value_name = "N")]
    pub sglang_prefill_decode_interval: Option<u32>,

    /// When TensorRT-LLM admits a request.
    #[arg(long, value_name = "POLICY", value_parser = word::<CapacityPolicy>)]
    pub trtllm_capacity_scheduler_policy: Option<CapacityPolicy>,

    /// KV pool and what leaves it first: native (physical copies, least recently used), or the pool of logical blocks
    /// with lineage (leaves, longest inactive), `lineage_fifo`, lru or `multi_lru` (by use counts) [default: native].
    #[arg(long, value_name = "BACKEND", value_parser = word::<EvictionBackend>)]
    pub eviction_backend: Option<EvictionBackend>,

    /// Name of that choice in Dynamo 1.4.2: native, or kvbm (lineage, if --eviction-backend says nothing else).
    #[arg(long, value_name = "POOL", value_parser = word::<G1Backend>)]
    pub g1_backend: Option<G1Backend>,

    /// How long passes take, as JSON: `{"type":"polynomial"}`, `{"type":"fixed","prefill_ms":X,"decode_ms":Y}` or an external
    /// provider.
    #[arg(long, value_name = "JSON", value_parser = json::<TimingModel>)]
    #[serde(default, deserialize_with = "table_or_json")]
    pub timing_model: Option<TimingModel>,

    /// Log every allocation and eviction of KV blocks.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub kv_cache_trace: Option<bool>,

    /// Divide every modelled duration by this; 0: no modelled delay.
    #[arg(long, value_name = "X")]
    pub speedup_ratio: Option<Finite>,

    /// Divide modelled decode durations by this too; 0: no modelled decode delay.
    #[arg(long, value_name = "X")]
    pub decode_speedup_ratio: Option<Finite>,

    /// Measured durations instead of the built-in ones: an NPZ file, or a directory of profiler results.
    #[arg(long, value_name = "FILE|DIR")]
    pub planner_profile_data: Option<PathBuf>,

    /// Time that every forward pass takes besides its modelled work, ms (divided by --speedup-ratio too).
    #[arg(long, value_name = "MS")]
    pub step_overhead_ms: Option<Finite>,

    /// Most extra time of a forward pass, ms; each draws its own from 0 up to this, by the seed.
    #[arg(long, value_name = "MS")]
    pub step_jitter_ms: Option<Finite>,

    /// Draft tokens per pass of speculative decoding, 1 to 5.
    #[arg(long, value_name = "N", alias = "ais-nextn")]
    pub aic_nextn: Option<u32>,

    /// Chance that each draft token is accepted after those before it, comma separated [default: 0.85,0.3,0,0,0].
    #[arg(long, value_name = "RATES", alias = "ais-nextn-accept-rates")]
    pub aic_nextn_accept_rates: Option<String>,

    /// Seed of the acceptance draws [default: 42].
    #[arg(long, value_name = "SEED", alias = "ais-mtp-seed")]
    pub aic_mtp_seed: Option<u64>,

    /// Passes as long as on measured GPUs, from the AIC (AIS) performance model; needs --aic-systems-path and a build with
    /// the feature `aic`.
    #[arg(long, num_args = 0, default_missing_value = "true", alias = "ais-perf-model")]
    pub aic_perf_model: Option<bool>,

    /// Directory of the measurements, with a YAML file per GPU system: `systems` of the wheel aiconfigurator-core 0.12.0.
    #[arg(long, value_name = "DIR", alias = "ais-systems-path")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aic_systems_path: Option<PathBuf>,

    /// Directory of configs of known models, for model names that are no directories [default: `model_configs` beside the
    /// measurements].
    #[arg(long, value_name = "DIR", alias = "ais-model-configs")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aic_model_configs: Option<PathBuf>,

    /// Where pass times come from: silicon (measurements; a shape without is an error), hybrid (estimates for those),
    /// empirical (estimates) or sol (the GPU's limits, without measurements) [default: silicon].
    #[arg(long, value_name = "MODE", alias = "ais-database-mode")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aic_database_mode: Option<String>,

    /// Plan of operations as JSON, made elsewhere, instead of one made from the model's config.json.
    #[arg(long, value_name = "FILE", alias = "ais-plan")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aic_plan: Option<PathBuf>,

    /// Configuration of the AIS estimator: JSON, or the path of a JSON or YAML file; turns the model on, instead of the flat
    /// flags.
    #[arg(long, value_name = "JSON|FILE", alias = "aic-perf-config")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ais_perf_config: Option<String>,

    /// GPU system of the AIC model, a YAML file of the measurements [default: `h200_sxm`].
    #[arg(long, value_name = "NAME", alias = "ais-system")]
    pub aic_system: Option<String>,

    /// Engine whose kernels were measured: vllm, sglang or trtllm [default: --engine-type].
    #[arg(long, value_name = "NAME", alias = "ais-backend")]
    pub aic_backend: Option<String>,

    /// Version of the measurements: current, previous or a number [default: current].
    #[arg(long, value_name = "VERSION", alias = "ais-backend-version")]
    pub aic_backend_version: Option<String>,

    /// Model whose passes are timed: a directory with config.json, or a name that --aic-model-configs has [default:
    /// --model-path].
    #[arg(long, value_name = "ID", alias = "ais-model-path")]
    pub aic_model_path: Option<String>,

    /// Tensor-parallel size of the AIC model.
    #[arg(long, value_name = "N", alias = "ais-tp-size")]
    pub aic_tp_size: Option<u32>,

    /// Tensor-parallel size of its experts.
    #[arg(long, value_name = "N", alias = "ais-moe-tp-size")]
    pub aic_moe_tp_size: Option<u32>,

    /// Expert-parallel size.
    #[arg(long, value_name = "N", alias = "ais-moe-ep-size")]
    pub aic_moe_ep_size: Option<u32>,

    /// Data-parallel size of its attention.
    #[arg(long, value_name = "N", alias = "ais-attention-dp-size")]
    pub aic_attention_dp_size: Option<u32>,

    /// Data type of its matrix products.
    #[arg(long, value_name = "TYPE", alias = "ais-gemm-dtype")]
    pub aic_gemm_dtype: Option<String>,

    /// Data type of its experts.
    #[arg(long, value_name = "TYPE", alias = "ais-moe-dtype")]
    pub aic_moe_dtype: Option<String>,

    /// Data type of its attention.
    #[arg(long, value_name = "TYPE", alias = "ais-fmha-dtype")]
    pub aic_fmha_dtype: Option<String>,

    /// Data type of its KV cache.
    #[arg(long, value_name = "TYPE", alias = "ais-kv-cache-dtype")]
    pub aic_kv_cache_dtype: Option<String>,

    /// Data type of its communication.
    #[arg(long, value_name = "TYPE", alias = "ais-comm-dtype")]
    pub aic_comm_dtype: Option<String>,

    /// Share of the memory that vLLM may use, for the estimate of its blocks.
    #[arg(long, value_name = "SHARE")]
    pub gpu_memory_utilization: Option<Finite>,

    /// Share of the memory that SGLang sets aside, for the estimate of its blocks.
    #[arg(long, value_name = "SHARE")]
    pub mem_fraction_static: Option<Finite>,

    /// Share of the free memory that TensorRT-LLM takes, for the estimate of its blocks.
    #[arg(long, value_name = "SHARE")]
    pub free_gpu_memory_fraction: Option<Finite>,

    /// Part of the work that the workers do.
    #[arg(long, value_name = "MODE")]
    pub disaggregation_mode: Option<DisaggregationMode>,

    /// Same as --disaggregation-mode prefill.
    #[arg(long, num_args = 0, default_missing_value = "true", hide = true)]
    pub is_prefill_worker: Option<bool>,

    /// Same as --disaggregation-mode decode.
    #[arg(long, num_args = 0, default_missing_value = "true", hide = true)]
    pub is_decode_worker: Option<bool>,

    /// Ports of the prefill workers' rendezvous, one per worker, comma separated; 0: any free one.
    #[arg(long, value_name = "PORTS")]
    #[serde(default, deserialize_with = "ports")]
    pub bootstrap_ports: Option<String>,

    /// How long one side of a handoff waits for the other to come, ms [default: 30000].
    #[arg(long, value_name = "MS")]
    pub handoff_pairing_timeout_ms: Option<u64>,

    /// Longest handoff between two workers that have met, ms, the modelled transfer not counted.
    #[arg(long, value_name = "MS")]
    pub handoff_session_timeout_ms: Option<u64>,

    /// Decode workers compute prompts that come without their KV, at the price of a prefill, and publish their cache, as
    /// real engines do; by default such a prompt costs nothing and nothing is published.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_local_prefill: Option<bool>,

    /// GB/s (1e9 bytes) of a KV transfer; 0: no delay.
    #[arg(long, value_name = "GBPS")]
    pub kv_transfer_bandwidth: Option<Finite>,

    /// Tokens that a KV transfer is charged for.
    #[arg(long, value_name = "MODE")]
    pub kv_transfer_timing_mode: Option<TransferTiming>,

    /// Data type of the KV cache, for the bytes of a transfer.
    #[arg(long, value_name = "TYPE")]
    pub kv_cache_dtype: Option<String>,

    /// Bytes of KV cache per token.
    #[arg(long, value_name = "BYTES")]
    pub kv_bytes_per_token: Option<u64>,

    /// Blocks of host memory for what prompts compute, as in Dynamo 1.6.1; 0: none.
    #[arg(long, value_name = "BLOCKS")]
    pub num_host_blocks: Option<u32>,

    /// GB/s from GPU to host with --num-host-blocks; 0: instant [default: 32].
    #[arg(long, value_name = "GBPS")]
    pub host_offload_d2h_bandwidth_gbps: Option<Finite>,

    /// GB/s from host to GPU with --num-host-blocks; 0: instant [default: 32].
    #[arg(long, value_name = "GBPS")]
    pub host_offload_h2d_bandwidth_gbps: Option<Finite>,

    /// Time before the first byte of a transfer to or from the host with --num-host-blocks, ms [default: 0].
    #[arg(long, value_name = "MS")]
    pub host_offload_latency_ms: Option<Finite>,

    /// Whose host memory --num-host-blocks is [default: `dp_rank_local`]. A `cluster_shared` pool holds that many blocks for all
    /// workers of this process that say so; it needs --kv-layout-id.
    #[arg(long, value_name = "SCOPE")]
    pub host_offload_scope: Option<HostScope>,

    /// GB/s of all workers together from GPU to a `cluster_shared` host; 0: without limit [default: 80].
    #[arg(long, value_name = "GBPS")]
    pub host_offload_shared_d2h_bandwidth_gbps: Option<Finite>,

    /// GB/s of all workers together from a `cluster_shared` host to GPU; 0: without limit [default: 80].
    #[arg(long, value_name = "GBPS")]
    pub host_offload_shared_h2d_bandwidth_gbps: Option<Finite>,

    /// Name of the layout in which KV is stored in a `cluster_shared` host. Workers that share it must agree on it.
    #[arg(long, value_name = "NAME")]
    pub kv_layout_id: Option<String>,

    /// Bytes of one token in host memory and below, if other than those of a transfer between workers.
    #[arg(long, value_name = "BYTES")]
    pub kv_cache_bytes_per_token: Option<u64>,

    /// Blocks of host memory for what the GPU cache evicts, as in the source of Dynamo 1.4.2 (its wheel takes the flag and only
    /// changes the pool); 0: none.
    #[arg(long, value_name = "BLOCKS")]
    pub num_g2_blocks: Option<u32>,

    /// Blocks of disk below host memory; 0: none.
    #[arg(long, value_name = "BLOCKS")]
    pub num_g3_blocks: Option<u32>,

    /// Time before the first byte of a transfer to or from the disk, ms [default: 0.1 with --num-host-blocks, else 0].
    #[arg(long, value_name = "MS")]
    pub g3_latency_ms: Option<Finite>,

    /// Whose disk --num-g3-blocks below --num-host-blocks is [default: `worker_local`]. A `cluster_shared` disk holds that many
    /// blocks for all workers of this process that say so.
    #[arg(long, value_name = "SCOPE")]
    pub g3_scope: Option<DiskScope>,

    /// GB/s of all workers together from a `cluster_shared` disk to their hosts; 0: without limit [default: 80].
    #[arg(long, value_name = "GBPS")]
    pub g3_shared_read_bandwidth_gbps: Option<Finite>,

    /// GB/s of all workers together to a `cluster_shared` disk; 0: without limit [default: 80].
    #[arg(long, value_name = "GBPS")]
    pub g3_shared_write_bandwidth_gbps: Option<Finite>,

    /// Keep blocks in object storage too.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub enable_g4_storage: Option<bool>,

    /// Blocks per offload batch; 0: the default [default: 32].
    #[arg(long, value_name = "BLOCKS")]
    pub offload_batch_size: Option<u32>,

    /// GB/s from GPU to host; 0: instant.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_g1_to_g2_gbps: Option<Finite>,

    /// GB/s from host to GPU; 0: instant.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_g2_to_g1_gbps: Option<Finite>,

    /// GB/s from host to disk; 0: instant.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_g2_to_g3_gbps: Option<Finite>,

    /// GB/s from disk to host; 0: instant.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_g3_to_g2_gbps: Option<Finite>,

    /// GB/s from host to object storage; 0: instant.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_g2_to_g4_gbps: Option<Finite>,

    /// GB/s from object storage to host; 0: instant.
    #[arg(long, value_name = "GBPS")]
    pub bandwidth_g4_to_g2_gbps: Option<Finite>,

    /// Publish each rank's KV events as vLLM does, too: one first port per worker, comma separated; rank r uses port + r, and 0
    /// is any free port.
    #[arg(long, value_name = "PORTS")]
    #[serde(default, deserialize_with = "ports")]
    pub zmq_kv_events_ports: Option<String>,

    /// Serve the newest native event batches to readers that missed some: one first port per worker, comma separated. Kept
    /// are 10000 batches of each rank, as in vLLM, but no more than 16 MiB of them.
    #[arg(long, value_name = "PORTS")]
    #[serde(default, deserialize_with = "ports")]
    pub zmq_replay_ports: Option<String>,

    /// Let each worker answer queries about its own cache.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub enable_local_indexer: Option<bool>,

    /// A span of reasoning at the start of each answer, as JSON:
    /// `{"start_thinking_token_id":A,"end_thinking_token_id":B,"thinking_ratio":X}`.
    #[arg(long, value_name = "JSON", value_parser = json::<Reasoning>)]
    #[serde(default, deserialize_with = "table_or_json")]
    pub reasoning: Option<Reasoning>,

    /// Recorded answers, JSON lines of `output_length`, `output_token_ids` and `request_id` (or `session_id`). A request
    /// with the annotation `output_replay_id:<name>` gets exactly the tokens of that answer.
    #[arg(long, value_name = "FILE")]
    pub response_replay_trace_path: Option<PathBuf>,

    /// LoRA adapters to serve beside the model, as `NAME[=PATH]`, comma separated; paths are told and never read.
    #[arg(long, value_name = "NAMES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora_modules: Option<String>,

    /// Queue policy of a replay's router (engine JSON only).
    #[arg(skip)]
    pub router_queue_policy: Option<String>,

    /// Seconds between registration and the first pass of a worker; requests wait meanwhile.
    #[arg(long, value_name = "S")]
    pub startup_time: Option<Finite>,

    /// Seconds between the launches of two workers; -1: by fleet size (0 up to 32 workers, 0.1 up to 128, else 0.2).
    /// Staggered launches pause 2 s after every 32 workers.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub stagger_delay: Option<Finite>,

    /// Where workers announce themselves.
    #[arg(long, value_name = "BACKEND")]
    pub discovery_backend: Option<DiscoveryBackend>,

    /// How requests travel.
    #[arg(long, value_name = "PLANE")]
    pub request_plane: Option<RequestPlane>,

    /// How answers travel; only tcp, which every frontend understands, is built in.
    #[arg(long, value_name = "PLANE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_plane: Option<ResponsePlane>,

    /// How KV events and load figures travel.
    #[arg(long, value_name = "PLANE")]
    pub event_plane: Option<EventPlane>,

    /// Directory of the file backend [default: `dynamo_store_kv` in the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub file_kv: Option<PathBuf>,

    /// etcd servers, comma separated.
    #[arg(long, value_name = "URLS")]
    pub etcd_endpoints: Option<String>,

    /// Seconds after which a silent worker's records disappear from etcd.
    #[arg(long, value_name = "S")]
    pub lease_ttl: Option<u32>,

    /// Seconds to keep trying to reach etcd at start.
    #[arg(long, value_name = "S")]
    pub etcd_connect_timeout: Option<Finite>,

    /// Request listeners: one for the process, or one per worker.
    #[arg(long, value_name = "PORTS")]
    pub ports: Option<Ports>,

    /// Address of the request listeners: an IP or a network interface; 0.0.0.0 listens everywhere and advertises the
    /// routed address.
    #[arg(long, value_name = "HOST")]
    pub tcp_host: Option<String>,

    /// Port of the request listener; 0: any free one. Worker i listens on port + i with --ports per-worker.
    #[arg(long, value_name = "PORT")]
    pub tcp_port: Option<u16>,

    /// Address of the event publishers: an IP or a network interface.
    #[arg(long, value_name = "HOST")]
    pub event_host: Option<String>,

    /// Longest request frame, bytes.
    #[arg(long, value_name = "BYTES")]
    pub max_message_size: Option<u64>,

    /// Most requests that a worker takes at a time; further ones are refused as overload.
    #[arg(long, value_name = "N")]
    pub max_open_requests: Option<u32>,

    /// Give each worker an HTTP port (OpenAI paths), counting up from this one [default: no HTTP].
    #[arg(long, value_name = "PORT")]
    pub http_port: Option<u16>,

    /// Address of the HTTP ports.
    #[arg(long, value_name = "HOST")]
    pub http_host: Option<String>,

    /// Port of the admin server: snapshots, faults, commands, for `ghostfleet ctl`; 0: any free one [default: none].
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_port: Option<u16>,

    /// Address of the admin server. Other than loopback, clients have to show `GHOSTFLEET_ADMIN_TOKEN`.
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_host: Option<String>,

    /// What clients of the admin server have to show (environment or file only: a command line can be read by others).
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token: Option<String>,

    /// Seed of generated tokens and of every random choice.
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,

    /// Address of the native event and replay sockets; with --zmq-kv-events-mode connect the reader's IP address, and
    /// replays listen on --event-host.
    #[arg(long, value_name = "HOST")]
    pub zmq_kv_events_host: Option<String>,

    /// Whether native event sockets listen or connect to a reader that does.
    #[arg(long, value_name = "MODE")]
    pub zmq_kv_events_mode: Option<NativeMode>,

    /// Native events as maps by field name (map: vLLM 0.32), as positional arrays (array: older vLLM) or as those of
    /// SGLang (sglang) [default: as the engine that is emulated].
    #[arg(long, value_name = "FORM", value_parser = word::<Encoding>)]
    pub zmq_kv_events_format: Option<Encoding>,

    /// Topic of native events; {worker}, {rank} and {model} stand for the worker (w3), the rank's number and the model
    /// name [default: empty].
    #[arg(long, value_name = "TOPIC")]
    pub zmq_kv_events_topic: Option<String>,

    /// Frames of a replayed message, the reader's identity included: 5 with the topic (vLLM 0.32), 4 without (older vLLM,
    /// SGLang).
    #[arg(long, value_name = "4|5")]
    pub zmq_replay_frames: Option<u8>,

    /// Publish what forward passes do (topic forward-pass-metrics): off, heartbeat (once a second and rank) or full (every
    /// pass).
    #[arg(long, value_name = "DETAIL", value_parser = word::<Detail>)]
    pub forward_pass_metrics: Option<Detail>,

    /// Port of the status server (`/health`, `/live`, `/metrics`); 0: any free one, -1: none.
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub system_port: Option<i32>,

    /// Address of the status server.
    #[arg(long, value_name = "HOST")]
    pub system_host: Option<String>,

    /// Path of the readiness probe.
    #[arg(long, value_name = "PATH")]
    pub system_health_path: Option<String>,

    /// Path of the liveness probe.
    #[arg(long, value_name = "PATH")]
    pub system_live_path: Option<String>,

    /// What the readiness probe says while workers are starting.
    #[arg(long, value_name = "STATUS")]
    pub system_starting_health_status: Option<StartingStatus>,

    /// Name of a group (config file only).
    #[arg(skip)]
    pub name: Option<String>,

    /// Encoding that workers ask routers to use for requests and answers.
    #[arg(long, value_name = "CODEC", value_parser = word::<Codec>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_codec: Option<Codec>,

    /// Deprecated: keep KV events in NATS `JetStream`, for routers of Dynamo up to 1.3; later ones do not read them.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_kv_events: Option<bool>,

    /// NATS servers, comma separated. The environment says how to sign in: `NATS_AUTH_USERNAME` and
    /// `NATS_AUTH_PASSWORD`, `NATS_AUTH_TOKEN`, `NATS_AUTH_NKEY` or `NATS_AUTH_CREDENTIALS_FILE`.
    #[arg(long, value_name = "URLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_server: Option<String>,

    /// NATS connections: one for the process, or one per worker. In a file also `connections`.
    #[arg(long, value_name = "CONNECTIONS")]
    #[serde(alias = "connections", skip_serializing_if = "Option::is_none")]
    pub nats_connections: Option<NatsConnections>,

    /// Seconds to keep trying to reach NATS at start.
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_connect_timeout: Option<Finite>,

    /// Send ZeroMQ events through brokers, as `xsub=tcp://host:port[;...],xpub=tcp://host:port[;...]`.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zmq_broker_url: Option<String>,

    /// Seconds for which discovery may fail while workers are being registered; then the fleet gives up.
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registration_timeout: Option<Finite>,

    /// Seconds that answers under way have to end once the fleet has been told to stop; then they are cut off.
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Finite>,

    /// Send ZeroMQ events through the brokers that discovery knows.
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zmq_broker_enabled: Option<bool>,

    /// Labels of the workers for selectors (label:zone=a), as `KEY=VALUE`, comma separated; with `KEY=A|B` workers take
    /// turns.
    #[arg(long, value_name = "LABELS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
}
