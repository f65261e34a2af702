//! Settings of the status server.

use std::net::SocketAddr;

use super::choices::StartingStatus;
use super::layers::{Layered, Origin};
use super::rules::refused;
use super::settings::Settings;
use super::{ConfigError, host_of, text};

/// The status server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusConfig {
    /// Address; port 0: any free one.
    pub address: SocketAddr,
    /// Path of the readiness probe.
    pub health_path: String,
    /// Path of the liveness probe.
    pub live_path: String,
    /// Say ready while workers are still starting.
    pub ready_while_starting: bool,
}

/// Checks the settings.
///
/// # Errors
/// Names the variable and the value.
pub(super) fn resolve(layered: &Layered, s: &Settings) -> Result<Option<StatusConfig>, ConfigError> {
    let port = s.system_port.unwrap_or(-1);
    if port == -1 {
        return Ok(None);
    }
    let port = u16::try_from(port).map_err(|_| {
        let why = "is no port; use 0 (any free one) to 65535, or -1 for no status server";
        refused(layered, "system_port", why)
    })?;
    let host = host_of(layered, "system_host", s.system_host.as_ref())?;
    let health_path = path(layered, "system_health_path", s.system_health_path.as_ref())?;
    let live_path = path(layered, "system_live_path", s.system_live_path.as_ref())?;
    if live_path == health_path {
        let why =
            "is the path of the other probe too; give --system-health-path and --system-live-path paths of their own";
        return Err(refused(layered, blamed(layered), why));
    }
    // Below the readiness probe are the workers, one segment each.
    if parent(&live_path) == health_path {
        let why = format!("is where the readiness of single workers is told, below {health_path}/; use another path");
        return Err(refused(layered, "system_live_path", &why));
    }
    Ok(Some(StatusConfig {
        address: SocketAddr::new(host.bind, port),
        health_path,
        live_path,
        ready_while_starting: s.system_starting_health_status == Some(StartingStatus::Ready),
    }))
}

/// The setting of the two that somebody has said.
fn blamed(layered: &Layered) -> &'static str {
    match layered.origin("system_health_path") {
        Some(Origin::Default) | None => "system_live_path",
        Some(_) => "system_health_path",
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Paths that the server itself has.
const TAKEN: [&str; 2] = ["/metrics", "/metadata"];

fn path(layered: &Layered, key: &str, value: Option<&String>) -> Result<String, ConfigError> {
    let path = text(value);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    if TAKEN.contains(&path) {
        return Err(refused(
            layered,
            key,
            "is a page of its own on the status server; use another path",
        ));
    }
    if path.len() > 1
        && path.starts_with('/')
        && !path.ends_with('/')
        && !path.contains("//")
        && path.chars().all(plain)
    {
        return Ok(path.to_owned());
    }
    let why = "cannot be the path of a probe; use one such as /health, of letters, digits and -_.~/";
    Err(refused(layered, key, why))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn resolved(flags: &[&str]) -> Result<StatusConfig, String> {
        let base = ["--model-path", "m", "--discovery-backend", "file", "--system-port", "0"];
        let args = base.iter().chain(flags).map(|flag| (*flag).to_owned());
        let config = crate::serve::config_from(args, &BTreeMap::new()).map_err(|error| error.to_string())?;
        Ok(config.status.expect("a status server is asked for"))
    }

    #[test]
    fn probes_have_paths_of_their_own() {
        let both = ["--system-health-path", "/a/b", "--system-live-path", "/a"];
        let paths = resolved(&both).map(|status| (status.health_path, status.live_path));
        assert_eq!(paths, Ok(("/a/b".to_owned(), "/a".to_owned())));
        for (flags, words) in [
            (
                &["--system-health-path", "/live"][..],
                "--system-health-path /live is the path",
            ),
            (
                &["--system-live-path", "/health"],
                "--system-live-path /health is the path",
            ),
            (
                &["--system-live-path", "/health/w0"],
                "--system-live-path /health/w0 is where",
            ),
            (
                &["--system-health-path", "/metrics"],
                "--system-health-path /metrics is a page",
            ),
            (
                &["--system-live-path", "/metadata"],
                "--system-live-path /metadata is a page",
            ),
            (&["--system-health-path", "//x"], "cannot be the path"),
            (&["--system-live-path", "/{x}"], "cannot be the path"),
        ] {
            let error = resolved(flags).expect_err("refused");
            assert!(error.contains(words), "{flags:?}: {error}");
        }
    }
}
