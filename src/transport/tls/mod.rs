//! TLS for the TCP request plane, NATS and etcd: PEM text by way of variables, checked when the fleet is configured.
//!
//! | Module | What |
//! |---|---|
//! | [`files`] | PEM text, and what can be wrong with it |
//! | [`der`] | version and validity of a certificate |
//! | [`servers`] | NATS and etcd |
//! | [`tcp`] | both roles of the TCP request plane: its listeners, and the response sockets that workers dial |
//! | [`insecure`] | the verifier that believes every server |
//!
//! One cryptographic provider throughout: ring. Source: variables and rules of Dynamo 1.6.1.

mod der;
mod files;
mod insecure;
pub mod servers;
pub mod tcp;

use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, ServerConfig, WantsVerifier};

pub use files::{Identity, Pem, Place, TlsError};
pub use servers::{EtcdTls, NatsTls};
pub use tcp::{ClientTls, FrontendVariable, ServerTls, TcpTls};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Whom a client trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Servers whose certificate one of these authorities signed.
    Authorities(Pem),
    /// Anybody. For development only.
    Anybody,
}

/// Settings of a client that trusts these servers and shows this identity, if it has one.
///
/// # Errors
/// [`TlsError`] names the file.
pub fn client_config(trust: &Trust, identity: Option<&Identity>) -> Result<ClientConfig, TlsError> {
    let builder = client_builder();
    let builder = match trust {
        Trust::Authorities(file) => builder.with_root_certificates(file.roots()?),
        Trust::Anybody => {
            let verifier = Arc::new(insecure::AnyServer(provider()));
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let (chain, key) = identity.load()?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|error| identity.refused(&error))
        }
    }
}

fn client_builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
}

fn server_builder() -> ConfigBuilder<ServerConfig, WantsVerifier> {
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
}

/// A variable that takes away a protection: `1` and `true` are what the peer takes for yes, and what it does not know
/// must not count as no either.
fn is_yes(variable: &'static str, text: &str) -> Result<bool, TlsError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(TlsError::Value {
            variable,
            value: text.to_owned(),
            why: "must be 1 or true (no check of certificates), or 0 or false",
        }),
    }
}

/// The values of two variables that belong together.
fn both(
    first: &'static str,
    first_value: Option<String>,
    second: &'static str,
    second_value: Option<String>,
) -> Result<Option<(String, String)>, TlsError> {
    match (first_value, second_value) {
        (Some(one), Some(other)) => Ok(Some((one, other))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(TlsError::HalfSet {
            present: first,
            missing: second,
        }),
        (None, Some(_)) => Err(TlsError::HalfSet {
            present: second,
            missing: first,
        }),
    }
}

/// The values of two variables that belong together; `None` when neither is set. Empty values count as unset.
///
/// # Errors
/// [`TlsError::HalfSet`] when only one is set.
pub fn pair_from_lookup(
    first: &'static str,
    second: &'static str,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Option<(String, String)>, TlsError> {
    let variables = Variables(&lookup);
    both(first, variables.value(first), second, variables.value(second))
}

/// Variables that are set to something.
#[derive(Clone, Copy)]
struct Variables<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Variables<'_> {
    fn value(self, name: &'static str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    fn file(self, name: &'static str) -> Option<Pem> {
        self.value(name).map(|path| Pem::file(name, path))
    }

    /// A certificate and its key: both, or neither.
    fn identity(self, certificate: &'static str, key: &'static str) -> Result<Option<Identity>, TlsError> {
        let pair = both(certificate, self.value(certificate), key, self.value(key))?;
        Ok(pair.map(|(chain, private)| Identity {
            chain: Pem::file(certificate, chain),
            key: Pem::file(key, private),
        }))
    }

    /// Whom to trust: authorities, or anybody; `None` when nothing is said.
    fn trust(self, authorities: &'static str, insecure: &'static str) -> Result<Option<Trust>, TlsError> {
        let anybody = self.value(insecure).map(|text| is_yes(insecure, &text));
        if anybody.transpose()?.unwrap_or(false) {
            return Ok(Some(Trust::Anybody));
        }
        Ok(self.file(authorities).map(Trust::Authorities))
    }
}
