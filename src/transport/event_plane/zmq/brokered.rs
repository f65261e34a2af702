//! A PUB socket that connects to brokers instead of listening.
//!
//! One connection per XSUB address, made again for ever when it is lost. Meanwhile messages that the broker had asked
//! for wait in its queue, within the queue's bounds; when the broker is back they wait on until it asks again, because
//! it passes on only what its own subscribers have asked for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::connection::talk;
use super::publisher::{Member, Shared};
use super::subscriber::Subscriber;
use super::{Limits, ZmqStats};
use crate::transport::host_port;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(2);

/// Time for one attempt to connect.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Most XSUB addresses of one socket.
pub const MAX_BROKERS: usize = 64;

/// Addresses that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerUrlError {
    /// Not the form of `DYN_ZMQ_BROKER_URL`.
    #[error(
        "DYN_ZMQ_BROKER_URL {0:?} has not the form xsub=tcp://host:port[;tcp://...],xpub=tcp://host:port[;tcp://...]"
    )]
    Form(String),
    /// Not an address that can be connected to.
    #[error("broker address {0:?} has not the form tcp://host:port")]
    Address(String),
    /// Too many.
    #[error("{0} broker addresses are more than the {MAX_BROKERS} that one publisher connects to")]
    TooMany(usize),
}

/// Where publishers connect: the XSUB sides of one or more brokers, as `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BrokerAddresses(Vec<String>);

impl BrokerAddresses {
    /// From `DYN_ZMQ_BROKER_URL`: exactly two parts, `xsub=` and `xpub=`, in either order.
    ///
    /// # Errors
    /// [`BrokerUrlError`] names the part.
    pub fn from_url(url: &str) -> Result<Self, BrokerUrlError> {
        let form = || BrokerUrlError::Form(url.to_owned());
        let parts: Vec<&str> = url.split(',').map(str::trim).collect();
        let [first, second] = parts[..] else { return Err(form()) };
        let part = |name: &str| [first, second].into_iter().find_map(|part| part.strip_prefix(name));
        let (for_publishers, for_routers) = part("xsub=").zip(part("xpub=")).ok_or_else(form)?;
        // Only subscribers connect there, but a slip in it is better told here than by a silent router.
        Self::new(for_routers.split(';').map(str::trim))?;
        Self::new(for_publishers.split(';').map(str::trim))
    }

    /// From `tcp://host:port` addresses.
    ///
    /// # Errors
    /// [`BrokerUrlError`] names the address.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Self, BrokerUrlError> {
        let addresses = urls.into_iter().map(|url| {
            let address = url.strip_prefix("tcp://").unwrap_or_default();
            match host_port::split(address) {
                Some((_, Some(_))) => Ok(address.to_owned()),
                Some((_, None)) | None => Err(BrokerUrlError::Address(url.to_owned())),
            }
        });
        let mut addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        addresses.sort();
        addresses.dedup();
        if addresses.len() > MAX_BROKERS {
            return Err(BrokerUrlError::TooMany(addresses.len()));
        }
        Ok(Self(addresses))
    }

    /// `host:port` of each.
    pub fn hosts(&self) -> &[String] {
        &self.0
    }
}

/// A PUB socket connected to brokers. Dropping it closes it.
pub struct ZmqBrokered {
    shared: Arc<Shared>,
}

impl ZmqBrokered {
    /// Connects to each broker, in the background and for ever; its tasks run on `runtime`.
    pub fn connect(brokers: &BrokerAddresses, limits: Limits, runtime: &Handle) -> Self {
        let shared = Arc::new(Shared::new(limits));
        for address in &brokers.0 {
            shared
                .door
                .open(keep_connected(address.clone(), Arc::clone(&shared)), runtime);
        }
        Self { shared }
    }

    /// Whether a broker wants messages with this first frame.
    pub fn has_subscribers(&self, subject: &[u8]) -> bool {
        self.shared.subscribers(subject) > 0
    }

    /// Queues a message for every broker that wants its first frame. Callable from any thread; never waits.
    pub fn send(&self, frames: &[Bytes]) {
        self.shared.send(frames);
    }

    /// Waits until at least `count` brokers want messages with this first frame, or the publisher ends.
    pub async fn subscribed(&self, subject: &[u8], count: usize) {
        self.shared.subscribed(subject, count).await;
    }

