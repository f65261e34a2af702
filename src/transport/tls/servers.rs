//! TLS towards NATS and etcd.

use tokio_rustls::rustls::ClientConfig;

use super::{Identity, Pem, TlsError, Trust, Variables, both, client_config};

/// TLS of NATS connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsTls {
    /// Whom to trust; `None`: the authorities of the system.
    pub trust: Option<Trust>,
    /// Own certificate, where the servers ask for one.
    pub identity: Option<Identity>,
}

impl NatsTls {
    /// From `NATS_TLS_CA_CERT_PATH`, `NATS_TLS_INSECURE`, `NATS_TLS_CLIENT_CERT_PATH`, `NATS_TLS_CLIENT_KEY_PATH`;
    /// `None` when none is set. The files are read to see whether they can be used.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TlsError> {
        let variables = Variables(&lookup);
        let trust = variables.trust("NATS_TLS_CA_CERT_PATH", "NATS_TLS_INSECURE")?;
        let identity = variables.identity("NATS_TLS_CLIENT_CERT_PATH", "NATS_TLS_CLIENT_KEY_PATH")?;
        if trust.is_none() && identity.is_none() {
            return Ok(None);
        }
        let tls = Self { trust, identity };
        tls.config()?;
        Ok(Some(tls))
    }

    /// Certificates in use.
    pub fn certificates(&self) -> Vec<&Pem> {
        let authorities = match &self.trust {
            Some(Trust::Authorities(authorities)) => Some(authorities),
            Some(Trust::Anybody) | None => None,
        };
        authorities
            .into_iter()
            .chain(self.identity.iter().map(|own| &own.chain))
            .collect()
    }

    /// Settings of the connections. Without [`Self::trust`] they are good for a check of the identity only: they trust
    /// anybody.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn config(&self) -> Result<ClientConfig, TlsError> {
        let trust = self.trust.as_ref().unwrap_or(&Trust::Anybody);
        client_config(trust, self.identity.as_ref())
    }
}

/// TLS of etcd connections: PEM text, as the variables hold it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// Authorities that sign the servers' certificates.
    pub authorities: Pem,
    /// Own certificate, where the servers ask for one.
    pub identity: Option<Identity>,
}

impl EtcdTls {
    /// Certificates in use.
    pub fn certificates(&self) -> Vec<&Pem> {
        let own = self.identity.iter().map(|own| &own.chain);
        std::iter::once(&self.authorities).chain(own).collect()
    }

    /// From `ETCD_AUTH_CA`, `ETCD_AUTH_CLIENT_CERT` and `ETCD_AUTH_CLIENT_KEY`; `None` when none is set.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TlsError> {
        const CA: &str = "ETCD_AUTH_CA";
        const CERT: &str = "ETCD_AUTH_CLIENT_CERT";
        const KEY: &str = "ETCD_AUTH_CLIENT_KEY";
        let variables = Variables(&lookup);
        let pair = both(CERT, variables.value(CERT), KEY, variables.value(KEY))?;
        let identity = pair.map(|(chain, key)| Identity {
            chain: Pem::text(CERT, chain),
            key: Pem::text(KEY, key),
        });
        let Some(authorities) = variables.value(CA) else {
            return match identity {
                None => Ok(None),
                Some(_) => Err(TlsError::Alone {
                    present: CERT,
                    needs: CA,
                }),
            };
        };
        let authorities = Pem::text(CA, authorities);
        client_config(&Trust::Authorities(authorities.clone()), identity.as_ref())?;
        Ok(Some(Self { authorities, identity }))
    }
}
