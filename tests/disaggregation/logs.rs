//! What the fleet logs, for tests that read it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines() -> &'static Lines {
    static LINES: OnceLock<Lines> = OnceLock::new();
    LINES.get_or_init(|| {
        let lines = Lines::default();
        let writer = lines.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .init();
        lines
    })
}

/// From now on warnings are kept; of all tests of the process, so that they are told apart by words of their own.
pub(crate) fn keep() {
    lines();
}

/// Warnings so far that have all these words.
pub(crate) fn warnings(words: &[&str]) -> usize {
    let kept = lines().0.lock().unwrap();
    let text = String::from_utf8_lossy(&kept);
    let lines = text.lines();
    lines
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .count()
}
