//! Settings of the admin server.

use std::net::SocketAddr;

use super::layers::Layered;
use super::rules::refused;
use super::settings::Settings;
use super::{ConfigError, host_of};

/// The admin server.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address; port 0: any free one.
    pub address: SocketAddr,
    /// What clients have to show; `None`: nothing, which only a loopback address may do.
    pub token: Option<String>,
}

impl std::fmt::Debug for AdminConfig {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AdminConfig({}, token: {})", self.address, self.token.is_some())
    }
}

/// Checks the settings.
///
/// # Errors
/// Names the setting and the way out.
pub(super) fn resolve(layered: &Layered, s: &Settings) -> Result<Option<AdminConfig>, ConfigError> {
    let Some(port) = s.admin_port else { return Ok(None) };
    let host = host_of(layered, "admin_host", s.admin_host.as_ref())?;
    let token = s.admin_token.clone().filter(|token| !token.is_empty());
    if let Some(token) = &token
        && (token.len() < 8 || !token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        return Err(ConfigError::Invalid(
            "the admin token must have 8 or more printable characters without blanks".to_owned(),
        ));
    }
    if token.is_none() && !host.bind.is_loopback() {
        let why = "can be reached from elsewhere, so the admin server needs a token; set GHOSTFLEET_ADMIN_TOKEN, or use \
                   --admin-host 127.0.0.1";
        return Err(refused(layered, "admin_host", why));
    }
    Ok(Some(AdminConfig {
        address: SocketAddr::new(host.bind, port),
        token,
    }))
}
