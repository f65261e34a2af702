//! Discovery in etcd: plain keys attached to leases.
//!
//! One HTTP/2 channel carries the whole fleet. Calls in flight are bounded, so that a start-up burst of hundreds of
//! workers neither floods the server nor waits for it one round trip at a time. All leases are renewed over one stream
//! (module `renewer`). Every call is tried again for a while when the server does not answer, which is safe because all
//! of them can be repeated: at worst a granted lease is left over, and that one runs out.

pub mod address;
mod renewer;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{
    Certificate, Client, ConnectOptions, GetOptions, Identity, KeyValue, PutOptions, TlsOptions, Txn, TxnOp,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::renewer::Renewer;
use self::status::Fault;
use super::{DiscoveryError, Record, Renewal};
use crate::transport::tls::{self, EtcdTls, TlsError};

/// Most operations etcd takes in one transaction unless it is told otherwise (`--max-txn-ops`).
const MAX_TXN_OPS: usize = 128;

/// Bytes of records in one transaction, below the 1.5 MiB that etcd takes in one request.
const MAX_TXN_BYTES: usize = 1 << 20;

/// Records in one page of a listing; cards make pages of some MiB.
const PAGE_RECORDS: i64 = 256;

/// Most bytes accepted in one answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Pause before a call is tried again; it doubles from the first to the last.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(320)];

/// Why a call failed that nothing is known of.
const NO_ANSWER: &str = "no answer in time";

/// Time between two lines that say the server is still missed at start-up.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// Options of an etcd store.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// `http://<host>:<port>` or `https://<host>:<port>`, or `<host>:<port>`; any of them may answer (`ETCD_ENDPOINTS`).
    pub endpoints: Vec<String>,
    /// User and password (`ETCD_AUTH_USERNAME`, `ETCD_AUTH_PASSWORD`).
    pub user: Option<(String, String)>,
    /// TLS (`ETCD_AUTH_CA`, `ETCD_AUTH_CLIENT_CERT`, `ETCD_AUTH_CLIENT_KEY`).
    pub tls: Option<Box<EtcdTls>>,
    /// Lease time, in whole seconds (`ETCD_LEASE_TTL`). The server may grant more.
    pub ttl: Duration,
    /// Time to go on trying at start-up (`ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS`).
    pub connect_limit: Duration,
    /// Time to wait for one answer.
    pub answer_limit: Duration,
    /// HTTP/2 ping interval (`ETCD_KEEPALIVE_INTERVAL_SECONDS`); zero: none.
    pub ping_interval: Duration,
    /// Time to wait for the answer to a ping (`ETCD_KEEPALIVE_TIMEOUT_SECONDS`).
    pub ping_limit: Duration,
    /// Calls in flight at once.
    pub max_in_flight: usize,
}

impl Default for EtcdOptions {
    /// `http://localhost:2379` without credentials; leases of 10 s; 30 s to connect; 3 s for an answer; pings as
    /// Dynamo 1.6.1 has them (15 s, 10 s); 64 calls in flight.
    fn default() -> Self {
        Self {
            endpoints: vec!["http://localhost:2379".into()],
            user: None,
            tls: None,
            ttl: Duration::from_secs(10),
            connect_limit: Duration::from_secs(30),
            answer_limit: Duration::from_secs(3),
            ping_interval: Duration::from_secs(15),
            ping_limit: Duration::from_secs(10),
            max_in_flight: 64,
        }
    }
}

impl EtcdOptions {
    /// User and password from `ETCD_AUTH_USERNAME` and `ETCD_AUTH_PASSWORD`.
    ///
    /// # Errors
    /// [`TlsError::HalfSet`] when only one is set.
    pub fn user_from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<(String, String)>, TlsError> {
        tls::pair_from_lookup("ETCD_AUTH_USERNAME", "ETCD_AUTH_PASSWORD", lookup)
    }
}

impl fmt::Debug for EtcdOptions {
    /// Everything but the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("tls", &self.tls)
            .field("ttl", &self.ttl)
            .field("connect_limit", &self.connect_limit)
            .field("answer_limit", &self.answer_limit)
            .field("ping_interval", &self.ping_interval)
            .field("ping_limit", &self.ping_limit)
            .field("max_in_flight", &self.max_in_flight)
            .finish()
    }
}

