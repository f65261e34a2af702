//! From settings to a checked [`Config`]: defaults, precedence, validation.

mod admin;
mod aic;
mod attach;
pub mod choices;
mod defaults;
pub mod disaggregation;
mod engine_args;
mod engine_document;
mod engine_keys;
mod environment;
mod group;
mod host;
mod implied;
pub mod labels;
pub mod layers;
mod lora;
pub mod native;
mod parallelism;
mod ports;
mod rules;
pub mod settings;
mod status;
mod tiers;
mod unique_json;
mod unread;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::{EngineConfig, WorkerRole};
use crate::model::HubOptions;
use crate::transport::discovery::etcd::address as etcd_address;
use crate::transport::discovery::{DiscoveryConfig, EndpointName, EtcdOptions, FileOptions, MemStore};
use crate::transport::event_plane::forward_pass::Detail;
use crate::transport::event_plane::zmq::BrokerAddresses;
use crate::transport::nats::{NatsAuth, NatsOptions, NatsOptionsError};
use crate::transport::request_plane::Codec;
use crate::transport::tls::{EtcdTls, NatsTls, TcpTls, TlsError};
use crate::types::{LONGEST_SPAN, MAX_WORKERS};

pub use crate::aic::{BUILT_IN as MEASURED_GPUS_BUILT_IN, NOT_BUILT_IN as NO_MEASURED_GPUS};
pub use admin::AdminConfig;
pub use aic::AicTiming;
use choices::Finite;
pub use choices::{DiscoveryBackend, EventPlane, NatsConnections, Ports, RequestPlane, TransferTiming};
pub use disaggregation::Disaggregation;
pub use engine_document::EngineDocument;
pub use labels::Labels;
use layers::Layered;
pub use layers::{ConfigFile, Merged, Origin};
pub use lora::LoraModule;
pub use native::NativeEvents;
use rules::refused;
pub use settings::Settings;
pub use status::StatusConfig;

/// Input that cannot be used. Exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A config file that cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A config file with an error in it.
    #[error("{}: {error}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Line, key and what was expected.
        error: String,
    },
    /// An environment variable with an unusable value.
    #[error("environment variable {name}={value}: {error}")]
    Environment {
        /// Which variable.
        name: String,
        /// Its value.
        value: String,
        /// What was expected.
        error: String,
    },
    /// A document of engine settings with an error in it.
    #[error("{named_by}{document}: {error}")]
    EngineArgs {
        /// Where it was named.
        named_by: String,
        /// Its path, after a space; empty for one given inline.
        document: String,
        /// Path of the key, and what was expected.
        error: String,
    },
    /// A setting with a value that it cannot have.
    #[error("{place} {why}")]
    Value {
        /// Setting and value as they were written, with the variable, file, group or document that holds them.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// A value out of range, or two that do not go together.
    #[error("{0}")]
    Invalid(String),
}

/// Everything a fleet is started from.
#[derive(Debug, Clone)]
pub struct Config {
    /// Model directory or hub id, as given.
    pub model_path: String,
    /// Name that clients use.
    pub model_name: String,
    /// How hub ids are resolved.
    pub hub: HubOptions,
    /// Seed of everything random.
    pub seed: u64,
    /// Where workers announce themselves.
    pub discovery: DiscoveryConfig,
    /// Address of request listeners.
    pub tcp_host: IpAddr,
    /// Address that they advertise.
    pub tcp_advertise: IpAddr,
    /// Port of the (first) request listener; 0: any.
    pub tcp_port: u16,
    /// One listener or one per worker.
    pub ports: Ports,
    /// Longest request frame.
    pub max_message_bytes: usize,
    /// Most open requests per worker.
    pub max_open_requests: u32,
    /// Address that event publishers bind.
    pub event_host: IpAddr,
    /// Address that they advertise.
    pub event_advertise: IpAddr,
    /// First HTTP port; `None`: no HTTP.
    pub http_port: Option<u16>,
    /// Address of HTTP ports.
    pub http_host: IpAddr,
    /// Status server; `None`: nobody asked for one.
    pub status: Option<StatusConfig>,
    /// Admin server; `None`: nobody asked for one.
    pub admin: Option<AdminConfig>,
    /// Pause between launches.
    pub stagger: Duration,
    /// How long discovery may fail before all workers are registered; then the launch is given up.
    pub registration_limit: Duration,
    /// How long answers under way may take when the fleet is told to stop.
    pub drain_limit: Duration,
    /// TLS of the TCP request plane.
    pub tls: TcpTls,
    /// NATS; `None`: no group uses it.
    pub nats: Option<NatsConfig>,
    /// Workers by group.
    pub groups: Vec<Group>,
    /// What is said and has no effect, in words for a log.
    pub doubts: Vec<String>,
}

