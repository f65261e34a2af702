//! Bytes of ZMTP 3.0 that do not depend on a connection's state.
//!
//! | Piece | Bytes |
//! |---|---|
//! | greeting (64) | `FF`, 8 bytes padding, `7F`, major, minor, mechanism (20, zero-padded), as-server, 31 zeros |
//! | frame | flags (1 more, 2 long, 4 command), size (u8; u64 big-endian when long), body |
//! | command body | name length (u8), name, data |
//! | READY data | properties: name length (u8), name, value length (u32 big-endian), value |

use bytes::Bytes;

use super::session::Role;

pub(super) const GREETING_BYTES: usize = 64;
const SIGNATURE_BYTES: usize = 10;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

pub(super) const MORE: u8 = 1;
pub(super) const LONG: u8 = 2;
pub(super) const COMMAND: u8 = 4;

/// Our greeting: version 3.0, so that peers subscribe by messages, which every release understands.
pub(super) fn greeting() -> Bytes {
    const GREETING: [u8; GREETING_BYTES] = {
        let mut bytes = [0; GREETING_BYTES];
        bytes[0] = 0xff;
        bytes[9] = 0x7f;
        bytes[10] = 3;
        let mut at = 0;
        while at < MECHANISM.len() {
            bytes[12 + at] = MECHANISM[at];
            at += 1;
        }
        bytes
    };
    Bytes::from_static(&GREETING)
}

/// Our READY command.
pub(super) fn ready(role: Role) -> Bytes {
    Bytes::from_static(match role {
        Role::Publisher => b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB",
        Role::Router => b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER",
    })
}

/// PONG to a PING with this context.
pub(super) fn pong(context: &[u8]) -> Bytes {
    let mut body = Vec::with_capacity(5 + context.len());
    body.extend_from_slice(b"\x04PONG");
    body.extend_from_slice(context);
    let mut out = Vec::with_capacity(2 + body.len());
    put_frame(&mut out, COMMAND, &body);
    Bytes::from(out)
}

/// All frames of one message, back to back.
pub(super) fn message(frames: &[Bytes]) -> Bytes {
    let mut out = Vec::with_capacity(frames.iter().map(|frame| 9 + frame.len()).sum());
    put_message(&mut out, frames);
    Bytes::from(out)
}

/// Appends all frames of one message.
pub(super) fn put_message(out: &mut Vec<u8>, frames: &[Bytes]) {
    for (index, frame) in frames.iter().enumerate() {
        put_frame(out, if index + 1 < frames.len() { MORE } else { 0 }, frame);
    }
}

fn put_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    if let Ok(size) = u8::try_from(body.len()) {
        out.extend_from_slice(&[flags, size]);
    } else {
        out.push(flags | LONG);
        out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    }
    out.extend_from_slice(body);
}

/// What is wrong with the first bytes of a greeting, looked at as soon as they are there.
pub(super) fn check_greeting(head: &[u8]) -> Result<(), &'static str> {
    if head.first().is_some_and(|&byte| byte != 0xff)
        || head.get(SIGNATURE_BYTES - 1).is_some_and(|&byte| byte & 1 == 0)
    {
        return Err("peer does not speak ZMTP");
    }
    if head.get(SIGNATURE_BYTES).is_some_and(|&major| major < 3) {
        return Err("peer speaks a ZMTP version older than 3.0");
    }
    if head.len() >= GREETING_BYTES && head[12..32] != MECHANISM[..] {
        return Err("peer wants a security mechanism other than NULL");
    }
    Ok(())
}

/// Name and data of a command.
pub(super) fn split_command(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(len))
}

/// Value of a property in READY data; names compare without case. `None` when it is missing or the list is broken.
pub(super) fn property<'a>(mut data: &'a [u8], wanted: &str) -> Option<&'a [u8]> {
    while !data.is_empty() {
        let (name, rest) = split_command(data)?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(value);
        }
        data = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_have_a_short_header_and_large_ones_a_long_one() {
        let small = Bytes::from(vec![7; 255]);
        let large = Bytes::from(vec![8; 256]);
        let bytes = message(&[small.clone(), large.clone()]);
        assert_eq!(bytes[..2], [MORE, 255]);
        assert_eq!(bytes[2..257], small[..]);
        assert_eq!(bytes[257..266], [LONG, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(bytes[266..], large[..]);
    }

    #[test]
    fn greeting_and_ready_name_version_3_null_and_the_socket_type() {
        let greeting = greeting();
        assert_eq!(check_greeting(&greeting), Ok(()));
        assert_eq!((greeting.len(), greeting[10], greeting[11]), (64, 3, 0));
        for (role, kind) in [(Role::Publisher, &b"PUB"[..]), (Role::Router, b"ROUTER")] {
            let ready = ready(role);
            assert_eq!(usize::from(ready[1]), ready.len() - 2);
            let (name, data) = split_command(&ready[2..]).expect("command");
            assert_eq!(name, b"READY");
            assert_eq!(property(data, "socket-type"), Some(kind));
        }
    }

    #[test]
    fn broken_properties_have_no_value() {
        assert_eq!(property(b"\x01a\0\0\0\x05xy", "a"), None);
        assert_eq!(property(b"\x09a", "a"), None);
        assert_eq!(property(b"\x01a\xff\xff\xff\xff", "a"), None);
        assert_eq!(property(b"", "a"), None);
    }
}
