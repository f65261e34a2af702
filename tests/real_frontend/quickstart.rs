//! The README's first command, as a user runs it: the program itself, and a frontend started with the line it prints.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ask::{CHAT, chat};
use crate::client::Client;
use crate::frontend::Frontend;
use crate::process::{Process, free_ports};
use crate::release::on_each_release;
use crate::stack::Stack;

const WORKERS: u16 = 8;
const LIMIT: Duration = Duration::from_secs(30);

on_each_release! {
    fn the_quick_start_answers_curl_and_the_frontend_it_names(release) {
        let stack = Stack::on_files();
        let first_port = free_ports(WORKERS);
        let mut serve = serve(&stack, first_port);

        for port in first_port..first_port + WORKERS {
            assert_eq!(Client::new(port).models(), ["tiny"], "worker on port {port}");
        }
        let transcript = Client::new(first_port).stream(CHAT, &greeting()).finish();
        assert!(transcript.done);
        assert_eq!(transcript.usage()["completion_tokens"], 10);

        let log = serve.log();
        let printed = log.lines().skip_while(|line| !line.contains("attach a Dynamo frontend")).nth(1);
        let printed = printed.unwrap_or_else(|| panic!("no frontend command in:\n{log}"));
        let frontend = Frontend::start_printed(stack.scratch(), release, printed);
        frontend.client().wait_serving("tiny", LIMIT);
        frontend.client().wait_instances("generate", usize::from(WORKERS), LIMIT);
        let transcript = frontend.client().stream(CHAT, &greeting()).finish();
        assert_eq!(transcript.usage()["completion_tokens"], 10);

        assert!(serve.terminate(LIMIT).success());
        let log = serve.log();
        assert!(log.contains("8 of 8 workers left in good order"), "{log}");
        assert!(log.contains("left over: 0 streams, 0 sequences, 0 blocks"), "{log}");
        frontend.client().wait_unlisted("tiny", LIMIT);
    }
}

fn serve(stack: &Stack, first_port: u16) -> Process {
    let program = Path::new(env!("CARGO_BIN_EXE_ghostfleet"));
    let mut process = Process::start("serve", program, stack.scratch(), |command| {
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command.args([
            "serve",
            "--config",
            "config/quickstart.toml",
            "--http-port",
            &first_port.to_string(),
        ]);
        command.envs(stack.discovery().environment());
    });
    let log = stack.scratch().join("serve.log");
    let ready = process.wait_ready(LIMIT, || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.lines().any(|line| line.starts_with("ready:")))
    });
    assert!(ready.is_ok(), "serve ended: {ready:?}");
    process
}

fn greeting() -> Value {
    let mut body = chat("Hello.", 10);
    body["model"] = json!("tiny");
    body
}
