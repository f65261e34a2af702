//! What a peer says: bytes in, meaning out. Pure; knows no socket.

use super::Limits;
use super::wire::{COMMAND, GREETING_BYTES, LONG, MORE, check_greeting, property, split_command};

/// Which socket of ours the peer talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// PUB: peers subscribe.
    Publisher,
    /// ROUTER: peers send messages.
    Router,
}

impl Role {
    /// Socket types that may connect.
    fn accepts(self, kind: &[u8]) -> bool {
        match self {
            Self::Publisher => matches!(kind, b"SUB" | b"XSUB"),
            Self::Router => matches!(kind, b"DEALER" | b"REQ" | b"ROUTER"),
        }
    }

    /// What the peer should have connected.
    fn wanted(self) -> &'static str {
        match self {
            Self::Publisher => "SUB or XSUB",
            Self::Router => "DEALER or REQ",
        }
    }
}

/// Most frames of a message that somebody reads.
const MESSAGE_FRAMES: usize = 8;

/// What the connection has to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    /// The greeting is fine: say READY.
    Greeting,
    /// The peer is ready: messages may flow.
    Ready,
    /// The peer wants what starts with these bytes.
    Subscribe(Vec<u8>),
    /// One subscription less.
    Cancel(Vec<u8>),
    /// Answer with a PONG of this context.
    Ping(Vec<u8>),
    /// A whole message, frame by frame; ROUTER only.
    Message(Vec<Vec<u8>>),
}

/// Why a peer is dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("{0}")]
    Greeting(&'static str),
    #[error("frame flags {0:#04x} are not ZMTP 3")]
    Flags(u8),
    #[error("frame of {size} bytes exceeds the {limit} that a peer may send")]
    TooLarge { size: u64, limit: usize },
    #[error("command has no name")]
    Command,
    #[error("peer did not say READY")]
    NotReady,
    #[error("socket type {0:?} does not fit; connect a {1} socket")]
    SocketType(String, &'static str),
    #[error("message of more than {0} frames")]
    Frames(usize),
    #[error("peer reports: {0}")]
    Reported(String),
    #[error("more than {0} subscriptions")]
    Subscriptions(usize),
}

enum Phase {
    Greeting,
    Handshake,
    Open,
}

/// One peer's side of a connection.
pub(super) struct Session {
    role: Role,
    phase: Phase,
    /// Start of a greeting or frame that is not complete; bounded by the frame limit.
    partial: Vec<u8>,
    /// Inside a message of several frames; a subscriber has no reason to send one.
    in_message: bool,
    /// Its frames so far; ROUTER only.
    message: Vec<Vec<u8>>,
    frame_limit: usize,
}

/// A whole frame at the start of the input.
struct Frame<'a> {
    flags: u8,
    body: &'a [u8],
    rest: &'a [u8],
}

impl Session {
    pub(super) fn new(role: Role, limits: &Limits) -> Self {
        Self {
            role,
            message: Vec::new(),
            phase: Phase::Greeting,
            partial: Vec::new(),
            in_message: false,
            frame_limit: limits.peer_frame_bytes,
        }
    }

