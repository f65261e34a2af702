//! The dashboard: one page without outside parts. It is a client of the admin API like any other and holds no data itself.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

/// Where it is.
pub(super) const PATH: &str = "/";

const PAGE: &str = include_str!("dashboard.html");

/// The page runs its own script and talks to the server that it came from; nobody may put it into a frame, where clicks on
/// it could be stolen.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

pub(super) async fn page() -> Response {
    (HEADERS, Html(PAGE)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::journal::Event;

    #[test]
    fn the_page_has_words_for_everything_that_a_journal_says() {
        for event in Event::examples() {
            let name = serde_json::to_value(&event).unwrap()["event"].clone();
            assert!(PAGE.contains(&format!("case {name}:")), "{name}");
        }
    }
}
