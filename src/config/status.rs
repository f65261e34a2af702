//! Settings of the status server.

use std::net::SocketAddr;

use super::choices::StartingStatus;
use super::layers::Layered;
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
    Ok(Some(StatusConfig {
        address: SocketAddr::new(host.bind, port),
        health_path,
        live_path,
        ready_while_starting: s.system_starting_health_status == Some(StartingStatus::Ready),
    }))
}

fn path(layered: &Layered, key: &str, value: Option<&String>) -> Result<String, ConfigError> {
    let path = text(value);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
    let taken = ["/metrics", "/metadata"].contains(&path);
    if path.len() > 1 && path.starts_with('/') && !path.ends_with('/') && path.chars().all(plain) && !taken {
        return Ok(path.to_owned());
    }
    let why = "cannot be the path of a probe; use one such as /health, of letters, digits and -_.~/";
    Err(refused(layered, key, why))
}
