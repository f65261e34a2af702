//! NATS servers that want TLS, certificates or a sign-in.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::certificates::Authority;
use crate::fleet::{Fleet, Variables};
use crate::server::{Server, free_port};

/// A nats-server with these arguments, and its address with the scheme.
fn start(scheme: &str, arguments: &[&str]) -> (Server, String) {
    let port = free_port();
    let mut all: Vec<String> = ["--addr", "127.0.0.1", "--port", &port.to_string()]
        .map(str::to_owned)
        .into();
    all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    (
        Server::start("nats-server", &all, port),
        format!("{scheme}://127.0.0.1:{port}"),
    )
}

/// A fleet on both NATS planes, or why there is none.
fn fleet(url: &str, variables: Variables<'_>) -> Result<Fleet, String> {
    let planes = ["--request-plane", "nats", "--event-plane", "nats", "--nats-server", url];
    let limits = ["--nats-connect-timeout", "2"];
    Fleet::start(&[&planes[..], &limits[..]].concat(), variables)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_server_with_tls_is_reached_by_those_who_trust_it() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "authority");
    let stranger = Authority::new(scratch.path(), "stranger");
    let (ca, own) = (authority.path(), authority.loopback("nats"));
    let (_server, url) = start(
        "tls",
        &["--tls", "--tlscert", text(&own.certificate), "--tlskey", text(&own.key)],
    );
    drop(fleet(&url, &[("NATS_TLS_CA_CERT_PATH", &ca)]).unwrap());
    drop(fleet(&url, &[("NATS_TLS_INSECURE", Path::new("1"))]).unwrap());
    for variables in [&[][..], &[("NATS_TLS_CA_CERT_PATH", stranger.path().as_path())]] {
        let refused = fleet(&url, variables).err().expect("not to be trusted");
        assert!(refused.contains(&url) && refused.contains("certificate"), "{refused}");
        assert!(refused.contains("NATS_TLS_CA_CERT_PATH"), "{refused}");
    }
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn a_server_that_asks_for_certificates_gets_ours() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "authority");
    let (ca, own, client) = (
        authority.path(),
        authority.loopback("nats"),
        authority.loopback("client"),
    );
    let (_server, url) = start(
        "tls",
        &[
            "--tlsverify",
            "--tlscert",
            text(&own.certificate),
            "--tlskey",
            text(&own.key),
            "--tlscacert",
            text(&ca),
        ],
    );
    let mut variables = vec![
        ("NATS_TLS_CA_CERT_PATH", ca.as_path()),
        ("NATS_TLS_CLIENT_CERT_PATH", &client.certificate),
        ("NATS_TLS_CLIENT_KEY_PATH", &client.key),
    ];
    drop(fleet(&url, &variables).unwrap());
    variables.truncate(1);
    let refused = fleet(&url, &variables).err().expect("no certificate");
    assert!(refused.contains(&url), "{refused}");
    assert!(refused.contains("NATS_TLS_CLIENT_CERT_PATH"), "{refused}");
}

#[test]
#[ignore = "needs nats-server: scripts/test"]
fn tokens_and_nkeys_and_credential_files_sign_in_and_wrong_ones_are_told_at_once() {
    let (_server, url) = start("nats", &["--user", "me@home", "--pass", "p:q"]);
    // In the address, which the client by itself does not look at.
    drop(fleet(&url.replace("//", "//me%40home:p%3Aq@"), &[]).unwrap());
    let (_server, url) = start("nats", &["--auth", "right"]);
    drop(fleet(&url, &[("NATS_AUTH_TOKEN", Path::new("right"))]).unwrap());
    drop(fleet(&url.replace("//", "//right@"), &[]).unwrap());
    let refused = fleet(&url, &[("NATS_AUTH_TOKEN", Path::new("wrong"))]).err().unwrap();
    assert!(
        refused.contains("NATS_AUTH_TOKEN") && !refused.contains("wrong"),
        "{refused}"
    );

    let scratch = TempDir::new().unwrap();
    let own = nkeys::KeyPair::new_user();
    let config = scratch.path().join("nkeys.conf");
    let users = format!("authorization {{ users = [ {{ nkey: {} }} ] }}\n", own.public_key());
    std::fs::write(&config, users).unwrap();
    let (_server, url) = start("nats", &["--config", text(&config)]);
    drop(fleet(&url, &[("NATS_AUTH_NKEY", Path::new(&own.seed().unwrap()))]).unwrap());
    let other = nkeys::KeyPair::new_user().seed().unwrap();
    let refused = fleet(&url, &[("NATS_AUTH_NKEY", Path::new(&other))]).err().unwrap();
    assert!(
        refused.contains("NATS_AUTH_NKEY") && !refused.contains(&other),
        "{refused}"
    );

    let credentials = Credentials::new(scratch.path());
    let (_server, url) = start("nats", &["--config", text(&credentials.server)]);
    drop(fleet(&url, &[("NATS_AUTH_CREDENTIALS_FILE", &credentials.user)]).unwrap());
    let nowhere = scratch.path().join("nowhere.creds");
    let refused = fleet(&url, &[("NATS_AUTH_CREDENTIALS_FILE", &nowhere)]).err().unwrap();
    assert!(
        refused.contains("NATS_AUTH_CREDENTIALS_FILE") && refused.contains("nowhere.creds"),
        "{refused}"
    );
}

/// An operator, an account and a user, made as NATS's own tools make them.
struct Credentials {
    server: PathBuf,
    user: PathBuf,
}

impl Credentials {
    fn new(scratch: &Path) -> Self {
        let operator = nkeys::KeyPair::new_operator();
        let account = nkeys::KeyPair::new_account();
        let user = nkeys::KeyPair::new_user();
        let [operator_jwt, account_jwt, user_jwt] = [
            token(&operator, &operator, "operator", &serde_json::json!({})),
            token(&operator, &account, "account", &limits()),
            token(
                &account,
                &user,
                "user",
                &serde_json::json!({"subs": -1, "data": -1, "payload": -1}),
            ),
        ];
        let server = scratch.join("server.conf");
        let resolver = format!(
            "operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {}: {account_jwt} }}\n",
            account.public_key()
        );
        std::fs::write(&server, resolver).unwrap();
        let file = scratch.join("user.creds");
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        );
        std::fs::write(&file, text).unwrap();
        Self { server, user: file }
    }
}

fn limits() -> serde_json::Value {
    serde_json::json!({"limits": {
        "subs": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "data": -1, "payload": -1, "wildcards": true
    }})
}

/// A signed statement of `issuer` about `subject`. Source: NATS JWT version 2.
fn token(issuer: &nkeys::KeyPair, subject: &nkeys::KeyPair, kind: &str, nats: &serde_json::Value) -> String {
    let mut claims = nats.clone();
    claims["type"] = kind.into();
    claims["version"] = 2.into();
    let body = serde_json::json!({
        "jti": kind, "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject.public_key(), "name": kind,
        "nats": claims,
    });
    let header = base64(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let signed = format!("{header}.{}", base64(body.to_string().as_bytes()));
    let signature = base64(&issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

/// Base64 for URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..=chunk.len() {
            let index = bits >> (18 - 6 * position) & 63;
            text.push(char::from(LETTERS[index as usize]));
        }
    }
    text
}