    /// Counters and what is held now; brokers count as subscribers.
    pub fn stats(&self) -> ZmqStats {
        self.shared.stats()
    }

    /// Changes whenever a broker is back after it could not be reached.
    pub fn comebacks(&self) -> watch::Receiver<u64> {
        self.shared.comebacks.subscribe()
    }

    /// Ends the connections; what is queued goes out as far as brokers take it in time.
    pub fn close(&self) {
        self.shared.door.close();
    }

    /// Waits, after `close`, until the connections are gone.
    pub async fn closed(&self) {
        self.shared.door.closed().await;
    }
}

impl Drop for ZmqBrokered {
    fn drop(&mut self) {
        self.close();
    }
}

/// Serves one broker until the socket ends, and counts what it has not taken by then.
async fn keep_connected(address: String, shared: Arc<Shared>) {
    let subscriber = Arc::new(Subscriber::new());
    reconnect(&address, &shared, &subscriber).await;
    shared.count_undelivered(subscriber.waiting());
}

async fn reconnect(address: &str, shared: &Shared, subscriber: &Arc<Subscriber>) {
    // Both outlive connections: a broker that is away is still a member, and its messages wait.
    let mut member = Member::new(shared, Arc::clone(subscriber));
    subscriber.detach();
    let mut wait = FIRST_RETRY;
    let mut told = false;
    loop {
        let connected = tokio::select! {
            () = shared.door.ended() => return,
            connected = timeout(CONNECT_PATIENCE, TcpStream::connect(address)) => connected,
        };
        let reason = match connected {
            Ok(Ok(stream)) => {
                if told {
                    info!(%address, "the event broker is back");
                    told = false;
                    shared.comebacks.send_modify(|times| *times += 1);
                }
                wait = FIRST_RETRY;
                shared.door.count_dialled();
                let talk = async |stream: &TcpStream| talk(stream, shared, subscriber, &mut member).await;
                let ended = shared.door.carry(&stream, talk).await;
                subscriber.detach();
                let Err(ended) = ended else { return };
                ended.to_string()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {CONNECT_PATIENCE:?}"),
        };
        if told {
            debug!(%address, %reason, "no event broker");
        } else {
            warn!(%address, %reason, "the event broker cannot be reached; what it asked for waits within bounds");
            told = true;
        }
        tokio::select! {
            () = shared.door.ended() => return,
            () = tokio::time::sleep(wait) => {}
        }
        wait = (wait * 2).min(MAX_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_url_names_both_sides() {
        let url = " xsub=tcp://h1:1;tcp://[::1]:2 , xpub=tcp://h1:3;tcp://h2:4 ";
        let read = BrokerAddresses::from_url(url).expect("valid");
        assert_eq!(read.hosts(), ["[::1]:2", "h1:1"]);
        let swapped = BrokerAddresses::from_url("xpub=tcp://a:1,xsub=tcp://b:2").expect("valid");
        assert_eq!(swapped.hosts(), ["b:2"]);
    }

    #[test]
    fn an_unusable_broker_url_is_an_error_that_names_it() {
        for url in [
            "",
            "tcp://a:1",
            "xsub=tcp://a:1",
            "xsub=tcp://a:1,xsub=tcp://b:2",
            "xsub=tcp://a:1,xpub=tcp://b:2,more",
            "xsub=tcp://a:1,xpub=tcp://b:2,xpub=tcp://c:3",
            "xsub=tcp://a:1,xpub=tcp://b:2,xsub=tcp://c:3",
            "xsub=tcp://a:1,xpub=tcp://b:2,",
            "xsub=tcp://a:99999,xpub=tcp://b:2",
            "xsub=tcp://a/b:1,xpub=tcp://b:2",
            "xsub=ipc:///a,xpub=tcp://b:2",
            "xsub=tcp://a,xpub=tcp://b:2",
            "xsub=tcp://a:0,xpub=tcp://b:2",
            "xsub=,xpub=tcp://b:2",
        ] {
            let error = BrokerAddresses::from_url(url).expect_err(url).to_string();
            assert!(error.contains("tcp://host:port"), "{url}: {error}");
        }
        let many: Vec<String> = (1..=65).map(|port| format!("tcp://a:{port}")).collect();
        let error = BrokerAddresses::new(many.iter().map(String::as_str));
        assert_eq!(error, Err(BrokerUrlError::TooMany(65)));
    }
}
