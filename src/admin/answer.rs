//! Answers of the admin API that are not what was asked for.

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::actors::fleet::CommandError;
use crate::actors::path::PathError;
use crate::faults::{FaultError, SelectorError};
use crate::plain_words::plain;

/// Reads a part of a body.
///
/// # Errors
/// Which member of `what` is wrong (empty: of the body), what it is and what it has to be.
pub(super) fn read<'a, T: DeserializeOwned>(what: &str, from: impl Deserializer<'a>) -> Result<T, Problem> {
    serde_path_to_error::deserialize(from).map_err(|error| {
        let wrong = plain(&error.path().to_string(), &error.inner().to_string());
        Problem::bad(if what.is_empty() {
            wrong
        } else {
            format!("{what}: {wrong}")
        })
    })
}

/// An error with its status code; the body is `{"error": "..."}`.
pub(super) struct Problem(pub(super) StatusCode, pub(super) String);

impl Problem {
    pub(super) fn bad(what: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, what.into())
    }

    pub(super) fn not_found(what: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, what.into())
    }
}

/// A query, refused in the same form as everything else.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(asked)| Self(asked))
            .map_err(|refused| Problem::bad(refused.body_text()))
    }
}

/// A query of nothing, for paths that would pass it over.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// A part of the path, refused in that form, too.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named))
            .map_err(|refused| Problem::bad(refused.body_text()))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": self.1}))).into_response()
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let status = match error {
            CommandError::NoSuchActor(_) | CommandError::NoCache(_) => StatusCode::NOT_FOUND,
            CommandError::NeedsWorker(_) => StatusCode::BAD_REQUEST,
            CommandError::Down { .. } | CommandError::NotAlive(_) | CommandError::Alive(_) | CommandError::Going(_) => {
                StatusCode::CONFLICT
            }
            CommandError::Start { .. } | CommandError::PortHeld { .. } | CommandError::Stopped => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self(status, error.to_string())
    }
}

impl From<FaultError> for Problem {
    fn from(error: FaultError) -> Self {
        let status = match error {
            FaultError::Unknown(_) | FaultError::Nobody(_) | FaultError::Spared(..) => StatusCode::NOT_FOUND,
            FaultError::TooMany(_) => StatusCode::CONFLICT,
            FaultError::Kind(_)
            | FaultError::Selector(_)
            | FaultError::Probability(_)
            | FaultError::Time(..)
            | FaultError::Window { .. }
            | FaultError::Line(_)
            | FaultError::Id(_) => StatusCode::BAD_REQUEST,
        };
        Self(status, error.to_string())
    }
}

impl From<PathError> for Problem {
    fn from(error: PathError) -> Self {
        Self::bad(error.to_string())
    }
}

impl From<SelectorError> for Problem {
    fn from(error: SelectorError) -> Self {
        Self::bad(error.to_string())
    }
}
