//! What the workers of a group offer to clients: the model's card, LoRA adapters, recorded answers, the HTTP face.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::StartError;
use crate::actors::plan::Adapter;
use crate::config::{Config, Group};
use crate::engine::EngineConfig;
use crate::model::Model;
use crate::model::card::{self, CardOptions};
use crate::transport::http::FaceModel;
use crate::transport::recorded::RecordedAnswers;

/// See the module.
pub(super) struct Offer {
    pub(super) card: Box<RawValue>,
    pub(super) adapters: Vec<Adapter>,
    pub(super) recorded: Option<Arc<RecordedAnswers>>,
    pub(super) face: Option<Arc<FaceModel>>,
}

impl Offer {
    /// The offer of a group whose card says `options`.
    pub(super) fn new(
        config: &Config,
        group: &Group,
        model: &Model,
        engine: &EngineConfig,
        options: &CardOptions,
    ) -> Result<Self, StartError> {
        check_markers(engine, model)?;
        let recorded = match &group.response_replay {
            Some(path) => Some(Arc::new(recorded(path, model)?)),
            None => None,
        };
        let names = || group.lora_modules.iter();
        let face = match config.http_port {
            Some(_) => Some(FaceModel::load(
                model,
                vec![config.model_name.clone()],
                names()
                    .map(|module| (Arc::clone(&module.name), module.path.clone()))
                    .collect(),
                engine.max_model_len,
            )?),
            None => None,
        };
        Ok(Self {
            card: render(model, options)?,
            adapters: adapters(config, group, model, options)?,
            recorded,
            face,
        })
    }
}

fn render(model: &Model, options: &CardOptions) -> Result<Box<RawValue>, StartError> {
    let card = card::render(model, options).map_err(|error| StartError::Settings(error.to_string()))?;
    RawValue::from_string(card.to_string()).map_err(|error| StartError::Settings(error.to_string()))
}

fn adapters(config: &Config, group: &Group, model: &Model, options: &CardOptions) -> Result<Vec<Adapter>, StartError> {
    let mut adapters: Vec<Adapter> = Vec::new();
    for module in &group.lora_modules {
        let failed = |why: String| StartError::Settings(format!("lora_modules: {why}"));
        if *module.name == *config.model_name {
            return Err(failed(format!(
                "{:?} is the model's own name; choose another one",
                module.name
            )));
        }
        let slug = card::slug(&module.name).map_err(|error| failed(error.to_string()))?;
        if let Some(other) = adapters.iter().find(|other| other.slug == slug) {
            return Err(failed(format!(
                "{:?} and {:?} are the same in discovery keys; rename one",
                other.name, module.name
            )));
        }
        let options = CardOptions {
            display_name: module.name.to_string(),
            lora_of: u32::try_from(group.lora_modules.len()).ok(),
            ..options.clone()
        };
        adapters.push(Adapter {
            name: Arc::clone(&module.name),
            slug,
            card: render(model, &options)?,
        });
    }
    Ok(adapters)
}

/// Markers that no tokenizer knows would reach clients as nothing.
fn check_markers(engine: &EngineConfig, model: &Model) -> Result<(), StartError> {
    let vocabulary = model.info.vocab_size;
    let markers = engine
        .reasoning
        .map(|reasoning| [reasoning.start_token, reasoning.end_token]);
    match markers.into_iter().flatten().find(|&marker| marker >= vocabulary) {
        Some(marker) => Err(StartError::Settings(format!(
            "reasoning: the token id {marker} is out of the model's vocabulary of {vocabulary} ids"
        ))),
        None => Ok(()),
    }
}

fn recorded(path: &Path, model: &Model) -> Result<RecordedAnswers, StartError> {
    let failed = |why: String| StartError::Settings(format!("response_replay_trace_path {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let answers = RecordedAnswers::read(BufReader::new(file)).map_err(|error| failed(error.to_string()))?;
    let vocabulary = model.info.vocab_size;
    if answers.ids_below() > u64::from(vocabulary) {
        let largest = answers.ids_below() - 1;
        return Err(failed(format!(
            "the token id {largest} is out of the model's vocabulary of {vocabulary} ids; use the model of the recording"
        )));
    }
    Ok(answers)
}
