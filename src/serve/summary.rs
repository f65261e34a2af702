//! Where the summary of a run goes: known before the run, and nothing that the run reads.

use std::fs::File;
use std::path::Path;

use super::ServeError;
use crate::cli::ServeArgs;
use crate::config::{ConfigError, Merged};
use crate::distinct_files::{Clash, DistinctFiles};

/// Makes sure that the summary can be written and takes the place of nothing that the command reads.
///
/// # Errors
/// [`ServeError`] names the file.
pub(super) fn check(args: &ServeArgs, merged: &Merged) -> Result<(), ServeError> {
    let Some(path) = &args.summary else { return Ok(()) };
    let mut files = DistinctFiles::default();
    if let Some(config) = &args.config {
        files.reads("--config", config);
    }
    if let Some(document) = &args.settings.extra_engine_args {
        files.reads("--extra-engine-args", Path::new(document));
    }
    for layers in std::iter::once(&merged.fleet).chain(&merged.groups) {
        let settings = layers.settings()?;
        let named = [
            ("--model-path", settings.model_path.as_ref().map(Path::new)),
            ("--planner-profile-data", settings.planner_profile_data.as_deref()),
            (
                "--response-replay-trace-path",
                settings.response_replay_trace_path.as_deref(),
            ),
        ];
        for (flag, path) in named {
            if let Some(path) = path {
                files.reads(flag, path);
            }
        }
    }
    files.writes("--summary", path).map_err(|clash| match clash {
        Clash::Taken(what) => ServeError::Config(ConfigError::Invalid(what)),
        Clash::Io(error) => failed(path, error),
    })?;
    // Hours later would be a bad time to learn that it cannot be written.
    let tried = File::options().create(true).append(true).open(path);
    tried.map(drop).map_err(|error| failed(path, error))
}

/// The summary cannot be written.
pub(super) fn failed(path: &Path, error: std::io::Error) -> ServeError {
    ServeError::Io(format!("write the summary to {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;
    use crate::serve::merge;

    #[test]
    fn a_summary_takes_the_place_of_nothing_that_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(at("c.toml"), "num_workers = 1").unwrap();
        std::fs::write(at("p.npz"), "").unwrap();
        let refused = |summary: &str| {
            let (config, profile, summary) = (at("c.toml"), at("p.npz"), at(summary));
            let args = [
                "serve",
                "--config",
                &config,
                "--planner-profile-data",
                &profile,
                "--summary",
                &summary,
            ];
            let args = ServeArgs::try_parse_from(args).unwrap();
            let merged = merge(&args, &BTreeMap::new()).unwrap();
            check(&args, &merged)
                .err()
                .map(|error| (error.exit_code(), error.to_string()))
        };
        for (name, flag) in [("c.toml", "--config"), ("p.npz", "--planner-profile-data")] {
            let (code, what) = refused(name).unwrap();
            assert_eq!(code, 2);
            assert!(what.contains(&format!("is the same file as {flag}")), "{what}");
        }
        assert_eq!(refused("new.json"), None);
        assert_eq!(refused("not/there/new.json").map(|(code, _)| code), Some(1));
        assert_eq!(std::fs::read_to_string(at("c.toml")).unwrap(), "num_workers = 1");
    }
}
