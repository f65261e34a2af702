//! The `profile export` command: the pass times of an engine as a performance NPZ.
//!
//! Source of the grid: the rule by which `planner_profile_data` of Dynamo 1.4.2 and 1.6.1 is read.

use std::io::Write as _;
use std::path::PathBuf;

use crate::cli::ExportArgs;
use crate::config::{ConfigError, EngineDocument};
use crate::distinct_files::{Clash, DistinctFiles};
use crate::engine::{self, DecodeBatch, PassTiming, PrefillBatch, Profile, ProfileError, ProfilePoints};
use crate::profile;

/// Prompt lengths, tokens.
const PREFILL_ISL: [u32; 12] = [1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// Sequence lengths, tokens.
const CONTEXTS: [u32; 8] = [128, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The engine arguments.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Pass times that no profile can hold.
    #[error("the pass times are no profile: {0}")]
    Profile(#[from] ProfileError),
    /// The output is a file that is read.
    #[error("{0}")]
    Same(String),
    /// The output.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl ExportError {
    /// Process exit code: 1 the output could not be written, 2 bad input.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Profile(_) | Self::Same(_) => 2,
            Self::Write { .. } => 1,
        }
    }
}

/// Exports the pass times of the engine that the arguments describe.
///
/// # Errors
/// [`ExportError`]; nothing is written when the arguments are at fault.
pub fn run(args: &ExportArgs) -> Result<(), ExportError> {
    let failed = |source| ExportError::Write {
        path: args.output.clone(),
        source,
    };
    let mut files = DistinctFiles::default();
    files.reads("--extra-engine-args", args.extra_engine_args.as_ref());
    files.writes("--output", &args.output).map_err(|clash| match clash {
        Clash::Taken(what) => ExportError::Same(what),
        Clash::Io(source) => failed(source),
    })?;
    let mut document = EngineDocument::read_over(
        "--extra-engine-args",
        &args.extra_engine_args,
        &args.measurements.settings(),
    )?;
    document.settle()?;
    let engine = &document.engine;
    let capacity = u64::from(engine.num_gpu_blocks) * u64::from(engine.block_size);
    let profile = Profile::new(points(&*engine::timing_of(&engine.timing), capacity))?;
    profile::save(&profile, &args.output).map_err(failed)?;
    // A closed pipe (`| head`) is the reader's choice; the file is there.
    let _ = writeln!(
        std::io::stdout(),
        "{}\n  prefill, prompt tokens:  {} points\n  decode, KV tokens:       {} points up to {capacity}\n  decode, context length:  {} points",
        args.output.display(),
        PREFILL_ISL.len(),
        profile.points().decode_active_kv_tokens.len(),
        CONTEXTS.len(),
    );
    Ok(())
}

/// Powers of two up to `capacity`, at least two of them.
fn active_tokens(capacity: u64) -> Vec<u64> {
    let powers = (7..63).map(|power| 1u64 << power);
    powers
        .enumerate()
        .take_while(|(index, tokens)| *index < 2 || *tokens <= capacity)
        .map(|(_, tokens)| tokens)
        .collect()
}

/// The grid. A decode step that reads `active` tokens of sequences of one length has as many sequences as make that.
#[allow(clippy::cast_precision_loss)]
fn points(timing: &dyn PassTiming, capacity: u64) -> ProfilePoints {
    let active = active_tokens(capacity);
    let prefill = |len: u32| {
        timing.prefill_ms(PrefillBatch {
            requests: 1,
            mean_isl: len,
            mean_prefix: 0,
        })
    };
    let decode = |tokens: u64, len: u32| {
        let sequences = (tokens as f64 / f64::from(len)).round().max(1.0);
        timing.decode_ms(DecodeBatch {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            requests: sequences.min(f64::from(u32::MAX)) as u32,
            kv_tokens: tokens,
            mean_context: len,
            capacity_tokens: capacity,
        })
    };
    let cells = active
        .iter()
        .flat_map(|&tokens| CONTEXTS.map(|len| decode(tokens, len)));
    ProfilePoints {
        decode_itl: cells.collect(),
        prefill_isl: PREFILL_ISL.map(f64::from).to_vec(),
        prefill_ttft_ms: PREFILL_ISL.map(prefill).to_vec(),
        decode_active_kv_tokens: active.iter().map(|&tokens| tokens as f64).collect(),
        decode_context_length: CONTEXTS.map(f64::from).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_two_points_even_of_a_small_cache() {
        assert_eq!(active_tokens(0), [128, 256]);
        assert_eq!(active_tokens(1024), [128, 256, 512, 1024]);
        assert_eq!(active_tokens(1025), [128, 256, 512, 1024]);
    }

    #[test]
    fn a_cell_is_a_step_of_as_many_sequences_as_read_its_tokens() {
        let timing = engine::timing_of(&engine::TimingConfig::Polynomial);
        let points = points(&*timing, 4096);
        assert_eq!((points.decode_active_kv_tokens.len(), points.decode_itl.len()), (6, 48));
        let cell = timing.decode_ms(DecodeBatch {
            requests: 8,
            kv_tokens: 4096,
            mean_context: 512,
            capacity_tokens: 4096,
        });
        assert!((points.decode_itl[5 * 8 + 1] - cell).abs() < 1e-12);
    }
}
