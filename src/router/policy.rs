//! Policy classes: several queues in front of one pool, each with its own order, threshold and share.
//!
//! Source of keys and rules: Dynamo 1.6.1 router policy files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_norway::{Mapping, Value};

use crate::plain_words::plain;

use super::{ConfigError, QueuePolicy, RouterConfig};

/// Name of the only class without a policy file.
const DEFAULT_CLASS: &str = "default";

/// What a profile has to have.
const PARTS: &str = "give default_policy_family, uncached_isl_buckets and policy_classes";

/// The classes that one model's requests fall into.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyProfile {
    default_family: String,
    /// By uncached prompt tokens, ascending from 0.
    buckets: Vec<Bucket>,
    classes: Vec<PolicyClass>,
}

/// Range of uncached prompt lengths.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bucket {
    min_tokens: u64,
    bucket: String,
}

/// One queue.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyClass {
    /// Its name.
    pub name: String,
    /// Family and bucket; `None`: requests name the class itself.
    place: Option<(String, String)>,
    /// Order inside.
    pub queue_policy: QueuePolicy,
    /// Uncached tokens that the class may send per round.
    pub quantum: u64,
    /// When a target counts as busy; both `None`: never, and nothing waits.
    pub busy: BusyThreshold,
    /// What may wait.
    pub limits: QueueLimits,
}

/// Prefill tokens above which a target is busy.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BusyThreshold {
    /// Tokens.
    pub tokens: Option<u64>,
    /// Share of the token budget of a pass.
    pub share: Option<f64>,
}

impl BusyThreshold {
    /// Whether requests of the class may wait at all.
    pub(crate) fn is_set(self) -> bool {
        self.tokens.is_some() || self.share.is_some()
    }

    /// Whether a target with so many prefill tokens is busy; `budget` may be infinite.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn is_busy(self, prefill_tokens: u64, budget: f64) -> bool {
        let by_share = |share: f64| {
            let limit = if share == 0.0 { 0.0 } else { share * budget };
            prefill_tokens as f64 > limit
        };
        self.tokens.is_some_and(|limit| prefill_tokens > limit) || self.share.is_some_and(by_share)
    }
}

/// What may wait in a class, per rank of the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests.
    pub requests: Option<u64>,
    /// Their prompt tokens.
    pub raw_isl_tokens: Option<u64>,
    /// Those of them that some target has cached.
    pub cached_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    default_policy_family: Option<String>,
    uncached_isl_buckets: Option<Vec<Bucket>>,
    policy_classes: Option<Vec<ClassEntry>>,
    #[serde(default)]
    models: BTreeMap<String, Root>,
    // Sections of 1.6.1 that a replay refuses unless they are empty.
    router: Option<serde_json::Value>,
    worker_selection: Option<serde_json::Value>,
    request_classifier: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Root {
    default_policy_family: Option<String>,
    uncached_isl_buckets: Option<Vec<Bucket>>,
    policy_classes: Option<Vec<ClassEntry>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassEntry {
    name: String,
    policy_family: Option<String>,
    cache_bucket: Option<String>,
    #[serde(default)]
    queue_policy: QueuePolicy,
    quantum: u64,
    prefill_busy_threshold: Option<u64>,
    prefill_busy_threshold_frac: Option<f64>,
    request_queue_limit_per_worker: Option<u64>,
    raw_isl_token_queue_limit_per_worker: Option<u64>,
    cached_token_queue_limit_per_worker: Option<u64>,
}

/// A file by the names of its keys; one that is empty, or of comments alone, is an empty mapping.
fn read(yaml: &str) -> Result<Document, ConfigError> {
    let value: Value = serde_norway::from_str(yaml).map_err(|error| ConfigError::Policy(error.to_string()))?;
    let value = match value {
        Value::Null => Value::Mapping(Mapping::new()),
        Value::Sequence(_) => return wrong("it is an array, expected an object"),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Mapping(_) | Value::Tagged(_) => value,
    };
    serde_path_to_error::deserialize(value)
        .map_err(|error| ConfigError::Policy(plain(&error.path().to_string(), &error.inner().to_string())))
}

fn wrong<T>(what: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Policy(what.into()))
}

