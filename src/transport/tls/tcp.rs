//! TLS of the TCP request plane: one set of variables for the listeners of workers (server role) and for the response
//! sockets that they dial (client role). The frames inside are the same.
//!
//! | Variable | Role | Meaning |
//! |---|---|---|
//! | `DYN_TCP_TLS_CERT_PATH`, `DYN_TCP_TLS_KEY_PATH` | server | certificate and key; both turn TLS on |
//! | `DYN_TCP_TLS_CLIENT_CA_CERT_PATH` | server | frontends have to show a certificate of this authority |
//! | `DYN_TCP_TLS_CA_CERT_PATH` | client | authority of the frontends' certificates; turns TLS on |
//! | `DYN_TCP_TLS_INSECURE` | client | `1` or `true`: no check of certificates; turns TLS on; `0` or `false`: as unset |
//! | `DYN_TCP_TLS_CLIENT_CERT_PATH`, `DYN_TCP_TLS_CLIENT_KEY_PATH` | client | identity to show to frontends |
//! | `DYN_TCP_TLS_SERVER_NAME` | client | name to look for in certificates instead of the address dialled |
//! | `DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS` | both | 3 unless set |
//!
//! Source: Dynamo 1.6.1. Unlike there, a certificate that is replaced on disk is used from the next start on, and a value
//! of the switch that is neither yes nor no is refused.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Identity, Pem, TlsError, Variables, client_config, provider, server_builder};

const CERT: &str = "DYN_TCP_TLS_CERT_PATH";
const KEY: &str = "DYN_TCP_TLS_KEY_PATH";
const CLIENT_CA: &str = "DYN_TCP_TLS_CLIENT_CA_CERT_PATH";
const CA: &str = "DYN_TCP_TLS_CA_CERT_PATH";
const INSECURE: &str = "DYN_TCP_TLS_INSECURE";
const CLIENT_CERT: &str = "DYN_TCP_TLS_CLIENT_CERT_PATH";
const CLIENT_KEY: &str = "DYN_TCP_TLS_CLIENT_KEY_PATH";
const SERVER_NAME: &str = "DYN_TCP_TLS_SERVER_NAME";
const HANDSHAKE: &str = "DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS";

const DEFAULT_HANDSHAKE: Duration = Duration::from_secs(3);

/// Both roles; each may be without TLS.
#[derive(Debug, Clone, Default)]
pub struct TcpTls {
    /// Listeners of workers.
    pub server: Option<ServerTls>,
    /// Response sockets.
    pub client: Option<ClientTls>,
    /// Certificates in use.
    certificates: Vec<Pem>,
    /// Every variable of a file that is set.
    files: Vec<(&'static str, String)>,
    /// Frontends have to show a certificate.
    mutual: bool,
}

/// A variable that a frontend of these workers needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendVariable {
    /// Its name.
    pub name: &'static str,
    /// The file that the workers have under that name; frontends on this machine may use it as well.
    pub value: Option<String>,
    /// What it should be.
    pub meaning: &'static str,
}

/// TLS of listeners. Clones share it.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    handshake_limit: Duration,
}

/// TLS of connections that we open. Clones share it.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// Instead of the address dialled.
    server_name: Option<ServerName<'static>>,
    handshake_limit: Duration,
}

impl TcpTls {
    /// From the variables above; the files are read now.
    ///
    /// # Errors
    /// [`TlsError`] names the variable and the file.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, TlsError> {
        let variables = Variables(&lookup);
        let handshake_limit = handshake_limit(variables)?;
        let server = server(variables, handshake_limit)?;
        let client = client(variables, handshake_limit)?;
        let set = |name| Some((name, variables.value(name)?));
        let certificates = [CERT, CLIENT_CA, CA, CLIENT_CERT];
        let certificates = certificates.into_iter().filter_map(|name| variables.file(name));
        let mutual = server.is_some() && variables.value(CLIENT_CA).is_some();
        Ok(Self {
            // Authorities are not read when anybody is trusted.
            certificates: if server.is_some() || client.is_some() {
                certificates.collect()
            } else {
                Vec::new()
            },
            files: [CERT, KEY, CA, INSECURE, CLIENT_CERT, CLIENT_KEY]
                .into_iter()
                .filter_map(set)
                .collect(),
            mutual,
            server,
            client,
        })
    }

    /// Certificates in use.
    pub fn certificates(&self) -> &[Pem] {
        &self.certificates
    }

    /// What frontends have to be told so that they get through to these workers, and these workers to them.
    pub fn frontend_variables(&self) -> Vec<FrontendVariable> {
        let value = |name| {
            self.files
                .iter()
                .find(|(set, _)| *set == name)
                .map(|(_, value)| value.clone())
        };
        let mut needed = Vec::new();
        if self.server.is_some() {
            if value(CA).is_none() && value(INSECURE).is_some() {
                needed.push((INSECURE, "true"));
            } else {
                needed.push((CA, "the authority of the workers' certificate"));
            }
        }
        if self.mutual {
            needed.push((CLIENT_CERT, "a certificate that the workers take"));
            needed.push((CLIENT_KEY, "its key"));
        }
        if self.client.is_some() {
            needed.push((CERT, "the frontend's certificate"));
            needed.push((KEY, "its key"));
        }
        let variables = needed.into_iter().map(|(name, meaning)| FrontendVariable {
            name,
            value: value(name),
            meaning,
        });
        variables.collect()
    }

    /// What is likely a mistake although it may be meant, in words for a log.
    pub fn doubt(&self) -> Option<&'static str> {
        match (&self.server, &self.client) {
            (Some(_), None) => Some(
                "request listeners have TLS but response sockets have not; unless frontends listen without TLS, set \
                 DYN_TCP_TLS_CA_CERT_PATH too",
            ),
            (None, Some(_)) => Some(
                "response sockets have TLS but request listeners have not; unless frontends dial without TLS, set \
                 DYN_TCP_TLS_CERT_PATH and DYN_TCP_TLS_KEY_PATH too",
            ),
            (None, None) | (Some(_), Some(_)) => None,
        }
    }
}

