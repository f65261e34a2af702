//! The pieces of a cluster, put together in the order in which they can fail.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::disaggregation;
use super::offer::Offer;
use super::planes::Planes;
use super::tiers;
use super::{Budget, Cluster, Facts, StartError, doubts};
use crate::actors::control::Control;
use crate::actors::fault_desk::FaultDesk;
use crate::actors::fleet::{Fleet, Launch};
use crate::actors::plan::{GroupPlan, NativePlan, PlannedEvents, PlannedRequests, Shared, WorkerPlan};
use crate::actors::registry::Registry;
use crate::actors::strays;
use crate::admin::server::AdminDoor;
use crate::admin::status::StatusServer;
use crate::config::{Config, Group, NativeEvents, Ports};
use crate::engine::{self, EngineConfig, WorkerRole};
use crate::model::Model;
use crate::model::card::{CardOptions, Role};
use crate::transport::discovery::Discovery;
use crate::transport::request_plane::tcp::server::Limits;
use crate::types::WorkerId;

/// Threads for sockets. More would not help: the work is short and the arbiters need the cores too.
const POOL_THREADS: usize = 2;

/// Threads for file operations.
const BLOCKING_THREADS: usize = 4;

/// Most threads for workers.
const MAX_ARBITERS: usize = 4;

/// Where sockets are served.
fn pool() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(POOL_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("gf-pool")
        .enable_all()
        .build()
}

pub(super) fn launch(config: &Config) -> Result<Cluster, StartError> {
    let budget = Budget::raise(config)?;
    let model = Model::resolve(&config.model_path, &config.hub)?;
    let groups = config.groups.iter().map(|group| plan_group(config, group, &model));
    let groups = groups.collect::<Result<Vec<_>, _>>()?;
    let pool = pool()?;
    let discovery = pool.block_on(Discovery::connect(&config.discovery))?;
    let limits = Limits {
        max_frame_bytes: config.max_message_bytes,
        ..Limits::default()
    };
    let mut planes = Planes::new(config, &pool, &discovery, limits);
    let mut planned = Vec::new();
    for (group, plan) in config.groups.iter().zip(groups) {
        planned.push(Arc::new(plan(planes.requests(group)?, planes.events(group)?)));
    }
    check_sharing(&planned)?;
    tell_doubts(config);
    let workers = plan_workers(config, &planned);
    let endpoints = planes.endpoints();
    let (server, requests) = planes.listener();
    let outlets = planes.outlets();
    let connector = planes.into_connector();
    let shared = Shared::new(
        pool.handle().clone(),
        discovery,
        connector,
        (config.tcp_advertise, limits),
        (config.event_host, config.event_advertise),
        config.tls.clone(),
        config.max_open_requests,
    );
    let shared = Arc::new(shared.registered_within(config.registration_limit));
    if let Some(endpoints) = endpoints {
        strays::note(
            &endpoints,
            planned.iter().map(|group| &**group),
            Arc::clone(&shared.journal),
        );
    }
    let registry = Arc::new(Registry::default());
    let (launch_sender, launch) = watch::channel(Launch::Starting { registered: 0 });
    let status = config.status.as_ref().map(|options| {
        StatusServer::collect();
        StatusServer::start(
            options,
            Arc::clone(&registry),
            shared.store_health.clone(),
            launch.clone(),
            shared.clock,
            pool.handle(),
        )
    });
    let status = status.transpose()?;
    let admin = config.admin.as_ref().map(AdminDoor::open).transpose()?;
    let arbiters = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .clamp(1, MAX_ARBITERS);
    let facts = Facts {
        requests,
        admin: admin.as_ref().map(AdminDoor::address),
        status: status.as_ref().map(StatusServer::address),
        ..facts(arbiters, budget, &model, &planned)
    };
    let store_health = shared.store_health.clone();
    let stagger = config.stagger;
    let own = Arc::clone(&registry);
    let (journal, clock, seed) = (Arc::clone(&shared.journal), shared.clock, config.seed);
    let discovery = shared.discovery.clone();
    let desk = {
        let (registry, journal) = (Arc::clone(&registry), Arc::clone(&journal));
        move |fleet| FaultDesk::new(seed, registry, journal, fleet, clock)
    };
    let (system, (fleet, desk), thread) = run_system(arbiters, move |arbiters| {
        let fleet = Fleet::new(shared, arbiters, stagger, workers, own, launch_sender).start();
        (fleet.clone(), desk(fleet).start())
    })?;
    let control = Control {
        fleet,
        desk,
        registry,
        journal,
        clock,
        discovery,
        launch: launch.clone(),
    };
    let admin = admin.map(|door| door.serve(control.clone(), pool.handle()));
    Ok(Cluster {
        control,
        launch,
        facts,
        store_health,
        outlets,
        system,
        thread: Some(thread),
        _server: server,
        _status: status,
        _admin: admin,
        pool: Some(pool),
    })
}

