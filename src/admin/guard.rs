//! Who is served. Where there is a token every request has to show it; where there is none only requests that name a
//! loopback host are taken, and never those that come from another origin: a page of another site that a browser on this
//! machine shows must not steer the fleet.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, header};

use super::answer::Problem;
use super::dashboard;

/// What a request has to show.
pub(super) struct Guard {
    /// The token; `None`: none, but loopback hosts only.
    pub(super) token: Option<String>,
}

impl Guard {
    /// Whether a request with this head is served.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = &self.token {
            // The page holds nothing of the fleet, and has to be there to ask for the token.
            if path == dashboard::PATH {
                return Ok(());
            }
            // RFC 9110, section 11.1: the name of a scheme has no case.
            let shown = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
            let is_right = |(scheme, shown): (&str, &str)| {
                scheme.eq_ignore_ascii_case("bearer") && same(shown.trim_start_matches(' '), token)
            };
            return if shown.is_some_and(is_right) {
                Ok(())
            } else {
                Err(Problem(
                    StatusCode::UNAUTHORIZED,
                    "this fleet wants its token; set GHOSTFLEET_ADMIN_TOKEN".to_owned(),
                ))
            };
        }
        let host = text(header::HOST).unwrap_or_default();
        if !names_loopback(host) {
            return Err(Problem(
                StatusCode::FORBIDDEN,
                format!("without a token only loopback hosts are served, not {host:?}"),
            ));
        }
        match text(header::ORIGIN) {
            Some(origin) if origin.split_once("://").is_none_or(|(_, from)| from != host) => Err(Problem(
                StatusCode::FORBIDDEN,
                format!("requests from {origin:?} are not served without a token"),
            )),
            _ => Ok(()),
        }
    }
}

/// In a time that does not tell how much of it is right.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |bits, (a, b)| bits | (a ^ b)) == 0
}

fn names_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: Option<&str>, headers: &[(&str, &str)]) -> u16 {
        check_path("/v1/fleet", token, headers)
    }

    fn check_path(path: &str, token: Option<&str>, headers: &[(&str, &str)]) -> u16 {
        let guard = Guard {
            token: token.map(str::to_owned),
        };
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            map.insert(name, value.parse().unwrap());
        }
        match guard.check(path, &map) {
            Ok(()) => 200,
            Err(problem) => problem.0.as_u16(),
        }
    }

    #[test]
    fn a_token_is_asked_for_and_has_to_be_right() {
        let token = Some("secret-token");
        assert_eq!(check(token, &[("host", "example.org")]), 401);
        assert_eq!(check(token, &[("authorization", "Bearer secret-tokem")]), 401);
        assert_eq!(check(token, &[("authorization", "secret-token")]), 401);
        assert_eq!(check(token, &[("authorization", "Basic secret-token")]), 401);
        for scheme in ["Bearer", "bearer", "BEARER", "bearer "] {
            let shown = format!("{scheme} secret-token");
            assert_eq!(check(token, &[("authorization", &shown)]), 200, "{shown}");
        }
        assert_eq!(
            check_path("/", token, &[("host", "example.org")]),
            200,
            "the page asks for it"
        );
        assert_eq!(check_path("/openapi.json", token, &[("host", "example.org")]), 401);
    }

    #[test]
    fn without_a_token_other_sites_cannot_steer_the_fleet() {
        assert_eq!(check(None, &[("host", "127.0.0.1:9000")]), 200);
        assert_eq!(check(None, &[("host", "localhost:9000")]), 200);
        assert_eq!(check(None, &[("host", "[::1]:9000")]), 200);
        assert_eq!(check(None, &[("host", "rebound.example:9000")]), 403);
        assert_eq!(check_path("/", None, &[("host", "rebound.example:9000")]), 403);
        assert_eq!(check(None, &[]), 403);
        let own = ("origin", "http://127.0.0.1:9000");
        assert_eq!(check(None, &[("host", "127.0.0.1:9000"), own]), 200);
        let other = ("origin", "http://site.example");
        assert_eq!(check(None, &[("host", "127.0.0.1:9000"), other]), 403);
        assert_eq!(check(None, &[("host", "127.0.0.1:9000"), ("origin", "null")]), 403);
    }
}
