//! Every port that settings name, held against each other before anything listens.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::choices::RequestPlane;
use super::{Config, ConfigError, Ports};

/// A port that somebody wants to listen on.
struct Claim {
    host: IpAddr,
    /// Flag and user, such as `--http-port for w3`.
    user: String,
}

/// Claims by port.
#[derive(Default)]
struct Claims(BTreeMap<u16, Vec<Claim>>);

impl Claims {
    /// Port 0 is any free one and clashes with nothing.
    fn add(&mut self, host: IpAddr, port: u16, user: String) -> Result<(), ConfigError> {
        if port == 0 {
            return Ok(());
        }
        let taken = self.0.entry(port).or_default();
        // A wildcard address takes the port on all others.
        let meets = |other: &&Claim| other.host == host || other.host.is_unspecified() || host.is_unspecified();
        if let Some(other) = taken.iter().find(meets) {
            return Err(ConfigError::Invalid(format!(
                "port {port} is wanted twice, by {} and by {user}; give one of them another port",
                other.user
            )));
        }
        taken.push(Claim { host, user });
        Ok(())
    }
}

/// Looks for a port that two listeners of the fleet want.
///
/// # Errors
/// [`ConfigError::Invalid`] names the port, both settings and both users.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let mut claims = Claims::default();
    if let Some(status) = &config.status {
        let address = status.address;
        claims.add(address.ip(), address.port(), "--system-port".to_owned())?;
    }
    if let Some(admin) = &config.admin {
        let address = admin.address;
        claims.add(address.ip(), address.port(), "--admin-port".to_owned())?;
    }
    let by_tcp = config
        .groups
        .iter()
        .any(|group| group.request_plane == RequestPlane::Tcp);
    if by_tcp && config.ports == Ports::Shared {
        claims.add(config.tcp_host, config.tcp_port, "--tcp-port".to_owned())?;
    }
    let mut worker = 0;
    for group in &config.groups {
        let bootstrap = &group.disaggregation.bootstrap_ports;
        for index in 0..group.num_workers {
            // How workers are planned: the n-th of the fleet has the n-th port from the first one on.
            let nth = |first: u16| match first {
                0 => 0,
                first => u16::try_from(u32::from(first) + worker).unwrap_or(0),
            };
            if let Some(first) = config.http_port {
                claims.add(config.http_host, nth(first), format!("--http-port for w{worker}"))?;
            }
            if config.ports == Ports::PerWorker && group.request_plane == RequestPlane::Tcp {
                claims.add(
                    config.tcp_host,
                    nth(config.tcp_port),
                    format!("--tcp-port for w{worker}"),
                )?;
            }
            if let Some(&port) = bootstrap.get(index as usize) {
                claims.add(config.tcp_host, port, format!("--bootstrap-ports for w{worker}"))?;
            }
            worker += 1;
        }
    }
    native(config, &mut claims)
}

