//! `Registrar`: keeps one worker's records alive in discovery.
//!
//! Started by the worker; owns the worker's lease. The waiting is done by one task on the shared pool. It registers
//! (again and again, with back-off, while the store cannot be reached), renews every third of the lease's time, and
//! registers afresh when the lease is lost. When the actor dies the task dies with it and the lease runs out: that is
//! what a dead process looks like. Only `Leave` says goodbye.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::prelude::*;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::inspect::Look;
use super::liveness::Liveness;
use crate::transport::discovery::{Discovery, DiscoveryError, Lease, Record, Renewal};

/// Whether the store answers, shared by all registrars so that 256 of them report an outage once.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreHealth(Arc<AtomicBool>);

impl StoreHealth {
    fn failed(&self, error: &DiscoveryError) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "discovery fails; serving on, and registering again as soon as it is back");
        }
    }

    fn worked(&self) {
        if self.0.swap(false, Ordering::Relaxed) {
            tracing::info!("discovery works again");
        }
    }
}

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
    task: AbortHandle,
    _liveness: Liveness,
}

enum Order {
    Replace(Replace),
    Withdraw(Vec<String>),
    Leave,
}

impl Registrar {
    /// Starts registering `records` at once.
    pub(super) fn new(
        pool: &Handle,
        discovery: Discovery,
        health: StoreHealth,
        records: Vec<Record>,
        news: Recipient<LeaseNews>,
        liveness: Liveness,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let keeper = Keeper {
            discovery,
            health,
            records,
            news,
            inbox,
        };
        let task = pool.spawn(keeper.run()).abort_handle();
        Self {
            orders,
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
        self.task.abort();
    }
}

impl Actor for Registrar {
    type Context = Context<Self>;
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

const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Longest wait for the store to confirm a goodbye; after it the lease runs out by itself.
const GOODBYE: Duration = Duration::from_secs(3);

struct Keeper {
    discovery: Discovery,
    health: StoreHealth,
    records: Vec<Record>,
    news: Recipient<LeaseNews>,
    inbox: mpsc::UnboundedReceiver<Order>,
}

/// Why a lease is no longer kept.
enum Over {
    Lost,
    Left,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let Some(lease) = self.register().await else {
                return self.left();
            };
            self.news.do_send(LeaseNews::Registered);
            match self.keep(&lease).await {
                Over::Lost => {
                    tracing::debug!("lease lost; registering again");
                    self.news.do_send(LeaseNews::Lapsed);
                }
                Over::Left => {
                    match tokio::time::timeout(GOODBYE, self.discovery.close(lease)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%error, "goodbye failed; the lease will run out"),
                        Err(_) => tracing::debug!("goodbye not confirmed; the lease will run out"),
                    }
                    return self.left();
                }
            }
        }
    }

    fn left(&self) {
        self.news.do_send(LeaseNews::Left);
    }

    /// Registers until it works; `None` when told to leave meanwhile.
    async fn register(&mut self) -> Option<Lease> {
        let mut wait = FIRST_RETRY;
        loop {
            match self.try_register().await {
                Ok(lease) => {
                    self.health.worked();
                    return Some(lease);
                }
                Err(error) => self.health.failed(&error),
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
        self.discovery.publish(&lease, &self.records).await?;
        Ok(lease)
    }

    async fn keep(&mut self, lease: &Lease) -> Over {
        let mut period = lease.ttl() / 3;
        let mut next = Instant::now() + period;
        let mut holds_until = Instant::now() + lease.ttl();
        let mut lapsed = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => match self.discovery.renew(lease).await {
                    Ok(Renewal::Alive { ttl }) => {
                        self.health.worked();
                        period = ttl / 3;
                        next = Instant::now() + period;
                        holds_until = Instant::now() + ttl;
                        if std::mem::take(&mut lapsed) {
                            self.news.do_send(LeaseNews::Registered);
                        }
                    }
                    Ok(Renewal::Lost) => return Over::Lost,
                    Err(error) => {
                        self.health.failed(&error);
                        next = Instant::now() + FIRST_RETRY.min(period);
                        if !lapsed && next > holds_until {
                            lapsed = true;
                            self.news.do_send(LeaseNews::Lapsed);
                        }
                    }
                },
                order = self.inbox.recv() => match order {
                    None | Some(Order::Leave) => return Over::Left,
                    Some(order) => {
                        self.note(&order);
                        match self.carry_out(lease, &order).await {
                            Ok(()) => {}
                            Err(DiscoveryError::LeaseGone) => return Over::Lost,
                            Err(error) => {
                                // A fresh registration writes the records as they are now.
                                self.health.failed(&error);
                                return Over::Lost;
                            }
                        }
                    }
                },
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
            Order::Leave => {}
        }
    }

    async fn carry_out(&self, lease: &Lease, order: &Order) -> Result<(), DiscoveryError> {
        match order {
            Order::Replace(Replace { old_keys, new }) => {
                self.discovery.withdraw(lease, old_keys).await?;
                self.discovery.publish(lease, new).await
            }
            Order::Withdraw(keys) => self.discovery.withdraw(lease, keys).await,
            Order::Leave => Ok(()),
        }
    }
}
