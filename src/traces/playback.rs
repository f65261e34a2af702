//! A workload from begin to end as if every request were served in no time.

use crate::replay::{Source, Terminal, Turn};
use crate::types::{SimTime, Token};

/// Hands on each request with its prompt, in the order in which they are due.
///
/// # Errors
/// What `each` returns.
pub(super) fn play<E>(
    source: &mut dyn Source,
    mut each: impl FnMut(&dyn Source, &Turn, &[Token]) -> Result<(), E>,
) -> Result<(), E> {
    let mut now = SimTime::ZERO;
    let mut prompt = Vec::new();
    loop {
        while let Some(turn) = source.take(now) {
            prompt.clear();
            source.write_prompt(turn.tag, &mut prompt);
            each(source, &turn, &prompt)?;
            source.ended(turn.tag, now, Terminal::Completed);
        }
        match source.next_at() {
            Some(next) => now = next.max(now),
            None => return Ok(()),
        }
    }
}
