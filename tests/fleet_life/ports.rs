//! Ports for processes that cannot say which one they got.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;

/// Two ports that follow each other and were free a moment ago. They lie below those that outgoing connections take, so that
/// nobody has them by chance when they are wanted.
pub(crate) fn free_ports() -> u16 {
    loop {
        let port = 10_000 + u16::try_from(RandomState::new().hash_one(0) % 20_000).unwrap();
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 1) {
            return port;
        }
    }
}
