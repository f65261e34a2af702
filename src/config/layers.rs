//! Who wins: flags > environment > file > defaults, key by key, with a note of where each value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ConfigError;
use super::aic;
use super::engine_args;
use super::settings::Settings;
use crate::engine::EngineKind;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// A config file.
    File(PathBuf),
    /// One `[[group]]` of a config file.
    Group {
        /// The file.
        path: PathBuf,
        /// Its name, else its number.
        group: String,
    },
    /// An environment variable.
    Environment(String),
    /// The command line.
    Flag,
    /// A flag that is no setting of its own: it names an engine document.
    DocumentFlag(&'static str),
    /// A key of an engine document, and where the document was named.
    EngineArgs {
        /// Path of the key.
        path: String,
        /// Where `extra_engine_args` came from.
        named_by: Box<Self>,
    },
}

impl Origin {
    /// How an error names the setting `key` with the value `value`, so that it can be found where it was said.
    pub(super) fn place(&self, key: &str, value: &Value) -> String {
        let plain = match value {
            Value::String(text) => text.clone(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
        };
        match self {
            Self::Default | Self::Flag => format!("{} {plain}", flag(key)),
            Self::DocumentFlag(flag) => format!("{flag} {plain}"),
            Self::Environment(name) => format!("{name}={plain}"),
            Self::File(path) => format!("{}: {key} = {}", path.display(), toml_value(value)),
            Self::Group { path, group } => format!("{}, group {group}: {key} = {}", path.display(), toml_value(value)),
            Self::EngineArgs { path, named_by } => format!("{}: `{path}` {plain}", named_by.document()),
        }
    }

    /// The same without the value.
    pub(super) fn key(&self, key: &str) -> String {
        match self {
            Self::Default | Self::Flag => flag(key),
            Self::DocumentFlag(flag) => (*flag).to_owned(),
            Self::Environment(name) => name.clone(),
            Self::File(path) => format!("{}: {key}", path.display()),
            Self::Group { path, group } => format!("{}, group {group}: {key}", path.display()),
            Self::EngineArgs { path, named_by } => format!("{}: `{path}`", named_by.document()),
        }
    }

    /// How an error names a document that was named here.
    pub(super) fn document(&self) -> String {
        match self {
            Self::Default | Self::Flag | Self::EngineArgs { .. } => "--extra-engine-args".to_owned(),
            Self::DocumentFlag(flag) => (*flag).to_owned(),
            Self::Environment(name) => name.clone(),
            Self::File(path) => format!("{}: extra_engine_args", path.display()),
            Self::Group { path, group } => format!("{}, group {group}: extra_engine_args", path.display()),
        }
    }
}

/// The flag of a setting.
pub(super) fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Group { path, group } => write!(f, "{}, group {group}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("flag"),
            Self::DocumentFlag(flag) => f.write_str(flag),
            Self::EngineArgs { path, named_by } => write!(f, "{path} in extra_engine_args, {named_by}"),
        }
    }
}

/// All layers merged: one value and one origin per key, for the fleet and for each group.
#[derive(Debug, Clone)]
pub struct Merged {
    /// Fleet-wide values, also the ones groups fall back to.
    pub fleet: Layered,
    /// One per group; without `[[group]]` tables one that equals the fleet's.
    pub groups: Vec<Layered>,
}

/// Values and their origins.
#[derive(Debug, Clone, Default)]
pub struct Layered {
    values: Map<String, Value>,
    origins: BTreeMap<String, Origin>,
}

impl Layered {
    /// Puts a layer on top: first the engine document that it names, then what it says itself.
    fn overlay(&mut self, layer: &Settings, origin: &Origin) -> Result<(), ConfigError> {
        if let Some(document) = &layer.extra_engine_args {
            self.put_document(engine_args::read(document, origin)?, origin);
        }
        self.put(layer, origin);
        Ok(())
    }

    /// Puts what an engine document says on top.
    pub(super) fn put_document(&mut self, document: engine_args::Document, named_by: &Origin) {
        for (path, settings) in document.said {
            let origin = Origin::EngineArgs {
                path,
                named_by: Box::new(named_by.clone()),
            };
            self.put(&settings, &origin);
        }
    }

    pub(super) fn put(&mut self, layer: &Settings, origin: &Origin) {
        let Ok(Value::Object(values)) = serde_json::to_value(layer) else {
            return;
        };
        for (key, value) in values.into_iter().filter(|(_, value)| !value.is_null()) {
            self.origins.insert(key.clone(), origin.clone());
            self.values.insert(key, value);
        }
    }

