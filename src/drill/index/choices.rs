//! Any frontend that says which worker it has chosen and how much of a prompt it believes is cached there.
//!
//! Prompts of the drill's own are sent to one worker each, and sent again later on, a few at a time: what the frontend then
//! believes of each of them is held against what the worker had just before. They are requests like others: they take
//! their place in caches and count in `hit_rate`, but are none of a load's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use crate::actors::control::Control;
use crate::config::Config;
use crate::drill::truth::{Compared, Comparing, GRACE, Truth};
use crate::engine::WorkerRole;
use crate::truth::choice::{Probe, beliefs};
use crate::truth::{Caches, RankId};
use crate::witness::WitnessError;
use crate::witness::choices::{Frontend, Prompts};

/// Prompts that are sent time and again.
const PROMPTS: usize = 32;

/// Their length, blocks.
const BLOCKS: usize = 2;

/// Prompts of one comparison; the first one sends them all.
const AT_ONCE: usize = 6;

/// No answer is waited for longer: a worker may hang.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);

/// Comparisons in vain after which a frontend counts as one that does not say what it believes.
const IN_VAIN: u32 = 3;

/// One frontend's beliefs.
pub(super) struct ByChoices {
    url: String,
    model: String,
    prompts: Arc<Prompts>,
    /// Workers prefill for others, which the frontend chooses by itself.
    is_apart: bool,
    /// Position of the next prompt; `None`: they have all to be sent.
    next: Cell<Option<usize>>,
    in_vain: Cell<u32>,
    sent: RefCell<BTreeSet<String>>,
}

impl ByChoices {
    /// Of the frontend at `authority`.
    ///
    /// # Errors
    /// Blocks of the fleet have several sizes.
    pub(super) fn new(authority: &str, config: &Config, seed: u64) -> Result<Self, String> {
        let mut sizes = config.groups.iter().map(|group| group.engine.block_size);
        let size = sizes.next().unwrap_or(1);
        if sizes.any(|other| other != size) {
            let why = "[index]: the workers have no block size in common, so that a frontend's choices tell nothing";
            return Err(why.to_owned());
        }
        Ok(Self {
            url: format!("http://{authority}"),
            model: config.model_name.clone(),
            prompts: Arc::new(Prompts::new(seed, 2 * PROMPTS, BLOCKS, size as usize)),
            is_apart: config
                .groups
                .iter()
                .any(|group| group.engine.role == WorkerRole::Prefill),
            next: Cell::new(None),
            in_vain: Cell::new(0),
            sent: RefCell::default(),
        })
    }

    /// Whose prompts they are to be: one rank each, while everything is well.
    fn holders(&self, caches: &Caches) -> Vec<Option<RankId>> {
        let ranks: Vec<RankId> = caches.ranks.keys().copied().collect();
        if self.is_apart || ranks.is_empty() {
            return vec![None];
        }
        ranks.into_iter().map(Some).collect()
    }

    async fn look(&self, control: &Control) -> Result<Compared, String> {
        if self.in_vain.get() >= IN_VAIN {
            return Err(
                "the frontend does not say which worker it chooses and what it believes is cached there".to_owned(),
            );
        }
        // What has come or gone since then may be on its way to the frontend.
        let earlier = control.caches().await;
        sleep(GRACE).await;
        let now = control.caches().await;
        let (from, many) = self.next.get().map_or((0, PROMPTS), |next| (next, AT_ONCE));
        let (url, model, prompts) = (self.url.clone(), self.model.clone(), Arc::clone(&self.prompts));
        let holders = self.holders(&now);
        let ids: Vec<String> = (0..many).map(|_| uuid::Uuid::new_v4().to_string()).collect();
        self.sent.borrow_mut().extend(ids.iter().cloned());
        let ask = move || {
            let frontend = Frontend::of_model(&url, model, ANSWER_WITHIN)?;
            let numbers = ids
                .iter()
                .zip(from..)
                .map(|(id, number)| (number % PROMPTS, id.as_str()));
            Ok(prompts.believed(&frontend, &holders, numbers, PATIENCE))
        };
        let asked = timeout(PATIENCE + ANSWER_WITHIN, spawn_blocking(ask)).await;
        let asked = asked.map_err(|_| "the frontend does not answer in time".to_owned())?;
        let probes: Result<Vec<Probe>, WitnessError> = asked.map_err(|error| error.to_string())?;
        let probes = probes.map_err(|error| error.to_string())?;
        self.sent
            .borrow_mut()
            .extend(probes.iter().map(|probe| probe.request.clone()));
        self.next.set(Some((from + many) % PROMPTS));
        let found = beliefs(&earlier, &probes, &now);
        if found.probes == 0 {
            // Nobody answered, or the answers do not say it.
            self.in_vain.set(self.in_vain.get() + u32::from(!probes.is_empty()));
            return Err("no answer says what the frontend believes".to_owned());
        }
        self.in_vain.set(0);
        Ok(Compared {
            missing: found.missing,
            phantom: found.phantom,
            cached: found.true_blocks,
        })
    }
}

impl Truth for ByChoices {
    fn compare<'a>(&'a self, control: &'a Control) -> Comparing<'a> {
        Box::pin(self.look(control))
    }

    fn own_requests(&self) -> Vec<String> {
        self.sent.borrow().iter().cloned().collect()
    }
}
