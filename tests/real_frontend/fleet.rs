//! A fleet inside the test's own process, and the check that it keeps nothing.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use ghostfleet::actors::registry::{FleetSnapshot, InUse, WorkerSnapshot, WorkerState};
use ghostfleet::cluster::Cluster;
use ghostfleet::serve::config_from;

use crate::stack::{Stack, model_path};
use crate::wait::{eventually, within};

/// What clients call the model.
pub(crate) const MODEL: &str = "ghost";

/// Freed means freed at once; the limit only allows for a busy machine.
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// A running fleet. When it goes, it must hold no stream, no sequence and no block.
pub(crate) struct Fleet {
    // `None` once it has been stopped.
    cluster: Option<Cluster>,
}

impl Fleet {
    /// Starts one on the test's discovery with further `serve` flags and returns when all workers are registered.
    pub(crate) fn start(stack: &Stack, flags: &str) -> Self {
        Self::start_with(stack, flags, &[])
    }

    /// The same with further environment variables.
    pub(crate) fn start_with(stack: &Stack, flags: &str, variables: &[(&str, &str)]) -> Self {
        show_logs();
        let mut environment: BTreeMap<String, String> = stack
            .environment()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let own = [("DYN_NAMESPACE", stack.namespace()), ("DYN_TCP_RPC_HOST", "127.0.0.1")];
        for (name, value) in own.iter().chain(variables) {
            environment.insert((*name).to_owned(), (*value).to_owned());
        }
        let model = model_path().display().to_string();
        let fixed = ["--model-path", &model, "--model-name", MODEL];
        let flags = fixed.into_iter().chain(flags.split_whitespace());
        let config = config_from(flags, &environment).expect("the flags of a test are valid");
        Self {
            cluster: Some(Cluster::start(&config).expect("the fleet starts")),
        }
    }

    /// Where its admin API is, if it has one.
    pub(crate) fn admin(&self) -> String {
        format!(
            "http://{}",
            self.cluster().facts().admin.expect("started with --admin-port")
        )
    }

    /// Every figure now.
    pub(crate) fn snapshot(&self) -> FleetSnapshot {
        self.cluster().snapshot()
    }

    /// The worker at this position.
    pub(crate) fn worker(&self, index: usize) -> WorkerSnapshot {
        self.snapshot().workers[index].clone()
    }

    /// The position of the worker with this instance id.
    #[track_caller]
    pub(crate) fn position(&self, instance_id: u64) -> usize {
        let workers = self.snapshot().workers;
        let found = workers.iter().position(|worker| worker.instance_id == instance_id);
        found.unwrap_or_else(|| panic!("no worker has instance id {instance_id}: {workers:?}"))
    }

    /// Requests that each worker has taken, by position.
    pub(crate) fn requests(&self) -> Vec<u64> {
        let workers = self.snapshot().workers;
        workers
            .iter()
            .map(|worker| worker.ranks.iter().map(|rank| rank.requests_total).sum())
            .collect()
    }

    /// The position of the only worker with an open stream.
    #[track_caller]
    pub(crate) fn busy_worker(&self) -> usize {
        let workers = self.snapshot().workers;
        let busy: Vec<_> = (0..workers.len()).filter(|&at| workers[at].open_streams > 0).collect();
        assert_eq!(busy.len(), 1, "one busy worker in {workers:?}");
        busy[0]
    }

    /// Kills an actor.
    #[track_caller]
    pub(crate) fn kill(&self, path: &str, death: Death) {
        self.cluster()
            .kill(path, death)
            .expect("the actor is there to be killed");
    }

    /// Adds faults, each in its one-line form.
    #[track_caller]
    pub(crate) fn disturb(&self, faults: &[&str]) {
        let faults = faults
            .iter()
            .map(|line| line.parse().expect("a test's fault can be read"));
        let added = self.cluster().change_faults(None, faults.collect());
        added.expect("the fault selects somebody");
    }

    /// Lets a worker finish and leave.
    #[track_caller]
    pub(crate) fn drain(&self, path: &str) {
        self.cluster().drain(path).expect("the worker is there to be drained");
    }

    /// Brings a dead worker back under a new instance id. The snapshot may show the death a moment before the supervisor
    /// has been told.
    #[track_caller]
    pub(crate) fn restart(&self, path: &str) {
        eventually(IDLE_LIMIT, &format!("{path} can be restarted"), || {
            self.cluster().restart(path, false).ok()
        });
    }

    /// Waits until the worker at this position is in `state`.
    #[track_caller]
    pub(crate) fn wait_state(&self, index: usize, state: WorkerState, limit: Duration) {
        eventually(limit, &format!("worker {index} is {state:?}"), || {
            (self.worker(index).state == state).then_some(())
        });
    }

    /// Waits until nothing is in use.
    #[track_caller]
    pub(crate) fn wait_idle(&self) {
        let idle = || (self.snapshot().in_use() == InUse::default()).then_some(());
        let freed = within(IDLE_LIMIT, idle).is_some();
        assert!(freed, "still in use after {IDLE_LIMIT:?}: {:#?}", self.snapshot());
    }

    /// Drains every worker and stops.
    pub(crate) fn stop(mut self) {
        let cluster = self.cluster.take().expect("a fleet is stopped once");
        assert_eq!(cluster.stop().in_use(), InUse::default(), "left behind after a stop");
    }

    fn cluster(&self) -> &Cluster {
        self.cluster
            .as_ref()
            .expect("only `stop` takes it, and consumes the fleet")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.cluster.is_some() && !std::thread::panicking() {
            self.wait_idle();
        }
    }
}

/// The fleet's own log goes to the test's output, which is shown when it fails.
fn show_logs() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .with_ansi(false)
            .init();
    });
}
