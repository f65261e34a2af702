//! Where the NATS servers are and how to sign in.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::ServerAddr;

use crate::transport::tls::{NatsTls, TlsError};

/// Servers of one cluster.
#[derive(Clone)]
pub struct NatsOptions {
    servers: Vec<ServerAddr>,
    /// How to sign in.
    pub auth: NatsAuth,
    /// TLS; `None`: as the scheme says, with the authorities of the system.
    tls: Option<NatsTls>,
    /// How long to keep trying at start.
    pub connect_limit: Duration,
}

/// How to sign in.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum NatsAuth {
    /// Not at all, or as the server's URL says.
    #[default]
    None,
    /// `NATS_AUTH_USERNAME` and `NATS_AUTH_PASSWORD`.
    Password {
        /// User.
        user: String,
        /// Password.
        password: String,
    },
    /// `NATS_AUTH_TOKEN`.
    Token(String),
    /// Seed of an nkey (`NATS_AUTH_NKEY`).
    Nkey(String),
    /// A `.creds` file (`NATS_AUTH_CREDENTIALS_FILE`).
    Credentials(PathBuf),
}

/// A server list that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NatsOptionsError {
    /// No server in it.
    #[error("NATS_SERVER names no server; use nats://host:4222")]
    Empty,
    /// Not a NATS address.
    #[error("NATS_SERVER: {text:?} is no NATS address ({reason}); use nats://host:4222")]
    Address {
        /// The part that is wrong, without a password.
        text: String,
        /// Why.
        reason: String,
    },
    /// A transport that this build does not have.
    #[error("NATS_SERVER: {0:?} asks for WebSocket, which is not supported; use nats://host:4222")]
    WebSocket(String),
    /// TLS that the addresses do not ask for.
    #[error("NATS TLS is set up by NATS_TLS_* variables but NATS_SERVER names {0}; use tls://, or unset the variables")]
    NotEncrypted(String),
    /// TLS variables or files that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Sign-in variables that do not go together.
    #[error(transparent)]
    Auth(#[from] NatsAuthError),
}

/// Half of a pair of variables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{present} is set but {missing} is not; set both, or neither")]
pub struct NatsAuthError {
    /// The one that is there.
    pub present: &'static str,
    /// The one that is not.
    pub missing: &'static str,
}

impl NatsOptions {
    /// Servers as in `NATS_SERVER`, comma separated.
    ///
    /// # Errors
    /// [`NatsOptionsError`] names the address.
    pub fn new(servers: &str, auth: NatsAuth, connect_limit: Duration) -> Result<Self, NatsOptionsError> {
        let texts = servers.split(',').map(str::trim).filter(|text| !text.is_empty());
        let servers = texts.map(|text| {
            let shown = || without_user(text).to_owned();
            let server: ServerAddr = text
                .parse()
                .map_err(|error: std::io::Error| NatsOptionsError::Address {
                    text: shown(),
                    reason: error.to_string(),
                })?;
            if server.is_websocket() {
                return Err(NatsOptionsError::WebSocket(shown()));
            }
            Ok(server)
        });
        let servers = servers.collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() {
            return Err(NatsOptionsError::Empty);
        }
        Ok(Self {
            servers,
            auth,
            tls: None,
            connect_limit,
        })
    }

    /// The same with TLS.
    ///
    /// # Errors
    /// [`NatsOptionsError::NotEncrypted`] unless every address is `tls://`.
    pub fn with_tls(mut self, tls: Option<NatsTls>) -> Result<Self, NatsOptionsError> {
        if tls.is_some()
            && let Some(plain) = self.servers.iter().find(|server| server.scheme() != "tls")
        {
            return Err(NatsOptionsError::NotEncrypted(shown(plain)));
        }
        self.tls = tls;
        Ok(self)
    }

    /// TLS that goes beyond what the scheme says.
    pub(super) fn tls(&self) -> Option<&NatsTls> {
        self.tls.as_ref()
    }

    /// The servers, for the client.
    pub(super) fn servers(&self) -> &[ServerAddr] {
        &self.servers
    }

