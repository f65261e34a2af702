//! The frontend command that attaches to a group of workers. What it cannot know stands in angle brackets.

use std::path::Path;

use crate::config::{Brokers, Config, EventPlane, Group, RequestPlane};
use crate::transport::discovery::DiscoveryConfig;
use crate::transport::nats::NatsAuth;
use crate::transport::tls::{Pem, Trust};

/// A frontend for the workers of a group; with several groups it is told which namespace is its own. `None`: none can
/// attach.
pub(super) fn command(config: &Config, group: &Group) -> Option<String> {
    let mut words = Words::default();
    for (name, value) in config.frontend_environment(group) {
        words.set(name, &value);
    }
    let backend = discovery(config, &mut words)?;
    if group.uses_nats() {
        nats(config, &mut words);
    }
    match (group.event_plane, &group.brokers) {
        (EventPlane::Zmq, Brokers::At { url, .. }) => words.set("DYN_ZMQ_BROKER_URL", url),
        (EventPlane::Zmq, Brokers::Discovered) => words.set("DYN_ZMQ_BROKER_ENABLED", "true"),
        (EventPlane::Zmq, Brokers::None) | (EventPlane::Nats, _) => {}
    }
    for variable in config.tls.frontend_variables() {
        match &variable.value {
            Some(value) => words.set(variable.name, value),
            None => words.ask(variable.name, variable.meaning),
        }
    }
    words.say(&format!(
        "python -m dynamo.frontend --http-port 8000 --router-mode kv --discovery-backend {backend}"
    ));
    if group.request_plane == RequestPlane::Nats {
        words.say("--request-plane nats");
    }
    if group.event_plane == EventPlane::Nats {
        words.say("--event-plane nats");
    }
    if group.durable_kv_events {
        words.say("--router-durable-kv-events");
    }
    if config.groups.len() > 1 {
        words.say(&format!("--namespace {}", group.endpoint.namespace()));
    }
    Some(words.0.join(" "))
}

/// Name of the backend, and what it asks for besides its address; `None`: nobody outside can see it.
fn discovery(config: &Config, words: &mut Words) -> Option<&'static str> {
    match &config.discovery {
        DiscoveryConfig::Etcd(etcd) => {
            if let Some((user, _)) = &etcd.user {
                words.set("ETCD_AUTH_USERNAME", user);
                words.ask("ETCD_AUTH_PASSWORD", "its password");
            }
            if etcd.tls.is_some() {
                words.ask("ETCD_AUTH_CA", "PEM text of the authority");
            }
            if etcd.tls.as_ref().is_some_and(|tls| tls.identity.is_some()) {
                words.ask("ETCD_AUTH_CLIENT_CERT", "PEM text of a certificate");
                words.ask("ETCD_AUTH_CLIENT_KEY", "PEM text of its key");
            }
            Some("etcd")
        }
        DiscoveryConfig::File(_) => Some("file"),
        DiscoveryConfig::Mem(_) => None,
    }
}

fn nats(config: &Config, words: &mut Words) {
    let Some(options) = config.nats.as_ref().map(|nats| &nats.options) else {
        return;
    };
    match &options.auth {
        NatsAuth::None => {}
        NatsAuth::Password { user, .. } => {
            words.set("NATS_AUTH_USERNAME", user);
            words.ask("NATS_AUTH_PASSWORD", "its password");
        }
        NatsAuth::Token(_) => words.ask("NATS_AUTH_TOKEN", "the token"),
        NatsAuth::Nkey(_) => words.ask("NATS_AUTH_NKEY", "the seed"),
        NatsAuth::Credentials(path) => words.file("NATS_AUTH_CREDENTIALS_FILE", path),
    }
    let Some(tls) = options.tls() else { return };
    match &tls.trust {
        Some(Trust::Authorities(authorities)) => words.pem("NATS_TLS_CA_CERT_PATH", authorities),
        Some(Trust::Anybody) => words.set("NATS_TLS_INSECURE", "true"),
        None => {}
    }
    if let Some(own) = &tls.identity {
        words.pem("NATS_TLS_CLIENT_CERT_PATH", &own.chain);
        words.pem("NATS_TLS_CLIENT_KEY_PATH", &own.key);
    }
}

/// Words of a shell command.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn say(&mut self, words: &str) {
        self.0.push(words.to_owned());
    }

    fn set(&mut self, name: &str, value: &str) {
        self.0.push(format!("{name}={}", quoted(value)));
    }

    fn file(&mut self, name: &str, path: &Path) {
        self.set(name, &path.display().to_string());
    }

    fn pem(&mut self, name: &str, pem: &Pem) {
        self.file(name, pem.path());
    }

    /// A value that only people know.
    fn ask(&mut self, name: &str, meaning: &str) {
        self.0.push(format!("{name}={}", quoted(&format!("<{meaning}>"))));
    }
}

/// One word for a POSIX shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.,:=@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;
    use crate::cli::ServeArgs;

    fn attach(flags: &[&str], variables: &[(&str, &str)]) -> String {
        let base = [
            "serve",
            "--model-path",
            "m",
            "--discovery-backend",
            "file",
            "--file-kv",
            "/kv",
        ];
        let args = ServeArgs::try_parse_from(base.iter().chain(flags)).expect("flags");
        let variables: BTreeMap<_, _> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let merged = super::super::merge(&args, &variables).expect("settings");
        let config = Config::resolve(&merged, &variables).expect("a config");
        command(&config, &config.groups[0]).expect("a command")
    }

    #[test]
    fn a_broker_that_a_flag_names_is_in_the_command() {
        let url = "xsub=tcp://h:1;tcp://i:2,xpub=tcp://h:3";
        let told = attach(&["--zmq-broker-url", url], &[]);
        assert!(told.contains(&format!(" DYN_ZMQ_BROKER_URL='{url}' ")), "{told}");
        assert!(!told.contains('$'), "{told}");
    }

    #[test]
    fn a_user_of_nats_is_named_and_the_password_asked_for() {
        let told = attach(&["--event-plane", "nats", "--nats-server", "nats://me:secret@h:1"], &[]);
        for words in [
            "NATS_SERVER=nats://h:1 ",
            "NATS_AUTH_USERNAME=me ",
            "NATS_AUTH_PASSWORD='<its password>' ",
        ] {
            assert!(told.contains(words), "{words:?} is missing in {told}");
        }
        assert!(!told.contains("secret"), "{told}");
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("/a/b_c.pem"), "/a/b_c.pem");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
