//! Certificates made on the spot, good for loopback.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// An authority and where its certificate is.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
    name: String,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    /// A new one whose files lie in `directory`.
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority signs itself");
        let authority = Self {
            issuer,
            directory: directory.to_owned(),
            name: name.to_owned(),
        };
        std::fs::write(authority.path(), authority.issuer.pem()).expect("the scratch directory is writable");
        authority
    }

    /// Its certificate.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join(format!("{}.pem", self.name))
    }

    /// A certificate of it for these names and addresses, with the common name `owner`.
    pub(crate) fn sign(&self, owner: &str, names: &[&str]) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("valid names");
        self.finish(owner, params)
    }

    fn finish(&self, owner: &str, mut params: CertificateParams) -> Pair {
        params.distinguished_name.push(rcgen::DnType::CommonName, owner);
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority signs");
        let file = |kind: &str| self.directory.join(format!("{}-{owner}-{kind}.pem", self.name));
        let pair = Pair {
            certificate: file("cert"),
            key: file("key"),
        };
        std::fs::write(&pair.certificate, certificate.pem()).expect("the scratch directory is writable");
        std::fs::write(&pair.key, key.serialize_pem()).expect("the scratch directory is writable");
        pair
    }

    /// One for loopback that is valid in these years only.
    #[allow(dead_code, reason = "shared by test programs that do not all need it")]
    pub(crate) fn in_years(&self, owner: &str, years: std::ops::Range<i32>) -> Pair {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("valid names");
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        self.finish(owner, params)
    }

    /// One for servers and clients on loopback.
    pub(crate) fn loopback(&self, owner: &str) -> Pair {
        self.sign(owner, &["127.0.0.1", "localhost"])
    }
}