    /// Adds the defaults that depend on other settings.
    pub(super) fn complete(mut self) -> Result<Self, ConfigError> {
        if !self.values.contains_key("block_size") {
            let settings = self.settings()?;
            let engine = settings.engine_type.unwrap_or_default();
            let page = settings.sglang_page_size;
            // A size of 0 is refused under its own name.
            let page = page.filter(|&page| engine == EngineKind::Sglang && page > 0);
            let derived = Settings {
                block_size: Some(page.unwrap_or_else(|| engine.default_block_size())),
                ..Settings::default()
            };
            let origin = page.and(self.origin("sglang_page_size")).cloned();
            self.put(&derived, &origin.unwrap_or(Origin::Default));
        }
        self.follow_the_model()?;
        Ok(self)
    }

    /// Defaults that a performance model replaces: the memory of its GPU says how many KV blocks there are, and in Dynamo
    /// 1.6.1 data parallelism of attention is that of the worker.
    fn follow_the_model(&mut self) -> Result<(), ConfigError> {
        const BLOCKS: &str = "num_gpu_blocks_override";
        let settings = self.settings()?;
        if !aic::is_on(&settings) {
            return Ok(());
        }
        if self.origin(BLOCKS) == Some(&Origin::Default) {
            self.values.remove(BLOCKS);
            self.origins.remove(BLOCKS);
        }
        let by_default = self.origin("data_parallel_size") == Some(&Origin::Default);
        if let Some((key, ranks)) = aic::ranks(&settings).filter(|_| by_default) {
            let ranks = Settings {
                data_parallel_size: Some(ranks),
                ..Settings::default()
            };
            let origin = self.origin(key).cloned();
            self.put(&ranks, &origin.unwrap_or(Origin::Default));
        }
        Ok(())
    }

    /// The value of `key`.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The merged settings.
    ///
    /// # Errors
    /// Never for layers that came from [`Settings`] themselves.
    pub fn settings(&self) -> Result<Settings, ConfigError> {
        serde_json::from_value(Value::Object(self.values.clone())).map_err(|e| ConfigError::Invalid(e.to_string()))
    }

    /// Where `key` came from.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.origins.get(key)
    }

    /// `key = value  # origin` lines, sorted; valid TOML.
    pub fn lines(&self) -> Vec<String> {
        self.values
            .iter()
            .map(|(key, value)| {
                let origin = self.origins.get(key).map_or_else(String::new, ToString::to_string);
                // Printed configs end up in logs.
                let value = match key.as_str() {
                    "admin_token" => "\"...\"".to_owned(),
                    "nats_server" | "etcd_endpoints" => without_users(&toml_value(value)),
                    _ => toml_value(value),
                };
                format!("{key} = {value}  # {origin}")
            })
            .collect()
    }
}

/// Addresses without the users and passwords in them.
fn without_users(addresses: &str) -> String {
    let shown = addresses.split(',').map(|address| match address.rsplit_once('@') {
        Some((before, host)) => {
            let scheme = before
                .split_once("//")
                .map_or(String::new(), |(scheme, _)| format!("{scheme}//"));
            format!("{scheme}...@{host}")
        }
        None => address.to_owned(),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// A value as TOML writes it on one line.
fn toml_value(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let members = members.map(|(key, value)| format!("{key} = {}", toml_value(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(toml_value).collect::<Vec<_>>().join(", ")),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

/// A config file: fleet-wide keys and `[[group]]` tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigFile {
    path: PathBuf,
    fleet: Settings,
    groups: Vec<Settings>,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// Names the file, the line, and for an unknown key the nearest known one.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            reason: source.to_string(),
        })?;
        Self::parse(path, &text)
    }

    /// Reads a file's text; relative paths in it are taken from the file's directory.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let syntax = |error: toml::de::Error| ConfigError::File {
            path: path.to_owned(),
            error: error.to_string().trim_end().to_owned(),
        };
        Self::from_table(path, toml::from_str(text).map_err(syntax)?, text)
    }

    /// The same from a table that stands somewhere in the text of a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn from_table(path: &Path, mut table: toml::Table, text: &str) -> Result<Self, ConfigError> {
        let groups = match table.remove("group") {
            None => Vec::new(),
            Some(toml::Value::Array(tables)) => tables,
            Some(_) => {
                return Err(ConfigError::File {
                    path: path.to_owned(),
                    error: "`group` must be an array of tables; write [[group]]".into(),
                });
            }
        };
        let base = path.parent().unwrap_or(Path::new("."));
        let read = |value: toml::Value| -> Result<Settings, ConfigError> {
            let settings: Settings = value.try_into().map_err(|error: toml::de::Error| ConfigError::File {
                path: path.to_owned(),
                error: explain_at(&error, text),
            })?;
            Ok(settings.beside(base))
        };
        let fleet = read(toml::Value::Table(table))?;
        let mut parsed = Vec::new();
        for (index, group) in groups.into_iter().enumerate() {
            if let Some(key) = group.as_table().and_then(|t| t.keys().find(|k| is_fleet_key(k))) {
                let name = group.get("name").and_then(toml::Value::as_str);
                let name = name.map_or_else(|| index.to_string(), str::to_owned);
                return Err(ConfigError::File {
                    path: path.to_owned(),
                    error: format!(
                        "`{key}` in group {name} belongs to the whole fleet; move it to the top of the file"
                    ),
                });
            }
            parsed.push(read(group)?);
        }
        Ok(Self {
            path: path.to_owned(),
            fleet,
            groups: parsed,
        })
    }
}

