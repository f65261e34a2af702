//! Names of endpoints, and what is derived from them: keys, request paths, subjects.
//!
//! | Derived thing | Form |
//! |---|---|
//! | key part in `v1/instances`, `v1/mdc` | `<namespace>/<component>/<endpoint>`, not encoded |
//! | event scope path | `namespace/<n>/component/<c>/endpoint/<e>`, each name through [`encode_segment`] |
//! | event subject | `namespace.<n>.component.<c>.endpoint.<e>.<topic>`, encoded likewise |
//! | TCP request path | `<id hex>/<n>/<c>/<e>` with `%` as `%25` |
//! | NATS request subject | `<n>_<c>.<e>-<id hex>` |
//!
//! Source: Dynamo 1.6.1 and 1.4.2, observed on the wire.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fmt;
use std::str::FromStr;

use crate::types::InstanceId;

/// What a Dynamo endpoint is called: `dyn://<namespace>.<component>.<endpoint>`.
///
/// No part is empty or holds `.`, `/`, white space or a control character, so that keys and the written form stay
/// unambiguous.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointName {
    namespace: String,
    component: String,
    endpoint: String,
}

/// A text that names no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not three parts.
    #[error(
        "endpoint '{0}' has not the form dyn://<namespace>.<component>.<endpoint>, as in dyn://dynamo.backend.generate"
    )]
    Form(String),
    /// One part cannot be part of a key.
    #[error(
        "{part} '{value}' of an endpoint must not be empty or contain '.', '/', white space or control characters; \
         expected dyn://<namespace>.<component>.<endpoint>, as in dyn://dynamo.backend.generate"
    )]
    Part {
        /// `namespace`, `component` or `endpoint`.
        part: &'static str,
        /// The refused text.
        value: String,
    },
}

impl EndpointName {
    /// Puts a name together.
    ///
    /// # Errors
    /// [`NameError::Part`] for the first part that is empty or has a forbidden character.
    pub fn new(
        namespace: impl Into<String>,
        component: impl Into<String>,
        endpoint: impl Into<String>,
    ) -> Result<Self, NameError> {
        Ok(Self {
            namespace: part("namespace", namespace.into())?,
            component: part("component", component.into())?,
            endpoint: part("endpoint", endpoint.into())?,
        })
    }

    /// First part.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Second part.
    pub fn component(&self) -> &str {
        &self.component
    }

    /// Third part.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Another endpoint of the same component.
    ///
    /// # Errors
    /// [`NameError::Part`] when `endpoint` cannot be part of a key.
    pub fn sibling(&self, endpoint: impl Into<String>) -> Result<Self, NameError> {
        Ok(Self {
            namespace: self.namespace.clone(),
            component: self.component.clone(),
            endpoint: part("endpoint", endpoint.into())?,
        })
    }

    /// Path that requests to instance `id` carry on the TCP plane. Frontends treat it as opaque.
    pub fn request_path(&self, id: InstanceId) -> String {
        // `/` needs no escape here: no part can hold one.
        format!("{id:x}/{}/{}/{}", self.namespace, self.component, self.endpoint).replace('%', "%25")
    }

    /// Subject that requests to instance `id` are published to on the NATS plane.
    pub fn request_subject(&self, id: InstanceId) -> String {
        format!("{}_{}.{}-{id:x}", self.namespace, self.component, self.endpoint)
    }

    /// Subject of `topic` on the event plane: NATS subject, or topic frame of a ZMQ broker.
    pub fn event_subject(&self, topic: &str) -> String {
        format!("{}.{}", self.event_subject_prefix(), encode_segment(topic))
    }

    /// [`Self::event_subject`] without the topic.
    pub fn event_subject_prefix(&self) -> String {
        self.event_scope('.')
    }

    /// Key part of this name in the buckets of instances and cards.
    pub(super) fn key_part(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.component, self.endpoint)
    }

    /// Key part of this name in the buckets of event channels and sources.
    pub(super) fn event_scope_path(&self) -> String {
        self.event_scope('/')
    }

    fn event_scope(&self, separator: char) -> String {
        format!(
            "namespace{separator}{}{separator}component{separator}{}{separator}endpoint{separator}{}",
            encode_segment(&self.namespace),
            encode_segment(&self.component),
            encode_segment(&self.endpoint)
        )
    }
}

impl FromStr for EndpointName {
    type Err = NameError;

