//! Why there is no plan, or no KV capacity.

use std::io;
use std::path::PathBuf;

/// Why a model cannot be planned or sized; names file, key, system, backend or version, and the way out.
#[derive(Debug, thiserror::Error)]
pub enum AicError {
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A model whose operations are not known here.
    #[error(
        "model {model} has architecture {architecture}, whose operations this program does not know; make a plan with \
         aiconfigurator-core and pass it as --aic-plan"
    )]
    Architecture {
        /// The model.
        model: String,
        /// First entry of `architectures`.
        architecture: String,
    },
}
