//! What stands behind an endpoint path, and the table from paths to endpoints.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use dashmap::DashMap;

use super::control::{self, Control};
use super::tcp::frame::Ack;
use super::two_part;

/// One call, acked or refused on the spot.
#[derive(Debug)]
pub struct Call {
    /// Who calls, in which codec, where to dial back.
    pub control: Control,
    /// Encoded request.
    pub body: Bytes,
    /// Its ack will not be sent, whatever it is: a fault has withheld one on the connection that brought it.
    pub is_unacked: bool,
}

/// A callable endpoint. `accept` is called from a connection task: it decides, hands the work on and returns at once.
pub trait Endpoint: Send + Sync {
    /// Takes or refuses a call. After [`Ack::Accepted`] the endpoint dials back by itself.
    fn accept(self: Arc<Self>, call: Call) -> Ack;

    /// A call came for it that does not say who calls.
    fn count_invalid(&self) {}
}

/// Lets the endpoint that was found take or refuse a request, whatever plane brought it. `payload` is a two-part frame;
/// `path` names the endpoint in the refusal when there is none; `is_unacked` as in [`Call`].
pub fn dispatch(endpoint: Option<Arc<dyn Endpoint>>, path: &[u8], payload: &Bytes, is_unacked: bool) -> Ack {
    let ack = decide(endpoint, path, payload, is_unacked);
    if ack.refusal().is_some() {
        metrics::counter!("ghostfleet_requests_refused_total").increment(1);
    }
    ack
}

fn decide(endpoint: Option<Arc<dyn Endpoint>>, path: &[u8], payload: &Bytes, is_unacked: bool) -> Ack {
    let Some(endpoint) = endpoint else {
        return Ack::Unavailable(format!("unknown endpoint {}", String::from_utf8_lossy(path)));
    };
    let read = two_part::split(payload)
        .map_err(|error| error.to_string())
        .and_then(|(header, _)| {
            Ok((
                control::decode(header).map_err(|error| error.to_string())?,
                header.len(),
            ))
        });
    match read {
        Ok((control, header_bytes)) => endpoint.accept(Call {
            control,
            body: payload.slice(two_part::PREFIX_BYTES + header_bytes..),
            is_unacked,
        }),
        Err(why) => {
            endpoint.count_invalid();
            Ack::Unavailable(why)
        }
    }
}

type Paths = DashMap<Box<[u8]>, Arc<dyn Endpoint>>;

/// Hears of requests to paths that nobody serves.
type Watch = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Paths of one listener. Read for every request, written when a worker comes or goes.
#[derive(Default, Clone)]
pub struct EndpointTable {
    paths: Arc<Paths>,
    strays: Arc<OnceLock<Watch>>,
}

impl fmt::Debug for EndpointTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointTable({} paths)", self.paths.len())
    }
}

impl EndpointTable {
    /// Adds or replaces a path.
    pub fn insert(&self, path: &str, endpoint: Arc<dyn Endpoint>) {
        self.paths.insert(path.as_bytes().into(), endpoint);
    }

    /// Removes a path; later requests for it are refused.
    pub fn remove(&self, path: &str) {
        self.paths.remove(path.as_bytes());
    }

    /// The endpoint behind `path`.
    pub fn get(&self, path: &[u8]) -> Option<Arc<dyn Endpoint>> {
        let found = self.paths.get(path).map(|entry| Arc::clone(&entry));
        if found.is_none()
            && let Some(watch) = self.strays.get()
        {
            watch(path);
        }
        found
    }

    /// From now on `watch` hears the path of each request that nobody serves. The first watch stays.
    pub fn watch_strays(&self, watch: impl Fn(&[u8]) + Send + Sync + 'static) {
        // A second one would be told of half of the requests.
        let _ = self.strays.set(Box::new(watch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Takes;

    impl Endpoint for Takes {
        fn accept(self: Arc<Self>, call: Call) -> Ack {
            assert_eq!(&call.body[..], b"body");
            Ack::Accepted
        }
    }

    fn ack(endpoint: Option<Arc<dyn Endpoint>>, header: &[u8]) -> String {
        let mut payload = Vec::new();
        two_part::write(&mut payload, header, b"body");
        dispatch(endpoint, b"a/b", &payload.into(), false).text()
    }

    #[test]
    fn who_watches_hears_of_requests_that_nobody_serves() {
        let table = EndpointTable::default();
        table.insert("a/b", Arc::new(Takes));
        let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
        let notes = Arc::clone(&heard);
        table.watch_strays(move |path| notes.lock().unwrap().push(path.to_vec()));
        assert!(table.get(b"a/b").is_some() && table.get(b"2a/b").is_none());
        assert_eq!(*heard.lock().unwrap(), [b"2a/b".to_vec()]);
    }

    #[test]
    fn a_request_is_taken_or_refused_in_words_that_name_the_reason() {
        let address = "127.0.0.1:7".parse().unwrap();
        let good = control::encode("id", crate::transport::request_plane::Codec::Json, address, "s");
        let takes = || Some(Arc::new(Takes) as Arc<dyn Endpoint>);
        assert_eq!(ack(takes(), &good), "");
        assert_eq!(ack(None, &good), "Server unavailable: unknown endpoint a/b");
        let quic = br#"{"id":"a","connection_info":{"transport":"quic-response","info":"{}"}}"#;
        assert_eq!(
            ack(takes(), quic),
            "Server unavailable: response plane quic not supported; use tcp (DYN_RESPONSE_PLANE)"
        );
        let short = dispatch(takes(), b"a/b", &Bytes::from_static(b"short"), false).text();
        assert!(
            short.starts_with("Server unavailable: two-part frame is truncated"),
            "{short}"
        );
    }
}
