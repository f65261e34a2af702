//! A connection that can be pulled like a plug.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A cable between a reader and a port.
pub(crate) struct Cable {
    pub(crate) port: u16,
    pulled: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    pub(crate) fn to(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let cable = Self {
            port: listener.local_addr().unwrap().port(),
            pulled: Arc::default(),
            connections: Arc::default(),
            ends: Arc::default(),
        };
        let (pulled, ends) = (Arc::clone(&cable.pulled), Arc::clone(&cable.ends));
        let connections = Arc::clone(&cable.connections);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                let mut ends = ends.lock().unwrap();
                if pulled.load(Ordering::SeqCst) {
                    continue;
                }
                connections.fetch_add(1, Ordering::SeqCst);
                ends.extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
                std::thread::spawn(move || pour(back.0, back.1));
                std::thread::spawn(move || pour(near, far));
            }
        });
        cable
    }

    pub(crate) fn pull(&self) {
        let mut ends = self.ends.lock().unwrap();
        self.pulled.store(true, Ordering::SeqCst);
        for end in ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn plug_in(&self) {
        self.pulled.store(false, Ordering::SeqCst);
    }

    /// Connections so far that it has carried.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn carries(&self) -> bool {
        !self.ends.lock().unwrap().is_empty()
    }
}

fn pour(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(read) = from.read(&mut bytes) {
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
