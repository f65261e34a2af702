//! A socket whose peer has to read: a write that makes no progress for too long is an error.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// A socket with a limit on stalled writes.
pub(crate) struct PatientIo {
    inner: TokioIo<TcpStream>,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    hears: Option<Hears>,
}

/// Told `true` when a write makes no progress, and `false` when one does again.
type Hears = Box<dyn Fn(bool) + Send>;

impl PatientIo {
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Self {
        Self {
            inner: TokioIo::new(stream),
            patience,
            stalled: None,
            hears: None,
        }
    }

    /// Tells `hears` when writes stall, and when they go on.
    pub(crate) fn heard_by(self, hears: impl Fn(bool) + Send + 'static) -> Self {
        let hears: Option<Hears> = Some(Box::new(hears));
        Self { hears, ..self }
    }

    fn tell(&self, stalls: bool) {
        if let Some(hears) = &self.hears {
            hears(stalls);
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.inner.inner()
    }

    fn watch<T>(&mut self, cx: &mut Context<'_>, progress: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if progress.is_ready() {
            if self.stalled.take().is_some() {
                self.tell(false);
            }
            return progress;
        }
        if self.stalled.is_none() {
            self.tell(true);
        }
        let patience = self.patience;
        let timer = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        timer.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for PatientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl Write for PatientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let progress = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.watch(cx, progress)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let progress = Pin::new(&mut this.inner).poll_write_vectored(cx, bytes);
        this.watch(cx, progress)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
