//! The `profile convert` command.

use std::io::Write;

use crate::cli::ConvertArgs;
use crate::profile::{self, ConvertError};

/// Converts the profile and says what it holds.
///
/// # Errors
/// [`ConvertError`]: the profile is unusable, or the output cannot be written.
pub fn run(args: &ConvertArgs) -> Result<(), ConvertError> {
    let points = profile::convert(&args.input, &args.output)?.points();
    let range = |axis: &[f64]| match axis {
        [first, .., last] => format!("{} points from {first} to {last}", axis.len()),
        _ => format!("{} points", axis.len()),
    };
    // A closed pipe (`| head`) is the reader's choice; the file is there.
    let _ = writeln!(
        std::io::stdout(),
        "{}\n  prefill, prompt tokens:  {}\n  decode, KV tokens:       {}\n  decode, context length:  {}",
        args.output.display(),
        range(&points.prefill_isl),
        range(&points.decode_active_kv_tokens),
        range(&points.decode_context_length),
    );
    Ok(())
}
