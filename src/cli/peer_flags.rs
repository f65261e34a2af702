//! Flags of the peer's mocker that have no part here: what to say instead of "unexpected argument".
//!
//! Source: `python -m dynamo.mocker --help` of Dynamo 1.6.1 (every flag of 1.4.2 is a setting here).

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

const ROUTER: &str = "belongs to a router; Dynamo 1.6.1 lets workers carry it in their model card, this fleet does not: give it to \
                      the frontend (python -m dynamo.frontend)";

/// Flags of a router that a worker of 1.6.1 can advertise.
const ROUTER_FLAGS: &[&str] = &[
    "active-decode-blocks-threshold",
    "active-prefill-tokens-threshold",
    "active-prefill-tokens-threshold-frac",
    "assume-kv-reuse",
    "enable-session-prefix-index",
    "kv-events",
    "load-aware",
    "shared-cache-multiplier",
    "shared-cache-type",
    "track-active-blocks",
    "track-output-blocks",
    "use-remote-indexer",
];

/// Other flags, and why they are refused.
const OTHERS: &[(&str, &str)] = &[(
    "sglang-generate",
    "asks for native SGLang requests, which are not emulated; leave it out and use the request plane or --http-port",
)];

/// What to say about a flag of the peer, named without dashes.
fn sentence(flag: &str) -> Option<&'static str> {
    let positive = flag.strip_prefix("no-").unwrap_or(flag);
    if positive.starts_with("router-") || ROUTER_FLAGS.contains(&positive) {
        return Some(ROUTER);
    }
    OTHERS.iter().find(|(known, _)| *known == flag).map(|(_, why)| *why)
}

/// A better text for an error about a flag that is the peer's.
pub fn explain(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = argument.strip_prefix("--")?;
    let flag = flag.split(['=', ' ']).next().unwrap_or(flag);
    sentence(flag).map(|why| format!("--{flag} {why}"))
}

/// Two spellings of one flag on one command line, `--aic-x` and `--ais-x`: which of them counts cannot be told.
pub fn mixed_spellings(arguments: &[OsString]) -> Option<String> {
    let names = |prefix: &str| -> Vec<String> {
        let flags = arguments.iter().filter_map(|argument| argument.to_str());
        let named = flags.filter_map(|flag| flag.strip_prefix(prefix));
        named
            .map(|rest| rest.split('=').next().unwrap_or(rest).to_owned())
            .collect()
    };
    let other = names("--ais-");
    let both = names("--aic-").into_iter().find(|name| other.contains(name))?;
    Some(format!(
        "--aic-{both} and --ais-{both} are two spellings of one flag; give one of them"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::help;

    fn explained(flags: &[&str]) -> String {
        let line = ["ghostfleet", "serve"].iter().chain(flags);
        explain(&help::command().try_get_matches_from(line).unwrap_err()).unwrap()
    }

    #[test]
    fn flags_of_the_peer_are_refused_with_a_sentence() {
        assert!(explained(&["--router-temperature", "0.5"]).starts_with("--router-temperature belongs to a router"));
        assert!(explained(&["--router-temperature=0.5"]).starts_with("--router-temperature belongs to a router"));
        assert!(explained(&["--no-kv-events"]).contains("dynamo.frontend"));
        assert!(explained(&["--sglang-generate"]).contains("not emulated"));
    }

    #[test]
    fn every_flag_of_both_releases_is_a_setting_or_explained() {
        for list in [
            include_str!("../../tests/golden/mocker-flags/1.4.2.txt"),
            include_str!("../../tests/golden/mocker-flags/1.6.1.txt"),
        ] {
            let mut command = help::command();
            command.build();
            let serve = command.find_subcommand("serve").unwrap();
            let ours = |flag: &str| {
                serve.get_arguments().any(|arg| {
                    arg.get_long() == Some(flag) || arg.get_all_aliases().is_some_and(|all| all.contains(&flag))
                })
            };
            for flag in list.lines().filter_map(|line| line.strip_prefix("--")) {
                assert!(ours(flag) || sentence(flag).is_some(), "--{flag}");
            }
        }
    }

    #[test]
    fn two_spellings_of_one_flag_are_an_error() {
        let line = |flags: &[&str]| flags.iter().map(OsString::from).collect::<Vec<_>>();
        let mixed = mixed_spellings(&line(&["serve", "--aic-nextn", "2", "--ais-nextn=3"])).unwrap();
        assert!(mixed.contains("--aic-nextn and --ais-nextn"), "{mixed}");
        assert_eq!(
            mixed_spellings(&line(&["--aic-nextn", "2", "--ais-mtp-seed", "3"])),
            None
        );
    }
}