fn native(config: &Config, claims: &mut Claims) -> Result<(), ConfigError> {
    let mut workers = 0u32..;
    for group in &config.groups {
        let own = workers.by_ref().take(group.num_workers as usize);
        let Some(native) = &group.native else {
            own.for_each(drop);
            continue;
        };
        let lists = [
            (
                "--zmq-kv-events-ports",
                &native.ports,
                (!native.connect).then_some(native.host),
            ),
            ("--zmq-replay-ports", &native.replay_ports, Some(native.replay_host)),
        ];
        for (nth, worker) in own.enumerate() {
            for (flag, list, host) in lists {
                let Some(&first) = list.get(nth) else { continue };
                for rank in 0..group.data_parallel_size {
                    let above = if first == 0 { 0 } else { rank };
                    let Ok(port) = u16::try_from(u32::from(first) + above) else {
                        return Err(ConfigError::Invalid(format!(
                            "{flag} {first} leaves no port for rank {rank} of w{worker}"
                        )));
                    };
                    if let Some(host) = host {
                        // Rank r has the worker's port + r.
                        claims.add(host, port, format!("{flag} for w{worker}/r{rank}"))?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(flags: &[&str]) -> Option<String> {
        let base = ["--model-path", "m", "--discovery-backend", "file"];
        let args = base.iter().chain(flags).map(|flag| (*flag).to_owned());
        let config = crate::serve::config_from(args, &BTreeMap::new());
        config.err().map(|error| error.to_string())
    }

    #[test]
    fn two_listeners_on_one_port_are_found_and_both_are_named() {
        let two = ["--num-workers", "2"];
        let prefill = ["--disaggregation-mode", "prefill", "--num-workers", "2"];
        for (flags, words) in [
            (
                &["--system-port", "7000", "--admin-port", "7000"][..],
                ["port 7000", "--system-port", "--admin-port"],
            ),
            (
                &[&two[..], &["--http-port", "7000", "--system-port", "7001"]].concat(),
                ["port 7001", "--system-port", "--http-port for w1"],
            ),
            (
                &[&two[..], &["--http-port", "7000", "--tcp-port", "7001"]].concat(),
                ["port 7001", "--tcp-port", "--http-port for w1"],
            ),
            (
                &[
                    &two[..],
                    &["--http-port", "7000", "--tcp-port", "7001", "--ports", "per-worker"],
                ]
                .concat(),
                ["port 7001", "--http-port for w1", "--tcp-port for w0"],
            ),
            (
                &[&prefill[..], &["--bootstrap-ports", "7000,7000"]].concat(),
                ["port 7000", "--bootstrap-ports for w0", "--bootstrap-ports for w1"],
            ),
            (
                &[&prefill[..], &["--bootstrap-ports", "7000,7001", "--tcp-port", "7001"]].concat(),
                ["port 7001", "--tcp-port", "--bootstrap-ports for w1"],
            ),
            (
                &[
                    "--zmq-kv-events-ports",
                    "7000",
                    "--data-parallel-size",
                    "3",
                    "--http-port",
                    "7002",
                ],
                ["port 7002", "--http-port for w0", "--zmq-kv-events-ports for w0/r2"],
            ),
            (
                &[
                    "--zmq-kv-events-ports",
                    "7000",
                    "--zmq-replay-ports",
                    "7001",
                    "--admin-port",
                    "7001",
                ],
                ["port 7001", "--admin-port", "--zmq-replay-ports for w0/r0"],
            ),
        ] {
            let error = refused(flags).unwrap_or_else(|| panic!("{flags:?} is taken"));
            for word in words {
                assert!(error.contains(word), "{word:?} is missing in {error}");
            }
        }
    }

    #[test]
    fn groups_are_held_against_each_other_too() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = "[[group]]\ndisaggregation_mode = \"prefill\"\nbootstrap_ports = [7000]\n\
                    [[group]]\nzmq_kv_events_ports = 7000\n";
        std::fs::write(file.path(), text).expect("written");
        let error = refused(&["--config", &file.path().display().to_string()]).expect("refused");
        assert!(
            error.contains("--bootstrap-ports for w0") && error.contains("--zmq-kv-events-ports for w1/r0"),
            "{error}"
        );
    }

    #[test]
    fn free_ports_and_other_addresses_clash_with_nothing() {
        for flags in [
            &[
                "--system-port",
                "0",
                "--admin-port",
                "0",
                "--tcp-port",
                "0",
                "--http-port",
                "0",
            ][..],
            &[
                "--system-port",
                "7000",
                "--system-host",
                "127.0.0.2",
                "--http-port",
                "7000",
            ],
            // A port to connect to is the reader's.
            &[
                "--zmq-kv-events-ports",
                "7000",
                "--zmq-kv-events-mode",
                "connect",
                "--http-port",
                "7000",
            ],
            &["--request-plane", "nats", "--tcp-port", "7000", "--http-port", "7000"],
        ] {
            assert_eq!(refused(flags), None, "{flags:?}");
        }
        let everywhere = [
            "--system-port",
            "7000",
            "--system-host",
            "0.0.0.0",
            "--http-port",
            "7000",
        ];
        assert!(refused(&everywhere).expect("refused").contains("--http-port for w0"));
    }
}
