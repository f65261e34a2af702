//! The end of what a program has printed.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Lines that are shown.
const LINES: usize = 40;

/// Bytes that are looked at for them.
const BYTES: u64 = 16 * 1024;

/// The last lines of a file; nothing where it cannot be read.
pub(super) fn tail(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(BYTES);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        // It may grow meanwhile.
        file.take(BYTES).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_long_file_is_shown_and_none_of_no_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: Vec<String> = (0..10_000).map(|n| format!("line {n}")).collect();
        std::fs::write(file.path(), lines.join("\n")).unwrap();
        let shown = tail(file.path());
        assert_eq!(shown.lines().count(), LINES);
        assert!(shown.ends_with("line 9998\nline 9999"), "{shown}");
        assert_eq!(tail(Path::new("/nowhere/x.log")), "");
    }
}