/// What is known before any listener is there.
fn facts(arbiters: usize, budget: Budget, model: &Model, groups: &[Arc<GroupPlan>]) -> Facts {
    Facts {
        requests: None,
        admin: None,
        status: None,
        kv_blocks: groups.iter().map(|group| group.engine.num_gpu_blocks).collect(),
        threads: 1 + arbiters + POOL_THREADS + BLOCKING_THREADS,
        budget,
        model_dir: model.dir.clone(),
        token_ids: model.info.generated_ids,
        eos_token_ids: model.info.eos_token_ids.clone(),
    }
}

/// Starts the actor system on its own thread.
fn run_system<T: Send + 'static>(
    arbiters: usize,
    start: impl FnOnce(Vec<ArbiterHandle>) -> T + Send + 'static,
) -> Result<(System, T, std::thread::JoinHandle<()>), StartError> {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("gf-system".into()).spawn(move || {
        let runner = System::with_tokio_rt(current_thread_runtime);
        let started = runner.block_on(async move {
            let arbiters: Vec<Arbiter> = (0..arbiters)
                .map(|_| Arbiter::with_tokio_rt(current_thread_runtime))
                .collect();
            let handles = arbiters.iter().map(Arbiter::handle).collect();
            let actors = start(handles);
            (arbiters, sender.send((System::current(), actors)).is_ok())
        });
        let (arbiters, told) = started;
        if told && let Err(error) = runner.run() {
            tracing::error!(%error, "the actor system ended with an error");
        }
        for arbiter in arbiters {
            arbiter.stop();
            if arbiter.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    })?;
    let gone = || StartError::Threads(io::Error::other("the actor system did not start"));
    let (system, actors) = receiver.recv_timeout(Duration::from_secs(30)).map_err(|_| gone())?;
    Ok((system, actors, thread))
}

fn current_thread_runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs an epoll descriptor; the budget has room")
}

/// Everything about a group but its planes: those are opened when nothing of the input can be wrong any more.
fn plan_group(
    config: &Config,
    group: &Group,
    model: &Model,
) -> Result<impl FnOnce(PlannedRequests, PlannedEvents) -> GroupPlan + use<>, StartError> {
    let engine = settle_engine(group, model)?;
    let role = group.engine.role;
    let transfer = disaggregation::transfer(group, &engine, model);
    let publishes = engine.publishes_kv_events();
    let options = CardOptions {
        display_name: config.model_name.clone(),
        block_size: engine.block_size,
        migration_limit: 0,
        context_length: engine.max_model_len,
        total_kv_blocks: u64::from(engine.num_gpu_blocks),
        max_num_seqs: engine.max_num_seqs,
        max_num_batched_tokens: engine.max_num_batched_tokens,
        data_parallel_size: group.data_parallel_size,
        kv_events: publishes,
        local_indexer: publishes && !group.durable_kv_events,
        role: match role {
            WorkerRole::Aggregated => Role::Aggregated,
            WorkerRole::Prefill => Role::Prefill,
            WorkerRole::Decode => Role::Decode,
        },
        lora_of: None,
        recorded_answers: group.response_replay.is_some(),
    };
    let Offer {
        card,
        adapters,
        recorded,
        face,
    } = Offer::new(config, group, model, &engine, &options)?;
    let group = group.clone();
    let model_name = Arc::from(config.model_name.as_str());
    Ok(move |requests, events| GroupPlan {
        name: group.name,
        endpoint: group.endpoint,
        model_name,
        max_model_len: engine.max_model_len.unwrap_or(u32::MAX),
        forward_passes: group.forward_passes,
        data_parallel_size: group.data_parallel_size,
        startup_time: group.startup_time,
        kv_cache_trace: group.kv_cache_trace,
        face,
        card,
        role,
        adapters,
        recorded,
        engine,
        transfer,
        pairing_timeout: group.disaggregation.pairing_timeout,
        handoff_timeout: group.disaggregation.session_timeout,
        requests,
        events,
        durable_kv_events: group.durable_kv_events,
        codec: group.request_codec,
    })
}

