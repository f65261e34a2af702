//! Errors as a vLLM server words their envelope: `{"error":{"message","type","param","code"}}`.
//!
//! Source: vLLM 0.32.0, observed on the wire.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::transport::intake::{Failure, Refusal};

/// A request that gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            param: None,
        }
    }

    /// A value that makes no sense.
    pub(super) fn bad_value(param: &'static str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message);
        Self {
            param: Some(param),
            ..error
        }
    }

    /// A body that is no JSON, or not the right one.
    pub(super) fn bad_body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Bad Request", message)
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        let message = format!("the body is longer than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "Request Entity Too Large", message)
    }

    pub(super) fn body_too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "Request Timeout",
            "the body did not arrive in time",
        )
    }

    pub(super) fn unknown_model(name: &str, served: &str) -> Self {
        let message = format!("The model `{name}` does not exist. This worker serves `{served}`.");
        let error = Self::new(StatusCode::NOT_FOUND, "NotFoundError", message);
        Self {
            param: Some("model"),
            ..error
        }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
    }

    fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailableError", message)
    }

    pub(super) fn body(&self) -> Value {
        json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status.as_u16(),
            }
        })
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(message) => Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message),
            Refusal::Overloaded | Refusal::Unavailable => Self::unavailable(refusal.to_string()),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::InvalidRequest(message) => Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message),
            Failure::ShuttingDown => Self::unavailable("worker is shutting down"),
            Failure::Internal(message) => Self::internal(message),
        }
    }
}
