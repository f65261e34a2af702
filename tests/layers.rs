//! The map of `ARCHITECTURE.md`, enforced: which module may name which other, and which modules must stay free of
//! clocks, sockets and files. Reads the sources as tokens, so comments, strings and documentation links do not count.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// What each module may name besides itself. The longest matching prefix decides; `*` is everything.
const MAY_USE: &[(&str, &[&str])] = &[
    ("main", &["*"]),
    (
        "serve",
        &[
            "actors",
            "cli",
            "cluster",
            "config",
            "distinct_files",
            "transport",
            "types",
        ],
    ),
    (
        "online",
        &[
            "cli",
            "cluster",
            "replay",
            "replay_run",
            "router",
            "serve",
            "transport",
            "types",
        ],
    ),
    ("convert", &["cli", "profile"]),
    ("export", &["cli", "config", "distinct_files", "engine", "profile"]),
    (
        "ctl",
        &["actors", "admin", "cli", "faults", "truth", "types", "witness"],
    ),
    ("witness", &["block_hash", "transport", "truth", "types"]),
    (
        "replay_run",
        &[
            "aic",
            "cli",
            "config",
            "distinct_files",
            "engine",
            "plain_words",
            "replay",
            "router",
            "types",
        ],
    ),
    (
        "predict",
        &["cli", "distinct_files", "engine", "plain_words", "replay", "replay_run"],
    ),
    (
        "recommend",
        &["cli", "distinct_files", "model", "plain_words", "predict", "replay"],
    ),
    (
        "traces",
        &["block_hash", "cli", "distinct_files", "replay", "replay_run", "types"],
    ),
    ("cli", &["config", "engine", "types"]),
    (
        "cluster",
        &[
            "actors",
            "admin",
            "config",
            "engine",
            "faults",
            "model",
            "router",
            "transport",
            "types",
        ],
    ),
    (
        "admin",
        &[
            "actors",
            "config",
            "faults",
            "patient_io",
            "plain_words",
            "types",
            "whole_body",
        ],
    ),
    ("faults", &["types"]),
    (
        "config",
        &["aic", "engine", "model", "profile", "router", "transport", "types"],
    ),
    (
        "actors",
        &[
            "block_hash",
            "engine",
            "faults",
            "model",
            "router",
            "transport",
            "truth",
            "types",
        ],
    ),
    ("replay", &["block_hash", "engine", "plain_words", "router", "types"]),
    ("engine", &["block_hash", "types"]),
    ("router", &["block_hash", "plain_words", "types"]),
    (
        "drill",
        &[
            "actors",
            "cli",
            "cluster",
            "config",
            "distinct_files",
            "engine",
            "faults",
            "model",
            "replay",
            "transport",
            "truth",
            "truth",
            "types",
            "witness",
            "witness",
        ],
    ),
    // The parts that decide.
    ("drill::check", &["config", "faults", "types"]),
    ("drill::content", &["engine", "model", "transport", "types"]),
    ("drill::plan", &["faults", "types"]),
    ("drill::record", &["faults", "types"]),
    ("drill::report", &["faults", "replay", "types"]),
    ("drill::scenario", &["config", "faults"]),
    ("drill::sse", &["types"]),
    ("truth", &["types"]),
    ("transport", &["block_hash", "faults", "types"]),
    (
        "transport::http",
        &["block_hash", "faults", "model", "patient_io", "types", "whole_body"],
    ),
    ("model", &["types"]),
    ("aic", &["plain_words"]),
    ("aic::evaluator", &["engine"]),
    ("aic::timing", &["engine"]),
    ("profile", &["distinct_files", "engine"]),
    ("block_hash", &["types"]),
    ("distinct_files", &[]),
    ("plain_words", &[]),
    ("types", &[]),
    ("patient_io", &[]),
    ("whole_body", &[]),
];

/// Modules that decide and never act: time and input come in, results go out.
const PURE: &[&str] = &[
    "engine",
    "faults",
    "router",
    "drill::check",
    "drill::content",
    "drill::plan",
    "drill::record",
    "drill::report",
    "drill::scenario",
    "drill::sse",
    "replay",
    "truth",
    "block_hash",
    "types",
];

