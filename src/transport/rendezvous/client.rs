//! The decode side: dial the prefill worker and register.

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::link::{Framed, Link, LinkError};
use super::wire::{self, Envelope, Message, Register};
use super::{Meeting, RendezvousLimits};

/// Dials, says who we are and waits until the prefill worker knows us. The connection lives on the current runtime. When
/// `gone` is cancelled meanwhile, the prefill worker is told that nobody comes, so that it waits no longer.
///
/// # Errors
/// [`LinkError`] of the step that failed.
pub async fn join(
    meeting: &Meeting,
    register: Register,
    limits: RendezvousLimits,
    gone: &CancellationToken,
) -> Result<Link, LinkError> {
    // Routers put IPv6 literals in brackets.
    let host = meeting.host.trim_start_matches('[').trim_end_matches(']');
    let dial = TcpStream::connect((host, meeting.port));
    let stream = match tokio::time::timeout(limits.patience, dial).await {
        Ok(stream) => stream?,
        Err(_) => return Err(LinkError::Slow(limits.patience)),
    };
    let mut framed = Framed::new(stream, limits.patience)?;
    let identity = meeting.identity;
    let mut opening = wire::HEADER.to_vec();
    wire::encode(
        &mut opening,
        &Envelope {
            identity,
            message: Message::Register(register),
        },
    );
    framed.write(&opening).await?;
    let answer = tokio::select! {
        biased;
        () = gone.cancelled() => {
            let message = "the client is gone".to_owned();
            framed.say_last(identity, Message::Abort { message: message.clone() }).await;
            return Err(LinkError::Refused(message));
        }
        answer = framed.frame(limits.patience + limits.pairing) => answer?,
    };
    if answer.identity != identity {
        return Err(LinkError::Identity);
    }
    match answer.message {
        Message::Registered => {}
        Message::Overloaded => {
            return Err(LinkError::Refused(
                "the prefill worker has too many handoffs already".to_owned(),
            ));
        }
        Message::Abort { message } | Message::ProtocolError { message } => return Err(LinkError::Refused(message)),
        Message::Register(_) | Message::Fact(_) | Message::Action(_) | Message::ActionAck(_) | Message::Complete => {
            return Err(LinkError::Refused(
                "the prefill worker did not answer the registration".to_owned(),
            ));
        }
    }
    let (link, task) = framed.link(identity, CancellationToken::new());
    tokio::spawn(task);
    Ok(link)
}