/// Fills in what only the model knows.
fn settle_engine(group: &Group, model: &Model) -> Result<EngineConfig, StartError> {
    let max_model_len = match (group.engine.max_model_len, model.info.context_length) {
        (Some(asked), Some(context)) if asked > context => {
            return Err(StartError::Settings(format!(
                "max_model_len {asked} exceeds the model's context length of {context} tokens ({})",
                model.dir.display()
            )));
        }
        (asked, context) => asked.or(context),
    };
    let (low, high) = model.info.generated_ids;
    let engine = EngineConfig {
        max_model_len,
        token_ids: (low, high),
        role: disaggregation::engine_role(group),
        tiers: tiers::settle(group, model)?,
        ..group.engine.clone()
    };
    match &group.aic {
        None => Ok(engine),
        Some(aic) => {
            let settled = aic.settle(engine, Some(&model.dir));
            settled.map_err(|error| StartError::Settings(error.to_string()))
        }
    }
}

fn tell_doubts(config: &Config) {
    for doubt in doubts::of(config, SystemTime::now()) {
        tracing::warn!("{doubt}");
    }
}

/// Whether workers that share memory agree on it.
fn check_sharing(groups: &[Arc<GroupPlan>]) -> Result<(), StartError> {
    let engines = groups.iter().map(|group| &group.engine);
    engine::check_sharing(engines).map_err(|error| StartError::Settings(error.to_string()))
}

fn plan_workers(config: &Config, groups: &[Arc<GroupPlan>]) -> Vec<WorkerPlan> {
    let ids = config
        .groups
        .iter()
        .zip(groups)
        .flat_map(|(group, plan)| (0..group.num_workers as usize).map(move |nth| (group, plan, nth)));
    ids.zip(disaggregation::rendezvous(config))
        .zip(0u32..)
        .map(|(((group, plan, nth), rendezvous), index)| {
            let port = |first: u16| {
                if first == 0 {
                    0
                } else {
                    first + u16::try_from(index).unwrap_or(u16::MAX)
                }
            };
            WorkerPlan {
                id: WorkerId(index),
                group: Arc::clone(plan),
                labels: group.labels.of(index).collect(),
                tcp: (config.ports == Ports::PerWorker)
                    .then(|| SocketAddr::new(config.tcp_host, port(config.tcp_port))),
                http: config
                    .http_port
                    .map(|first| SocketAddr::new(config.http_host, port(first))),
                rendezvous,
                native: group
                    .native
                    .as_ref()
                    .and_then(|native| plan_native(native, nth, WorkerId(index), &config.model_name)),
            }
        })
        .collect()
}

/// Native streams of the `nth` worker of its group.
fn plan_native(native: &NativeEvents, nth: usize, worker: WorkerId, model_name: &str) -> Option<NativePlan> {
    let at = |host, ports: &[u16]| Some(SocketAddr::new(host, *ports.get(nth)?));
    let topic = native.topic.replace("{worker}", &worker.to_string());
    Some(NativePlan {
        events: at(native.host, &native.ports)?,
        connect: native.connect,
        replay: at(native.replay_host, &native.replay_ports),
        replay_topic: native.replay_topic,
        encoding: native.encoding,
        topic: topic.replace("{model}", model_name),
    })
}