    /// Reads `dyn://<namespace>.<component>.<endpoint>`; the `dyn://` may be missing.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let names = text.strip_prefix("dyn://").unwrap_or(text);
        let mut parts = names.split('.');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(component), Some(endpoint), None) => Self::new(namespace, component, endpoint),
            _ => Err(NameError::Form(text.to_owned())),
        }
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dyn://{}.{}.{}", self.namespace, self.component, self.endpoint)
    }
}

fn part(part: &'static str, value: String) -> Result<String, NameError> {
    let forbidden = |c: char| matches!(c, '.' | '/') || c.is_whitespace() || c.is_control();
    if value.is_empty() || value.contains(forbidden) {
        return Err(NameError::Part { part, value });
    }
    Ok(value)
}

/// Percent-encodes one segment of an event key or subject: all but ASCII letters, digits, `-` and `_` becomes `%XX`.
pub fn encode_segment(segment: &str) -> String {
    percent_encode(segment, |byte| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
    })
}

/// Replaces each byte that is not `kept` by `%XX`, upper-case hex.
pub(super) fn percent_encode(text: &str, kept: impl Fn(u8) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len() + text.len() / 2);
    for byte in text.bytes() {
        if kept(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
        }
    }
    encoded
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Undoes [`percent_encode`]; `None` when the text is not of that form (stray `%`, bytes that are no UTF-8).
pub(in crate::transport) fn percent_decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            let (digits, after) = tail.split_at_checked(2)?;
            let [high, low] = [char::from(digits[0]).to_digit(16)?, char::from(digits[1]).to_digit(16)?];
            decoded.push(u8::try_from(high * 16 + low).ok()?);
            rest = after;
        } else {
            decoded.push(byte);
            rest = tail;
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_name_reads_back_with_and_without_scheme() {
        let name = EndpointName::new("dynamo", "backend", "generate").unwrap();
        assert_eq!(name.to_string(), "dyn://dynamo.backend.generate");
        assert_eq!("dyn://dynamo.backend.generate".parse(), Ok(name.clone()));
        assert_eq!("dynamo.backend.generate".parse(), Ok(name));
    }

    #[test]
    fn a_refused_name_is_quoted_beside_the_expected_form() {
        for text in [
            "",
            "generate",
            "dyn://a.b",
            "dyn://a.b.c.d",
            "dyn://a..c",
            "dyn://a.b/x.c",
            "dyn://a.b. c",
        ] {
            let error = text.parse::<EndpointName>().unwrap_err().to_string();
            assert!(
                error.contains("dyn://<namespace>.<component>.<endpoint>"),
                "{text}: {error}"
            );
        }
        let error = "dyn://a.b/x.c".parse::<EndpointName>().unwrap_err().to_string();
        assert!(error.contains("component 'b/x'"), "{error}");
        let error = "dyn://a.b".parse::<EndpointName>().unwrap_err().to_string();
        assert!(error.contains("'dyn://a.b'"), "{error}");
    }

    #[test]
    fn paths_and_subjects_have_the_forms_seen_on_the_wire() {
        let name = EndpointName::new("dynamo", "backend", "generate").unwrap();
        let id = InstanceId(0x0a3e_a22a_96e0_3b06);
        assert_eq!(name.request_path(id), "a3ea22a96e03b06/dynamo/backend/generate");
        assert_eq!(name.request_subject(InstanceId(0xa3e)), "dynamo_backend.generate-a3e");
        assert_eq!(
            name.event_subject("kv-events"),
            "namespace.dynamo.component.backend.endpoint.generate.kv-events"
        );
        let odd = EndpointName::new("n%s", "b:c", "é_-").unwrap();
        assert_eq!(odd.request_path(id), "a3ea22a96e03b06/n%25s/b:c/é_-");
        assert_eq!(
            odd.event_subject("kv metrics"),
            "namespace.n%25s.component.b%3Ac.endpoint.%C3%A9_-.kv%20metrics"
        );
    }

    #[test]
    fn decoding_undoes_encoding_and_refuses_what_encoding_never_writes() {
        for text in ["", "dynamo/backend/generate/2a", "a%2Fb", "é x"] {
            let encoded = percent_encode(text, |byte| byte.is_ascii_alphanumeric());
            assert_eq!(percent_decode(&encoded).as_deref(), Some(text));
        }
        for text in ["%", "%4", "a%zz", "%FF", "%+1"] {
            assert_eq!(percent_decode(text), None, "{text}");
        }
    }
}
