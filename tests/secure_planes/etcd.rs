//! An etcd that wants TLS, certificates or a sign-in.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ghostfleet::transport::discovery::{Discovery, DiscoveryConfig, DiscoveryError, Record, Renewal};
use tempfile::TempDir;

use crate::certificates::{Authority, Pair};
use crate::fleet::{Variables, environment};
use crate::server::{Server, free_port};

/// An etcd on loopback; with a certificate it speaks TLS only.
struct Etcd {
    _server: Server,
    endpoint: String,
    _data: TempDir,
}

impl Etcd {
    fn start(tls: Option<&Pair>, further: &[&str]) -> Self {
        let data = TempDir::new().unwrap();
        let (client, peer) = (free_port(), free_port());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let mut arguments: Vec<String> = [
            "--log-level",
            "error",
            "--data-dir",
            data.path().to_str().unwrap(),
            "--listen-client-urls",
            &endpoint,
            "--advertise-client-urls",
            &endpoint,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &format!("default={peer}"),
        ]
        .map(str::to_owned)
        .into();
        if let Some(pair) = tls {
            let files = [
                "--cert-file",
                pair.certificate.to_str().unwrap(),
                "--key-file",
                pair.key.to_str().unwrap(),
            ];
            arguments.extend(files.map(str::to_owned));
        }
        arguments.extend(further.iter().map(|argument| (*argument).to_owned()));
        Self {
            _server: Server::start("etcd", &arguments, client),
            endpoint,
            _data: data,
        }
    }

    /// Runs `etcdctl` against it.
    fn control(&self, arguments: &[&str]) {
        let run = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint])
            .args(arguments)
            .output();
        let output = run.unwrap();
        assert!(output.status.success(), "etcdctl {arguments:?}: {output:?}");
    }
}

/// Connects as `serve` with these variables would.
async fn connect(etcd: &Etcd, variables: Variables<'_>) -> Result<Discovery, DiscoveryError> {
    connect_at(&etcd.endpoint, variables).await
}

async fn connect_at(endpoint: &str, variables: Variables<'_>) -> Result<Discovery, DiscoveryError> {
    let flags = [
        "--model-path",
        "m",
        "--discovery-backend",
        "etcd",
        "--etcd-endpoints",
        endpoint,
    ];
    let config = ghostfleet::serve::config_from(flags, &environment(variables)).unwrap();
    let DiscoveryConfig::Etcd(mut options) = config.discovery else {
        panic!("etcd was asked for")
    };
    options.connect_limit = Duration::from_secs(3);
    Discovery::connect(&DiscoveryConfig::Etcd(options)).await
}

