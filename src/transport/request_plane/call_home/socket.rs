//! Response sockets, with TLS or without: opened by a [`Dialer`], written to from the rank's thread without waiting.

use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::rustls::{self, AlertDescription, ClientConnection};

use super::AnswerLimits;
use crate::faults::draw::Dice;
use crate::transport::tls::ClientTls;
use crate::transport::toxic::Toxics;

/// Opens response sockets. Clones share what is behind it.
#[derive(Debug, Clone, Default)]
pub struct Dialer {
    /// Bounds of the answers.
    pub limits: AnswerLimits,
    /// TLS; `None`: plain TCP.
    pub tls: Option<ClientTls>,
}

impl Dialer {
    /// Dials a caller's response server.
    ///
    /// # Errors
    /// The socket's or the handshake's, or `TimedOut`.
    pub async fn dial(&self, address: SocketAddr) -> io::Result<ResponseSocket> {
        self.dial_by(address, None).await
    }

    /// The same, by a detour if there is one.
    ///
    /// # Errors
    /// As [`Self::dial`].
    pub async fn dial_by(&self, address: SocketAddr, detour: Option<(Toxics, Dice)>) -> io::Result<ResponseSocket> {
        let connected = tokio::time::timeout(self.limits.connect, TcpStream::connect(address)).await;
        let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        let stream = match detour {
            None => stream,
            Some((toxics, dice)) => toxics.detour(stream, dice).await?,
        };
        let Some(tls) = &self.tls else {
            return Ok(ResponseSocket { stream, tls: None });
        };
        let handshake = tls.connect(stream, address).await;
        let (stream, connection) = handshake.map_err(|error| {
            let words = format!("TLS handshake failed: {error}");
            io::Error::new(error.kind(), words)
        })?;
        Ok(ResponseSocket {
            stream,
            tls: Some(Mutex::new(connection)),
        })
    }
}

/// A response socket. What is written to it may stay inside for a while when it has TLS: [`Self::try_flush`].
#[derive(Debug)]
pub struct ResponseSocket {
    stream: TcpStream,
    tls: Option<Mutex<ClientConnection>>,
}

impl ResponseSocket {
    /// Takes as many bytes as it can without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when it takes none now; else the peer is gone.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.stream.try_write(bytes);
        }
        self.try_write_vectored(&[IoSlice::new(bytes)])
    }

    /// The same for bytes in several pieces.
    ///
    /// # Errors
    /// As [`Self::try_write`].
    pub(super) fn try_write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.stream.try_write_vectored(pieces);
        };
        let mut tls = lock(tls);
        // Nothing new before the old is gone: otherwise a slow reader would fill the connection's own buffer first.
        self.send_records(&mut tls)?;
        let taken = tls.writer().write_vectored(pieces)?;
        match self.send_records(&mut tls) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) if taken == 0 => Err(io::ErrorKind::WouldBlock.into()),
            Ok(()) | Err(_) => Ok(taken),
        }
    }

    /// Sends what is still inside.
    ///
    /// # Errors
    /// `WouldBlock` when some of it has to wait; else the peer is gone.
    pub(super) fn try_flush(&self) -> io::Result<()> {
        match &self.tls {
            None => Ok(()),
            Some(tls) => self.send_records(&mut lock(tls)),
        }
    }

    fn send_records(&self, tls: &mut ClientConnection) -> io::Result<()> {
        while tls.wants_write() {
            if tls.write_tls(&mut NoWait(&self.stream))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Reads what is there without waiting; 0: the peer has closed.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; else the peer is gone or says what no peer may say.
    pub(super) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.stream.try_read(into);
        };
        let mut tls = lock(tls);
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that closes without saying so in TLS has closed all the same.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            if tls.read_tls(&mut NoWait(&self.stream))? == 0 {
                return Ok(0);
            }
            let processed = tls.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Why the peer has turned the connection down, if it has. In TLS 1.3 the handshake ends on this side before the peer
    /// has looked at our certificate, so that its word may come when an answer is out already. Ask when the connection is
    /// of no use any more: what else comes is thrown away.
    pub(super) fn refusal(&self) -> Option<String> {
        let mut tls = lock(self.tls.as_ref()?);
        loop {
            match tls.process_new_packets() {
                Ok(_) => {}
                Err(rustls::Error::AlertReceived(alert)) => return Some(words(alert)),
                Err(_) => return None,
            }
            // Nobody reads an answer's socket for more than a few bytes of control.
            let _ = tls.reader().read(&mut [0; 64]);
            if !matches!(tls.read_tls(&mut NoWait(&self.stream)), Ok(1..)) {
                return None;
            }
        }
    }

    /// Waits until it may take bytes again.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Waits until there may be something to read. Ask [`Self::try_read`] first: with TLS something may be inside
    /// already.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.stream.readable().await
    }

    /// Makes the close a reset, as a dead process would leave it.
    pub(super) fn reset_on_close(&self) {
        if let Err(error) = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)) {
            tracing::debug!(%error, "cannot reset a response socket");
        }
    }

    /// Reads and forgets until the peer closes.
    pub(super) async fn read_to_close(&self) {
        let mut rest = [0; 64];
        loop {
            match self.try_read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.readable().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}

fn words(alert: AlertDescription) -> String {
    let hint = if alert == AlertDescription::CertificateRequired {
        "; it asks for a certificate: set DYN_TCP_TLS_CLIENT_CERT_PATH and DYN_TCP_TLS_CLIENT_KEY_PATH"
    } else {
        ""
    };
    format!("TLS handshake failed: the response server says {alert:?}{hint}")
}

/// A panic in the middle of a record leaves a broken connection, which the peer notices; nothing else depends on it.
fn lock(tls: &Mutex<ClientConnection>) -> MutexGuard<'_, ClientConnection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The socket as `Read` and `Write` that never wait.
struct NoWait<'a>(&'a TcpStream);

impl Read for NoWait<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(into)
    }
}

impl Write for NoWait<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
