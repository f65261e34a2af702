//! One connection to a NATS server that outlives the server's absence.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::attempts::{Attempts, pause_before};
use super::{JetStreamError, NatsAuth, NatsOptions, Tally};
use crate::transport::repeated::Repeated;
use crate::transport::tls::{TlsError, Trust};

/// Time for one attempt on one server.
const ATTEMPT: Duration = Duration::from_secs(5);

/// A server that is silent for two of these is gone: its machine may have ended without a word.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Messages on their way from us to the client's own task; what has to wait for a lost server waits in an outbox.
const CLIENT_QUEUE: usize = 256;

/// Requests that wait for the task of one endpoint; it only hands them on.
const SUBSCRIPTION_QUEUE: usize = 1024;

/// A server that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NatsError {
    /// No server answered in time.
    #[error(
        "no NATS server answers at {addresses} within {} s ({reason}); {}start nats-server, correct NATS_SERVER, or use \
         planes that need no server (--request-plane tcp --event-plane zmq)",
        limit.as_secs_f32(),
        certificate_hint(reason)
    )]
    NotConnected {
        /// Addresses tried.
        addresses: String,
        /// Time spent trying.
        limit: Duration,
        /// Last failure.
        reason: String,
    },
    /// The server says no.
    #[error(
        "NATS at {addresses} refuses us ({reason}); check NATS_AUTH_USERNAME, NATS_AUTH_PASSWORD, NATS_AUTH_TOKEN, NATS_AUTH_NKEY, NATS_AUTH_CREDENTIALS_FILE"
    )]
    Refused {
        /// Addresses tried.
        addresses: String,
        /// Its words.
        reason: String,
    },
    /// A stream that cannot be had.
    #[error("cannot make the JetStream stream {stream}: {reason}")]
    JetStream {
        /// Which stream.
        stream: String,
        /// Why not.
        reason: JetStreamError,
    },
    /// A certificate or a key that could be used at start but no longer.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The credentials file cannot be used.
    #[error("cannot use NATS_AUTH_CREDENTIALS_FILE {path}: {reason}")]
    Credentials {
        /// Which file.
        path: String,
        /// Why.
        reason: String,
    },
}

/// The way out of a handshake that failed. Source: error texts of rustls 0.23 and nats-server 2.
fn certificate_hint(reason: &str) -> &'static str {
    let reason = reason.to_ascii_lowercase().replace([' ', '_'], "");
    let any = |words: &[&str]| words.iter().any(|words| reason.contains(words));
    if any(&[
        "certificaterequired",
        "handshakefailure",
        "badcertificate",
        "fatalalert:unknownca",
    ]) {
        "the server does not take our certificate: check NATS_TLS_CLIENT_CERT_PATH and NATS_TLS_CLIENT_KEY_PATH, "
    } else if any(&["certificate", "unknownissuer"]) {
        "check NATS_TLS_CA_CERT_PATH, NATS_TLS_CLIENT_CERT_PATH and NATS_TLS_CLIENT_KEY_PATH, "
    } else {
        ""
    }
}

/// Makes connections to one cluster of servers. Reports an outage once, however many connections it takes down.
#[derive(Debug, Clone)]
pub struct NatsConnector {
    options: NatsOptions,
    lost: Arc<AtomicUsize>,
    tally: Arc<Tally>,
    complaints: Arc<Complaints>,
}

/// What servers and connections complain of, said now and then however often it happens.
#[derive(Debug, Default)]
struct Complaints {
    connecting: Repeated,
    server: Repeated,
    slow: Repeated,
}

/// One connection; clones share it. Everything on it is resumed when the server is back. It ends when the last clone
/// is gone.
#[derive(Debug, Clone)]
pub struct NatsLink {
    client: watch::Receiver<Option<Client>>,
    tally: Arc<Tally>,
    stream_max_age: Duration,
    comebacks: watch::Receiver<u64>,
}

/// Times that a connection was made again. Its client holds the sending end.
type Comebacks = Arc<watch::Sender<u64>>;