/// A connected etcd cluster. Clones share one channel.
#[derive(Clone)]
pub struct EtcdStore(Arc<Connection>);

struct Connection {
    client: Client,
    renewer: Renewer,
    in_flight: Semaphore,
    addresses: Arc<str>,
    ttl: Duration,
    answer_limit: Duration,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore")
            .field("addresses", &self.0.addresses)
            .field("ttl", &self.0.ttl)
            .finish_non_exhaustive()
    }
}

/// A lease in etcd; it runs out unless it is renewed.
#[derive(Debug)]
pub struct EtcdLease {
    id: i64,
}

impl EtcdStore {
    /// Connects and waits until a server answers, warning every few seconds that none does.
    ///
    /// # Errors
    /// [`DiscoveryError::NotConnected`] after [`EtcdOptions::connect_limit`]; at once [`DiscoveryError::Options`] for
    /// options that cannot work and [`DiscoveryError::Refused`] when the server refuses the user.
    pub async fn connect(options: &EtcdOptions) -> Result<Self, DiscoveryError> {
        let addresses: Arc<str> = options.endpoints.join(", ").into();
        let started = Instant::now();
        let mut warn_at = started;
        let mut pause = RETRY_PAUSES[0];
        let mut last_reason = NO_ANSWER.to_owned();
        let client = loop {
            let remaining = options.connect_limit.saturating_sub(started.elapsed());
            let attempt = timeout(remaining.min(options.answer_limit), dial(options));
            let reason = match attempt.await {
                Ok(Ok(client)) => break client,
                Ok(Err(Fault::NoAnswer(reason))) => reason,
                Ok(Err(Fault::Options(reason))) => return Err(DiscoveryError::Options(reason)),
                Ok(Err(Fault::LeaseGone(reason) | Fault::Refused(reason))) => {
                    let operation = "the connection";
                    return Err(DiscoveryError::Refused {
                        addresses: addresses.to_string(),
                        operation,
                        reason,
                    });
                }
                // Cut short: what an earlier attempt was told says more.
                Err(_) => last_reason,
            };
            let remaining = options.connect_limit.saturating_sub(started.elapsed());
            if remaining.is_zero() {
                let limit = options.connect_limit;
                return Err(DiscoveryError::NotConnected {
                    addresses: addresses.to_string(),
                    limit,
                    reason,
                });
            }
            if warn_at <= Instant::now() {
                let left = remaining.as_secs();
                tracing::warn!(%addresses, %reason, "etcd does not answer; trying for another {left} s");
                warn_at = Instant::now() + WARN_EVERY;
            }
            last_reason = reason;
            sleep(pause.min(remaining)).await;
            pause = (pause * 2).min(RETRY_PAUSES[1]);
        };
        tracing::debug!(%addresses, "connected to etcd");
        Ok(Self(Arc::new(Connection {
            renewer: Renewer::spawn(client.lease_client(), options.answer_limit),
            client,
            in_flight: Semaphore::new(options.max_in_flight.max(1)),
            addresses,
            ttl: options.ttl,
            answer_limit: options.answer_limit,
        })))
    }

    /// Lease time asked for.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// Opens a lease; returns the time granted, too.
    pub(super) async fn grant(&self) -> Result<(EtcdLease, Duration), DiscoveryError> {
        // `dial` has checked that the time is a whole number of seconds.
        let seconds = i64::try_from(self.0.ttl.as_secs()).unwrap_or(i64::MAX);
        let granted = self.call("a lease", || {
            let mut leases = self.0.client.lease_client();
            async move { leases.grant(seconds, None).await }
        });
        let granted = granted.await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
        Ok((EtcdLease { id: granted.id() }, ttl))
    }

    /// Puts records under a lease, in one transaction unless they are too many or too large for one.
    pub(super) async fn publish(&self, lease: &EtcdLease, records: &[Record]) -> Result<(), DiscoveryError> {
        let mut rest = records;
        while !rest.is_empty() {
            let (chunk, tail) = rest.split_at(chunk_len(rest));
            rest = tail;
            self.call("the records of a worker", || {
                let options = PutOptions::new().with_lease(lease.id);
                let puts = chunk
                    .iter()
                    .map(|Record { key, value }| TxnOp::put(key.as_str(), &value[..], Some(options.clone())));
                let puts: Vec<TxnOp> = puts.collect();
                let mut keys = self.0.client.kv_client();
                async move { keys.txn(Txn::new().and_then(puts)).await }
            })
            .await?;
        }
        Ok(())
    }

