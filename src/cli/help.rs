//! The command line's help: each setting of `serve` with its default.

use clap::{Command, CommandFactory};
use serde_json::Value;

use super::Cli;
use crate::config::Settings;

/// The command line, with the defaults of `serve` in its help.
pub fn command() -> Command {
    let defaults = serde_json::to_value(Settings::defaults()).unwrap_or_default();
    with_negative_numbers(Cli::command()).mut_subcommand("serve", |serve| {
        serve.mut_args(|arg| {
            let default = defaults.get(arg.get_id().as_str()).and_then(text);
            let (Some(default), Some(help)) = (default, arg.get_help().map(ToString::to_string)) else {
                return arg;
            };
            if help.contains("[default:") {
                return arg;
            }
            let long = arg.get_long_help().map(ToString::to_string);
            let with = |help: String| format!("{} [default: {default}]", help.trim_end_matches('.'));
            match long {
                Some(long) => arg.help(with(help)).long_help(with(long)),
                None => arg.help(with(help)),
            }
        })
    })
}

/// Lets every flag that takes a value take one that begins with a minus, so that a number below 0 is told as what it is.
fn with_negative_numbers(command: Command) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    let command = command.mut_args(|arg| {
        let some = arg.get_num_args().is_none_or(|number| number.takes_values());
        let takes = !arg.is_positional() && arg.get_action().takes_values() && some;
        arg.allow_negative_numbers(takes)
    });
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, with_negative_numbers)
    })
}

/// A default as one would write it.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Array(_) | Value::Object(_) => None,
        Value::Bool(on) => Some(if *on { "on" } else { "off" }.to_owned()),
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 => format!("{whole:.0}"),
            _ => number.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn serve_help() -> Command {
        let mut command = command();
        command.build();
        command.find_subcommand("serve").unwrap().clone()
    }

    #[test]
    fn every_setting_with_a_default_shows_it() {
        let serve = serve_help();
        let defaults = serde_json::to_value(Settings::defaults()).unwrap();
        for (key, value) in defaults.as_object().unwrap() {
            let Some(arg) = serve.get_arguments().find(|arg| arg.get_id() == key) else {
                // A key of files only.
                continue;
            };
            let help = arg.get_help().unwrap().to_string();
            if text(value).is_some() && !arg.is_hide_set() {
                assert!(help.contains("[default: "), "--{key}: {help}");
            }
        }
        let blocks = serve
            .get_arguments()
            .find(|arg| arg.get_id() == "num_gpu_blocks_override");
        assert!(
            blocks
                .unwrap()
                .get_help()
                .unwrap()
                .to_string()
                .ends_with("[default: 16384]")
        );
    }

    #[test]
    fn a_number_below_0_is_told_as_what_it_is() {
        for line in [
            &["replay", "--num-workers", "-1"][..],
            &["replay", "--arrival-seed", "-7"],
            &["serve", "--num-workers", "-1"],
            &["recommend", "--config", "c.yaml", "--jobs", "-1"],
            &["trace", "synth", "--input-tokens", "-1"],
        ] {
            let line = [&["ghostfleet"], line].concat();
            let error = command().try_get_matches_from(&line).unwrap_err();
            assert_eq!(
                error.kind(),
                clap::error::ErrorKind::ValueValidation,
                "{line:?}: {error}"
            );
        }
    }

    #[test]
    fn the_beginning_of_a_flag_of_replay_means_the_flag() {
        let parse = |flags: &[&str]| {
            let line = [&["ghostfleet", "replay"], flags].concat();
            let matches = command().try_get_matches_from(&line)?;
            Cli::from_arg_matches(&matches)
        };
        let Ok(super::super::Command::Replay(args)) =
            parse(&["--num-w", "2", "--replay-c=3", "--report-json", "r"]).map(|cli| cli.command)
        else {
            panic!("a flag is not known by its beginning");
        };
        assert_eq!((args.num_workers, args.replay_concurrency), (2, Some(3)));
        assert_eq!((args.report_json.is_some(), args.report_jsonl), (true, None));
        for ambiguous in [&["--num", "2"][..], &["--rep", "x"]] {
            assert!(parse(ambiguous).is_err(), "{ambiguous:?}");
        }
    }

    #[test]
    fn every_number_names_its_unit_or_counts_something() {
        // What a bare number stands for: the name of its value, or a word of its help.
        let units = [
            "BLOCKS", "TOKENS", "MS", "S", "BYTES", "GBPS", "N", "X", "SHARE", "SEED", "PORT", "PORTS", "RATES", "4|5",
        ];
        for arg in serve_help().get_arguments() {
            let defaults = serde_json::to_value(Settings::defaults()).unwrap();
            let is_number = defaults.get(arg.get_id().as_str()).is_some_and(Value::is_number);
            let names: Vec<String> = arg
                .get_value_names()
                .unwrap_or_default()
                .iter()
                .map(ToString::to_string)
                .collect();
            assert!(
                !is_number || names.iter().any(|name| units.contains(&name.as_str())),
                "--{}: {names:?}",
                arg.get_id()
            );
        }
    }
}
