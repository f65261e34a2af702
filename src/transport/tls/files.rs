//! PEM text that a variable names or holds: certificates and keys, and what can be wrong with them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, RootCertStore};

use super::der;
use crate::transport::date::date;

/// Longest file read; bundles of all public authorities have a quarter of it.
const MAX_BYTES: u64 = 1 << 20;

/// A file or a variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// Half of a pair of variables.
    #[error("{present} is set but {missing} is not; set both, or neither")]
    HalfSet {
        /// The one that is there.
        present: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// A variable that says nothing without another.
    #[error("{present} needs {needs}; set that too, or unset {present}")]
    Alone {
        /// The one that is there.
        present: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// A file that is not there or may not be read.
    #[error("{variable}: cannot read {place}: {reason}")]
    Unreadable {
        /// Which variable names it.
        variable: &'static str,
        /// Which file.
        place: Place,
        /// Why not.
        reason: String,
    },
    /// A file without what is looked for in it.
    #[error("{variable}: {place} {reason}; give {}", place.wanted())]
    Content {
        /// Which variable names or holds it.
        variable: &'static str,
        /// Which file.
        place: Place,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate and a key that do not belong together, or a kind of key that is not known.
    #[error("{certificate} and {key} cannot be used together: {reason}")]
    Pair {
        /// The certificate.
        certificate: Pem,
        /// The key.
        key: Pem,
        /// Why not.
        reason: String,
    },
    /// A value that is no file.
    #[error("{variable}={value} {why}")]
    Value {
        /// Which variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        why: &'static str,
    },
}

/// Where PEM text is.
#[derive(Clone, PartialEq, Eq)]
pub enum Place {
    /// In this file.
    File(PathBuf),
    /// In the variable itself.
    Text(String),
}

/// PEM text, and the variable that names or holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pem {
    variable: &'static str,
    place: Place,
}

/// A certificate with the chain above it, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificates, the own one first.
    pub chain: Pem,
    /// Private key.
    pub key: Pem,
}

impl Place {
    fn wanted(&self) -> &'static str {
        match self {
            Self::File(_) => "a PEM file",
            Self::Text(_) => "PEM text, not a path",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Text(_) => f.write_str("its text"),
        }
    }
}

impl fmt::Debug for Place {
    /// Not the text: it may be a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text"),
        }
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File(path) => write!(f, "{} ({})", self.variable, path.display()),
            Place::Text(_) => f.write_str(self.variable),
        }
    }
}

impl Pem {
    /// The file at `path`, which `variable` names.
    pub fn file(variable: &'static str, path: impl Into<PathBuf>) -> Self {
        Self {
            variable,
            place: Place::File(path.into()),
        }
    }

    /// The text that `variable` holds.
    pub fn text(variable: &'static str, text: impl Into<String>) -> Self {
        Self {
            variable,
            place: Place::Text(text.into()),
        }
    }

    /// Where the file is; empty for text.
    pub fn path(&self) -> &Path {
        match &self.place {
            Place::File(path) => path,
            Place::Text(_) => Path::new(""),
        }
    }

    /// Its text.
    ///
    /// # Errors
    /// [`TlsError::Unreadable`].
    pub fn read(&self) -> Result<Vec<u8>, TlsError> {
        let path = match &self.place {
            Place::Text(text) => return Ok(text.clone().into_bytes()),
            Place::File(path) => path,
        };
        let unreadable = |reason: String| TlsError::Unreadable {
            variable: self.variable,
            place: self.place.clone(),
            reason,
        };
        let metadata = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !metadata.is_file() {
            return Err(unreadable("it is not a file".to_owned()));
        }
        if metadata.len() > MAX_BYTES {
            return Err(unreadable(format!("it has more than {MAX_BYTES} bytes")));
        }
        std::fs::read(path).map_err(|error| unreadable(error.to_string()))
    }

    /// An error about what is in it.
    pub(super) fn content(&self, reason: impl Into<String>) -> TlsError {
        TlsError::Content {
            variable: self.variable,
            place: self.place.clone(),
            reason: reason.into(),
        }
    }

    fn malformed(&self, error: &pem::Error) -> TlsError {
        self.content(format!("is malformed ({error})"))
    }

    /// Its certificates, at least one.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let text = self.read()?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let certificates = certificates.map_err(|error| self.malformed(&error))?;
        if certificates.is_empty() {
            return Err(self.content("holds no certificate"));
        }
        Ok(certificates)
    }

    /// What will keep peers from taking its certificates although they are in order: they are expired, or not valid yet.
    pub fn doubts(&self, now: SystemTime) -> Vec<String> {
        let certificates = self.certificates().unwrap_or_default();
        let facts = certificates.iter().filter_map(|certificate| der::facts(certificate));
        let doubts = facts.filter_map(|facts| {
            if facts.until < now {
                Some(format!(
                    "{self} has expired on {}; peers refuse it: renew it",
                    date(facts.until)
                ))
            } else if facts.from > now {
                let from = date(facts.from);
                Some(format!(
                    "{self} is not valid before {from}; peers refuse it until then: check the clock"
                ))
            } else {
                None
            }
        });
        doubts.collect()
    }

    /// Its first private key.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let text = self.read()?;
        // `ENCRYPTED PRIVATE KEY` in the form of PKCS 8, `Proc-Type: 4,ENCRYPTED` in the older ones.
        if text.windows(9).any(|words| words == b"ENCRYPTED") {
            return Err(self.content(
                "holds a key under a passphrase, for which nobody can be asked; take it off (openssl pkey -in KEY -out PLAIN)",
            ));
        }
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
            if matches!(error, pem::Error::NoItemsFound) {
                self.content("holds no private key")
            } else {
                self.malformed(&error)
            }
        })
    }

    /// Its certificates as authorities.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            let added = roots.add(certificate);
            added.map_err(|error| self.content(format!("holds a certificate that cannot be used ({error})")))?;
        }
        Ok(roots)
    }
}

impl Identity {
    pub(super) fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        Ok((self.chain.certificates()?, self.key.private_key()?))
    }

    fn is_of_version_1(&self) -> bool {
        let chain = self.chain.certificates().unwrap_or_default();
        let own = chain.first().and_then(|certificate| der::facts(certificate));
        own.is_some_and(|facts| facts.version == 1)
    }

    pub(super) fn refused(&self, error: &rustls::Error) -> TlsError {
        TlsError::Pair {
            certificate: self.chain.clone(),
            key: self.key.clone(),
            reason: if matches!(error, rustls::Error::InconsistentKeys(_)) {
                "the key is not the one of the certificate".to_owned()
            } else if self.is_of_version_1() {
                "the certificate is of X.509 version 1; only version 3 is taken, which openssl makes when extensions are \
                 asked for (-extfile, -addext)"
                    .to_owned()
            } else {
                error.to_string()
            },
        }
    }
}
