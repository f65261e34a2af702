//! What is wrong with a certificate, a key or a variable is said before anything starts, with the variable's name.

use std::path::Path;

use ghostfleet::serve::config_from;
use tempfile::TempDir;

use crate::certificates::Authority;
use crate::fleet::{Variables, environment};

fn refusal(flags: &[&str], variables: Variables<'_>) -> String {
    let fixed = ["--model-path", "m", "--discovery-backend", "mem"];
    let flags = fixed.iter().chain(flags).copied();
    config_from(flags, &environment(variables))
        .expect_err("refused")
        .to_string()
}

#[track_caller]
fn assert_names(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn half_a_pair_is_refused_with_both_names() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "a");
    let (ca, pair) = (authority.path(), authority.loopback("x"));
    for (present, missing) in [
        ("DYN_TCP_TLS_CERT_PATH", "DYN_TCP_TLS_KEY_PATH"),
        ("DYN_TCP_TLS_KEY_PATH", "DYN_TCP_TLS_CERT_PATH"),
        ("DYN_TCP_TLS_CLIENT_CERT_PATH", "DYN_TCP_TLS_CLIENT_KEY_PATH"),
        ("DYN_TCP_TLS_CLIENT_KEY_PATH", "DYN_TCP_TLS_CLIENT_CERT_PATH"),
    ] {
        let text = refusal(&[], &[(present, &pair.certificate)]);
        assert_names(&text, &[present, missing, "set both"]);
    }
    let alone = refusal(&[], &[("DYN_TCP_TLS_CLIENT_CA_CERT_PATH", &ca)]);
    assert_names(&alone, &["DYN_TCP_TLS_CLIENT_CA_CERT_PATH", "DYN_TCP_TLS_CERT_PATH"]);
    let untrusting = [
        ("DYN_TCP_TLS_CLIENT_CERT_PATH", pair.certificate.as_path()),
        ("DYN_TCP_TLS_CLIENT_KEY_PATH", &pair.key),
    ];
    let text = refusal(&[], &untrusting);
    assert_names(&text, &["DYN_TCP_TLS_CLIENT_CERT_PATH", "DYN_TCP_TLS_CA_CERT_PATH"]);
    let nats = ["--request-plane", "nats", "--nats-server", "tls://127.0.0.1:1"];
    let text = refusal(&nats, &[("NATS_TLS_CLIENT_KEY_PATH", &pair.key)]);
    assert_names(&text, &["NATS_TLS_CLIENT_KEY_PATH", "NATS_TLS_CLIENT_CERT_PATH"]);
    let etcd = ["--discovery-backend", "etcd"];
    let text = refusal(&etcd, &[("ETCD_AUTH_USERNAME", Path::new("root"))]);
    assert_names(&text, &["ETCD_AUTH_USERNAME", "ETCD_AUTH_PASSWORD"]);
    let text = refusal(&etcd, &[("ETCD_AUTH_CLIENT_KEY", Path::new("x"))]);
    assert_names(&text, &["ETCD_AUTH_CLIENT_KEY", "ETCD_AUTH_CLIENT_CERT"]);
}

#[test]
fn files_that_are_missing_unreadable_or_of_another_kind_are_named() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "a");
    let pair = authority.loopback("x");
    let nowhere = scratch.path().join("nowhere.pem");
    let garbage = scratch.path().join("garbage.pem");
    std::fs::write(
        &garbage,
        "-----BEGIN CERTIFICATE-----\nno base64!\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    let empty = scratch.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let with =
        |cert: &Path, key: &Path| refusal(&[], &[("DYN_TCP_TLS_CERT_PATH", cert), ("DYN_TCP_TLS_KEY_PATH", key)]);
    let text = with(&nowhere, &pair.key);
    assert_names(&text, &["DYN_TCP_TLS_CERT_PATH", "nowhere.pem", "No such file"]);
    let text = with(scratch.path(), &pair.key);
    assert_names(&text, &["DYN_TCP_TLS_CERT_PATH", "is not a file"]);
    let text = with(&pair.certificate, &empty);
    assert_names(&text, &["DYN_TCP_TLS_KEY_PATH", "empty.pem", "no private key"]);
    let text = with(&pair.key, &pair.key);
    assert_names(&text, &["DYN_TCP_TLS_CERT_PATH", "no certificate"]);
    let text = with(&garbage, &pair.key);
    assert_names(&text, &["DYN_TCP_TLS_CERT_PATH", "garbage.pem", "malformed"]);
    let text = refusal(&[], &[("DYN_TCP_TLS_CA_CERT_PATH", &empty)]);
    assert_names(&text, &["DYN_TCP_TLS_CA_CERT_PATH", "empty.pem", "no certificate"]);
    let text = refusal(&["--discovery-backend", "etcd"], &[("ETCD_AUTH_CA", &authority.path())]);
    assert_names(&text, &["ETCD_AUTH_CA", "PEM text, not a path"]);
    let nats = ["--event-plane", "nats", "--nats-server", "tls://127.0.0.1:1"];
    let text = refusal(&nats, &[("NATS_TLS_CA_CERT_PATH", &nowhere)]);
    assert_names(&text, &["NATS_TLS_CA_CERT_PATH", "nowhere.pem"]);
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "a");
    let (one, other) = (authority.loopback("one"), authority.loopback("other"));
    let ca = authority.path();
    let server = [
        ("DYN_TCP_TLS_CERT_PATH", one.certificate.as_path()),
        ("DYN_TCP_TLS_KEY_PATH", &other.key),
    ];
    let text = refusal(&[], &server);
    assert_names(
        &text,
        &[
            "DYN_TCP_TLS_CERT_PATH",
            "DYN_TCP_TLS_KEY_PATH",
            "not the one of the certificate",
        ],
    );
    let client = [
        ("DYN_TCP_TLS_CA_CERT_PATH", ca.as_path()),
        ("DYN_TCP_TLS_CLIENT_CERT_PATH", &one.certificate),
        ("DYN_TCP_TLS_CLIENT_KEY_PATH", &other.key),
    ];
    let text = refusal(&[], &client);
    assert_names(&text, &["DYN_TCP_TLS_CLIENT_CERT_PATH", "DYN_TCP_TLS_CLIENT_KEY_PATH"]);
}

