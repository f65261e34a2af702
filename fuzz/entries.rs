//! What the fuzz targets run: bytes that come from outside are read, and what is accepted is used. Nothing may panic, and
//! what a reader accepts the next stage must be able to work with.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ghostfleet::config::{Config, ConfigFile, EngineDocument, Settings, layers};
use ghostfleet::engine::{EngineConfig, EngineKind, build};
use ghostfleet::model::{HubOptions, Model};
use ghostfleet::transport::http::FaceModel;
use ghostfleet::transport::recorded::RecordedAnswers;
use ghostfleet::transport::request_plane::Codec;
use ghostfleet::transport::request_plane::request::PreprocessedRequest;
use ghostfleet::types::{RequestId, SimTime};

/// Takes bytes from outside.
pub type Entry = fn(&[u8]);

/// Every target by name.
pub const ALL: [(&str, Entry); 4] = [
    ("request", request),
    ("config", config),
    ("recording", recording),
    ("http", http),
];

/// A request of the request plane: the first byte chooses codec and engine, the rest is the body. What is accepted runs.
pub fn request(bytes: &[u8]) {
    let Some((&choice, body)) = bytes.split_first() else {
        return;
    };
    let codec = if choice & 1 == 0 { Codec::Json } else { Codec::Msgpack };
    let Ok(request) = PreprocessedRequest::decode(codec, body) else {
        return;
    };
    let asked = request.asked();
    assert!(asked.is_err() || asked.is_ok_and(|asked| asked.choices > 0));
    let _ = request.wanted_answer();
    let (request, _) = request.into_engine_request(RequestId(1), "id");
    let config = EngineConfig {
        kind: EngineKind::ALL[usize::from(choice >> 1) % EngineKind::ALL.len()],
        num_gpu_blocks: 16,
        block_size: 4,
        max_num_seqs: Some(4),
        max_model_len: Some(64),
        ..EngineConfig::default()
    };
    let mut engine = build(&config).expect("a usable engine");
    let mut now = SimTime::ZERO;
    if engine.submit(request, now).is_err() {
        return;
    }
    for _ in 0..200 {
        let Some(pass) = engine.step(now) else { break };
        now = pass.ends_at;
    }
    let load = engine.load();
    assert_eq!((load.running, load.waiting), (0, 0), "64 tokens end within 200 passes");
}

/// Settings: an engine document when the text begins with a brace, else a config file. What is accepted builds engines.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if text.trim_start().starts_with('{') {
        if let Ok(document) = EngineDocument::read("--extra-engine-args", text) {
            build(&document.engine).expect("a checked document builds an engine");
        }
        return;
    }
    let Ok(file) = ConfigFile::parse(Path::new("fleet.toml"), text) else {
        return;
    };
    let environment = BTreeMap::new();
    let Ok(merged) = layers::merge(&Settings::default(), &environment, Some(&file)) else {
        return;
    };
    for layered in merged.groups.iter().chain([&merged.fleet]) {
        let printed = layered.lines().join("\n");
        let again = ConfigFile::parse(Path::new("again.toml"), &printed);
        assert!(again.is_ok(), "what is printed is a config file: {printed}\n{again:?}");
    }
    if let Ok(config) = Config::resolve(&merged, &environment) {
        for group in &config.groups {
            build(&group.engine).expect("a checked group builds an engine");
        }
    }
}

/// Recorded answers.
pub fn recording(bytes: &[u8]) {
    if let Ok(recorded) = RecordedAnswers::read(bytes) {
        assert!(recorded.is_empty() || recorded.len() <= bytes.len());
    }
}

/// A body of the HTTP face: the first byte chooses the API.
pub fn http(bytes: &[u8]) {
    static MODEL: OnceLock<Arc<FaceModel>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/config/tiny-model");
        // The fuzz crate lies one level below the project.
        let directory = directory.replace("/fuzz/config/", "/config/");
        let model = Model::resolve(&directory, &HubOptions::default()).expect("the tiny model is there");
        let adapters = vec![("poet".into(), None)];
        FaceModel::load(&model, vec!["tiny".into()], adapters, Some(512)).expect("the tiny model loads")
    });
    let Some((choice, body)) = bytes.split_first() else {
        return;
    };
    let answers = model.dry_run(choice & 1 == 1, body);
    assert!(answers.is_err() || answers.is_ok_and(|answers| answers > 0));
}
