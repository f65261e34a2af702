//! Where the NATS servers are and how to sign in.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::ServerAddr;
use nkeys::KeyPair;

use crate::transport::discovery::name::percent_decode;
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
    /// How long `JetStream` keeps messages in streams that we make.
    pub stream_max_age: Duration,
}

/// What [`NatsOptions::stream_max_age`] is unless it is said. Source: Dynamo 1.3.1.
const STREAM_MAX_AGE: Duration = Duration::from_secs(3600);

const STREAM_MAX_AGE_VARIABLE: &str = "DYN_NATS_STREAM_MAX_AGE";

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
    /// Not a time.
    #[error("{STREAM_MAX_AGE_VARIABLE}={0} must be a whole number of seconds, at least 1")]
    MaxAge(String),
    /// TLS variables or files that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Sign-in variables that do not go together.
    #[error(transparent)]
    Auth(#[from] NatsAuthError),
}

/// Ways to sign in that cannot work. None of them tells a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NatsAuthError {
    /// Half of a pair of variables.
    #[error("{present} is set but {missing} is not; set both, or neither")]
    HalfSet {
        /// The one that is there.
        present: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// Not the seed of a key.
    #[error("NATS_AUTH_NKEY holds no seed of an nkey ({0}); give the seed of a user, 58 characters that begin with SU")]
    Nkey(String),
    /// A file that is missing or holds no credentials.
    #[error(
        "NATS_AUTH_CREDENTIALS_FILE: cannot use {}: {reason}; give a .creds file, as `nsc generate creds` writes it",
        path.display()
    )]
    Credentials {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A user in the address and another one in variables.
    #[error("NATS_SERVER has a user in it and NATS_AUTH_* variables are set too; keep one of them")]
    Twice,
    /// Addresses with different users.
    #[error("NATS_SERVER has different users in it; all servers of a cluster take the same one")]
    Several,
    /// A user that cannot be read.
    #[error(
        "NATS_SERVER has a user or a password in it that is not percent-encoded text; use NATS_AUTH_USERNAME and NATS_AUTH_PASSWORD"
    )]
    Encoding,
}

