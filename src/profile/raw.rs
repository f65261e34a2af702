//! Raw data of the profiler: one file per side, NPZ or the older JSON.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::fit::{DecodeSamples, PrefillSamples};
use super::npz::Npz;
use super::{LoadError, open};

/// Longest JSON file.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// Where one side's data may be, the preferred place first.
const PREFILL: [&str; 2] = ["selected_prefill_interpolation/raw_data.npz", "prefill_raw_data.json"];
const DECODE: [&str; 2] = ["selected_decode_interpolation/raw_data.npz", "decode_raw_data.json"];

enum Source {
    Npz(PathBuf),
    Json(PathBuf),
}

/// Reads both sides from a directory.
pub(super) fn read(directory: &Path) -> Result<(PrefillSamples, DecodeSamples), LoadError> {
    match (find(directory, PREFILL), find(directory, DECODE)) {
        (Some(prefill), Some(decode)) => Ok((read_prefill(&prefill)?, read_decode(&decode)?)),
        (None, None) => Err(LoadError::Unrecognized {
            path: directory.to_owned(),
        }),
        (prefill, _) => {
            let (found, missing) = if prefill.is_some() {
                ("prefill", DECODE)
            } else {
                ("decode", PREFILL)
            };
            Err(LoadError::OneSided {
                path: directory.to_owned(),
                found,
                missing: missing.join(" or "),
            })
        }
    }
}

/// The files that are read from a directory.
pub(super) fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let found = [find(directory, PREFILL), find(directory, DECODE)];
    found.into_iter().flatten().map(|source| match source {
        Source::Npz(path) | Source::Json(path) => path,
    })
}

fn find(directory: &Path, [npz, json]: [&str; 2]) -> Option<Source> {
    let there = |name: &str| Some(directory.join(name)).filter(|path| path.exists());
    there(npz).map(Source::Npz).or_else(|| there(json).map(Source::Json))
}

fn read_prefill(source: &Source) -> Result<PrefillSamples, LoadError> {
    #[derive(Deserialize)]
    struct Document {
        prefill_isl: Vec<f64>,
        prefill_ttft: Vec<f64>,
    }
    Ok(match source {
        Source::Npz(path) => {
            let mut npz = Npz::open(path)?;
            PrefillSamples {
                isl: npz.shaped("prefill_isl", 1)?.data,
                ttft_ms: npz.shaped("prefill_ttft", 1)?.data,
            }
        }
        Source::Json(path) => {
            let document: Document = read_json(path)?;
            PrefillSamples {
                isl: document.prefill_isl,
                ttft_ms: document.prefill_ttft,
            }
        }
    })
}

fn read_decode(source: &Source) -> Result<DecodeSamples, LoadError> {
    #[derive(Deserialize)]
    struct Document {
        x_kv_usage: Vec<f64>,
        y_context_length: Vec<f64>,
        z_itl: Vec<f64>,
        max_kv_tokens: f64,
    }
    Ok(match source {
        Source::Npz(path) => {
            let mut npz = Npz::open(path)?;
            let max_kv_tokens = npz.array("max_kv_tokens")?;
            let &[max_kv_tokens] = max_kv_tokens.data.as_slice() else {
                return Err(LoadError::Shape {
                    path: path.clone(),
                    array: "max_kv_tokens",
                    found: max_kv_tokens.shape,
                    expected: "one entry".to_owned(),
                });
            };
            DecodeSamples {
                kv_usage: npz.shaped("x_kv_usage", 1)?.data,
                context_length: npz.shaped("y_context_length", 1)?.data,
                itl_ms: npz.shaped("z_itl", 1)?.data,
                max_kv_tokens,
            }
        }
        Source::Json(path) => {
            let document: Document = read_json(path)?;
            DecodeSamples {
                kv_usage: document.x_kv_usage,
                context_length: document.y_context_length,
                itl_ms: document.z_itl,
                max_kv_tokens: document.max_kv_tokens,
            }
        }
    })
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, LoadError> {
    let mut text = String::new();
    let read = open(path)?.take(MAX_JSON_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| LoadError::Read {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    if text.len() as u64 > MAX_JSON_BYTES {
        return Err(LoadError::TooLarge {
            path: path.to_owned(),
            bytes: text.len() as u64,
            limit: MAX_JSON_BYTES,
        });
    }
    serde_json::from_str(&text).map_err(|error| LoadError::Json {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}
