//! The command line's help: each setting of `serve` with its default.

use clap::{Command, CommandFactory};
use serde_json::Value;

use super::Cli;
use crate::config::Settings;

/// The command line, with the defaults of `serve` in its help.
pub fn command() -> Command {
    let defaults = serde_json::to_value(Settings::defaults()).unwrap_or_default();
    Cli::command().mut_subcommand("serve", |serve| {
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