impl NatsConnector {
    /// A connector; connects to nothing yet.
    pub fn new(options: NatsOptions) -> Self {
        Self {
            options,
            lost: Arc::default(),
            tally: Arc::default(),
            complaints: Arc::default(),
        }
    }

    /// What became of the messages of outboxes on its connections.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Where it connects to.
    pub fn options(&self) -> &NatsOptions {
        &self.options
    }

    /// Connects, trying again until [`NatsOptions::connect_limit`], and once more then.
    ///
    /// # Errors
    /// [`NatsError`]; a refused sign-in is final and not tried again.
    pub async fn connect(&self) -> Result<NatsLink, NatsError> {
        let limit = self.options.connect_limit;
        let comebacks = Comebacks::default();
        let mut attempts = Attempts::within(limit, Instant::now());
        let mut reason = "no attempt came to an end".to_owned();
        loop {
            match tokio::time::timeout_at(attempts.due(Instant::now()), self.try_connect(&comebacks)).await {
                Ok(Ok(client)) => {
                    let (_, client) = watch::channel(Some(client));
                    return Ok(self.link(client, &comebacks));
                }
                Ok(Err(Attempt::Final(error))) => return Err(error),
                Ok(Err(Attempt::Failed(why))) => reason = why,
                Err(_) => {}
            }
            let Some(pause) = attempts.pause(Instant::now()) else {
                return Err(NatsError::NotConnected {
                    addresses: self.options.addresses(),
                    limit,
                    reason,
                });
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// A connection that is made in the background, however long it takes.
    pub fn open(&self, runtime: &Handle) -> NatsLink {
        let (sender, client) = watch::channel(None);
        let connector = self.clone();
        let comebacks = Comebacks::default();
        let link = self.link(client, &comebacks);
        runtime.spawn(async move {
            let connected = async {
                let mut failed = 0;
                loop {
                    match connector.try_connect(&comebacks).await {
                        Ok(client) => return client,
                        Err(Attempt::Failed(reason)) => tracing::debug!(%reason, "no NATS connection yet"),
                        Err(Attempt::Final(error)) => {
                            if let Some(times) = connector.complaints.connecting.say() {
                                tracing::warn!(%error, times, "no NATS connection yet; trying again");
                            }
                        }
                    }
                    failed += 1;
                    tokio::time::sleep(pause_before(failed)).await;
                }
            };
            tokio::select! {
                client = connected => {
                    sender.send_replace(Some(client));
                }
                // Nobody wants it any more.
                () = sender.closed() => {}
            }
        });
        link
    }

    fn link(&self, client: watch::Receiver<Option<Client>>, comebacks: &Comebacks) -> NatsLink {
        NatsLink {
            client,
            tally: Arc::clone(&self.tally),
            stream_max_age: self.options.stream_max_age,
            comebacks: comebacks.subscribe(),
        }
    }

    async fn try_connect(&self, comebacks: &Comebacks) -> Result<Client, Attempt> {
        let options = self.client_options(comebacks).await.map_err(Attempt::Final)?;
        let connected = options.connect(self.options.servers()).await;
        connected.map_err(|error| match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Attempt::Final(NatsError::Refused {
                    addresses: self.options.addresses(),
                    reason: error.to_string(),
                })
            }
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Dns
            | ConnectErrorKind::TimedOut
            | ConnectErrorKind::Tls
            | ConnectErrorKind::Io
            | ConnectErrorKind::MaxReconnects => Attempt::Failed(error.to_string()),
        })
    }

    async fn client_options(&self, comebacks: &Comebacks) -> Result<ConnectOptions, NatsError> {
        let options = ConnectOptions::new()
            .name("ghostfleet")
            .connection_timeout(ATTEMPT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(CLIENT_QUEUE)
            .subscription_capacity(SUBSCRIPTION_QUEUE)
            .max_reconnects(None)
            .reconnect_delay_callback(pause_before);
        let options = self.encrypt(self.watch(options, Arc::clone(comebacks)))?;
        Ok(match &self.options.auth {
            NatsAuth::None => options,
            NatsAuth::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
            NatsAuth::Token(token) => options.token(token.clone()),
            NatsAuth::Nkey(seed) => options.nkey(seed.clone()),
            NatsAuth::Credentials(path) => {
                let read = options.credentials_file(path).await;
                read.map_err(|error| NatsError::Credentials {
                    path: path.display().to_string(),
                    reason: error.to_string(),
                })?
            }
        })
    }

    fn encrypt(&self, options: ConnectOptions) -> Result<ConnectOptions, NatsError> {
        let Some(tls) = self.options.tls() else {
            return Ok(options);
        };
        let options = options.require_tls(true);
        Ok(match (&tls.trust, &tls.identity) {
            // Given the files itself, the client leaves the authorities of the system alone, which may not be there.
            (Some(Trust::Authorities(authorities)), identity) => {
                let options = options.add_root_certificates(authorities.path().to_owned());
                match identity {
                    None => options,
                    Some(own) => options.add_client_certificate(own.chain.path().to_owned(), own.key.path().to_owned()),
                }
            }
            (None, Some(own)) => options.add_client_certificate(own.chain.path().to_owned(), own.key.path().to_owned()),
            (Some(Trust::Anybody), _) | (None, None) => options.tls_client_config(tls.config()?),
        })
    }

    fn watch(&self, options: ConnectOptions, comebacks: Comebacks) -> ConnectOptions {
        let lost = Arc::clone(&self.lost);
        let addresses: Arc<str> = self.options.addresses().into();
        let is_lost = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let complaints = Arc::clone(&self.complaints);
        options.event_callback(move |event| {
            let (lost, addresses, is_lost) = (Arc::clone(&lost), Arc::clone(&addresses), Arc::clone(&is_lost));
            let (complaints, comebacks) = (Arc::clone(&complaints), Arc::clone(&comebacks));
            async move {
                match event {
                    Event::Disconnected if !is_lost.swap(true, Ordering::Relaxed) => {
                        metrics::counter!("ghostfleet_nats_connections_lost_total").increment(1);
                        if lost.fetch_add(1, Ordering::Relaxed) == 0 {
                            tracing::warn!(%addresses, "NATS is lost; events wait within bounds until it is back");
                        }
                    }
                    Event::Connected if is_lost.swap(false, Ordering::Relaxed) => {
                        comebacks.send_modify(|times| *times += 1);
                        if lost.fetch_sub(1, Ordering::Relaxed) == 1 {
                            tracing::info!(%addresses, "NATS is back");
                        }
                    }
                    Event::SlowConsumer(subscription) => {
                        metrics::counter!("ghostfleet_nats_requests_dropped_total").increment(1);
                        if let Some(times) = complaints.slow.say() {
                            tracing::warn!(
                                subscription,
                                times,
                                "requests come faster than they are handed on; they are dropped"
                            );
                        }
                    }
                    Event::ServerError(error) => {
                        if let Some(times) = complaints.server.say() {
                            tracing::warn!(%addresses, %error, times, "NATS server reports an error");
                        }
                    }
                    Event::ClientError(error) => tracing::debug!(%addresses, %error, "NATS client reports an error"),
                    Event::Connected | Event::Disconnected | Event::LameDuckMode | Event::Draining | Event::Closed => {}
                }
            }
        })
    }
}

/// Why one attempt failed.
enum Attempt {
    Failed(String),
    Final(NatsError),
}

impl NatsLink {
    /// The client, once connected; `None` when the runtime is going down before that.
    pub(in crate::transport) async fn client(&self) -> Option<Client> {
        let mut client = self.client.clone();
        let connected = client.wait_for(Option::is_some).await.ok()?;
        connected.clone()
    }

    /// Whether the server is there, as far as anybody knows.
    pub fn is_there(&self) -> bool {
        let client = self.client.borrow();
        client
            .as_ref()
            .is_some_and(|client| client.connection_state() == State::Connected)
    }

    /// Changes whenever the server is back after it was lost.
    pub(super) fn comebacks(&self) -> watch::Receiver<u64> {
        self.comebacks.clone()
    }

    /// How long a stream that it makes keeps messages.
    pub(super) fn stream_max_age(&self) -> Duration {
        self.stream_max_age
    }

    /// What became of the messages of outboxes on it and its siblings.
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }
}