    /// Takes what was read. After an error the session is of no further use.
    pub(super) fn receive(&mut self, bytes: &[u8], mut heard: impl FnMut(Heard)) -> Result<(), Violation> {
        let joined;
        let mut input = bytes;
        if !self.partial.is_empty() {
            self.partial.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.partial);
            input = &joined;
        }
        if matches!(self.phase, Phase::Greeting) {
            check_greeting(input).map_err(Violation::Greeting)?;
            if input.len() < GREETING_BYTES {
                self.partial = input.to_vec();
                return Ok(());
            }
            input = &input[GREETING_BYTES..];
            self.phase = Phase::Handshake;
            heard(Heard::Greeting);
        }
        while let Some(frame) = self.next_frame(input)? {
            if let Some(meaning) = self.understand(frame.flags, frame.body)? {
                heard(meaning);
            }
            input = frame.rest;
        }
        self.partial = input.to_vec();
        Ok(())
    }

    fn next_frame<'a>(&self, input: &'a [u8]) -> Result<Option<Frame<'a>>, Violation> {
        let Some((&flags, rest)) = input.split_first() else {
            return Ok(None);
        };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
            return Err(Violation::Flags(flags));
        }
        let (size, rest) = if flags & LONG == 0 {
            let Some((&size, rest)) = rest.split_first() else {
                return Ok(None);
            };
            (u64::from(size), rest)
        } else {
            let Some((size, rest)) = rest.split_first_chunk() else {
                return Ok(None);
            };
            (u64::from_be_bytes(*size), rest)
        };
        let fits = usize::try_from(size).ok().filter(|&size| size <= self.frame_limit);
        let Some(len) = fits else {
            return Err(Violation::TooLarge {
                size,
                limit: self.frame_limit,
            });
        };
        Ok(rest
            .split_at_checked(len)
            .map(|(body, rest)| Frame { flags, body, rest }))
    }

    fn understand(&mut self, flags: u8, body: &[u8]) -> Result<Option<Heard>, Violation> {
        if flags & COMMAND != 0 {
            let (name, data) = split_command(body).ok_or(Violation::Command)?;
            return self.command(name, data);
        }
        if !matches!(self.phase, Phase::Open) {
            return Err(Violation::NotReady);
        }
        let alone = !self.in_message && flags & MORE == 0;
        self.in_message = flags & MORE != 0;
        if self.role == Role::Router {
            if self.message.len() == MESSAGE_FRAMES {
                return Err(Violation::Frames(MESSAGE_FRAMES));
            }
            self.message.push(body.to_vec());
            return Ok((!self.in_message).then(|| Heard::Message(std::mem::take(&mut self.message))));
        }
        Ok(match body.split_first() {
            Some((1, topic)) if alone => Some(Heard::Subscribe(topic.to_vec())),
            Some((0, topic)) if alone => Some(Heard::Cancel(topic.to_vec())),
            // XSUB sockets may send messages upstream; a PUB socket does not read them.
            Some(_) | None => None,
        })
    }

    fn command(&mut self, name: &[u8], data: &[u8]) -> Result<Option<Heard>, Violation> {
        match (&self.phase, name) {
            (_, b"ERROR") => {
                let reason = split_command(data).map_or(data, |(reason, _)| reason);
                Err(Violation::Reported(String::from_utf8_lossy(reason).into_owned()))
            }
            (Phase::Handshake, b"READY") => {
                let kind = property(data, "Socket-Type").unwrap_or_default();
                if !self.role.accepts(kind) {
                    let kind = String::from_utf8_lossy(kind).into_owned();
                    return Err(Violation::SocketType(kind, self.role.wanted()));
                }
                self.phase = Phase::Open;
                Ok(Some(Heard::Ready))
            }
            (Phase::Handshake | Phase::Greeting, _) => Err(Violation::NotReady),
            (Phase::Open, b"SUBSCRIBE") => Ok(Some(Heard::Subscribe(data.to_vec()))),
            (Phase::Open, b"CANCEL") => Ok(Some(Heard::Cancel(data.to_vec()))),
            // The first two bytes say how long the peer will wait for anything; our PONG comes at once.
            (Phase::Open, b"PING") => Ok(data.get(2..).map(|context| Heard::Ping(context.to_vec()))),
            (Phase::Open, _) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::{greeting, message};
    use super::*;

    const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";

    fn hear(session: &mut Session, bytes: &[u8]) -> Result<Vec<Heard>, Violation> {
        let mut out = Vec::new();
        session.receive(bytes, |heard| out.push(heard))?;
        Ok(out)
    }

    fn session() -> Session {
        Session::new(Role::Publisher, &Limits::default())
    }

    fn open() -> Session {
        let mut session = session();
        let heard = hear(&mut session, &[&greeting()[..], READY].concat());
        assert_eq!(heard, Ok(vec![Heard::Greeting, Heard::Ready]));
        session
    }

    fn command(name: &str, data: &[u8]) -> Vec<u8> {
        let size = u8::try_from(1 + name.len() + data.len()).expect("short");
        let name_len = u8::try_from(name.len()).expect("short");
        [&[COMMAND, size, name_len][..], name.as_bytes(), data].concat()
    }

    #[test]
    fn subscriptions_are_heard_as_messages_and_as_commands() {
        let mut session = open();
        assert_eq!(
            hear(&mut session, b"\0\x03\x01ab\0\x01\x01\0\x03\0ab"),
            Ok(vec![
                Heard::Subscribe(b"ab".to_vec()),
                Heard::Subscribe(Vec::new()),
                Heard::Cancel(b"ab".to_vec())
            ])
        );
        let commands = [command("SUBSCRIBE", b"kv"), command("CANCEL", b"kv")].concat();
        assert_eq!(
            hear(&mut session, &commands),
            Ok(vec![Heard::Subscribe(b"kv".to_vec()), Heard::Cancel(b"kv".to_vec())])
        );
    }

    #[test]
    fn ping_is_heard_with_its_context_and_unknown_commands_are_not() {
        let mut session = open();
        let bytes = [
            command("PING", b"\0\x0actx"),
            command("NEWS", b""),
            command("PING", b"\0"),
        ]
        .concat();
        assert_eq!(hear(&mut session, &bytes), Ok(vec![Heard::Ping(b"ctx".to_vec())]));
    }

    #[test]
    fn messages_of_several_frames_are_no_subscriptions() {
        let mut session = open();
        assert_eq!(
            hear(&mut session, b"\x01\x02\x01a\0\x02\x01b\0\x02\x01c"),
            Ok(vec![Heard::Subscribe(b"c".to_vec())])
        );
    }

    #[test]
    fn frames_over_the_limit_are_refused_by_their_header() {
        let mut session = open();
        let violation = hear(&mut session, b"\x02\0\0\0\0\0\0\x04\x01");
        assert_eq!(
            violation,
            Err(Violation::TooLarge {
                size: 1025,
                limit: 1024
            })
        );
        let violation = hear(&mut open(), b"\x02\xff\xff\xff\xff\xff\xff\xff\xff");
        assert!(matches!(violation, Err(Violation::TooLarge { .. })));
    }

    #[test]
    fn peers_of_another_kind_are_refused() {
        let greet = |change: fn(&mut Vec<u8>)| {
            let mut bytes = greeting().to_vec();
            change(&mut bytes);
            hear(&mut session(), &bytes)
        };
        assert!(greet(|_| ()).is_ok());
        assert!(matches!(greet(|bytes| bytes[10] = 2), Err(Violation::Greeting(_))));
        assert!(matches!(greet(|bytes| bytes[12] = b'P'), Err(Violation::Greeting(_))));
        assert!(matches!(
            hear(&mut session(), b"GET / HTTP"),
            Err(Violation::Greeting(_))
        ));
        let after_greeting = |bytes: &[u8]| {
            let mut session = session();
            hear(&mut session, &greeting())?;
            hear(&mut session, bytes)
        };
        assert_eq!(after_greeting(b"\0\x02\x01a"), Err(Violation::NotReady));
        assert_eq!(after_greeting(&command("PING", b"\0\0")), Err(Violation::NotReady));
        assert_eq!(after_greeting(b"\x04\0"), Err(Violation::Command));
        assert_eq!(after_greeting(b"\x40\0"), Err(Violation::Flags(0x40)));
        assert_eq!(
            after_greeting(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"),
            Err(Violation::SocketType("PUB".to_owned(), "SUB or XSUB"))
        );
        assert_eq!(
            after_greeting(&command("ERROR", b"\x04nope")),
            Err(Violation::Reported("nope".to_owned()))
        );
    }

    #[test]
    fn a_router_hears_whole_messages_of_bounded_length() {
        let mut session = Session::new(Role::Router, &Limits::default());
        let ready = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
        let heard = hear(&mut session, &[&greeting()[..], ready].concat());
        assert_eq!(heard, Ok(vec![Heard::Greeting, Heard::Ready]));
        assert_eq!(hear(&mut session, b"\x01\0"), Ok(Vec::new()));
        let message = Heard::Message(vec![Vec::new(), b"ab".to_vec()]);
        assert_eq!(hear(&mut session, b"\0\x02ab"), Ok(vec![message]));
        let endless = b"\x01\0".repeat(9);
        assert_eq!(hear(&mut session, &endless), Err(Violation::Frames(8)));
    }

    #[test]
    fn nothing_is_kept_between_whole_frames() {
        let session = open();
        assert_eq!(session.partial.capacity(), 0);
    }

    proptest! {
        #[test]
        fn bytes_mean_the_same_however_they_are_cut(cuts in prop::collection::vec(1..20_usize, 0..60)) {
            let long = message(&[bytes::Bytes::from([&[1_u8][..], &[b'x'; 300]].concat())]);
            let whole = [&greeting()[..], READY, b"\0\x03\x01ab", &long, &command("PING", b"\0\0c")].concat();
            let expected = hear(&mut session(), &whole).expect("valid");
            let mut session = session();
            let (mut rest, mut heard) = (&whole[..], Vec::new());
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                session.receive(piece, |event| heard.push(event)).expect("valid");
                rest = after;
            }
            session.receive(rest, |event| heard.push(event)).expect("valid");
            prop_assert_eq!(heard, expected);
        }

        #[test]
        fn no_input_makes_it_panic_or_hoard(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..20)) {
            let mut session = open();
            for piece in pieces {
                if session.receive(&piece, |_| ()).is_err() {
                    break;
                }
                prop_assert!(session.partial.len() < 1024 + 9);
            }
        }
    }
}
