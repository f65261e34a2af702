//! `Registrar`: keeps one worker's records alive in discovery.
//!
//! Started by the worker; owns the worker's lease. The waiting is done by one task on the shared pool. It registers
//! (again and again, with back-off, while the store cannot be reached), renews every third of the lease's time, and
//! registers afresh when the lease is lost. When the actor dies the task dies with it and the lease runs out: that is
//! what a dead process looks like. Only `Leave` says goodbye.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::fault_post::{FaultPost, FaultsChanged};
use super::inspect::Look;
use super::liveness::Liveness;
use super::record_faults::{Disturbed, card_keys};
use super::store_health::{StoreHealth, Witness};
use crate::faults::kind::DiscoveryFault;
use crate::transport::discovery::{Discovery, DiscoveryError, Lease, Record, Renewal};
use crate::types::span_of_ms;

/// News for the worker.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum LeaseNews {
    /// All records are visible.
    Registered,
    /// They may be gone: the lease is lost, or has not been renewed for its whole time.
    Lapsed,
    /// The lease is closed and the records are gone.
    Left,
}

/// Replaces some records by others: the old keys go first, so that a router never sees two sources of one rank.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Replace {
    pub(super) old_keys: Vec<String>,
    pub(super) new: Vec<Record>,
}

/// Takes keys back but keeps the lease (first step of a drain).
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Withdraw(pub(super) Vec<String>);

/// Closes the lease: every record disappears at once. Answered by [`LeaseNews::Left`].
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Leave;

/// Lease keeper of one worker.
pub(super) struct Registrar {
    orders: mpsc::UnboundedSender<Order>,
    post: Arc<FaultPost>,
    task: AbortHandle,
    _liveness: Liveness,
}

enum Order {
    Replace(Replace),
    Withdraw(Vec<String>),
    Disturb(Disturbed),
    Leave,
}

impl Registrar {
    /// Starts registering `records` at once.
    pub(super) fn new(
        pool: &Handle,
        discovery: Discovery,
        health: &StoreHealth,
        records: Vec<Record>,
        news: Recipient<LeaseNews>,
        post: Arc<FaultPost>,
        liveness: Liveness,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let keeper = Keeper {
            discovery,
            store: health.witness(),
            records,
            news,
            inbox,
            disturbed: disturbed(&post),
            post: Arc::clone(&post),
            card_is_away: false,
        };
        let task = pool.spawn(keeper.run()).abort_handle();
        Self {
            orders,
            post,
            task,
            _liveness: liveness,
        }
    }

    fn order(&self, order: Order) {
        // The task only ends after `Leave`; orders that come later have nothing left to change.
        drop(self.orders.send(order));
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        // The fault: the keys of a dead worker stay. Its keeper goes on until the fault ends.
        if !disturbed(&self.post).key_kept {
            self.task.abort();
        }
    }
}

impl Actor for Registrar {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.post.attach(ctx.address().recipient());
    }
}

fn disturbed(post: &FaultPost) -> Disturbed {
    Disturbed::of(post.table().in_force())
}

impl Handler<FaultsChanged> for Registrar {
    type Result = ();
    fn handle(&mut self, _: FaultsChanged, _: &mut Self::Context) {
        self.order(Order::Disturb(disturbed(&self.post)));
    }
}

impl Handler<Replace> for Registrar {
    type Result = ();
    fn handle(&mut self, message: Replace, _: &mut Self::Context) {
        self.order(Order::Replace(message));
    }
}

impl Handler<Withdraw> for Registrar {
    type Result = ();
    fn handle(&mut self, Withdraw(keys): Withdraw, _: &mut Self::Context) {
        self.order(Order::Withdraw(keys));
    }
}

impl Handler<Leave> for Registrar {
    type Result = ();
    fn handle(&mut self, _: Leave, _: &mut Self::Context) {
        self.order(Order::Leave);
    }
}

impl Handler<Look> for Registrar {
    type Result = MessageResult<Look>;

    fn handle(&mut self, _: Look, _: &mut Self::Context) -> Self::Result {
        MessageResult(json!({"keeps_lease": !self.task.is_finished()}))
    }
}

/// How often the keeper of a dead worker's keys looks whether its fault has ended.
const ORPHAN_CHECK: Duration = Duration::from_millis(50);

const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Longest wait for the store to confirm a goodbye; after it the lease runs out by itself.
const GOODBYE: Duration = Duration::from_secs(3);

struct Keeper {
    discovery: Discovery,
    store: Witness,
    records: Vec<Record>,
    news: Recipient<LeaseNews>,
    inbox: mpsc::UnboundedReceiver<Order>,
    disturbed: Disturbed,
    post: Arc<FaultPost>,
    /// The card is withdrawn, for a while.
    card_is_away: bool,
}