/// The NATS servers of a fleet.
#[derive(Debug, Clone)]
pub struct NatsConfig {
    /// Where they are and how to sign in.
    pub options: NatsOptions,
    /// One connection or one per worker.
    pub connections: NatsConnections,
}

/// How ZeroMQ events reach routers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Brokers {
    /// Routers connect to PUB sockets of the workers.
    None,
    /// PUB sockets connect to these brokers.
    At {
        /// Both sides of them, as `DYN_ZMQ_BROKER_URL` tells a router.
        url: String,
        /// Where publishers connect.
        addresses: BrokerAddresses,
    },
    /// PUB sockets connect to the brokers that discovery knows.
    Discovered,
}

/// Workers that are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Label.
    pub name: String,
    /// Endpoint they serve.
    pub endpoint: EndpointName,
    /// How many.
    pub num_workers: u32,
    /// Ranks per worker.
    pub data_parallel_size: u32,
    /// From registration to the first pass.
    pub startup_time: Duration,
    /// How requests reach them.
    pub request_plane: RequestPlane,
    /// How their events travel.
    pub event_plane: EventPlane,
    /// How ZeroMQ events reach routers.
    pub brokers: Brokers,
    /// Native event streams; `None`: nobody asked for them.
    pub native: Option<NativeEvents>,
    /// How much is told of forward passes.
    pub forward_passes: Detail,
    /// KV events go to `JetStream`, for routers of Dynamo 1.3.
    pub durable_kv_events: bool,
    /// Encoding that they ask routers to use.
    pub request_codec: Codec,
    /// Log every change of a KV cache.
    pub kv_cache_trace: bool,
    /// Handoffs between prefill and decode workers.
    pub disaggregation: Disaggregation,
    /// LoRA adapters that are served beside the model.
    pub lora_modules: Vec<LoraModule>,
    /// Labels for selectors.
    pub labels: Labels,
    /// File of answers that requests may ask for by name.
    pub response_replay: Option<PathBuf>,
    /// The model says how large the blocks of its host memory are; until it is known they are not.
    pub tiers_by_model: bool,
    /// Passes take as long as on measured GPUs; `engine` does not know yet.
    pub aic: Option<AicTiming>,
    /// One rank's engine. Fields that depend on the model (`max_model_len` not given, `token_ids`) are settled when the
    /// model is known.
    pub engine: EngineConfig,
}

impl Config {
    /// Checks the merged settings and gives them their types.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting, its value and the way out.
    pub fn resolve(merged: &Merged, environment: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let fleet = &merged.fleet;
        rules::check_ranges(fleet)?;
        let s = fleet.settings()?;
        let model_path = s.model_path.clone().filter(|p| !p.is_empty()).ok_or_else(|| {
            ConfigError::Invalid(
                "no model; give --model-path <directory or Hugging Face id>, or --config config/quickstart.toml".into(),
            )
        })?;
        let stagger_total = merged.groups.iter().try_fold(0u32, |sum, group| {
            Ok::<_, ConfigError>(sum.saturating_add(group.settings()?.num_workers.unwrap_or(1)))
        })?;
        let groups = merged
            .groups
            .iter()
            .enumerate()
            .map(|(index, group)| group::resolve(index, group));
        let groups = groups.collect::<Result<Vec<_>, _>>()?;
        native::check_said(merged, &groups)?;
        let tcp = host_of(fleet, "tcp_host", s.tcp_host.as_ref())?;
        let event = host_of(fleet, "event_host", s.event_host.as_ref())?;
        let http = host_of(fleet, "http_host", s.http_host.as_ref())?;
        check_response_plane(environment)?;
        let limit = s.registration_timeout.map_or(60.0, Finite::get);
        let registration_limit = seconds(fleet, "registration_timeout", limit)?;
        let drain_limit = seconds(fleet, "drain_timeout", s.drain_timeout.map_or(900.0, Finite::get))?;
        let mut doubts = unread::of(merged)?;
        doubts.extend(environment::doubts(environment));
        let config = Self {
            doubts,
            model_name: s
                .model_name
                .clone()
                .filter(|n| !n.is_empty())
                .unwrap_or_else(|| model_path.clone()),
            model_path,
            hub: HubOptions::from_lookup(|name| environment.get(name).map(Into::into)),
            seed: s.seed.unwrap_or(0),
            discovery: discovery(fleet, &s, environment, registration_limit)?,
            tcp_host: tcp.bind,
            tcp_advertise: tcp.advertise,
            tcp_port: s.tcp_port.unwrap_or(0),
            ports: s.ports.unwrap_or(Ports::Shared),
            max_message_bytes: message_limit(fleet, s.max_message_size.unwrap_or(0))?,
            max_open_requests: s.max_open_requests.unwrap_or(1),
            event_host: event.bind,
            event_advertise: event.advertise,
            http_port: s.http_port,
            http_host: http.bind,
            status: status::resolve(fleet, &s)?,
            admin: admin::resolve(fleet, &s)?,
            registration_limit,
            drain_limit,
            stagger: stagger(fleet, s.stagger_delay.map_or(-1.0, Finite::get), stagger_total)?,
            tls: TcpTls::from_lookup(|name| environment.get(name).cloned()).map_err(tls_error)?,
            nats: nats(fleet, &s, &groups, environment)?,
            groups,
        };
        config.check_ports(fleet)?;
        ports::check(&config)?;
        config.check_groups()?;
        disaggregation::check_pools(&config.groups)?;
        Ok(config)
    }

