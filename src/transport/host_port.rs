//! `host:port` of an address that is connected to, checked before anybody tries.

use std::net::Ipv6Addr;

/// Host (an IPv6 address with its brackets) and port; `None`: it is no such address. Names are not looked up.
pub(super) fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            address.parse::<Ipv6Addr>().ok()?;
            let host = &text[..address.len() + 2];
            (
                host,
                if rest.is_empty() {
                    None
                } else {
                    Some(rest.strip_prefix(':')?)
                },
            )
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let named = |host: &str| {
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        !host.is_empty() && host.chars().all(plain)
    };
    if !host.starts_with('[') && !named(host) {
        return None;
    }
    let port = match port {
        None => None,
        // `parse` alone takes `+1`.
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(port.parse::<u16>().ok().filter(|&port| port > 0)?)
        }
        Some(_) => return None,
    };
    Some((host, port))
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
            "", ":1", "h:", "h:0", "h:99999", "h:+1", "h:1:2", "::1:2379", "[::1", "[::1]2", "[h]:1", "a,b:1", "a b:1",
            "a/b:1", "a=b:1", "*:1",
        ] {
            assert_eq!(split(text), None, "{text}");
        }
    }
}
