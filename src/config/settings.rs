//! Every setting of `serve`, once: the same struct is the command line, the TOML file, one `[[group]]` table of it, the
//! environment's contribution and the defaults. Absent means "not said here"; [`super::layers`] decides who wins.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::engine::PreemptionMode;

/// Where workers announce themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DiscoveryBackend {
    /// An etcd server (`ETCD_ENDPOINTS`).
    Etcd,
    /// A directory on this host (`DYN_FILE_KV`); no server needed.
    File,
}

/// How requests travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum RequestPlane {
    /// TCP, frames and acks on pooled connections.
    Tcp,
}

/// How KV events and load figures travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EventPlane {
    /// ZeroMQ, one PUB socket per rank.
    Zmq,
}

/// Request listeners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// One listener for the whole process; the endpoint path tells workers apart.
    Shared,
    /// One listener per worker, so that a crashed worker's port is really closed.
    PerWorker,
}

/// Reads one of a settings enum's words, the same ones that a config file has.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::from(text)).map_err(|error| error.to_string())
}

/// All settings. Field names are the TOML keys; with dashes they are the flags.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Model: a local directory, or a Hugging Face id such as Qwen/Qwen3-0.6B (only config and tokenizer files are
    /// downloaded).
    #[arg(long, value_name = "DIR|ID")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,

    /// Name that clients ask for [default: the model path as given].
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,

    /// Endpoint to serve, as `dyn://namespace.component.endpoint` [default: component backend, endpoint generate].
    #[arg(long, value_name = "DYN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,

    /// Namespace of the default endpoint.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// Workers in this process.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_workers: Option<u32>,

    /// Data-parallel ranks per worker, each with its own scheduler and KV pool.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_parallel_size: Option<u32>,

    /// KV cache blocks per rank.
    #[arg(long = "num-gpu-blocks-override", value_name = "BLOCKS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_gpu_blocks_override: Option<u32>,

    /// Tokens per KV block.
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,

    /// Longest sequence, prompt and answer, in tokens [default: the model's context length].
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<u32>,

    /// Most requests in the running batch of a rank.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_seqs: Option<u32>,

    /// Token budget of one forward pass.
    #[arg(long, value_name = "TOKENS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_batched_tokens: Option<u32>,

    /// Reuse the KV blocks of equal prefixes; --no-enable-prefix-caching turns it off.
    #[arg(
        long,
        num_args = 0,
        default_missing_value = "true",
        overrides_with = "no_enable_prefix_caching"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_chunked_prefill: Option<bool>,

    /// Turn chunked prefill off.
    #[arg(long, hide = true, overrides_with = "enable_chunked_prefill")]
    #[serde(skip)]
    pub no_enable_chunked_prefill: bool,

    /// Which running request gives way when blocks run out: the last admitted (lifo) or the first (fifo).
    #[arg(long, value_name = "MODE", value_parser = word::<PreemptionMode>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_mode: Option<PreemptionMode>,

    /// Divide every modelled duration by this; 0: no modelled delay.
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup_ratio: Option<f64>,

    /// Divide modelled decode durations by this too; 0: no modelled decode delay.
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_speedup_ratio: Option<f64>,

    /// Measured durations instead of the built-in ones: an NPZ file, or a directory of profiler results.
    #[arg(long, value_name = "FILE|DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planner_profile_data: Option<PathBuf>,

    /// Time that every forward pass takes besides its modelled work, ms (divided by --speedup-ratio too).
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_overhead_ms: Option<f64>,

    /// Most extra time of a forward pass, ms; each draws its own from 0 up to this, by the seed.
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_jitter_ms: Option<f64>,

    /// Seconds between registration and the first pass of a worker; requests wait meanwhile.
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_time: Option<f64>,

    /// Seconds between the launches of two workers; -1: by fleet size (0 up to 32 workers, 0.1 up to 128, else 0.2).
    /// Staggered launches pause 2 s after every 32 workers.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stagger_delay: Option<f64>,

    /// Where workers announce themselves.
    #[arg(long, value_name = "BACKEND")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery_backend: Option<DiscoveryBackend>,

    /// How requests travel.
    #[arg(long, value_name = "PLANE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_plane: Option<RequestPlane>,

    /// How KV events and load figures travel.
    #[arg(long, value_name = "PLANE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_plane: Option<EventPlane>,

    /// Directory of the file backend [default: `dynamo_store_kv` in the temporary directory].
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_kv: Option<PathBuf>,

    /// etcd servers, comma separated.
    #[arg(long, value_name = "URLS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_endpoints: Option<String>,

    /// Seconds after which a silent worker's records disappear from etcd.
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ttl: Option<u32>,

    /// Seconds to keep trying to reach etcd at start.
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_connect_timeout: Option<f64>,

    /// Request listeners: one for the process, or one per worker.
    #[arg(long, value_name = "PORTS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Ports>,

    /// Address of the request listeners: an IP or a network interface; 0.0.0.0 listens everywhere and advertises the
    /// routed address.
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_host: Option<String>,

    /// Port of the request listener; 0: any free one. Worker i listens on port + i with --ports per-worker.
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_port: Option<u16>,

    /// Address of the event publishers: an IP or a network interface.
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_host: Option<String>,

    /// Longest request frame, bytes.
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<u64>,

    /// Most requests that a worker takes at a time; further ones are refused as overload.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_open_requests: Option<u32>,

    /// Give each worker an HTTP port (OpenAI paths), counting up from this one [default: no HTTP].
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_port: Option<u16>,

    /// Address of the HTTP ports.
    #[arg(long, value_name = "HOST")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_host: Option<String>,

    /// Seed of generated tokens and of every random choice.
    #[arg(long, value_name = "SEED")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,

    /// Name of a group (config file only).
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Settings {
    /// Settings that may differ from group to group; the others belong to the whole fleet.
    pub const GROUP_KEYS: [&'static str; 18] = [
        "name",
        "endpoint",
        "num_workers",
        "data_parallel_size",
        "num_gpu_blocks_override",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "preemption_mode",
        "speedup_ratio",
        "decode_speedup_ratio",
        "startup_time",
        "block_size",
        "planner_profile_data",
        "step_overhead_ms",
        "step_jitter_ms",
    ];

    /// What is used where nothing else is said.
    pub fn defaults() -> Self {
        Self {
            namespace: Some("dynamo".into()),
            num_workers: Some(1),
            data_parallel_size: Some(1),
            num_gpu_blocks_override: Some(16_384),
            block_size: Some(64),
            max_num_seqs: Some(256),
            max_num_batched_tokens: Some(8192),
            enable_prefix_caching: Some(true),
            enable_chunked_prefill: Some(true),
            preemption_mode: Some(PreemptionMode::Lifo),
            speedup_ratio: Some(1.0),
            decode_speedup_ratio: Some(1.0),
            step_overhead_ms: Some(0.0),
            step_jitter_ms: Some(0.0),
            startup_time: Some(0.0),
            stagger_delay: Some(-1.0),
            discovery_backend: Some(DiscoveryBackend::Etcd),
            request_plane: Some(RequestPlane::Tcp),
            event_plane: Some(EventPlane::Zmq),
            file_kv: Some(std::env::temp_dir().join("dynamo_store_kv")),
            etcd_endpoints: Some("http://localhost:2379".into()),
            lease_ttl: Some(10),
            etcd_connect_timeout: Some(120.0),
            ports: Some(Ports::Shared),
            tcp_host: Some("127.0.0.1".into()),
            tcp_port: Some(0),
            event_host: Some("127.0.0.1".into()),
            max_message_size: Some(32 * 1024 * 1024),
            max_open_requests: Some(10_000),
            http_host: Some("127.0.0.1".into()),
            seed: Some(0),
            ..Self::default()
        }
    }

    /// Relative paths of a file in `base`, as paths from here. `./x` and `../x` name a model beside the file; any other
    /// model may be a hub id.
    #[must_use]
    pub(super) fn beside(mut self, base: &Path) -> Self {
        if let Some(model) = self
            .model_path
            .as_mut()
            .filter(|m| m.starts_with("./") || m.starts_with("../"))
        {
            *model = base.join(&*model).display().to_string();
        }
        if let Some(profile) = &mut self.planner_profile_data {
            *profile = base.join(&*profile);
        }
        self
    }

    /// The `--no-...` flags, folded into their positive settings.
    #[must_use]
    pub fn normalized(mut self) -> Self {
        if std::mem::take(&mut self.no_enable_prefix_caching) {
            self.enable_prefix_caching = Some(false);
        }
        if std::mem::take(&mut self.no_enable_chunked_prefill) {
            self.enable_chunked_prefill = Some(false);
        }
        self
    }
}
