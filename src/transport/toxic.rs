//! Connections that behave badly: a detour through this process that delays, slows, slices, cuts and resets what a worker
//! writes. A healthy connection has no detour and pays nothing.
//!
//! The words are Toxiproxy's. What the peer writes passes unharmed; a reset on either side is passed on as a reset.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::faults::draw::Dice;
use crate::faults::kind::ResponseFault;
use crate::faults::table::Due;
use crate::types::span_of_ms;

/// What happens to the bytes of one connection.
#[derive(Debug, Default)]
pub struct Toxics {
    latency: Option<Toxic<(f64, f64)>>,
    bytes_per_s: Option<Toxic<f64>>,
    reset_after: Option<Toxic<Duration>>,
    slow_close: Option<Toxic<Duration>>,
    limit: Option<Toxic<u64>>,
    slice: Option<Toxic<(usize, Duration)>>,
}

/// One of them, and the fault behind it.
#[derive(Debug)]
struct Toxic<T> {
    does: T,
    fault: Due<ResponseFault>,
}

impl<T: Copy> Toxic<T> {
    fn new(does: T, fault: Due<ResponseFault>) -> Self {
        Self { does, fault }
    }

    /// It acts.
    fn act(&self) -> T {
        self.fault.happened();
        self.does
    }
}

/// Bytes that are read at a time.
const CHUNK: usize = 16 * 1024;

/// What a wait has to come to for anybody to notice.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// A narrow connection writes this many times a second.
const STEPS_PER_SECOND: f64 = 50.0;

impl Toxics {
    /// What these faults do to the bytes of a connection; `None`: nothing.
    pub fn of(faults: Vec<Due<ResponseFault>>) -> Option<Self> {
        let mut toxics = Self::default();
        let mut acts = false;
        for fault in faults {
            acts |= fault.acts_on_bytes();
            match *fault {
                ResponseFault::Latency { ms, jitter_ms } => toxics.latency = Some(Toxic::new((ms, jitter_ms), fault)),
                ResponseFault::Bandwidth { bytes_per_s } => toxics.bytes_per_s = Some(Toxic::new(bytes_per_s, fault)),
                ResponseFault::ResetPeer { after_ms } => {
                    toxics.reset_after = Some(Toxic::new(span_of_ms(after_ms), fault));
                }
                ResponseFault::SlowClose { ms } => toxics.slow_close = Some(Toxic::new(span_of_ms(ms), fault)),
                ResponseFault::LimitData { bytes } => toxics.limit = Some(Toxic::new(bytes, fault)),
                ResponseFault::Slicer { bytes, delay_ms } => {
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    toxics.slice = Some(Toxic::new((bytes, span_of_ms(delay_ms)), fault));
                }
                ResponseFault::NoPrologue {}
                | ResponseFault::DuplicateFinal {}
                | ResponseFault::MissingFinal {}
                | ResponseFault::MalformedFrame { .. } => {}
            }
        }
        acts.then_some(toxics)
    }

    /// Puts the detour in: the worker uses the connection that is returned in place of `far`. `dice` are for the jitter.
    ///
    /// # Errors
    /// The detour's own sockets.
    pub async fn detour(self, far: TcpStream, dice: Dice) -> io::Result<TcpStream> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (ours, accepted) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
        let (ours, (near, from)) = (ours?, accepted?);
        if from != ours.local_addr()? {
            return Err(io::Error::other("somebody else took the detour"));
        }
        ours.set_nodelay(true)?;
        near.set_nodelay(true)?;
        tokio::spawn(self.run(near, far, dice));
        Ok(ours)
    }

    async fn run(self, mut near: TcpStream, mut far: TcpStream, dice: Dice) {
        let ended = {
            let (mut near_in, mut near_out) = near.split();
            let (mut far_in, mut far_out) = far.split();
            let down = self.pass(&mut near_in, &mut far_out, dice);
            let up = async {
                tokio::io::copy(&mut far_in, &mut near_out).await?;
                near_out.shutdown().await
            };
            let timer = async {
                let Some(reset) = &self.reset_after else {
                    return std::future::pending().await;
                };
                // A timer has its grain, and an answer may be through before it.
                if !reset.does.is_zero() {
                    tokio::time::sleep(reset.does).await;
                }
                reset.fault.happened();
            };
            tokio::select! {
                biased;
                () = timer => Err(io::ErrorKind::ConnectionReset.into()),
                ended = async { tokio::try_join!(down, up).map(drop) } => ended,
            }
        };
        if ended.is_err() {
            for side in [&near, &far] {
                // The close below is a reset.
                if let Err(error) = SockRef::from(side).set_linger(Some(Duration::ZERO)) {
                    tracing::debug!(%error, "cannot reset a detour");
                }
            }
        }
    }

    /// Worker to peer.
    async fn pass(
        &self,
        from: &mut (impl AsyncReadExt + Unpin),
        to: &mut (impl AsyncWriteExt + Unpin),
        dice: Dice,
    ) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut left = self.limit.as_ref().map_or(u64::MAX, |limit| limit.does);
        let mut chunks = 0;
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                if let Some(slow_close) = &self.slow_close {
                    tokio::time::sleep(slow_close.act()).await;
                }
                return to.shutdown().await;
            }
            chunks += 1;
            if let Some(latency) = &self.latency {
                let (ms, jitter_ms) = latency.act();
                tokio::time::sleep(span_of_ms(ms + jitter_ms * dice.unit(chunks))).await;
            }
            let allowed = usize::try_from(left).unwrap_or(usize::MAX).min(read);
            left -= allowed as u64;
            self.write(to, &buffer[..allowed]).await?;
            if left == 0 {
                self.limit.iter().for_each(|limit| limit.fault.happened());
                return to.shutdown().await;
            }
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    async fn write(&self, to: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> io::Result<()> {
        let (mut size, pause) = self.slice.as_ref().map_or((CHUNK, Duration::ZERO), Toxic::act);
        if let Some(narrow) = &self.bytes_per_s {
            size = size.min((narrow.does / STEPS_PER_SECOND) as usize);
        }
        for piece in bytes.chunks(size.max(1)) {
            to.write_all(piece).await?;
            let narrow = self.bytes_per_s.as_ref().map_or(Duration::ZERO, |narrow| {
                let span = span_of_ms(piece.len() as f64 * 1e3 / narrow.does);
                // So much bandwidth is no bandwidth limit.
                if span >= SHORTEST_WAIT {
                    narrow.fault.happened();
                }
                span
            });
            let wait = pause.saturating_add(narrow);
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        Ok(())
    }
}