    /// The servers for people and for `NATS_SERVER`, without passwords.
    pub fn addresses(&self) -> String {
        self.servers.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}

fn shown(server: &ServerAddr) -> String {
    let host = server.host();
    let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
    format!("{}://{open}{host}{close}:{}", server.scheme(), server.port())
}

/// What stands before an `@` may be a password.
fn without_user(text: &str) -> &str {
    text.rsplit_once('@').map_or(text, |(_, host)| host)
}

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsOptions")
            .field("servers", &self.addresses())
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("connect_limit", &self.connect_limit)
            .finish()
    }
}

impl NatsAuth {
    /// From variables, in the order in which Dynamo looks at them: user and password, token, nkey, credentials file.
    /// Empty values count as unset.
    ///
    /// # Errors
    /// [`NatsAuthError`] when only one of user and password is set.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, NatsAuthError> {
        let value = |name| lookup(name).filter(|text| !text.is_empty());
        let pair = |present, missing| Err(NatsAuthError { present, missing });
        match (value("NATS_AUTH_USERNAME"), value("NATS_AUTH_PASSWORD")) {
            (Some(user), Some(password)) => return Ok(Self::Password { user, password }),
            (Some(_), None) => return pair("NATS_AUTH_USERNAME", "NATS_AUTH_PASSWORD"),
            (None, Some(_)) => return pair("NATS_AUTH_PASSWORD", "NATS_AUTH_USERNAME"),
            (None, None) => {}
        }
        let token = value("NATS_AUTH_TOKEN").map(Self::Token);
        let nkey = || value("NATS_AUTH_NKEY").map(Self::Nkey);
        let file = || value("NATS_AUTH_CREDENTIALS_FILE").map(|path| Self::Credentials(path.into()));
        Ok(token.or_else(nkey).or_else(file).unwrap_or_default())
    }
}

impl fmt::Debug for NatsAuth {
    /// Names the kind only: logs and panics are no place for secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Password { .. } => "Password",
            Self::Token(_) => "Token",
            Self::Nkey(_) => "Nkey",
            Self::Credentials(_) => "Credentials",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(servers: &str) -> Result<NatsOptions, NatsOptionsError> {
        NatsOptions::new(servers, NatsAuth::None, Duration::from_secs(1))
    }

    #[test]
    fn a_list_of_servers_is_read_and_shown_without_passwords() {
        let read = options("nats://u:secret@10.0.0.1:4223, localhost ,tls://[::1]:7").expect("valid");
        assert_eq!(
            read.addresses(),
            "nats://10.0.0.1:4223,nats://localhost:4222,tls://[::1]:7"
        );
        assert!(!format!("{read:?}").contains("secret"));
    }

    #[test]
    fn an_unusable_server_is_an_error_that_names_it_without_its_password() {
        assert_eq!(options(" , ").expect_err("empty"), NatsOptionsError::Empty);
        for text in ["http://a:secret@b", "nats://x:secret@:9x", "ws://u:secret@a"] {
            let error = options(text).expect_err(text).to_string();
            assert!(
                error.contains("NATS_SERVER") && !error.contains("secret"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn the_first_complete_way_to_sign_in_wins() {
        let from = |pairs: &[(&str, &str)]| {
            NatsAuth::from_lookup(|name| {
                let found = pairs.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let password = NatsAuth::Password {
            user: "u".into(),
            password: "p".into(),
        };
        let all = [
            ("NATS_AUTH_USERNAME", "u"),
            ("NATS_AUTH_PASSWORD", "p"),
            ("NATS_AUTH_TOKEN", "t"),
            ("NATS_AUTH_NKEY", "n"),
            ("NATS_AUTH_CREDENTIALS_FILE", "f"),
        ];
        assert_eq!(from(&all), Ok(password));
        assert_eq!(from(&all[2..]), Ok(NatsAuth::Token("t".into())));
        assert_eq!(from(&all[3..]), Ok(NatsAuth::Nkey("n".into())));
        assert_eq!(from(&all[4..]), Ok(NatsAuth::Credentials("f".into())));
        assert_eq!(from(&[("NATS_AUTH_TOKEN", "")]), Ok(NatsAuth::None));
        let half = from(&all[..1]).expect_err("half a pair").to_string();
        assert!(
            half.contains("NATS_AUTH_USERNAME") && half.contains("NATS_AUTH_PASSWORD"),
            "{half}"
        );
    }
}
