//! TLS of the TCP request plane between a fleet and a real 1.6.1 frontend, both ways.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::ask::{CHAT, COMPLETIONS, chat, completion, prompt};
use crate::certificates::Authority;
use crate::fleet::{Fleet, MODEL};
use crate::frontend::{Frontend, FrontendOptions, RouterMode};
use crate::prefixes::{follow_up, plant_and_index, wait_known};
use crate::release::Release;
use crate::stack::Stack;

const LIST_LIMIT: Duration = Duration::from_secs(30);

type Variables = Vec<(&'static str, PathBuf)>;

/// Certificates of a test.
struct Keys {
    authority: Authority,
    _directory: TempDir,
}

impl Keys {
    fn new() -> Self {
        let directory = TempDir::new().expect("the temporary directory is writable");
        Self {
            authority: Authority::new(directory.path(), "authority"),
            _directory: directory,
        }
    }

    /// Server certificate and trust for one side.
    fn tls(&self, owner: &str) -> Variables {
        let pair = self.authority.loopback(owner);
        vec![
            ("DYN_TCP_TLS_CERT_PATH", pair.certificate),
            ("DYN_TCP_TLS_KEY_PATH", pair.key),
            ("DYN_TCP_TLS_CA_CERT_PATH", self.authority.path()),
        ]
    }

    /// The same for one that asks everybody for a certificate and shows its own.
    fn mutual(&self, owner: &str) -> Variables {
        let mut variables = self.tls(owner);
        let pair = self.authority.loopback(&format!("{owner}-client"));
        variables.extend([
            ("DYN_TCP_TLS_CLIENT_CA_CERT_PATH", self.authority.path()),
            ("DYN_TCP_TLS_CLIENT_CERT_PATH", pair.certificate),
            ("DYN_TCP_TLS_CLIENT_KEY_PATH", pair.key),
        ]);
        variables
    }
}

fn fleet(stack: &Stack, variables: &Variables) -> Fleet {
    let texts: Vec<(&str, String)> = variables
        .iter()
        .map(|(name, path)| (*name, path.display().to_string()))
        .collect();
    let borrowed: Vec<(&str, &str)> = texts.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Fleet::start_with(stack, "--num-workers 2 --block-size 16 --speedup-ratio 0", &borrowed)
}

fn frontend(stack: &Stack, variables: &Variables) -> Frontend {
    let mut environment = stack.environment();
    environment.extend(variables.iter().map(|(name, path)| (*name, path.display().to_string())));
    let options = FrontendOptions {
        release: Release::V1_6_1,
        router_mode: RouterMode::Kv,
        migration_limit: 0,
    };
    let frontend = Frontend::start(stack.scratch(), &environment, stack.namespace(), &options);
    frontend.client().wait_serving(MODEL, LIST_LIMIT);
    frontend.client().wait_instances("generate", 2, LIST_LIMIT);
    frontend
}

/// Streams, KV routing, and a late frontend that asks the recovery endpoints.
fn serves(stack: &Stack, fleet: &Fleet, variables: &Variables) {
    let first = frontend(stack, variables);
    let client = first.client();
    let transcript = client.stream(CHAT, &chat("Hello.", 8)).finish();
    assert_eq!(transcript.error(), None);
    assert_eq!(transcript.usage()["completion_tokens"], 8);
    let owner = plant_and_index(fleet, client, 1);
    assert_eq!(follow_up(fleet, client, 1, 0), owner);
    let mut cancelled = client.stream(COMPLETIONS, &completion(&prompt(3, 70), 20_000));
    cancelled.read_texts(1);
    drop(cancelled);
    fleet.wait_idle();
    let late = frontend(stack, variables);
    wait_known(fleet, late.client(), &[(1, owner)]);
    assert_eq!(follow_up(fleet, late.client(), 1, 1), owner);
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn requests_answers_and_recovery_travel_encrypted() {
    let (stack, keys) = (Stack::on_files(), Keys::new());
    let fleet = fleet(&stack, &keys.tls("worker"));
    serves(&stack, &fleet, &keys.tls("frontend"));
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn both_sides_may_ask_for_certificates() {
    let (stack, keys) = (Stack::on_files(), Keys::new());
    let fleet = fleet(&stack, &keys.mutual("worker"));
    serves(&stack, &fleet, &keys.mutual("frontend"));
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn a_side_without_tls_or_without_a_certificate_gets_an_error_and_does_not_hang() {
    let (stack, keys) = (Stack::on_files(), Keys::new());
    let fleet = fleet(&stack, &keys.mutual("worker"));
    // Workers want a certificate; this frontend has none to show.
    for variables in [Vec::new(), keys.tls("frontend")] {
        let frontend = frontend(&stack, &variables);
        let reply = frontend.client().post(COMPLETIONS, &completion(&prompt(2, 40), 2));
        assert_eq!(reply.status, 503, "{reply:?}");
    }
    assert_eq!(fleet.requests().iter().sum::<u64>(), 0, "nothing got through");
}

#[test]
#[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
fn a_frontend_that_cannot_be_trusted_gets_no_answer() {
    let (stack, keys) = (Stack::on_files(), Keys::new());
    let fleet = fleet(&stack, &keys.tls("worker"));
    let mut variables = keys.tls("frontend");
    let strangers = Keys::new();
    let pair = strangers.authority.loopback("frontend");
    variables[0].1 = pair.certificate;
    variables[1].1 = pair.key;
    let frontend = frontend(&stack, &variables);
    let mut question = completion(&prompt(2, 40), 2);
    question["stream"] = false.into();
    // The worker hangs up during the handshake; nothing tells the frontend, which waits for its client.
    let asked = frontend
        .client()
        .try_post(COMPLETIONS, &question, Duration::from_secs(3));
    assert!(asked.is_none_or(|reply| reply.status != 200));
    fleet.wait_idle();
}
