//! Host settings: an IP address or the name of a network interface, and what of it is told to others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// Where to listen and what to advertise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) bind: IpAddr,
    pub(super) advertise: IpAddr,
}

/// Resolves a host. A wildcard address listens everywhere and advertises the routed local address.
pub(super) fn resolve(text: &str) -> Result<Host, String> {
    let text = text.trim();
    let ip = match text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(ip) => ip,
        Err(_) if text.is_empty() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Err(_) if text == "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Err(_) => {
            interface(text).ok_or("is neither an IP address nor a network interface of this machine with an address")?
        }
    };
    Ok(Host {
        bind: ip,
        advertise: if ip.is_unspecified() { routed(ip) } else { ip },
    })
}

/// The address of another machine, or of this one by its number; `None`: no address.
pub(super) fn remote(text: &str) -> Option<IpAddr> {
    match text.trim() {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        text => text.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    }
}

fn interface(name: &str) -> Option<IpAddr> {
    let addresses = if_addrs::get_if_addrs().ok()?;
    let of_name = || addresses.iter().filter(|i| i.name == name).map(if_addrs::Interface::ip);
    of_name().find(IpAddr::is_ipv4).or_else(|| of_name().next())
}

/// The local address that packets to the outside would carry; loopback when there is no outside. Nothing is sent.
fn routed(wildcard: IpAddr) -> IpAddr {
    let (any, outside, loopback): (SocketAddr, &str, IpAddr) = match wildcard {
        IpAddr::V4(_) => ((wildcard, 0).into(), "192.0.2.1:9", IpAddr::V4(Ipv4Addr::LOCALHOST)),
        IpAddr::V6(_) => (
            (wildcard, 0).into(),
            "[2001:db8::1]:9",
            IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        ),
    };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(outside)?;
        socket.local_addr()
    });
    local.map_or(loopback, |address| {
        if address.ip().is_unspecified() {
            loopback
        } else {
            address.ip()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_interfaces_are_hosts() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for text in ["127.0.0.1", "", "localhost", "lo"] {
            assert_eq!(
                resolve(text).unwrap(),
                Host {
                    bind: loopback,
                    advertise: loopback
                },
                "{text}"
            );
        }
        assert!(resolve("0.0.0.0").unwrap().bind.is_unspecified());
        assert!(!resolve("0.0.0.0").unwrap().advertise.is_unspecified());
        assert!(resolve("nonsense0").unwrap_err().contains("network interface"));
    }
}
