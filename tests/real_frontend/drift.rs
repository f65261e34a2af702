//! How far a real frontend's index is from the truth, by its own answers and by its choices.

use std::process::Command;
use std::time::Duration;

use ghostfleet::actors::death::Death;
use serde_json::{Value, json};

use crate::fleet::{Fleet, MODEL};
use crate::frontend::RouterMode;
use crate::release::on_each_release;
use crate::stack::Stack;
use crate::wait::eventually;

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

    fn what_nobody_has_any_more_is_asked_for_too(release) {
        let stack = Stack::on_files().with_variables(&[("DYN_SERVE_INDEXER", "true")]);
        let flags = "--num-workers 2 --block-size 16 --speedup-ratio 0 --num-gpu-blocks-override 41 --admin-port 0";
        let fleet = Fleet::start(&stack, flags);
        let frontend = stack.frontend(release, RouterMode::Kv);
        frontend.client().wait_serving(MODEL, LIMIT);
        frontend.client().wait_instances("generate", 2, LIMIT);
        let url = frontend.client().url().to_owned();
        // Prompts of 4 blocks: half of them planted at each rank in turn, the others where the router wants them.
        let plant = |seed: &str| {
            let args = ["drift", "--frontend", &url, "--probes", "8", "--seed", seed];
            let (code, said) = ctl(&fleet, &args);
            assert!(matches!(code, Some(0 | 3)), "{said:#}");
        };
        let served = |within: &str| ctl(&fleet, &["drift", "--served", "--within", within]);
        plant("1");
        let (code, said) = served("20");
        assert_eq!((code, &said["drift"]["true_blocks"]), (Some(0), &(8 * 4).into()), "{said:#}");
        // Dropped without a word: the index believes in blocks that nobody has.
        fleet.disturb(&["* clear_cache event=without"]);
        let said = eventually(LIMIT, "all that it knows is phantom", || {
            let (code, said) = served("0");
            (code == Some(3) && said["drift"]["phantom"] == 8 * 4).then_some(said)
        });
        let drift = &said["drift"];
        assert_eq!((&drift["true_blocks"], &drift["missing"]), (&0.into(), &0.into()), "{said:#}");
        let scope = json!({"prompts": 8, "there_are": 8, "forgotten_blocks": 0});
        assert_eq!(said["asked"], scope);
        plant("2");
        let known = |said: &Value| said["drift"]["known_blocks"].as_u64();
        let (_, before) = served("0");
        // Evicted while the publishers are silent: missing, and phantom as well.
        fleet.disturb(&["* silent"]);
        for seed in 3..9 {
            plant(&seed.to_string());
        }
        let (code, said) = served("0");
        assert_eq!(code, Some(3), "{said:#}");
        assert!(said["drift"]["missing"].as_u64() > Some(0), "{said:#}");
        assert_eq!(said["drift"]["phantom"].as_u64(), known(&said), "all that it knows is gone: {said:#}");
        assert_eq!(known(&said), known(&before), "nobody told it anything");
        // A worker that dies takes its blocks with it, and the index forgets it when its lease is over.
        fleet.kill("w0", Death::Crash);
        let of_the_dead = |said: &Value| {
            let ranks = said["drift"]["ranks"].as_array().into_iter().flatten();
            let dead = ranks.filter(|rank| rank["exists"] == false);
            dead.filter_map(|rank| rank["phantom"].as_u64()).sum::<u64>()
        };
        assert!(of_the_dead(&served("0").1) > 0, "{:#}", served("0").1);
        eventually(LIMIT, "the dead are forgotten", || {
            (of_the_dead(&served("0").1) == 0).then_some(())
        });
    }
}