impl PolicyProfile {
    /// The one class that a configuration without policy file means.
    pub fn of_config(config: &RouterConfig) -> Self {
        Self {
            default_family: DEFAULT_CLASS.into(),
            buckets: vec![Bucket {
                min_tokens: 0,
                bucket: "all".into(),
            }],
            classes: vec![PolicyClass {
                name: DEFAULT_CLASS.into(),
                place: Some((DEFAULT_CLASS.into(), "all".into())),
                queue_policy: config.router_queue_policy,
                quantum: 1,
                busy: BusyThreshold {
                    tokens: None,
                    share: config.router_queue_threshold,
                },
                limits: QueueLimits::default(),
            }],
        }
    }

    /// Reads a policy file (YAML) for a model: its own profile where the file has one, else the file's root, else what
    /// `config` says of all requests.
    ///
    /// # Errors
    /// [`ConfigError::Policy`] names the key and what was expected.
    pub fn parse(yaml: &str, model: Option<&str>, config: &RouterConfig) -> Result<Self, ConfigError> {
        let document = read(yaml)?;
        for (key, section) in [
            ("worker_selection", &document.worker_selection),
            ("request_classifier", &document.request_classifier),
            ("router", &document.router),
        ] {
            if section.is_some() {
                return wrong(format!("{key} is not replayed; leave the section out"));
            }
        }
        // Every profile is checked, also those of other models.
        let mut chosen = None;
        let has_models = !document.models.is_empty();
        for (name, root) in document.models {
            let profile = Self::resolve(root)
                .map_err(|error| ConfigError::Policy(format!("models.{name}: {}", error.policy_text())))?;
            let Some(profile) = profile else {
                return wrong(format!("models.{name} defines nothing; {PARTS}"));
            };
            if Some(name.as_str()) == model {
                chosen = Some(profile);
            }
        }
        let root = Self::resolve(Root {
            default_policy_family: document.default_policy_family,
            uncached_isl_buckets: document.uncached_isl_buckets,
            policy_classes: document.policy_classes,
        })?;
        if root.is_none() && !has_models {
            return wrong(format!(
                "it defines nothing; {PARTS}, at its root or for a model under models"
            ));
        }
        Ok(chosen.or(root).unwrap_or_else(|| Self::of_config(config)))
    }

    fn resolve(root: Root) -> Result<Option<Self>, ConfigError> {
        let (default_family, buckets, entries) = match (
            root.default_policy_family,
            root.uncached_isl_buckets,
            root.policy_classes,
        ) {
            (None, None, None) => return Ok(None),
            (Some(family), Some(buckets), Some(classes)) => (family, buckets, classes),
            _ => {
                return wrong(
                    "default_policy_family, uncached_isl_buckets and policy_classes need one another; \
                         give all three or none",
                );
            }
        };
        check_buckets(&buckets)?;
        let classes = entries
            .into_iter()
            .map(ClassEntry::resolve)
            .collect::<Result<Vec<_>, _>>()?;
        let profile = Self {
            default_family,
            buckets,
            classes,
        };
        profile.check()?;
        Ok(Some(profile))
    }

    /// Every name is right, and every family covers every bucket once.
    fn check(&self) -> Result<(), ConfigError> {
        identifier("default_policy_family", &self.default_family)?;
        let families: BTreeSet<&str> = self
            .classes
            .iter()
            .filter_map(|class| class.place.as_ref().map(|(family, _)| family.as_str()))
            .collect();
        if !families.contains(self.default_family.as_str()) {
            return wrong(format!(
                "default_policy_family {:?} has no class; add one",
                self.default_family
            ));
        }
        let mut names = BTreeSet::new();
        for class in &self.classes {
            if !names.insert(class.name.as_str()) {
                return wrong(format!("policy class {:?} is there twice", class.name));
            }
            if class.place.is_none() && families.contains(class.name.as_str()) {
                return wrong(format!("policy class {:?} has the name of a family", class.name));
            }
            if let Some((_, bucket)) = &class.place
                && !self.buckets.iter().any(|known| known.bucket == *bucket)
            {
                return wrong(format!(
                    "policy class {:?}: cache_bucket {bucket:?} is not in uncached_isl_buckets",
                    class.name
                ));
            }
        }
        for family in families {
            for bucket in &self.buckets {
                let place = Some((family.to_owned(), bucket.bucket.clone()));
                let count = self.classes.iter().filter(|class| class.place == place).count();
                if count != 1 {
                    let bucket = &bucket.bucket;
                    return wrong(format!(
                        "policy family {family:?} has {count} classes for bucket {bucket:?}, expected 1"
                    ));
                }
            }
        }
        Ok(())
    }

