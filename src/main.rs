//! The `ghostfleet` command: parse, set up logs, call the library, map errors to exit codes.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;
use ghostfleet::cli::{Cli, Command, LogFormat, ProfileCommand, ReplayMode, help, peer_flags};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    init_logs(cli.log_format);
    let result = match &cli.command {
        Command::Drill(args) => match ghostfleet::drill::command::command(args, &mut std::io::stdout()) {
            // A verdict is no error: it has been printed.
            Ok(verdict) => return ExitCode::from(verdict.exit_code()),
            Err(error) => Err((error.exit_code(), error.to_string())),
        },
        Command::Serve(args) => ghostfleet::serve::run(args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Replay(args) => {
            let replayed = match args.replay_mode {
                ReplayMode::Offline => ghostfleet::replay_run::run(args),
                ReplayMode::Online => ghostfleet::replay_run::run_with(args, ghostfleet::online::execute),
            };
            replayed.map_err(|error| (error.exit_code(), error.to_string()))
        }
        Command::Predict(args) => ghostfleet::predict::run(args, &mut std::io::stdout())
            .map_err(|error| (error.exit_code(), error.to_string())),
        Command::Recommend(args) => ghostfleet::recommend::run(args, &mut std::io::stdout())
            .map_err(|error| (error.exit_code(), error.to_string())),
        Command::Trace(command) => ghostfleet::traces::run(command, &mut std::io::stdout())
            .map_err(|error| (error.exit_code(), error.to_string())),
        Command::Ctl(args) => ghostfleet::ctl::run(args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Profile(ProfileCommand::Convert(args)) => {
            ghostfleet::convert::run(args).map_err(|error| (error.exit_code(), error.to_string()))
        }
        Command::Profile(ProfileCommand::Export(args)) => {
            ghostfleet::export::run(args).map_err(|error| (error.exit_code(), error.to_string()))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            // A stderr that takes nothing must not turn an error into a panic.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(code)
        }
    }
}

fn parse() -> Result<Cli, clap::Error> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let mut command = help::command();
    if let Some(mixed) = peer_flags::mixed_spellings(&arguments) {
        return Err(command.error(ErrorKind::ArgumentConflict, mixed));
    }
    let matches = command
        .try_get_matches_from_mut(arguments)
        .map_err(|error| match peer_flags::explain(&error) {
            Some(why) => command.error(ErrorKind::UnknownArgument, why),
            None => error,
        })?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// What is logged: what `RUST_LOG` says, else the peer's `DYN_LOG`, else everything from `info` on. The NATS client logs each
/// of its attempts; what matters of that is said by ghostfleet itself, within bounds, so it is heard only when it is named.
fn filter() -> EnvFilter {
    let said = ["RUST_LOG", "DYN_LOG"].into_iter().find_map(|name| {
        let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
        Some((EnvFilter::try_new(&text).ok()?, text))
    });
    let (filter, text) = said.unwrap_or_else(|| (EnvFilter::new("info"), String::new()));
    match "async_nats=off".parse() {
        Ok(quiet) if !text.contains("async_nats") => filter.add_directive(quiet),
        Ok(_) | Err(_) => filter,
    }
}

/// Logs go to stderr.
fn init_logs(format: LogFormat) {
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}
