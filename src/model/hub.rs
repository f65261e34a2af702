//! Downloads a model's config and tokenizer files from the Hugging Face hub into its cache.
//!
//! Two routes are used: `GET /api/models/<repo>/revision/<revision>` (commit and file names) and
//! `GET /<repo>/resolve/<commit>/<file>`, which may redirect to a content server. The token goes to the hub itself and
//! never to another host. The hub explains a refusal in the header `x-error-message`; it answers 401 both for gated models
//! and for misspelt names.
//!
//! Source: routes and headers as used by `huggingface_hub` 0.36.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

use super::cache::{ModelCache, Snapshot, StoreError, is_commit};
use super::files::WANTED;
use super::progress::FileProgress;
use super::{HubId, HubOptions, ModelError};

/// Most bytes of a file list; big repositories list some thousand files.
const MAX_LISTING_BYTES: u64 = 32 << 20;
/// Most bytes of one file; the largest tokenizers have some 40 MB.
const MAX_FILE_BYTES: u64 = 512 << 20;
const MAX_REDIRECTS: u32 = 5;
/// Attempts at a request that failed for a passing reason.
const ATTEMPTS: u32 = 3;
/// Longest time for one whole file.
const FILE_TIMEOUT: Duration = Duration::from_secs(1800);
const MAX_DETAIL_CHARS: usize = 300;

/// The snapshot of a model: from the cache, else downloaded.
pub(super) fn snapshot(id: &HubId, options: &HubOptions) -> Result<Snapshot, ModelError> {
    let Some(cache_dir) = &options.cache else {
        return Err(ModelError::NoCache { id: id.repo.clone() });
    };
    let cache = ModelCache::new(cache_dir, id);
    if let Some(found) = cache.find(id.revision()) {
        tracing::debug!("model {} is cached in {}", id.repo, found.dir.display());
        return Ok(found);
    }
    if options.offline {
        return Err(ModelError::Offline {
            id: id.repo.clone(),
            cache: cache_dir.clone(),
        });
    }
    Client::new(id, options).download(&cache)
}

struct Client<'a> {
    id: &'a HubId,
    options: &'a HubOptions,
    agent: Agent,
}

/// Answer to the listing request.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl<'a> Client<'a> {
    fn new(id: &'a HubId, options: &'a HubOptions) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(options.patience))
            .timeout_connect(Some(options.patience))
            .timeout_recv_response(Some(options.patience))
            .timeout_per_read(Some(options.patience))
            .timeout_recv_body(Some(FILE_TIMEOUT))
            .user_agent(concat!("ghostfleet/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Self { id, options, agent }
    }

    fn download(&self, cache: &ModelCache) -> Result<Snapshot, ModelError> {
        let listing = self.list()?;
        let commit = listing.sha;
        let dir = cache.snapshot_dir(&commit);
        let offered = |file: &str| listing.siblings.iter().any(|sibling| sibling.rfilename == file);
        for wanted in WANTED
            .iter()
            .filter(|wanted| wanted.required.is_some() || offered(wanted.name))
        {
            if !offered(wanted.name) {
                let hint = wanted.required.unwrap_or_default();
                return Err(ModelError::MissingFile {
                    dir: Path::new(&self.id.repo).into(),
                    file: wanted.name,
                    hint,
                });
            }
            if !cache.has(&commit, wanted.name) {
                self.fetch(cache, &commit, wanted.name)?;
            }
        }
        cache.write_ref(self.id.revision(), &commit)?;
        Ok(Snapshot { dir, commit })
    }

    fn list(&self) -> Result<Listing, ModelError> {
        let revision = self.id.revision().replace('/', "%2F");
        let url = format!(
            "{}/api/models/{}/revision/{revision}",
            self.options.endpoint, self.id.repo
        );
        let mut response = self.get(&url)?.response;
        let text = response
            .body_mut()
            .with_config()
            .limit(MAX_LISTING_BYTES)
            .read_to_string()
            .map_err(|error| self.unreachable(&error))?;
        let listing: Listing =
            serde_json::from_str(&text).map_err(|error| self.bad_answer(format!("{url}: {error}")))?;
        if !is_commit(&listing.sha) {
            return Err(self.bad_answer(format!("{url}: {:?} is no commit hash", listing.sha)));
        }
        Ok(listing)
    }

    fn fetch(&self, cache: &ModelCache, commit: &str, file: &str) -> Result<(), ModelError> {
        let url = format!("{}/{}/resolve/{commit}/{file}", self.options.endpoint, self.id.repo);
        let got = self.get(&url)?;
        let etag = got.etag.unwrap_or_else(|| format!("{commit}-{file}"));
        let size = got.response.body().content_length();
        if size.is_some_and(|size| size > MAX_FILE_BYTES) {
            return Err(self.bad_answer(format!("{file} has more than {MAX_FILE_BYTES} bytes")));
        }
        let progress = FileProgress::start(self.options.progress, &self.id.repo, file, size);
        let body = got
            .response
            .into_body()
            .into_with_config()
            .limit(MAX_FILE_BYTES)
            .reader();
        cache
            .store(commit, file, &etag, progress.wrap(body))
            .map_err(|error| match error {
                StoreError::Disk(error) => error,
                StoreError::Body(error) => self.unreachable(&format!("{file} broke off: {error}")),
            })
    }

    /// Follows redirects by hand: the token must not leave the hub, and the content's name comes from the first answer.
    fn get(&self, url: &str) -> Result<Got, ModelError> {
        let mut url: Uri = url
            .parse()
            .map_err(|error| self.unreachable(&format!("{url} is no address: {error}")))?;
        let hub = url.authority().cloned();
        let mut etag = None;
        for _ in 0..=MAX_REDIRECTS {
            let to_hub = url.authority() == hub.as_ref();
            let response = self.get_once(&url, to_hub)?;
            etag = etag.or_else(|| content_name(response.headers()));
            let status = response.status();
            if status.is_success() {
                return Ok(Got { response, etag });
            }
            if !status.is_redirection() {
                return Err(self.refused(&url, &response));
            }
            url = next_hop(&url, response.headers()).map_err(|reason| self.bad_answer(format!("{url}: {reason}")))?;
        }
        Err(self.bad_answer(format!("more than {MAX_REDIRECTS} redirects, last to {url}")))
    }

    fn get_once(&self, url: &Uri, with_token: bool) -> Result<Response<Body>, ModelError> {
        let mut attempt = 1;
        loop {
            let mut request = self.agent.get(url);
            if let Some(token) = self.options.token.as_ref().filter(|_| with_token) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| self.unreachable(&error))?;
            let status = response.status();
            if attempt == ATTEMPTS || !(status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS) {
                return Ok(response);
            }
            tracing::warn!("{url} answered {status}; trying again ({attempt}/{ATTEMPTS})");
            std::thread::sleep(Duration::from_millis(250) * attempt);
            attempt += 1;
        }
    }

    fn refused(&self, url: &Uri, response: &Response<Body>) -> ModelError {
        let detail = response
            .headers()
            .get("x-error-message")
            .and_then(|value| value.to_str().ok());
        let detail = detail.unwrap_or_default().chars().take(MAX_DETAIL_CHARS).collect();
        let endpoint = self.options.endpoint.clone();
        let id = self.id.repo.clone();
        match response.status() {
            StatusCode::NOT_FOUND => ModelError::NotFound { endpoint, id, detail },
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => ModelError::Forbidden {
                endpoint,
                id,
                status: status.as_u16(),
                detail,
            },
            status => self.unreachable(&format!("{url} answered {status}")),
        }
    }

    fn unreachable(&self, reason: &impl ToString) -> ModelError {
        ModelError::Unreachable {
            endpoint: self.options.endpoint.clone(),
            id: self.id.repo.clone(),
            reason: reason.to_string(),
        }
    }

    fn bad_answer(&self, reason: String) -> ModelError {
        ModelError::BadAnswer {
            endpoint: self.options.endpoint.clone(),
            id: self.id.repo.clone(),
            reason,
        }
    }
}