/// Why a lease is no longer kept.
enum Over {
    Lost,
    Left,
    /// The worker is dead, and the fault that kept its keys has ended.
    Abandoned,
    /// To be closed and opened again.
    Again,
}

impl Keeper {
    async fn run(mut self) {
        let mut listed = false;
        loop {
            let Some(lease) = self.register().await else {
                // It was listed under a lease that is given up, and there is no telling the store.
                if listed && !self.disturbed.lease_lost {
                    self.store.goodbye_unsaid();
                }
                return self.left();
            };
            listed = true;
            self.news.do_send(LeaseNews::Registered);
            self.card_is_away = false;
            match self.keep(&lease).await {
                Over::Abandoned => return,
                Over::Again => {
                    let _ = self.close(lease).await;
                    self.news.do_send(LeaseNews::Lapsed);
                }
                Over::Lost => {
                    tracing::debug!("lease lost; registering again");
                    self.news.do_send(LeaseNews::Lapsed);
                }
                Over::Left => {
                    if !self.close(lease).await {
                        self.store.goodbye_unsaid();
                    }
                    return self.left();
                }
            }
        }
    }

    /// Whether the store has confirmed it; otherwise the lease runs out by itself.
    async fn close(&self, lease: Lease) -> bool {
        match tokio::time::timeout(GOODBYE, self.discovery.close(lease)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => tracing::debug!(%error, "goodbye failed; the lease will run out"),
            Err(_) => tracing::debug!("goodbye not confirmed; the lease will run out"),
        }
        false
    }

    fn left(&self) {
        self.news.do_send(LeaseNews::Left);
    }

