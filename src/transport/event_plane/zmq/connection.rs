//! The task of one accepted connection: reads to a session, writes from a queue.

use std::io;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::door::Ended;
use super::publisher::{Member, Shared};
use super::session::{Heard, Role, Session, Violation};
use super::subscriber::{Subscriber, Wrote};
use super::wire;

/// Runs until the peer leaves, breaks the protocol or the publisher ends.
pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let subscriber = Arc::new(Subscriber::new());
    let mut member = Member::new(&shared, Arc::clone(&subscriber));
    let talk = async |stream: &TcpStream| talk(stream, &shared, &subscriber, &mut member).await;
    shared.door.host(stream, talk).await;
}

/// One connection, whoever made it, from the greeting to its end. `Ok`: the publisher has ended.
pub(super) async fn talk(
    stream: &TcpStream,
    shared: &Shared,
    subscriber: &Subscriber,
    member: &mut Member<'_>,
) -> Result<(), Ended> {
    let limits = &shared.door.limits;
    let mut connection = Connection {
        stream,
        shared,
        session: Session::new(Role::Publisher, limits),
        member,
        subscriber,
        ready: false,
    };
    subscriber.push_handshake(wire::greeting());
    let patience = limits.handshake_timeout;
    timeout(patience, connection.run(true))
        .await
        .map_err(|_| Ended::Slow(patience))??;
    connection.run(false).await?;
    if shared.door.is_crashed() {
        return Ok(());
    }
    // What is queued still goes out, as far as the peer takes it in time.
    timeout(limits.linger, connection.flush()).await.unwrap_or(Ok(()))
}

struct Connection<'a, 'member> {
    stream: &'a TcpStream,
    shared: &'a Shared,
    session: Session,
    member: &'a mut Member<'member>,
    subscriber: &'a Subscriber,
    ready: bool,
}

impl Connection<'_, '_> {
    /// Reads and writes until the publisher ends or, in the handshake, until the peer is ready.
    async fn run(&mut self, handshake: bool) -> Result<(), Ended> {
        while !(handshake && self.ready) {
            let wrote = self.write()?;
            let interest = match wrote {
                Wrote::All => Interest::READABLE,
                Wrote::Blocked | Wrote::Some => Interest::READABLE.add(Interest::WRITABLE),
            };
            tokio::select! {
                () = self.shared.door.ended() => return Ok(()),
                ready = self.stream.ready(interest) => {
                    if ready?.is_readable() {
                        self.read()?;
                    }
                }
                () = self.subscriber.wake.notified(), if wrote == Wrote::All => {}
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        while self.write()? != Wrote::All {
            self.stream.writable().await?;
        }
        Ok(())
    }

    fn write(&self) -> io::Result<Wrote> {
        self.subscriber.write(|pieces| self.stream.try_write_vectored(pieces))
    }

    fn read(&mut self) -> Result<(), Ended> {
        let mut bytes = [0; 1024];
        let read = match self.stream.try_read(&mut bytes) {
            Ok(0) => return Err(Ended::Left),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (limits, subscriber, member) = (&self.shared.door.limits, self.subscriber, &mut *self.member);
        let (mut ready, mut crowded) = (self.ready, false);
        self.session.receive(&bytes[..read], |heard| match heard {
            Heard::Greeting => subscriber.push_handshake(wire::ready(Role::Publisher)),
            Heard::Ready => {
                member.join();
                ready = true;
            }
            Heard::Subscribe(topic) => match subscriber.subscribe(topic, limits) {
                Some(_) => member.topics_changed(),
                None => crowded = true,
            },
            Heard::Cancel(topic) => {
                subscriber.cancel(&topic);
                member.topics_changed();
            }
            Heard::Ping(context) => subscriber.pong(wire::pong(&context)),
            // XSUB sockets may send messages upstream; a PUB socket does not read them.
            Heard::Message(_) => {}
        })?;
        self.ready = ready;
        if crowded {
            return Err(Violation::Subscriptions(limits.subscriptions).into());
        }
        Ok(())
    }
}
