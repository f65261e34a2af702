//! Actor paths: `w17`, `w17/r0`, `w17/kv`, `w17/r1/kv`, `w17/r0/native`, `w17/metrics`, `w17/lease`. The same in logs, snapshots and
//! commands.

use std::fmt;
use std::str::FromStr;

use super::liveness::Child;
use crate::types::WorkerId;

/// Address of one actor: a worker, or one of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorPath {
    /// Which worker.
    pub worker: WorkerId,
    /// Which child; `None`: the worker itself.
    pub child: Option<Child>,
}

impl ActorPath {
    /// A rank of this worker.
    #[must_use]
    pub fn rank(self, index: usize) -> Self {
        let child = u32::try_from(index).ok().map(Child::Rank);
        Self { child, ..self }
    }
}

impl fmt::Display for ActorPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.worker)?;
        match self.child {
            None | Some(Child::Worker(_)) => Ok(()),
            Some(Child::Rank(rank)) => write!(f, "/r{rank}"),
            Some(Child::Kv(rank)) => write!(f, "/r{rank}/kv"),
            Some(Child::Native(rank)) => write!(f, "/r{rank}/native"),
            Some(Child::Metrics) => f.write_str("/metrics"),
            Some(Child::Lease) => f.write_str("/lease"),
            Some(Child::Rendezvous) => f.write_str("/rendezvous"),
        }
    }
}

/// A text that is no actor path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no actor path; use w<N>, w<N>/r<N>, w<N>/kv, w<N>/r<N>/kv, w<N>/r<N>/native, w<N>/metrics, w<N>/lease or w<N>/rendezvous"
)]
pub struct PathError(String);

impl FromStr for ActorPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let bad = || PathError(text.to_owned());
        let number = |part: &str, letter: char| part.strip_prefix(letter).and_then(|n| n.parse::<u32>().ok());
        let mut parts = text.split('/');
        let worker = parts.next().and_then(|part| number(part, 'w')).ok_or_else(bad)?;
        let child = match (parts.next(), parts.next(), parts.next()) {
            (None, _, _) => None,
            (Some("kv"), None, _) => Some(Child::Kv(0)),
            (Some("metrics"), None, _) => Some(Child::Metrics),
            (Some("lease"), None, _) => Some(Child::Lease),
            (Some("rendezvous"), None, _) => Some(Child::Rendezvous),
            (Some(rank), None, _) => Some(Child::Rank(number(rank, 'r').ok_or_else(bad)?)),
            (Some(rank), Some("kv"), None) => Some(Child::Kv(number(rank, 'r').ok_or_else(bad)?)),
            (Some(rank), Some("native"), None) => Some(Child::Native(number(rank, 'r').ok_or_else(bad)?)),
            _ => return Err(bad()),
        };
        Ok(Self {
            worker: WorkerId(worker),
            child,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_they_are_written() {
        for text in [
            "w0",
            "w17/r0",
            "w17/r1/kv",
            "w3/r0/native",
            "w3/metrics",
            "w3/lease",
            "w3/rendezvous",
        ] {
            assert_eq!(text.parse::<ActorPath>().unwrap().to_string(), text);
        }
        assert_eq!("w3/kv".parse::<ActorPath>().unwrap().child, Some(Child::Kv(0)));
        for text in [
            "",
            "w",
            "x1",
            "w1/",
            "w1/q",
            "w1/r",
            "w1/r0/kv/x",
            "w1/metrics/x",
            "w-1",
        ] {
            assert!(text.parse::<ActorPath>().is_err(), "{text}");
        }
    }
}