struct Got {
    response: Response<Body>,
    /// Name of the content, safe as a file name.
    etag: Option<String>,
}

/// `x-linked-etag` names content that lies on another server; `etag` the content at hand.
fn content_name(headers: &HeaderMap) -> Option<String> {
    let value = headers
        .get("x-linked-etag")
        .or_else(|| headers.get(header::ETAG))?
        .to_str()
        .ok()?;
    let name = value.trim_start_matches("W/").trim_matches('"');
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    ((1..=128).contains(&name.len()) && name.bytes().all(harmless)).then(|| name.to_owned())
}

fn next_hop(from: &Uri, headers: &HeaderMap) -> Result<Uri, String> {
    let location = headers
        .get(header::LOCATION)
        .and_then(|value| value.to_str().ok())
        .ok_or("redirect without an address")?;
    let to: Uri = location
        .parse()
        .map_err(|error| format!("redirect to {location:?}: {error}"))?;
    if to.authority().is_some() {
        if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
            return Err(format!("redirect from https to {location:?}"));
        }
        return Ok(to);
    }
    let mut parts = from.clone().into_parts();
    parts.path_and_query = to.into_parts().path_and_query;
    Uri::from_parts(parts).map_err(|error| format!("redirect to {location:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    header::HeaderName::from_static(name),
                    header::HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn content_is_named_by_its_etag_and_never_by_a_path() {
        assert_eq!(
            content_name(&headers(&[("etag", "\"abc-1\"")])).as_deref(),
            Some("abc-1")
        );
        assert_eq!(
            content_name(&headers(&[("etag", "W/\"a\""), ("x-linked-etag", "\"beef\"")])).as_deref(),
            Some("beef")
        );
        assert_eq!(content_name(&headers(&[("etag", "\"../../x\"")])), None);
        assert_eq!(content_name(&headers(&[("etag", "\"\"")])), None);
    }

    #[test]
    fn a_redirect_may_be_relative_but_not_fall_back_to_plain_http() {
        let from: Uri = "https://hub.test/a/b".parse().unwrap();
        let hop = |to| next_hop(&from, &headers(&[("location", to)]));
        assert_eq!(hop("/api/x?y=1").unwrap(), "https://hub.test/api/x?y=1");
        assert_eq!(hop("https://cdn.test/x").unwrap(), "https://cdn.test/x");
        assert!(hop("http://cdn.test/x").is_err());
        assert!(next_hop(&from, &HeaderMap::new()).is_err());
    }
}