/// The whole life of a record.
async fn works(discovery: &Discovery) {
    let record = Record {
        key: "v1/instances/n/c/e/1".to_owned(),
        value: "{}".into(),
    };
    let lease = discovery.open().await.unwrap();
    discovery.publish(&lease, std::slice::from_ref(&record)).await.unwrap();
    assert!(matches!(discovery.renew(&lease).await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(discovery.list("v1/").await.unwrap(), [record]);
    discovery.close(lease).await.unwrap();
    assert_eq!(discovery.list("v1/").await.unwrap(), []);
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn a_user_signs_in_and_a_wrong_password_is_told_at_once() {
    let etcd = Etcd::start(None, &[]);
    for arguments in [
        &["user", "add", "root:top"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "worker"],
        &[
            "role",
            "grant-permission",
            "--prefix=true",
            "worker",
            "readwrite",
            "v1/",
        ],
        &["user", "add", "ghost:secret"],
        &["user", "grant-role", "ghost", "worker"],
        &["auth", "enable"],
    ] {
        etcd.control(arguments);
    }
    let user = |password| {
        [
            ("ETCD_AUTH_USERNAME", Path::new("ghost")),
            ("ETCD_AUTH_PASSWORD", Path::new(password)),
        ]
    };
    works(&connect(&etcd, &user("secret")).await.unwrap()).await;
    // In the address, which the client by itself does not look at.
    let address = etcd.endpoint.replace("//", "//ghost:secret@");
    works(&connect_at(&address, &[]).await.unwrap()).await;
    let refused = connect(&etcd, &user("guess")).await.unwrap_err().to_string();
    assert!(
        refused.contains("refuses") && refused.contains(&etcd.endpoint),
        "{refused}"
    );
    assert!(!refused.contains("guess"), "{refused}");

    let nobody = connect(&etcd, &[]).await;
    let refused = match nobody {
        Err(error) => error,
        Ok(discovery) => discovery.list("v1/").await.unwrap_err(),
    };
    assert!(matches!(refused, DiscoveryError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("ETCD_AUTH_USERNAME"), "{refused}");
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn a_sign_in_that_runs_out_is_renewed() {
    let etcd = Etcd::start(None, &["--auth-token-ttl", "1"]);
    for arguments in [
        &["user", "add", "root:top"][..],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        etcd.control(arguments);
    }
    let user = [
        ("ETCD_AUTH_USERNAME", Path::new("root")),
        ("ETCD_AUTH_PASSWORD", Path::new("top")),
    ];
    let discovery = connect(&etcd, &user).await.unwrap();
    let lease = discovery.open().await.unwrap();
    // Whatever etcd makes of its own time to live, three of it are enough.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(matches!(discovery.renew(&lease).await.unwrap(), Renewal::Alive { .. }));
    works(&discovery).await;
}

#[tokio::test]
#[ignore = "needs etcd-server: scripts/test"]
async fn tls_works_with_the_authority_and_with_a_certificate_of_our_own() {
    let scratch = TempDir::new().unwrap();
    let authority = Authority::new(scratch.path(), "authority");
    let stranger = Authority::new(scratch.path(), "stranger");
    let own = authority.loopback("etcd");
    let read = |path: &Path| std::path::PathBuf::from(std::fs::read_to_string(path).unwrap());
    let ca = read(&authority.path());
    let strange = read(&stranger.path());

    let etcd = Etcd::start(Some(&own), &[]);
    works(&connect(&etcd, &[("ETCD_AUTH_CA", &ca)]).await.unwrap()).await;
    let refused = connect(&etcd, &[("ETCD_AUTH_CA", &strange)])
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("certificate"), "{refused}");
    let refused = connect(&etcd, &[]).await.unwrap_err().to_string();
    assert!(refused.contains("ETCD_AUTH_CA"), "{refused}");

    let authorities = authority.path();
    let client_auth = ["--client-cert-auth", "--trusted-ca-file", authorities.to_str().unwrap()];
    let etcd = Etcd::start(Some(&own), &client_auth);
    let client = authority.loopback("client");
    let (certificate, key) = (read(&client.certificate), read(&client.key));
    let variables = [
        ("ETCD_AUTH_CA", ca.as_path()),
        ("ETCD_AUTH_CLIENT_CERT", &certificate),
        ("ETCD_AUTH_CLIENT_KEY", &key),
    ];
    works(&connect(&etcd, &variables).await.unwrap()).await;
    connect(&etcd, &variables[..1]).await.unwrap_err();
}

#[tokio::test]
async fn tls_for_an_endpoint_without_it_is_refused() {
    let scratch = TempDir::new().unwrap();
    let ca = std::fs::read_to_string(Authority::new(scratch.path(), "a").path()).unwrap();
    let variables = environment(&[("ETCD_AUTH_CA", Path::new(&ca))]);
    let flags = [
        "--model-path",
        "m",
        "--discovery-backend",
        "etcd",
        "--etcd-endpoints",
        "http://127.0.0.1:1",
    ];
    let config = ghostfleet::serve::config_from(flags, &variables).unwrap();
    let refused = Discovery::connect(&config.discovery).await.unwrap_err().to_string();
    assert!(
        refused.contains("https://") && refused.contains("ETCD_AUTH_CA"),
        "{refused}"
    );
}
