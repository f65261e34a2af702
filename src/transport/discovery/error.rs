//! What goes wrong between a fleet and its discovery store.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Failure of a discovery operation.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// The options cannot work.
    #[error("{0}")]
    Options(String),
    /// No server answered within the limit given for start-up.
    #[error(
        "no etcd answers at {addresses} within {} s ({reason}); start etcd, correct the endpoints (ETCD_ENDPOINTS), or use \
         file discovery, which needs no server (--discovery-backend file)",
        limit.as_secs_f32()
    )]
    NotConnected {
        /// Addresses tried.
        addresses: String,
        /// Time spent trying.
        limit: Duration,
        /// Last failure.
        reason: String,
    },
    /// The server does not answer now; trying again makes sense as long as the lease may live.
    #[error("etcd at {addresses} does not answer: {operation} failed ({reason})")]
    Unreachable {
        /// Addresses of the store.
        addresses: String,
        /// What was asked for.
        operation: &'static str,
        /// Failure.
        reason: String,
    },
    /// The server answers, and the answer is no.
    #[error("etcd at {addresses} refuses {operation}: {reason}{}", sign_in_hint(reason))]
    Refused {
        /// Addresses of the store.
        addresses: String,
        /// What was asked for.
        operation: &'static str,
        /// Its words.
        reason: String,
    },
    /// The lease ran out or was revoked; open another one and publish again.
    #[error("the discovery lease is gone (it ran out or was revoked); open a new one and publish again")]
    LeaseGone,
    /// A lease of another store was passed in.
    #[error("the lease belongs to another discovery store")]
    ForeignLease,
    /// A key that the store cannot hold.
    #[error("discovery key '{key}' {reason}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}{}", path.display(), hint(source, path))]
    File {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// Failure.
        source: io::Error,
    },
    /// A disk that was full at the start and stayed so.
    #[error("{error}; waited {} s for room (--registration-timeout)", waited.as_secs_f32())]
    StillFull {
        /// For how long.
        waited: Duration,
        /// The last failure.
        error: Box<DiscoveryError>,
    },
    /// The runtime that carries the store's work is shutting down.
    #[error("the discovery store has been shut down")]
    Closed,
}

impl DiscoveryError {
    /// Whether the same call may succeed a little later without any other action.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether it is for want of room, which may come without anybody changing a setting.
    pub(super) fn is_full_disk(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::File { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}

/// The way out of a refusal that has to do with who asks.
fn sign_in_hint(reason: &str) -> &'static str {
    // Source: error texts of etcd 3.4.
    let about_users = [
        "user name is empty",
        "authentication failed",
        "permission denied",
        "invalid auth token",
    ];
    if about_users.iter().any(|words| reason.contains(words)) {
        "; check ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD, and what that user may do below v1/"
    } else {
        ""
    }
}

/// The way out of a failed file operation, as a clause to put behind it.
fn hint(error: &io::Error, path: &Path) -> String {
    use io::ErrorKind::{
        AlreadyExists, NotADirectory, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let kind = error.kind();
    if kind == PermissionDenied {
        let directory = directory(path).display();
        format!("; make {directory} writable for this user or choose another directory (DYN_FILE_KV)")
    } else if kind == ReadOnlyFilesystem {
        "; choose a directory on a writable file system (DYN_FILE_KV)".into()
    } else if matches!(kind, StorageFull | QuotaExceeded) {
        "; free some space or choose another directory (DYN_FILE_KV)".into()
    } else if matches!(kind, NotADirectory | AlreadyExists) {
        "; a file is in the way: remove it or choose another directory (DYN_FILE_KV)".into()
    } else {
        String::new()
    }
}

/// The nearest existing directory at or above `path`.
fn directory(path: &Path) -> &Path {
    path.ancestors().find(|candidate| candidate.is_dir()).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_file_operation_says_what_to_do() {
        let directory = std::env::temp_dir();
        let writable = format!("make {} writable", directory.display());
        for (kind, way_out) in [
            (io::ErrorKind::PermissionDenied, writable.as_str()),
            (
                io::ErrorKind::ReadOnlyFilesystem,
                "a writable file system (DYN_FILE_KV)",
            ),
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::NotADirectory, "a file is in the way"),
        ] {
            let path = directory.join("not-there").join(".tmp_0");
            let text = DiscoveryError::File {
                operation: "write",
                path: path.clone(),
                source: kind.into(),
            }
            .to_string();
            assert!(
                text.starts_with(&format!("cannot write {}: {kind}; ", path.display())),
                "{text}"
            );
            assert!(text.contains(way_out), "{text}");
        }
    }

    #[test]
    fn only_a_silent_server_is_worth_another_try() {
        let [addresses, reason] = ["http://127.0.0.1:2379", "no"].map(str::to_owned);
        let operation = "a lease";
        let silent = DiscoveryError::Unreachable {
            addresses: addresses.clone(),
            operation,
            reason: reason.clone(),
        };
        assert!(silent.is_transient());
        for error in [
            DiscoveryError::Refused {
                addresses,
                operation,
                reason,
            },
            DiscoveryError::LeaseGone,
        ] {
            assert!(!error.is_transient(), "{error}");
        }
    }
}