    /// The classes in order.
    pub fn classes(&self) -> &[PolicyClass] {
        &self.classes
    }

    /// Number of the class of a request that asks for `wanted` and has so many prompt tokens to compute.
    pub(crate) fn class_of(&self, wanted: Option<&str>, uncached_tokens: u64) -> usize {
        let explicit = |class: &PolicyClass| class.place.is_none() && Some(class.name.as_str()) == wanted;
        if let Some(at) = self.classes.iter().position(explicit) {
            return at;
        }
        let bucket = self.buckets.iter().rfind(|bucket| bucket.min_tokens <= uncached_tokens);
        let bucket = bucket.map_or("", |bucket| bucket.bucket.as_str());
        let of_family = |family: &str| {
            let here = |class: &PolicyClass| class.place.as_ref().is_some_and(|(f, b)| f == family && b == bucket);
            self.classes.iter().position(here)
        };
        wanted
            .and_then(of_family)
            .or_else(|| of_family(&self.default_family))
            .unwrap_or(0)
    }
}

impl ClassEntry {
    fn resolve(self) -> Result<PolicyClass, ConfigError> {
        let name = self.name;
        identifier("policy class name", &name)?;
        let place = match (self.policy_family, self.cache_bucket) {
            (Some(family), Some(bucket)) => {
                identifier("policy_family", &family)?;
                identifier("cache_bucket", &bucket)?;
                Some((family, bucket))
            }
            (None, None) => None,
            _ => {
                return wrong(format!(
                    "policy class {name:?}: policy_family and cache_bucket need each other"
                ));
            }
        };
        if self.queue_policy == QueuePolicy::Lcfs {
            return wrong(format!(
                "policy class {name:?}: queue_policy lcfs is not for classes; use fcfs or wspt"
            ));
        }
        if self.quantum == 0 {
            return wrong(format!("policy class {name:?}: quantum is 0, expected at least 1"));
        }
        if let Some(share) = self.prefill_busy_threshold_frac
            && (!share.is_finite() || share < 0.0)
        {
            return wrong(format!(
                "policy class {name:?}: prefill_busy_threshold_frac is {share}, expected a finite number from 0 on"
            ));
        }
        Ok(PolicyClass {
            place,
            queue_policy: self.queue_policy,
            quantum: self.quantum,
            busy: BusyThreshold {
                tokens: self.prefill_busy_threshold,
                share: self.prefill_busy_threshold_frac,
            },
            limits: QueueLimits {
                requests: self.request_queue_limit_per_worker,
                raw_isl_tokens: self.raw_isl_token_queue_limit_per_worker,
                cached_tokens: self.cached_token_queue_limit_per_worker,
            },
            name,
        })
    }
}

fn check_buckets(buckets: &[Bucket]) -> Result<(), ConfigError> {
    if buckets.first().is_none_or(|first| first.min_tokens != 0) {
        return wrong("uncached_isl_buckets must begin with min_tokens 0");
    }
    if !buckets.is_sorted_by(|a, b| a.min_tokens < b.min_tokens) {
        return wrong("uncached_isl_buckets must have min_tokens that increase");
    }
    let mut names = BTreeSet::new();
    for bucket in buckets {
        identifier("bucket", &bucket.bucket)?;
        if !names.insert(bucket.bucket.as_str()) {
            return wrong(format!("bucket {:?} is there twice", bucket.bucket));
        }
    }
    Ok(())
}