/// What a pure module may not name.
const IMPURE: &[&str] = &[
    "tokio",
    "actix",
    "axum",
    "hyper",
    "etcd_client",
    "std::net",
    "std::fs",
    "std::env",
    "std::process",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// A path that the source names, resolved: `crate::a::b` as `["crate", "a", "b"]`, `std::net` as `["std", "net"]`.
struct Named {
    line: usize,
    path: Vec<String>,
}

/// What one file says.
#[derive(Default)]
struct Findings {
    named: Vec<Named>,
    /// Modules declared as `#[cfg(test)] mod x;`: their files are tests, not product.
    test_modules: Vec<Vec<String>>,
}

impl Findings {
    fn of(source: &str, module: &[String]) -> Self {
        let tokens: TokenStream = source.parse().expect("a source file that compiles is a token stream");
        let mut findings = Self::default();
        findings.walk(tokens, module);
        findings
    }

    /// Collects the paths in `tokens`, which stand in `module`.
    fn walk(&mut self, tokens: TokenStream, module: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut i = 0;
        while i < tokens.len() {
            if is_test_attribute(&tokens[i..]) {
                i = self.skip_item(&tokens, i + 2, module);
                continue;
            }
            match &tokens[i] {
                TokenTree::Ident(ident) if *ident == "mod" => {
                    if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
                        (tokens.get(i + 1), tokens.get(i + 2))
                    {
                        self.walk(body.stream(), &joined(module, &[name.to_string()]));
                        i += 3;
                    } else {
                        i += 1;
                    }
                }
                TokenTree::Ident(_) => i = self.path(&tokens, i, &[], module),
                TokenTree::Group(group) => {
                    self.walk(group.stream(), module);
                    i += 1;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => i += 1,
            }
        }
    }

    /// Reads the path that starts at `tokens[start]`, below `prefix`; returns the index after it.
    fn path(&mut self, tokens: &[TokenTree], start: usize, prefix: &[String], module: &[String]) -> usize {
        let mut segments = prefix.to_vec();
        let mut i = start;
        let line = tokens[start].span().start().line;
        loop {
            match tokens.get(i) {
                Some(TokenTree::Ident(ident)) => segments.push(ident.to_string()),
                Some(TokenTree::Punct(star)) if star.as_char() == '*' && i > start => segments.push("*".to_owned()),
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace && i > start => {
                    self.group(group.stream(), &segments, module);
                    return i + 1;
                }
                _ => break,
            }
            i += 1;
            if !is_double_colon(&tokens[i..]) {
                break;
            }
            i += 2;
        }
        let renamed = matches!(tokens.get(i), Some(TokenTree::Ident(ident)) if *ident == "as");
        let resolved = resolve(&segments, module);
        // `use std as s` would hide what follows; report it as naming everything below.
        if resolved.len() == 1 && renamed && (resolved[0] == "crate" || resolved[0] == "std") {
            self.named.push(Named {
                line,
                path: joined(&resolved, &["*".to_owned()]),
            });
        } else if resolved.len() > 1 || IMPURE.contains(&resolved[0].as_str()) {
            self.named.push(Named { line, path: resolved });
        }
        i.max(start + 1)
    }

    /// `{a::b, c as d, self}` below `prefix`.
    fn group(&mut self, tokens: TokenStream, prefix: &[String], module: &[String]) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut i = 0;
        while i < tokens.len() {
            match &tokens[i] {
                TokenTree::Ident(ident) if *ident == "as" => i += 2,
                TokenTree::Ident(ident) if *ident == "self" => {
                    let line = ident.span().start().line;
                    self.named.push(Named {
                        line,
                        path: resolve(prefix, module),
                    });
                    i += 1;
                }
                TokenTree::Ident(_) => i = self.path(&tokens, i, prefix, module),
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    let path = resolve(&joined(prefix, &["*".to_owned()]), module);
                    self.named.push(Named {
                        line: star.span().start().line,
                        path,
                    });
                    i += 1;
                }
                TokenTree::Group(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => i += 1,
            }
        }
    }

    /// Skips the item after `#[cfg(test)]`; returns the index after it.
    fn skip_item(&mut self, tokens: &[TokenTree], start: usize, module: &[String]) -> usize {
        for (offset, token) in tokens[start..].iter().enumerate() {
            let end = match token {
                TokenTree::Punct(punct) => punct.as_char() == ';',
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Ident(_) | TokenTree::Literal(_) => false,
            };
            if end {
                let item = &tokens[start..start + offset];
                if let [.., TokenTree::Ident(keyword), TokenTree::Ident(name)] = item
                    && *keyword == "mod"
                {
                    self.test_modules.push(joined(module, &[name.to_string()]));
                }
                return start + offset + 1;
            }
        }
        tokens.len()
    }
}

fn joined(path: &[String], rest: &[String]) -> Vec<String> {
    [path, rest].concat()
}

fn is_double_colon(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}

fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [TokenTree::Punct(hash), TokenTree::Group(body), ..] = tokens else {
        return false;
    };
    let text: String = body.stream().to_string().split_whitespace().collect();
    hash.as_char() == '#' && body.delimiter() == Delimiter::Bracket && text == "cfg(test)"
}

