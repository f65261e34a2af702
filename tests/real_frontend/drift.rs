//! How far a real frontend's index is from the truth, by its own answers and by its choices.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::fleet::{Fleet, MODEL};
use crate::frontend::RouterMode;
use crate::release::on_each_release;
use crate::stack::Stack;

const LIMIT: Duration = Duration::from_secs(30);

/// Exit code of `ctl`, and what it says.
fn ctl(fleet: &Fleet, args: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .args(["ctl", "--json", "--url", &fleet.admin()])
        .args(args)
        .output()
        .expect("our own program starts");
    eprintln!("{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let said = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code(), said)
}

on_each_release! {
    fn an_index_is_compared_by_its_answers_and_by_choices(release) {
        let stack = Stack::on_files().with_variables(&[("DYN_SERVE_INDEXER", "true")]);
        let flags = "--num-workers 2 --block-size 16 --speedup-ratio 0 --admin-port 0";
        let fleet = Fleet::start(&stack, flags);
        let frontend = stack.frontend(release, RouterMode::Kv);
        frontend.client().wait_serving(MODEL, LIMIT);
        frontend.client().wait_instances("generate", 2, LIMIT);
        let url = frontend.client().url().to_owned();
        let choices = |seed: &str| {
            ctl(&fleet, &["drift", "--frontend", &url, "--probes", "8", "--seed", seed])
        };
        // All is well. The first prompts come before the frontend follows the events, if it is slow.
        let (code, said) = ctl(&fleet, &["drift", "--served", "--within", "20"]);
        assert_eq!(code, Some(0), "{said:#}");
        let (code, said) = choices("1");
        assert_eq!((code, &said["choices"]["wrong"]), (Some(0), &0.into()), "{said:#}");
        assert_eq!(said["choices"]["probes"], 12, "4 planted ones asked for twice, 4 unknown ones");
        let (code, said) = ctl(&fleet, &["drift", "--served", "--within", "20"]);
        assert_eq!(code, Some(0), "{said:#}");
        assert_eq!(said["drift"]["true_blocks"], 8 * 4);
        // Nobody says a word: what is planted now is not known.
        fleet.disturb(&["* silent"]);
        let (code, said) = choices("2");
        assert_eq!(code, Some(3), "{said:#}");
        assert_eq!(said["choices"]["missing"].as_u64().map(|missing| missing >= 16), Some(true), "{said:#}");
        let (code, said) = ctl(&fleet, &["drift", "--served"]);
        assert_eq!(code, Some(3), "{said:#}");
        assert_eq!(said["drift"]["missing"], 8 * 4, "{said:#}");
    }
}