    /// Workers of all groups.
    pub fn num_workers(&self) -> u32 {
        self.groups
            .iter()
            .map(|group| group.num_workers)
            .fold(0, u32::saturating_add)
    }

    /// A router takes the workers of one endpoint for copies of each other: what their card says has to agree.
    fn check_groups(&self) -> Result<(), ConfigError> {
        for (index, group) in self.groups.iter().enumerate() {
            let Some(first) = self.groups[..index]
                .iter()
                .find(|other| other.endpoint == group.endpoint)
            else {
                continue;
            };
            let differs = |key: &str, a: String, b: String| {
                Err(ConfigError::Invalid(format!(
                    "groups {:?} and {:?} serve the same endpoint {} but {key} is {a} in one and {b} in the other; a router \
                     would refuse one of them: use one value, or give a group an endpoint of its own",
                    first.name, group.name, group.endpoint
                )))
            };
            let (a, b) = (&first.engine, &group.engine);
            if a.role != b.role {
                let text = |role: WorkerRole| format!("{role:?}").to_lowercase();
                return differs("disaggregation_mode", text(a.role), text(b.role));
            }
            if a.block_size != b.block_size {
                return differs("block_size", a.block_size.to_string(), b.block_size.to_string());
            }
            if a.max_model_len != b.max_model_len {
                let text = |len: Option<u32>| len.map_or_else(|| "the model's".to_owned(), |len| len.to_string());
                return differs("max_model_len", text(a.max_model_len), text(b.max_model_len));
            }
        }
        Ok(())
    }

    fn check_ports(&self, fleet: &Layered) -> Result<(), ConfigError> {
        let workers = self.num_workers();
        if workers > MAX_WORKERS {
            return Err(ConfigError::Invalid(format!(
                "{workers} workers are more than the {MAX_WORKERS} one process takes; run several processes"
            )));
        }
        let per_worker = [
            ("http_port", self.http_port.unwrap_or(0)),
            (
                "tcp_port",
                if self.ports == Ports::PerWorker {
                    self.tcp_port
                } else {
                    0
                },
            ),
        ];
        for (key, first) in per_worker {
            let last = u32::from(first) + workers - 1;
            if first != 0 && last > u32::from(u16::MAX) {
                let why = format!("leaves no ports for {workers} workers; the last port would be {last}");
                return Err(refused(fleet, key, &why));
            }
        }
        Ok(())
    }
}

fn text(value: Option<&String>) -> &str {
    value.map_or("", String::as_str)
}

fn host_of(layered: &Layered, key: &str, setting: Option<&String>) -> Result<host::Host, ConfigError> {
    host::resolve(text(setting)).map_err(|error| refused(layered, key, &error))
}

fn seconds(layered: &Layered, key: &str, value: f64) -> Result<Duration, ConfigError> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|span| *span < LONGEST_SPAN)
        .ok_or_else(|| {
            refused(
                layered,
                key,
                "must be a number of seconds, 0 or greater and less than a year",
            )
        })
}

fn message_limit(layered: &Layered, bytes: u64) -> Result<usize, ConfigError> {
    usize::try_from(bytes)
        .ok()
        .filter(|b| (1024..=u32::MAX as usize).contains(b))
        .ok_or_else(|| refused(layered, "max_message_size", "must be between 1024 bytes and 4 GiB"))
}