    /// Registers until it works; `None` when told to leave meanwhile.
    async fn register(&mut self) -> Option<Lease> {
        let mut wait = FIRST_RETRY;
        let mut lost_to = None;
        loop {
            while self.disturbed.lease_lost {
                if lost_to.is_none() {
                    lost_to = self
                        .disturbed
                        .happened(|fault| matches!(fault, DiscoveryFault::LeaseLost {}));
                }
                match self.inbox.recv().await {
                    None | Some(Order::Leave) => return None,
                    Some(order) => self.note(&order),
                }
            }
            match self.try_register().await {
                Ok(lease) => {
                    self.store.worked();
                    return Some(lease);
                }
                Err(error) => self.store.failed(&error),
            }
            let again = Instant::now() + wait;
            wait = (wait * 2).min(MAX_RETRY);
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(again) => break,
                    order = self.inbox.recv() => match order {
                        None | Some(Order::Leave) => return None,
                        Some(order) => self.note(&order),
                    },
                }
            }
        }
    }

    async fn try_register(&self) -> Result<Lease, DiscoveryError> {
        let lease = self.discovery.open().await?;
        let told = self.disturbed.told(&self.records);
        match self.discovery.publish(&lease, &told).await {
            Ok(()) => {
                self.disturbed.told_wrong(&self.records, None);
                Ok(lease)
            }
            Err(error) => {
                // A worker that is there in part helps no router, and might never get any further.
                self.close(lease).await;
                Err(error)
            }
        }
    }

    async fn keep(&mut self, lease: &Lease) -> Over {
        let mut period = lease.ttl() / 3;
        let mut next = Instant::now() + period;
        let mut holds_until = Instant::now() + lease.ttl();
        let mut lapsed = false;
        let mut orphaned = false;
        let began = Instant::now();
        let mut churned = began;
        loop {
            let turn = self.next_turn(began, churned);
            tokio::select! {
                () = tokio::time::sleep_until(turn.unwrap_or(next)), if turn.is_some() => {
                    if self.disturbed.storm_ms.is_some() {
                        let storms = |fault: &DiscoveryFault| matches!(fault, DiscoveryFault::RegistrationStorm { .. });
                        self.disturbed.happened(storms);
                        return Over::Again;
                    }
                    churned = Instant::now();
                    if self.churn(lease).await.is_err() {
                        return Over::Lost;
                    }
                    self.disturbed.happened(|fault| matches!(fault, DiscoveryFault::CardChurn { .. }));
                }
                () = tokio::time::sleep(ORPHAN_CHECK), if orphaned => {
                    if !disturbed(&self.post).key_kept {
                        return Over::Abandoned;
                    }
                }
                () = tokio::time::sleep_until(next) => match self.discovery.renew(lease).await {
                    Ok(Renewal::Alive { ttl }) => {
                        self.store.worked();
                        period = ttl / 3;
                        next = Instant::now() + period;
                        holds_until = Instant::now() + ttl;
                        if std::mem::take(&mut lapsed) {
                            self.news.do_send(LeaseNews::Registered);
                        }
                    }
                    Ok(Renewal::Lost) => return Over::Lost,
                    Err(error) => {
                        self.store.failed(&error);
                        next = Instant::now() + FIRST_RETRY.min(period);
                        if !lapsed && next > holds_until {
                            lapsed = true;
                            self.news.do_send(LeaseNews::Lapsed);
                        }
                    }
                },
                order = self.inbox.recv(), if !orphaned => match order {
                    None => {
                        orphaned = true;
                        self.disturbed.happened(|fault| matches!(fault, DiscoveryFault::KeyKept {}));
                    }
                    Some(Order::Leave) => return Over::Left,
                    Some(order) => {
                        if self.disturb(lease, &order).await {
                            return Over::Again;
                        }
                        let gone = self.gone_with(&order);
                        self.note(&order);
                        match self.carry_out(lease, &gone, &order).await {
                            Ok(()) => {}
                            Err(DiscoveryError::LeaseGone) => return Over::Lost,
                            Err(error) => {
                                // A fresh registration writes the records as they are now.
                                self.store.failed(&error);
                                return Over::Lost;
                            }
                        }
                    }
                },
            }
        }
    }

    /// When a fault wants the next change of what is registered.
    fn next_turn(&self, began: Instant, churned: Instant) -> Option<Instant> {
        let after = |from: Instant, ms: f64| from + span_of_ms(ms);
        let storm = self.disturbed.storm_ms.map(|ms| after(began, ms));
        storm.or_else(|| self.disturbed.card_churn_ms.map(|ms| after(churned, ms)))
    }

    /// Takes the card away, or puts it back.
    async fn churn(&mut self, lease: &Lease) -> Result<(), DiscoveryError> {
        self.card_is_away = !self.card_is_away;
        let keys = card_keys(&self.records);
        if self.card_is_away {
            return self.discovery.withdraw(lease, &keys).await;
        }
        let mut cards = self.records.clone();
        cards.retain(|record| keys.contains(&record.key));
        self.discovery.publish(lease, &cards).await
    }

    /// Changes what is told when faults change. `true`: only a new lease will do, or none.
    async fn disturb(&mut self, lease: &Lease, order: &Order) -> bool {
        let Order::Disturb(disturbed) = order else { return false };
        let gone = self.disturbed.extra_keys(&self.records);
        let same = disturbed.told(&self.records) == self.disturbed.told(&self.records);
        let back = self.card_is_away && disturbed.card_churn_ms.is_none();
        let before = std::mem::replace(&mut self.disturbed, disturbed.clone());
        if self.disturbed.lease_lost {
            return true;
        }
        if same && !back {
            return false;
        }
        self.card_is_away = false;
        let told = self.disturbed.told(&self.records);
        let changed = async {
            self.discovery.withdraw(lease, &gone).await?;
            self.discovery.publish(lease, &told).await
        };
        match changed.await {
            Ok(()) => {
                self.disturbed.told_wrong(&self.records, Some(&before));
                false
            }
            Err(error) => {
                self.store.failed(&error);
                true
            }
        }
    }

    /// What is registered from now on.
    fn note(&mut self, order: &Order) {
        match order {
            Order::Replace(Replace { old_keys, new }) => {
                self.records.retain(|record| !old_keys.contains(&record.key));
                self.records.extend(new.iter().cloned());
            }
            Order::Withdraw(keys) => self.records.retain(|record| !keys.contains(&record.key)),
            Order::Disturb(disturbed) => self.disturbed = disturbed.clone(),
            Order::Leave => {}
        }
    }

    /// Keys that an order takes back, with those that are told beside them because of faults.
    fn gone_with(&self, order: &Order) -> Vec<String> {
        let (Order::Replace(Replace { old_keys: keys, .. }) | Order::Withdraw(keys)) = order else {
            return Vec::new();
        };
        let records = self.records.iter().filter(|record| keys.contains(&record.key));
        let beside = self.disturbed.extra_keys(records);
        beside.into_iter().chain(keys.iter().cloned()).collect()
    }

    async fn carry_out(&self, lease: &Lease, gone: &[String], order: &Order) -> Result<(), DiscoveryError> {
        match order {
            Order::Replace(Replace { new, .. }) => {
                self.discovery.withdraw(lease, gone).await?;
                self.discovery.publish(lease, &self.disturbed.told(new)).await?;
                self.disturbed.told_wrong(new, None);
                Ok(())
            }
            Order::Withdraw(_) => self.discovery.withdraw(lease, gone).await,
            Order::Disturb(_) | Order::Leave => Ok(()),
        }
    }
}