#[test]
fn addresses_and_numbers_that_do_not_fit_are_refused() {
    let scratch = TempDir::new().unwrap();
    let ca = Authority::new(scratch.path(), "a").path();
    let nats = ["--event-plane", "nats", "--nats-server", "nats://127.0.0.1:1"];
    let text = refusal(&nats, &[("NATS_TLS_CA_CERT_PATH", &ca)]);
    assert_names(&text, &["NATS_SERVER", "nats://127.0.0.1:1", "tls://"]);
    for wrong in ["0", "-1", "3.5", "soon"] {
        let text = refusal(&[], &[("DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS", Path::new(wrong))]);
        assert_names(&text, &["DYN_TCP_TLS_HANDSHAKE_TIMEOUT_SECS", wrong, "at least 1"]);
    }
    let named = [
        ("DYN_TCP_TLS_CA_CERT_PATH", ca.as_path()),
        ("DYN_TCP_TLS_SERVER_NAME", Path::new("not a name")),
    ];
    let text = refusal(&[], &named);
    assert_names(&text, &["DYN_TCP_TLS_SERVER_NAME", "not a name"]);
}

#[test]
fn a_switch_that_is_neither_yes_nor_no_is_refused() {
    let nats = ["--event-plane", "nats", "--nats-server", "tls://127.0.0.1:1"];
    for (flags, name) in [(&[][..], "DYN_TCP_TLS_INSECURE"), (&nats, "NATS_TLS_INSECURE")] {
        for wrong in ["maybe", "yes", "2"] {
            let text = refusal(flags, &[(name, Path::new(wrong))]);
            assert_names(&text, &[name, wrong, "1 or true", "0 or false"]);
        }
        for right in ["true", "TRUE", "1", "0", "false"] {
            let fixed = ["--model-path", "m", "--discovery-backend", "mem"];
            let flags = fixed.iter().chain(flags).copied();
            config_from(flags, &environment(&[(name, Path::new(right))])).unwrap();
        }
    }
}

#[test]
fn keys_under_a_passphrase_and_certificates_of_version_1_are_explained() {
    let scratch = TempDir::new().unwrap();
    let openssl = |arguments: &[&str]| {
        let made = std::process::Command::new("openssl")
            .args(arguments)
            .current_dir(scratch.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let file = |name: &str| scratch.path().join(name);
    openssl(&[
        "genpkey",
        "-algorithm",
        "RSA",
        "-pkeyopt",
        "rsa_keygen_bits:2048",
        "-out",
        "key",
    ]);
    openssl(&["pkey", "-in", "key", "-aes256", "-passout", "pass:x", "-out", "locked"]);
    openssl(&["req", "-new", "-key", "key", "-subj", "/CN=x", "-out", "request"]);
    std::fs::write(file("empty"), "").unwrap();
    openssl(&[
        "x509", "-req", "-in", "request", "-signkey", "key", "-days", "9", "-out", "old",
    ]);
    let with = |cert: &str, key: &str| {
        let (cert, key) = (file(cert), file(key));
        refusal(&[], &[("DYN_TCP_TLS_CERT_PATH", &cert), ("DYN_TCP_TLS_KEY_PATH", &key)])
    };
    assert_names(
        &with("old", "locked"),
        &["DYN_TCP_TLS_KEY_PATH", "locked", "passphrase"],
    );
    let old = with("old", "key");
    assert_names(&old, &["DYN_TCP_TLS_CERT_PATH", "version 1", "version 3"]);
}
