//! `host:port` of an address that is connected to, checked before anybody tries.

use std::net::Ipv6Addr;

/// Host (an IPv6 address with its brackets) and port; `None`: it is no such address. Names are not looked up.
pub(super) fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = if text.starts_with('[') {
        let (host, rest) = text.split_at(text.find(']')? + 1);
        host[1..host.len() - 1].parse::<Ipv6Addr>().ok()?;
        match rest {
            "" => (host, None),
            rest => (host, Some(rest.strip_prefix(':')?)),
        }
    } else {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || !host.chars().all(plain) {
            return None;
        }
        (host, port)
    };
    let Some(port) = port else { return Some((host, None)) };
    // `parse` alone takes `+1`.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse::<u16>().ok().filter(|&port| digits && port > 0)?;
    Some((host, Some(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_taken_with_and_without_a_port() {
        for (text, split_up) in [
            ("localhost:2379", ("localhost", Some(2379))),
            ("a-b_c.example", ("a-b_c.example", None)),
            ("127.0.0.1:1", ("127.0.0.1", Some(1))),
            ("[::1]:65535", ("[::1]", Some(65535))),
            ("[fe80::1]", ("[fe80::1]", None)),
        ] {
            assert_eq!(split(text), Some(split_up), "{text}");
        }
    }

    #[test]
    fn what_nobody_can_connect_to_is_no_address() {
        for text in [
            "", ":1", "h:", "h:0", "h:99999", "h:+1", "h:1:2", "::1:2379", "[::1", "[::1]2", "[:1", "[h]:1", "a,b:1",
            "a b:1", "a/b:1", "a=b:1", "*:1",
        ] {
            assert_eq!(split(text), None, "{text}");
        }
    }
}
