//! etcd addresses with a user in them: taken apart, because the client looks at the host alone.

use crate::transport::discovery::name::percent_decode;
use crate::transport::host_port;

/// User and password.
pub type User = (String, String);

/// Addresses that cannot be used. The texts tell no password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdAddressError {
    /// Nothing in the list.
    #[error("names no server; use http://host:2379")]
    Empty,
    /// Nothing that can be connected to.
    #[error("has {0:?} in it, which is no address of an etcd server; use http://host:2379 or https://host:2379")]
    Address(String),
    /// A user alone, or text that is not percent-encoded.
    #[error(
        "has a user without a password, or one that is not percent-encoded; use ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD"
    )]
    User,
    /// Addresses with different users.
    #[error("has different users in it; all servers of a cluster take the same one")]
    Several,
    /// A user in the address and another one in variables.
    #[error("has a user in it and ETCD_AUTH_USERNAME is set too; keep one of them")]
    Twice,
}

/// Addresses without users, and who signs in: `variables`, or the user in the addresses.
///
/// # Errors
/// [`EtcdAddressError`] completes a sentence that begins with the setting.
pub fn read(text: &str, variables: Option<User>) -> Result<(Vec<String>, Option<User>), EtcdAddressError> {
    let mut said: Option<User> = None;
    let mut endpoints = Vec::new();
    for text in text.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let (scheme, rest) = text
            .split_once("://")
            .map_or(("", text), |(scheme, rest)| (scheme, rest));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            // What stands before it may be a password with a slash in it.
            None if rest.contains('@') => return Err(EtcdAddressError::User),
            None => (None, authority),
        };
        let plain = &rest[user.map_or(0, |user| user.len() + 1)..];
        let endpoint = if scheme.is_empty() {
            plain.to_owned()
        } else {
            format!("{scheme}://{plain}")
        };
        if !matches!(scheme, "" | "http" | "https") || host_port::split(host).is_none() {
            return Err(EtcdAddressError::Address(endpoint));
        }
        endpoints.push(endpoint);
        let Some(user) = user else { continue };
        let (name, password) = user.split_once(':').ok_or(EtcdAddressError::User)?;
        let user = percent_decode(name)
            .filter(|name| !name.is_empty())
            .zip(percent_decode(password));
        let user = user.ok_or(EtcdAddressError::User)?;
        if said.as_ref().is_some_and(|said| *said != user) {
            return Err(EtcdAddressError::Several);
        }
        said = Some(user);
    }
    if endpoints.is_empty() {
        return Err(EtcdAddressError::Empty);
    }
    match (said, variables) {
        (Some(_), Some(_)) => Err(EtcdAddressError::Twice),
        (said, variables) => Ok((endpoints, said.or(variables))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        ("a@b".to_owned(), "p:q/r".to_owned())
    }

    #[test]
    fn a_user_is_taken_out_of_the_addresses() {
        let text = " http://a%40b:p%3Aq%2Fr@h:1, h:2 ,https://[::1]:3";
        let hosts = ["http://h:1", "h:2", "https://[::1]:3"].map(str::to_owned).to_vec();
        assert_eq!(read(text, None), Ok((hosts, Some(user()))));
        assert_eq!(read("h:1", Some(user())), Ok((vec!["h:1".to_owned()], Some(user()))));
        assert_eq!(
            read("u:p@h:1", None).map(|(hosts, _)| hosts),
            Ok(vec!["h:1".to_owned()])
        );
    }

    #[test]
    fn what_is_no_address_of_an_etcd_server_is_refused_without_its_password() {
        for (text, shown) in [
            ("ftp://127.0.0.1:1", "ftp://127.0.0.1:1"),
            ("127.0.0.1:99999", "127.0.0.1:99999"),
            ("http://h:1, http://u:secret@h:0", "http://h:0"),
            ("http://", "http://"),
            ("unix:///run/etcd", "unix:///run/etcd"),
            ("http://::1:2379", "http://::1:2379"),
        ] {
            assert_eq!(
                read(text, None),
                Err(EtcdAddressError::Address(shown.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn users_that_contradict_or_cannot_be_read_are_refused() {
        assert_eq!(read(" , ", None), Err(EtcdAddressError::Empty));
        assert_eq!(read("http://u:p@h:1", Some(user())), Err(EtcdAddressError::Twice));
        assert_eq!(
            read("http://u:p@h:1,http://u:x@h:2", None),
            Err(EtcdAddressError::Several)
        );
        for text in ["http://u@h:1", "http://u:%zz@h:1", "http://:p@h:1", "http://u:p/q@h:1"] {
            assert_eq!(read(text, None), Err(EtcdAddressError::User), "{text}");
        }
    }
}