impl ConfigFile {
    /// What it says for the whole fleet, and for how many groups it says something.
    pub fn fleet(&self) -> (&Settings, usize) {
        (&self.fleet, self.groups.len())
    }
}

fn is_fleet_key(key: &str) -> bool {
    known_keys().contains(&key) && !Settings::GROUP_KEYS.contains(&key)
}

/// Every key that a file may have.
pub fn known_keys() -> Vec<&'static str> {
    // The names that serde reports for an unknown field are the authority.
    static KEYS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    KEYS.get_or_init(|| {
        let error = toml::from_str::<Settings>("\"\" = 0")
            .expect_err("the empty key is unknown")
            .to_string();
        error
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|k| !k.is_empty() && k.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            .map(str::to_owned)
            .collect()
    })
    .iter()
    .map(String::as_str)
    .collect()
}

/// The error of a parsed table, with the line of the key it is about (parsed values have lost their place).
fn explain_at(error: &toml::de::Error, text: &str) -> String {
    let message = error.to_string();
    let quoted = |lead: &str| message.split(lead).nth(1).and_then(|rest| rest.split('`').next());
    let line = |key: &str| {
        let at = text.lines().position(|line| {
            line.trim_start()
                .strip_prefix(key)
                .is_some_and(|r| r.trim_start().starts_with('='))
        });
        at.map_or_else(String::new, |index| format!("line {}: ", index + 1))
    };
    if let Some(key) = quoted("unknown field `") {
        return format!("{}{}", line(key), unknown_key(key));
    }
    match quoted("in `") {
        Some(key) => format!("{}`{key}`: {}", line(key), error.message()),
        None => message.trim_end().to_owned(),
    }
}

fn unknown_key(key: &str) -> String {
    unknown_of(key, &known_keys())
}

/// A key that is not among those that are known, in words that name the nearest one.
pub(crate) fn unknown_of(key: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|known| (strsim::jaro_winkler(key, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score > 0.7);
    match nearest {
        Some((_, known)) => format!("unknown key `{key}`; did you mean `{known}`?"),
        None => format!("unknown key `{key}`; known keys: {}", known.join(", ")),
    }
}

/// Merges the layers.
///
/// # Errors
/// A value that an environment variable cannot have.
pub fn merge(
    flags: &Settings,
    environment: &BTreeMap<String, String>,
    file: Option<&ConfigFile>,
) -> Result<Merged, ConfigError> {
    let mut base = Layered::default();
    base.overlay(&Settings::defaults(), &Origin::Default)?;
    if let Some(file) = file {
        base.overlay(&file.fleet, &Origin::File(file.path.clone()))?;
    }
    let environment = super::environment::layers(environment)?;
    let top = |layered: &mut Layered| -> Result<(), ConfigError> {
        for (name, layer) in &environment {
            layered.overlay(layer, &Origin::Environment(name.clone()))?;
        }
        layered.overlay(flags, &Origin::Flag)
    };
    let mut groups = Vec::new();
    for (index, group) in file.iter().flat_map(|file| &file.groups).enumerate() {
        let mut layered = base.clone();
        let origin = Origin::Group {
            path: file.map(|f| f.path.clone()).unwrap_or_default(),
            group: group.name.clone().unwrap_or_else(|| index.to_string()),
        };
        layered.overlay(group, &origin)?;
        top(&mut layered)?;
        groups.push(layered.complete()?);
    }
    top(&mut base)?;
    let base = base.complete()?;
    if groups.is_empty() {
        groups.push(base.clone());
    }
    Ok(Merged { fleet: base, groups })
}