/// The peer's rule: none up to 32 workers, 0.1 s up to 128, 0.2 s above; -1 asks for it.
fn stagger(layered: &Layered, delay: f64, workers: u32) -> Result<Duration, ConfigError> {
    #[allow(clippy::float_cmp)]
    let auto = delay == -1.0;
    if !auto {
        return seconds(layered, "stagger_delay", delay).map_err(|_| {
            let why = "must be -1 (by fleet size) or seconds, 0 or greater";
            refused(layered, "stagger_delay", why)
        });
    }
    Ok(match workers {
        0..=32 => Duration::ZERO,
        33..=128 => Duration::from_millis(100),
        _ => Duration::from_millis(200),
    })
}

fn discovery(
    layered: &Layered,
    s: &Settings,
    environment: &BTreeMap<String, String>,
    registration_limit: Duration,
) -> Result<DiscoveryConfig, ConfigError> {
    let lookup = |name: &str| environment.get(name).cloned();
    let lease_ttl = u64::from(s.lease_ttl.unwrap_or(10));
    Ok(match s.discovery_backend.unwrap_or(DiscoveryBackend::Etcd) {
        DiscoveryBackend::Etcd => {
            let user = EtcdOptions::user_from_lookup(lookup).map_err(tls_error)?;
            // Not `refused`, which would tell the password.
            let (endpoints, user) = etcd_address::read(text(s.etcd_endpoints.as_ref()), user)
                .map_err(|error| ConfigError::Invalid(format!("--etcd-endpoints (ETCD_ENDPOINTS) {error}")))?;
            DiscoveryConfig::Etcd(EtcdOptions {
                endpoints,
                user,
                tls: EtcdTls::from_lookup(lookup).map_err(tls_error)?.map(Box::new),
                ttl: Duration::from_secs(lease_ttl),
                connect_limit: seconds(
                    layered,
                    "etcd_connect_timeout",
                    s.etcd_connect_timeout.map_or(120.0, Finite::get),
                )?,
                ..EtcdOptions::default()
            })
        }
        DiscoveryBackend::File => DiscoveryConfig::File(FileOptions {
            root: s.file_kv.clone().unwrap_or_default(),
            room_limit: registration_limit,
            ..FileOptions::default()
        }),
        DiscoveryBackend::Mem => DiscoveryConfig::Mem(MemStore::of_process()),
    })
}

fn nats(
    layered: &Layered,
    s: &Settings,
    groups: &[Group],
    environment: &BTreeMap<String, String>,
) -> Result<Option<NatsConfig>, ConfigError> {
    if !groups.iter().any(Group::uses_nats) {
        return Ok(None);
    }
    let limit = s.nats_connect_timeout.map_or(30.0, Finite::get);
    let limit = seconds(layered, "nats_connect_timeout", limit)?;
    let options = NatsAuth::from_lookup(|name| environment.get(name).cloned())
        .map_err(NatsOptionsError::from)
        .and_then(|auth| NatsOptions::new(text(s.nats_server.as_ref()), auth, limit))
        .and_then(|options| options.with_tls(NatsTls::from_lookup(|name| environment.get(name).cloned())?))
        .and_then(|options| options.with_max_age(|name| environment.get(name).cloned()));
    Ok(Some(NatsConfig {
        options: options.map_err(|error| ConfigError::Invalid(error.to_string()))?,
        connections: s.nats_connections.unwrap_or(NatsConnections::Shared),
    }))
}

/// Answers go by TCP; a process that is told otherwise must not start, because its frontends would wait for ever.
fn check_response_plane(environment: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    const NAME: &str = "DYN_RESPONSE_PLANE";
    match environment.get(NAME).map(|value| value.trim()) {
        None | Some("" | "tcp") => Ok(()),
        Some(other) => Err(ConfigError::Environment {
            name: NAME.to_owned(),
            value: other.to_owned(),
            error: "answers go by tcp only; set tcp, or unset it, here and on the frontends".to_owned(),
        }),
    }
}

#[allow(clippy::needless_pass_by_value)]
fn tls_error(error: TlsError) -> ConfigError {
    ConfigError::Invalid(error.to_string())
}

impl Group {
    /// Whether any of its planes is NATS.
    pub fn uses_nats(&self) -> bool {
        self.request_plane == RequestPlane::Nats || self.event_plane == EventPlane::Nats
    }
}