fn handshake_limit(variables: Variables<'_>) -> Result<Duration, TlsError> {
    let Some(text) = variables.value(HANDSHAKE) else {
        return Ok(DEFAULT_HANDSHAKE);
    };
    let seconds = text.trim().parse::<u32>().ok().filter(|&seconds| seconds > 0);
    let Some(seconds) = seconds else {
        return Err(TlsError::Value {
            variable: HANDSHAKE,
            value: text,
            why: "must be a whole number of seconds, at least 1",
        });
    };
    Ok(Duration::from_secs(seconds.into()))
}

fn server(variables: Variables<'_>, handshake_limit: Duration) -> Result<Option<ServerTls>, TlsError> {
    let authorities = variables.file(CLIENT_CA);
    let Some(identity) = variables.identity(CERT, KEY)? else {
        return match authorities {
            None => Ok(None),
            Some(_) => Err(TlsError::Alone {
                present: CLIENT_CA,
                needs: "DYN_TCP_TLS_CERT_PATH and DYN_TCP_TLS_KEY_PATH",
            }),
        };
    };
    ServerTls::new(&identity, authorities.as_ref(), handshake_limit).map(Some)
}

fn client(variables: Variables<'_>, handshake_limit: Duration) -> Result<Option<ClientTls>, TlsError> {
    let identity = variables.identity(CLIENT_CERT, CLIENT_KEY)?;
    let Some(trust) = variables.trust(CA, INSECURE)? else {
        return match identity {
            None => Ok(None),
            Some(_) => Err(TlsError::Alone {
                present: CLIENT_CERT,
                needs: "DYN_TCP_TLS_CA_CERT_PATH (or DYN_TCP_TLS_INSECURE=true for development)",
            }),
        };
    };
    let server_name = match variables.value(SERVER_NAME) {
        None => None,
        Some(name) => Some(ServerName::try_from(name.clone()).map_err(|_| TlsError::Value {
            variable: SERVER_NAME,
            value: name,
            why: "must be a host name or an IP address",
        })?),
    };
    Ok(Some(ClientTls {
        config: Arc::new(client_config(&trust, identity.as_ref())?),
        server_name,
        handshake_limit,
    }))
}

impl ServerTls {
    /// TLS with this identity; with authorities only for peers that show a certificate of theirs.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn new(identity: &Identity, authorities: Option<&Pem>, handshake_limit: Duration) -> Result<Self, TlsError> {
        let builder = server_builder();
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(file.roots()?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
                let verifier = verifier.map_err(|error| file.content(format!("cannot be used ({error})")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = identity.load()?;
        let config = builder.with_single_cert(chain, key);
        Ok(Self {
            config: Arc::new(config.map_err(|error| identity.refused(&error))?),
            handshake_limit,
        })
    }

    /// The server's part of a handshake.
    ///
    /// # Errors
    /// What went wrong, or `TimedOut`.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.config));
        match tokio::time::timeout(self.handshake_limit, acceptor.accept(stream)).await {
            Ok(accepted) => accepted,
            Err(_) => Err(timed_out(self.handshake_limit)),
        }
    }
}

impl ClientTls {
    /// The client's part of a handshake with the server at `address`.
    ///
    /// # Errors
    /// What went wrong, or `TimedOut`.
    pub async fn connect(&self, stream: TcpStream, address: SocketAddr) -> io::Result<(TcpStream, ClientConnection)> {
        let name = self.server_name.clone();
        let name = name.unwrap_or_else(|| ServerName::from(address.ip()));
        let connecting = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream);
        match tokio::time::timeout(self.handshake_limit, connecting).await {
            Ok(connected) => Ok(connected?.into_inner()),
            Err(_) => Err(timed_out(self.handshake_limit)),
        }
    }
}

fn timed_out(limit: Duration) -> io::Error {
    let words = format!("no TLS handshake within {} s", limit.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, words)
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("handshake_limit", &self.handshake_limit)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("server_name", &self.server_name)
            .field("handshake_limit", &self.handshake_limit)
            .finish_non_exhaustive()
    }
}