/// `self` and `super` spelled out from the crate's root.
fn resolve(path: &[String], module: &[String]) -> Vec<String> {
    let supers = path.iter().take_while(|s| *s == "super").count();
    if supers > 0 {
        let above = &module[..module.len().saturating_sub(supers)];
        return [&["crate".to_owned()], above, &path[supers..]].concat();
    }
    match path.split_first() {
        Some((first, rest)) if first == "self" => {
            let here = joined(&["crate".to_owned()], module);
            if rest.first().is_some_and(|s| s == "super") {
                resolve(rest, module)
            } else {
                joined(&here, rest)
            }
        }
        _ => path.to_vec(),
    }
}

/// `src/a/b.rs` and `src/a/b/mod.rs` are `["a", "b"]`.
fn module_of(file: &str) -> Vec<String> {
    let inner = file.trim_start_matches("src/").trim_end_matches(".rs");
    inner
        .split('/')
        .filter(|part| *part != "mod")
        .map(str::to_owned)
        .collect()
}

fn starts_with(path: &[String], prefix: &str) -> bool {
    let prefix: Vec<_> = prefix.split("::").collect();
    path.len() >= prefix.len() && prefix.iter().zip(path).all(|(a, b)| a == b)
}

/// What in `findings` the map forbids, one line each.
fn violations(file: &str, module: &[String], findings: &Findings) -> Vec<String> {
    if file == "src/lib.rs" {
        return Vec::new();
    }
    let rule = MAY_USE
        .iter()
        .filter(|(name, _)| starts_with(module, name))
        .max_by_key(|(name, _)| name.len());
    let Some((_, allowed)) = rule else {
        return vec![format!(
            "{file}: module `{}` is not in the map; give it a place in MAY_USE",
            module[0]
        )];
    };
    let pure = PURE.iter().any(|name| starts_with(module, name));
    let mut found = Vec::new();
    for Named { line, path } in &findings.named {
        let text = path.join("::");
        if path[0] == "crate" {
            let target = &path[1];
            let own = *target == module[0];
            if !own && !allowed.contains(&"*") && !allowed.contains(&target.as_str()) {
                found.push(format!("{file}:{line}: `{}` must not use `{text}`", module[0]));
            }
        } else if pure && (IMPURE.iter().any(|name| starts_with(path, name)) || text == "std::*") {
            found.push(format!(
                "{file}:{line}: `{}` is pure and must not use `{text}`",
                module[0]
            ));
        }
    }
    found
}

fn check(file: &str, source: &str) -> Vec<String> {
    let module = module_of(file);
    violations(file, &module, &Findings::of(source, &module))
}

fn sources(dir: &Path, into: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("the source tree can be read") {
        let path = entry.expect("the source tree can be read").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path.display().to_string());
        }
    }
}

#[test]
fn every_module_names_only_what_lies_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    let mut all = Vec::new();
    for path in &files {
        let file = Path::new(path)
            .strip_prefix(root)
            .expect("found below the root")
            .display()
            .to_string();
        let module = module_of(&file);
        let findings = Findings::of(&fs::read_to_string(path).expect("a source file can be read"), &module);
        all.push((file, module, findings));
    }
    let test_modules: BTreeSet<_> = all.iter().flat_map(|(_, _, f)| f.test_modules.clone()).collect();
    let mut found = Vec::new();
    let mut edges = BTreeSet::new();
    for (file, module, findings) in &all {
        if test_modules.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        found.extend(violations(file, module, findings));
        let inside = findings
            .named
            .iter()
            .filter(|named| named.path[0] == "crate" && named.path[1] != module[0]);
        edges.extend(inside.map(|named| (module[0].clone(), named.path[1].clone())));
    }
    assert!(
        found.is_empty(),
        "{} forbidden uses:\n{}",
        found.len(),
        found.join("\n")
    );
    // The scan really sees the tree: these two edges exist as long as the crate does.
    for edge in [("engine", "types"), ("transport", "types")] {
        assert!(
            edges.contains(&(edge.0.to_owned(), edge.1.to_owned())),
            "edge {edge:?} not seen; edges: {edges:?}"
        );
    }
}