    pub(super) async fn renew(&self, lease: &EtcdLease, ttl: Duration) -> Result<Renewal, DiscoveryError> {
        let renewed = self.retried("the renewal of a lease", || self.0.renewer.renew(lease.id));
        Ok(match renewed.await? {
            renewer::Outcome::Alive => Renewal::Alive { ttl },
            renewer::Outcome::Gone => Renewal::Lost,
        })
    }

    pub(super) async fn withdraw(&self, keys: &[String]) -> Result<(), DiscoveryError> {
        for chunk in keys.chunks(MAX_TXN_OPS) {
            self.call("the removal of records", || {
                let deletes: Vec<TxnOp> = chunk.iter().map(|key| TxnOp::delete(key.as_str(), None)).collect();
                let mut keys = self.0.client.kv_client();
                async move { keys.txn(Txn::new().and_then(deletes)).await }
            })
            .await?;
        }
        Ok(())
    }

    pub(super) async fn revoke(&self, lease: &EtcdLease) -> Result<(), DiscoveryError> {
        let revoked = self.call("the end of a lease", || {
            let mut leases = self.0.client.lease_client();
            async move { leases.revoke(lease.id).await }
        });
        match revoked.await {
            Ok(_) | Err(DiscoveryError::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<Record>, DiscoveryError> {
        let end = prefix_end(prefix.as_bytes());
        let mut from = prefix.as_bytes().to_vec();
        let mut revision = 0; // of the first page, so that all pages show one state
        let mut records = Vec::new();
        loop {
            let answer = self.call("a listing", || {
                let range = GetOptions::new()
                    .with_range(end.clone())
                    .with_limit(PAGE_RECORDS)
                    .with_revision(revision);
                let mut keys = self.0.client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES);
                let from = from.clone();
                async move { keys.get(from, Some(range)).await }
            });
            let mut answer = answer.await?;
            if revision == 0 {
                revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
            }
            let more = answer.more();
            let page = answer.take_kvs();
            let Some(last) = page.last() else { break };
            from = [last.key(), b"\0"].concat();
            // A key that is no text is none of ours.
            records.extend(page.into_iter().filter_map(record));
            if !more {
                break;
            }
        }
        Ok(records)
    }

    /// A call that counts against the bound on calls in flight.
    async fn call<T, F>(&self, operation: &'static str, send: impl Fn() -> F) -> Result<T, DiscoveryError>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        // Waiting for a turn is no sign of a silent server, so it comes before the time limits.
        let _turn = self.0.in_flight.acquire().await.map_err(|_| DiscoveryError::Closed)?;
        let send = &send;
        self.retried(operation, || async move { send().await.map_err(Fault::from) })
            .await
    }

    /// Repeats a call that gets no answer until [`Self::give_up_after`] has passed.
    async fn retried<T, F>(&self, operation: &'static str, attempt: impl Fn() -> F) -> Result<T, DiscoveryError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let give_up_at = Instant::now() + self.give_up_after();
        let mut pause = RETRY_PAUSES[0];
        let mut last_reason = NO_ANSWER.to_owned();
        loop {
            let due = give_up_at.min(Instant::now() + self.0.answer_limit);
            let answer = match timeout_at(due, attempt()).await {
                Ok(answer) => answer,
                Err(_) => Err(Fault::NoAnswer(last_reason.clone())),
            };
            let addresses = || self.0.addresses.to_string();
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Fault::NoAnswer(reason)) if Instant::now() + pause >= give_up_at => {
                    return Err(DiscoveryError::Unreachable {
                        addresses: addresses(),
                        operation,
                        reason,
                    });
                }
                Err(Fault::NoAnswer(reason)) => {
                    last_reason = reason;
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_PAUSES[1]);
                }
                Err(Fault::LeaseGone(_)) => return Err(DiscoveryError::LeaseGone),
                Err(Fault::Refused(reason) | Fault::Options(reason)) => {
                    return Err(DiscoveryError::Refused {
                        addresses: addresses(),
                        operation,
                        reason,
                    });
                }
            }
        }
    }

    /// Longest time one operation may take: short enough to leave a lease time for another try.
    fn give_up_after(&self) -> Duration {
        (self.0.ttl / 3).max(Duration::from_secs(1))
    }
}