fn identifier(what: &str, name: &str) -> Result<(), ConfigError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || !name.chars().all(fits) {
        return wrong(format!(
            "{what} {name:?} has other signs than letters, digits, '.', '_' and '-'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
default_policy_family: chat
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 1000, bucket: long}
policy_classes:
  - {name: chat-short, policy_family: chat, cache_bucket: short, quantum: 512}
  - {name: chat-long, policy_family: chat, cache_bucket: long, quantum: 256, queue_policy: wspt}
  - {name: batch, quantum: 64, prefill_busy_threshold: 100, request_queue_limit_per_worker: 3}
models:
  big:
    default_policy_family: any
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes: [{name: only, policy_family: any, cache_bucket: all, quantum: 9}]
";

    fn parse(yaml: &str) -> Result<PolicyProfile, ConfigError> {
        PolicyProfile::parse(yaml, None, &RouterConfig::default())
    }

    #[test]
    fn a_request_falls_into_the_class_it_names_or_into_its_familys_bucket() {
        let profile = parse(FILE).unwrap();
        let name = |wanted, uncached| profile.classes()[profile.class_of(wanted, uncached)].name.as_str();
        assert_eq!(name(Some("batch"), 5000), "batch");
        assert_eq!((name(Some("chat"), 999), name(None, 1000)), ("chat-short", "chat-long"));
        assert_eq!(name(Some("nobody"), 0), "chat-short");
        assert_eq!(
            name(Some("chat-long"), 0),
            "chat-short",
            "a family's class cannot be named"
        );
    }

    #[test]
    fn a_model_may_have_a_profile_of_its_own_and_others_have_that_of_the_root_or_of_the_configuration() {
        let config = RouterConfig::default();
        let big = PolicyProfile::parse(FILE, Some("big"), &config).unwrap();
        assert_eq!(big.classes()[0].name, "only");
        let other = PolicyProfile::parse(FILE, Some("small"), &config).unwrap();
        assert_eq!(other.classes().len(), 3);
        let (_, models) = FILE.split_once("models:").unwrap();
        let without_root = parse(&format!("models:{models}")).unwrap();
        assert_eq!(without_root, PolicyProfile::of_config(&config));
    }

    #[test]
    fn wrong_files_are_refused_with_the_name_of_what_is_wrong() {
        let cases = [
            ("", "it defines nothing; give default_policy_family"),
            ("# nothing\n", "it defines nothing"),
            ("{}", "it defines nothing"),
            ("null", "it defines nothing"),
            ("models: {}", "it defines nothing"),
            ("models: {big: {}}", "models.big defines nothing"),
            ("[]", "it is an array, expected an object"),
            ("5", "it is 5, expected an object"),
            (
                &FILE.replace("quantum: 9", "quantum: -9"),
                "models.big.policy_classes[0].quantum is -9, expected a whole number from 0 on",
            ),
            ("default_policy_family: chat", "all three or none"),
            ("quanta: 1", "quanta"),
            (&FILE.replace("min_tokens: 1000", "min_tokens: 0"), "increase"),
            (
                &FILE.replace("min_tokens: 0, bucket: short", "min_tokens: 1, bucket: short"),
                "begin",
            ),
            (&FILE.replace("quantum: 512", "quantum: 0"), "quantum"),
            (&FILE.replace("queue_policy: wspt", "queue_policy: lcfs"), "lcfs"),
            (&FILE.replace("name: batch", "name: chat"), "name of a family"),
            (&FILE.replace("name: batch", "name: a b"), "letters"),
            (
                &FILE.replace("cache_bucket: long", "cache_bucket: short"),
                "classes for bucket",
            ),
            (
                &FILE.replace("family: any, cache_bucket: all", "family: any"),
                "models.big",
            ),
            (&format!("{FILE}\nworker_selection: {{}}"), "worker_selection"),
        ];
        for (yaml, part) in cases {
            let error = parse(yaml).unwrap_err().to_string();
            assert!(error.contains(part), "{error} should say {part}");
        }
    }
}
