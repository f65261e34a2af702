//! A frontend that takes a closer look than [`crate::caller`].

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use ghostfleet::transport::request_plane::tcp::frame;
use ghostfleet::transport::request_plane::{Codec, control, two_part};
use serde_json::Value;

/// A request on its way.
pub(crate) struct Sent(TcpStream);

/// Sends a request whose answer is to come to `home`.
pub(crate) fn post(address: &str, request: &Value, home: &TcpListener) -> Sent {
    let (host, _) = address.split_once('/').unwrap();
    let sent = Sent(TcpStream::connect(host).unwrap());
    sent.post(address, request, home);
    sent
}

impl Sent {
    /// Sends one more request on the same connection, to any worker that listens there.
    pub(crate) fn post(&self, address: &str, request: &Value, home: &TcpListener) {
        let (_, path) = address.split_once('/').unwrap();
        let mut payload = Vec::new();
        let control = control::encode("raw", Codec::Json, home.local_addr().unwrap(), "subject");
        two_part::write(&mut payload, &control, request.to_string().as_bytes());
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, path, "{}", &payload);
        (&self.0).write_all(&bytes).unwrap();
    }

    /// Waits until the connection is closed; nothing is said on it before that.
    pub(crate) fn until_closed(&self) {
        let mut connection = &self.0;
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        match connection.read(&mut [0; 4]) {
            Ok(read) => assert_eq!(read, 0, "something was said"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
    }

    /// The ack's words; `None` when none comes within `patience`.
    pub(crate) fn ack(&self, patience: Duration) -> Option<String> {
        let mut connection = &self.0;
        connection.set_read_timeout(Some(patience)).unwrap();
        let mut length = [0; 4];
        connection.read_exact(&mut length).ok()?;
        let mut words = vec![0; u32::from_be_bytes(length) as usize];
        connection.read_exact(&mut words).ok()?;
        Some(String::from_utf8(words).unwrap())
    }

    /// Whether the connection was reset.
    pub(crate) fn is_reset(&self) -> bool {
        let mut connection = &self.0;
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let error = connection.read_exact(&mut [0; 4]).unwrap_err();
        error.kind() == std::io::ErrorKind::ConnectionReset
    }
}

/// Whether anyone dials back within a short while.
pub(crate) fn is_called_home(home: &TcpListener) -> bool {
    home.set_nonblocking(true).unwrap();
    for _ in 0..30 {
        if home.accept().is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Everything that a response socket says until it ends, and whether it ended with a reset.
pub(crate) fn read_to_end(home: &TcpListener) -> (Vec<u8>, bool) {
    let (mut socket, _) = home.accept().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut said = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return (said, false),
            Ok(read) => {
                said.extend_from_slice(&buffer[..read]);
                let sentinel = b"\"sentinel\"";
                if said.windows(sentinel.len()).any(|window| window == sentinel) {
                    return (said, false);
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
                return (said, true);
            }
        }
    }
}
