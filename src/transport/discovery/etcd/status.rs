//! What a failed etcd call means for the caller.

use etcd_client::Error;

/// Failure of one call.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The server could not be reached, or could not serve anybody at the time.
    NoAnswer(String),
    /// The lease named in the call does not exist.
    LeaseGone(String),
    /// The server says no and would say so again.
    Refused(String),
    /// The client could not even send the call.
    Options(String),
}

/// gRPC status codes. Source: gRPC, "Status codes and their use".
mod code {
    pub(super) const CANCELLED: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const DEADLINE_EXCEEDED: i32 = 4;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const ABORTED: i32 = 10;
    pub(super) const INTERNAL: i32 = 13;
    pub(super) const UNAVAILABLE: i32 = 14;
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::GRpcStatus(status) => {
                let reason = with_cause(status.message(), std::error::Error::source(&status));
                match i32::from(status.code()) {
                    code::NOT_FOUND => Self::LeaseGone(reason),
                    code::CANCELLED
                    | code::DEADLINE_EXCEEDED
                    | code::RESOURCE_EXHAUSTED
                    | code::ABORTED
                    | code::INTERNAL
                    | code::UNAVAILABLE => Self::NoAnswer(reason),
                    // The server itself uses "unknown" for refusals; the client, with a cause, for broken connections.
                    code::UNKNOWN if std::error::Error::source(&status).is_some() => Self::NoAnswer(reason),
                    _ => Self::Refused(reason),
                }
            }
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) | Error::Utf8Error(_) => {
                Self::Options(error.to_string())
            }
            Error::IoError(_)
            | Error::TransportError(_)
            | Error::WatchError(_)
            | Error::LeaseKeepAliveError(_)
            | Error::ElectError(_)
            | Error::EndpointError(_)
            | Error::EndpointsNotManaged
            | Error::Internal(_) => Self::NoAnswer(error.to_string()),
        }
    }
}

/// A message and its innermost cause, which names what happened to the connection.
fn with_cause(message: &str, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut innermost = None;
    while let Some(error) = cause {
        innermost = Some(error.to_string());
        cause = error.source();
    }
    match innermost {
        Some(cause) if cause != message => format!("{message}: {cause}"),
        _ => message.to_owned(),
    }
}
