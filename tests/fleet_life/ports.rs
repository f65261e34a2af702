//! Ports for processes that cannot say which one they got.

use std::net::TcpListener;

/// Two ports that follow each other and were free a moment ago.
pub(crate) fn free_ports() -> u16 {
    loop {
        let first = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}