/// Checks the options, makes the channel and asks the server for something that needs no rights.
async fn dial(options: &EtcdOptions) -> Result<Client, Fault> {
    if options.endpoints.is_empty() {
        return Err(Fault::Options("no etcd endpoint is given (ETCD_ENDPOINTS)".into()));
    }
    for endpoint in &options.endpoints {
        let encrypted = endpoint.starts_with("https:");
        if encrypted && options.tls.is_none() {
            return Err(Fault::Options(format!(
                "etcd endpoint {endpoint} needs TLS; set ETCD_AUTH_CA to the authority of its certificate (PEM text), or \
                 give an http:// endpoint"
            )));
        }
        if options.tls.is_some() && endpoint.starts_with("http:") {
            return Err(Fault::Options(format!(
                "ETCD_AUTH_CA asks for TLS but etcd endpoint {endpoint} has none; give an https:// endpoint, or unset it"
            )));
        }
    }
    if options.ttl.is_zero() || options.ttl.subsec_nanos() != 0 {
        return Err(Fault::Options(format!(
            "etcd leases last whole seconds from 1 on, not {:?} (ETCD_LEASE_TTL)",
            options.ttl
        )));
    }
    let mut connect = ConnectOptions::new()
        .with_connect_timeout(options.answer_limit)
        .with_auto_token_refresh(true);
    if !options.ping_interval.is_zero() {
        connect = connect.with_keep_alive(options.ping_interval, options.ping_limit);
    }
    if let Some((name, password)) = &options.user {
        connect = connect.with_user(name, password);
    }
    if let Some(tls) = &options.tls {
        let tls = tls_options(tls).map_err(|error| Fault::Options(error.to_string()))?;
        connect = connect.with_tls(tls);
    }
    let client = Client::connect(&options.endpoints, Some(connect)).await?;
    client.maintenance_client().status().await?;
    Ok(client)
}

fn tls_options(tls: &EtcdTls) -> Result<TlsOptions, TlsError> {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(tls.authorities.read()?));
    if let Some(identity) = &tls.identity {
        options = options.identity(Identity::from_pem(identity.chain.read()?, identity.key.read()?));
    }
    Ok(options)
}

/// How many of `records` go into one transaction: at least one.
fn chunk_len(records: &[Record]) -> usize {
    let mut bytes = 0;
    let fitting = records.iter().take(MAX_TXN_OPS).take_while(|record| {
        bytes += record.key.len() + record.value.len();
        bytes <= MAX_TXN_BYTES
    });
    fitting.count().max(1)
}

/// First key behind all keys that start with `prefix`; `\0` stands for "no end".
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let Some(last) = kept else { return vec![0] };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end
}

fn record(pair: KeyValue) -> Option<Record> {
    let (key, value) = pair.into_key_value();
    Some(Record {
        key: String::from_utf8(key).ok()?,
        value: Bytes::from(value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record_of(bytes: usize) -> Record {
        Record {
            key: "k".into(),
            value: vec![b'x'; bytes - 1].into(),
        }
    }

    #[test]
    fn records_are_cut_into_transactions_by_number_and_by_size() {
        let small = vec![record_of(10); 300];
        assert_eq!(chunk_len(&small), MAX_TXN_OPS);
        assert_eq!(chunk_len(&small[..5]), 5);
        let large = vec![record_of(MAX_TXN_BYTES / 2); 3];
        assert_eq!(chunk_len(&large), 2);
        assert_eq!(chunk_len(&[record_of(MAX_TXN_BYTES + 1), record_of(1)]), 1);
    }

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_without_it() {
        assert_eq!(prefix_end(b"v1/mdc/"), b"v1/mdc0");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b""), b"\0");
        assert_eq!(prefix_end(b"\xff"), b"\0");
    }

    #[test]
    fn the_password_is_not_in_debug_output() {
        let options = EtcdOptions {
            user: Some(("u".into(), "secret".into())),
            ..EtcdOptions::default()
        };
        let text = format!("{options:?}");
        assert!(text.contains("\"u\"") && !text.contains("secret"), "{text}");
    }
}