#[test]
fn every_kind_of_forbidden_use_is_reported() {
    for (file, source) in [
        ("src/engine/mod.rs", "use crate::transport::intake::Intake;"),
        ("src/engine/mod.rs", "use super::transport;"),
        ("src/engine/vllm/admit.rs", "use super::super::super::actors::Rank;"),
        (
            "src/engine/vllm/admit.rs",
            "mod inner { use super::super::super::super::actors::Rank; }",
        ),
        (
            "src/engine/mod.rs",
            "use crate::{types::Load, transport::{intake as seam}};",
        ),
        ("src/engine/mod.rs", "fn f() { let x = crate::actors::clock::now(); }"),
        ("src/engine/mod.rs", "fn f() { log!(crate::actors::clock::now()); }"),
        ("src/engine/mod.rs", "use crate::*;"),
        ("src/engine/mod.rs", "use super::*;"),
        ("src/engine/mod.rs", "use crate as all;"),
        ("src/engine/mod.rs", "use std::time::Instant;"),
        ("src/engine/mod.rs", "use std::time::{Duration, Instant};"),
        (
            "src/engine/mod.rs",
            "use std::{collections::BTreeMap, net::{TcpStream as S}};",
        ),
        ("src/engine/mod.rs", "fn f() { ::std::fs::read(p); }"),
        ("src/engine/mod.rs", "use std as s;"),
        ("src/engine/mod.rs", "use tokio;"),
        ("src/replay/mod.rs", "async fn f() { tokio::time::sleep(d).await }"),
        ("src/router/kv.rs", "use actix::prelude::*;"),
        ("src/drill/plan.rs", "use std::time::SystemTime;"),
        ("src/transport/discovery/etcd.rs", "use crate::engine::Engine;"),
        ("src/transport/request_plane/mod.rs", "use crate::model::Model;"),
        ("src/transport/mod.rs", "pub use crate::actors::Worker;"),
        ("src/actors/rank.rs", "use crate::config::Config;"),
        ("src/actors/rank.rs", "use crate::cluster::Cluster;"),
        ("src/model/mod.rs", "use crate::transport::intake::Intake;"),
        ("src/types.rs", "use crate::engine::Pass;"),
        ("src/replay/mod.rs", "use crate::actors::Rank;"),
        ("src/admin/routes.rs", "use crate::transport::discovery::Record;"),
        ("src/config.rs", "use crate::cluster::Cluster;"),
        ("src/helpers.rs", "fn f() {}"),
    ] {
        let found = check(file, source);
        assert_eq!(found.len(), 1, "{file}: `{source}` gave {found:?}");
        assert!(found[0].starts_with(file), "{found:?}");
    }
}

#[test]
fn allowed_uses_are_not_reported() {
    for (file, source) in [
        ("src/engine/mod.rs", "use crate::types::{Load, SimTime};"),
        (
            "src/engine/vllm/mod.rs",
            "use super::{Engine, Pass}; use super::super::types::Load; use super::*;",
        ),
        (
            "src/engine/mod.rs",
            "use std::time::Duration; use std::{collections::BTreeMap, fmt};",
        ),
        (
            "src/engine/mod.rs",
            "pub(crate) fn f() {} pub(in crate::engine) fn g() {}",
        ),
        (
            "src/engine/mod.rs",
            "//! See [`crate::transport`].\n/* use std::fs; */ const S: &str = \"use std::net;\";",
        ),
        (
            "src/engine/mod.rs",
            "#[cfg(test)] mod tests { use std::fs; use super::*; }",
        ),
        ("src/engine/mod.rs", "#[cfg(test)] use std::fs; use crate::types::Load;"),
        (
            "src/transport/http/mod.rs",
            "use crate::model::Model; use crate::transport::intake::Intake;",
        ),
        (
            "src/actors/rank.rs",
            "use crate::engine::Engine; use crate::transport::intake::Intake; use tokio::net;",
        ),
        ("src/cluster.rs", "use crate::{actors::Fleet, config::Config};"),
        ("src/main.rs", "use ghostfleet::cluster::Cluster; use crate::cli::Args;"),
    ] {
        assert_eq!(check(file, source), Vec::<String>::new(), "{file}: `{source}`");
    }
}

#[test]
fn a_module_declared_for_tests_is_known_as_such() {
    let findings = Findings::of("#[cfg(test)]\nmod golden;\nmod kept;", &module_of("src/engine/mod.rs"));
    assert_eq!(findings.test_modules, [["engine", "golden"]]);
}