impl NatsOptions {
    /// Servers as in `NATS_SERVER`, comma separated. A user and a password, or a token, may stand in an address instead
    /// of in variables.
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
        let auth = signed_in(&servers, auth)?;
        Ok(Self {
            servers,
            auth,
            tls: None,
            connect_limit,
            stream_max_age: STREAM_MAX_AGE,
        })
    }

    /// The same with [`Self::stream_max_age`] from `DYN_NATS_STREAM_MAX_AGE`, in seconds.
    ///
    /// # Errors
    /// [`NatsOptionsError::MaxAge`].
    pub fn with_max_age(mut self, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, NatsOptionsError> {
        if let Some(text) = lookup(STREAM_MAX_AGE_VARIABLE).filter(|text| !text.is_empty()) {
            // Longer ones have no place in JetStream's nanoseconds.
            let seconds = text.trim().parse::<u32>().ok().filter(|&seconds| seconds > 0);
            self.stream_max_age = Duration::from_secs(seconds.ok_or(NatsOptionsError::MaxAge(text))?.into());
        }
        Ok(self)
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
    pub fn tls(&self) -> Option<&NatsTls> {
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

/// How to sign in: as the addresses say, which the client itself does not look at, or as variables do.
fn signed_in(servers: &[ServerAddr], auth: NatsAuth) -> Result<NatsAuth, NatsAuthError> {
    let mut said: Option<NatsAuth> = None;
    for server in servers {
        let Some(user) = server.username() else { continue };
        let user = percent_decode(user).ok_or(NatsAuthError::Encoding)?;
        let own = match server.password().map(percent_decode) {
            Some(password) => NatsAuth::Password {
                user,
                password: password.ok_or(NatsAuthError::Encoding)?,
            },
            None => NatsAuth::Token(user),
        };
        if said.as_ref().is_some_and(|said| *said != own) {
            return Err(NatsAuthError::Several);
        }
        said = Some(own);
    }
    match (said, auth) {
        (None, auth) => Ok(auth),
        (Some(said), NatsAuth::None) => Ok(said),
        (Some(_), _) => Err(NatsAuthError::Twice),
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
            .field("stream_max_age", &self.stream_max_age)
            .finish()
    }
}

impl NatsAuth {
    /// From variables, in the order in which Dynamo looks at them: user and password, token, nkey, credentials file.
    /// Empty values count as unset.
    ///
    /// # Errors
    /// [`NatsAuthError`] when only one of user and password is set, or what is set holds no key.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, NatsAuthError> {
        let value = |name| lookup(name).filter(|text| !text.is_empty());
        let pair = |present, missing| Err(NatsAuthError::HalfSet { present, missing });
        match (value("NATS_AUTH_USERNAME"), value("NATS_AUTH_PASSWORD")) {
            (Some(user), Some(password)) => return Ok(Self::Password { user, password }),
            (Some(_), None) => return pair("NATS_AUTH_USERNAME", "NATS_AUTH_PASSWORD"),
            (None, Some(_)) => return pair("NATS_AUTH_PASSWORD", "NATS_AUTH_USERNAME"),
            (None, None) => {}
        }
        if let Some(token) = value("NATS_AUTH_TOKEN") {
            return Ok(Self::Token(token));
        }
        if let Some(seed) = value("NATS_AUTH_NKEY") {
            KeyPair::from_seed(&seed).map_err(|error| NatsAuthError::Nkey(error.to_string()))?;
            return Ok(Self::Nkey(seed));
        }
        match value("NATS_AUTH_CREDENTIALS_FILE").map(PathBuf::from) {
            None => Ok(Self::None),
            Some(path) => match check_credentials(&path) {
                Ok(()) => Ok(Self::Credentials(path)),
                Err(reason) => Err(NatsAuthError::Credentials { path, reason }),
            },
        }
    }
}

/// Longest credentials file read; they have about 1 KiB.
const MAX_CREDENTIALS: u64 = 64 << 10;

/// A credentials file has a JWT and the seed of its key, each between lines of dashes.
fn check_credentials(path: &Path) -> Result<(), String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > MAX_CREDENTIALS {
        return Err(format!("it has {length} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let after = |title: &str| {
        let mut lines = text
            .lines()
            .map(str::trim)
            .skip_while(|line| !(line.starts_with("---") && line.contains(title)));
        lines.nth(1).filter(|line| !line.is_empty() && !line.starts_with("---"))
    };
    if after("BEGIN NATS USER JWT").is_none() {
        return Err("it holds no user JWT".to_owned());
    }
    let seed = after("BEGIN USER NKEY SEED").ok_or("it holds no nkey seed")?;
    KeyPair::from_seed(seed).map_err(|error| format!("its nkey seed is none ({error})"))?;
    Ok(())
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

    fn credentials(seed: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.x.y\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(file.path(), text).expect("written");
        file
    }

    fn lookup<'a>(name: &'a str, value: &'a str) -> impl Fn(&str) -> Option<String> + 'a {
        move |asked| (asked == name).then(|| value.to_owned())
    }

    #[test]
    fn a_key_or_file_that_holds_none_is_named_and_its_content_is_not_told() {
        let public = KeyPair::new_user().public_key();
        for seed in ["secret", &public, "SUAAAA"] {
            let error = NatsAuth::from_lookup(lookup("NATS_AUTH_NKEY", seed))
                .expect_err(seed)
                .to_string();
            assert!(
                error.contains("NATS_AUTH_NKEY") && error.contains("begin with SU"),
                "{error}"
            );
            assert!(!error.contains(seed), "{error}");
        }
        let wrong = credentials("secret");
        for path in ["/nowhere/x.creds", "/", &wrong.path().display().to_string()] {
            let error = NatsAuth::from_lookup(lookup("NATS_AUTH_CREDENTIALS_FILE", path));
            let error = error.expect_err(path).to_string();
            assert!(
                error.contains("NATS_AUTH_CREDENTIALS_FILE") && error.contains(path),
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_user_in_the_address_signs_in_unless_it_contradicts() {
        let new = |servers: &str, auth| NatsOptions::new(servers, auth, Duration::from_secs(1));
        let password = NatsAuth::Password {
            user: "a@b".into(),
            password: "p:q".into(),
        };
        let read = new("nats://a%40b:p%3Aq@h:1,nats://h:2", NatsAuth::None).expect("valid");
        assert!(read.auth == password);
        assert!(new("nats://token@h:1", NatsAuth::None).expect("valid").auth == NatsAuth::Token("token".into()));
        let refusal = |servers, auth| new(servers, auth).expect_err(servers).to_string();
        let twice = refusal("nats://a:secret@h:1", NatsAuth::Token("t".into()));
        assert!(twice.contains("NATS_AUTH_*") && !twice.contains("secret"), "{twice}");
        let several = refusal("nats://a:b@h:1,nats://c:d@h:2", NatsAuth::None);
        assert!(several.contains("different users"), "{several}");
    }

    #[test]
    fn streams_keep_messages_for_as_long_as_the_variable_says() {
        let of = |value| {
            options("nats://h:1")
                .expect("valid")
                .with_max_age(lookup("DYN_NATS_STREAM_MAX_AGE", value))
        };
        assert_eq!(of("").expect("unset").stream_max_age, Duration::from_secs(3600));
        assert_eq!(of("7200").expect("valid").stream_max_age, Duration::from_secs(7200));
        for wrong in ["0", "-1", "1h", "99999999999"] {
            let error = of(wrong).expect_err(wrong).to_string();
            assert!(
                error.contains("DYN_NATS_STREAM_MAX_AGE") && error.contains(wrong),
                "{error}"
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
        let seed = KeyPair::new_user().seed().expect("a seed");
        let file = credentials(&seed);
        let path = file.path().display().to_string();
        let all = [
            ("NATS_AUTH_USERNAME", "u"),
            ("NATS_AUTH_PASSWORD", "p"),
            ("NATS_AUTH_TOKEN", "t"),
            ("NATS_AUTH_NKEY", &seed),
            ("NATS_AUTH_CREDENTIALS_FILE", &path),
        ];
        assert_eq!(from(&all), Ok(password));
        assert_eq!(from(&all[2..]), Ok(NatsAuth::Token("t".into())));
        assert_eq!(from(&all[3..]), Ok(NatsAuth::Nkey(seed.clone())));
        assert_eq!(from(&all[4..]), Ok(NatsAuth::Credentials(path.clone().into())));
        assert_eq!(from(&[("NATS_AUTH_TOKEN", "")]), Ok(NatsAuth::None));
        let half = from(&all[..1]).expect_err("half a pair").to_string();
        assert!(
            half.contains("NATS_AUTH_USERNAME") && half.contains("NATS_AUTH_PASSWORD"),
            "{half}"
        );
    }
}
