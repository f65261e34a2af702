//! `serve --print-config` with files, flags and an environment of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

pub(crate) struct Scene {
    pub(crate) directory: TempDir,
    pub(crate) environment: Vec<(String, String)>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            environment: Vec::new(),
        }
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// `serve --print-config` with flags, without the caller's own settings.
    pub(crate) fn run(&self, flags: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["DYN_", "ETCD_", "GHOSTFLEET_", "HF_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
        command
            .args(["serve", "--print-config", "--model-path"])
            .arg(model)
            .args(flags);
        command.stdin(Stdio::null()).output().unwrap()
    }

    pub(crate) fn with_file(&self, text: &str, flags: &[&str]) -> Output {
        let path = self.file("fleet.toml", text);
        self.run(&[&["--config", path.to_str().unwrap()], flags].concat())
    }

    /// What is printed for flags that are usable.
    pub(crate) fn printed(&self, flags: &[&str]) -> String {
        said(&self.run(flags))
    }
}

pub(crate) fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn line<'a>(printed: &'a str, key: &str) -> &'a str {
    let found = printed.lines().find(|line| line.starts_with(&format!("{key} = ")));
    found.unwrap_or_else(|| panic!("no {key} in: {printed}"))
}

pub(crate) fn assert_refused(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}
