//! Tells the user what is being downloaded: a bar on a terminal, log lines elsewhere.

use std::io::{self, IsTerminal, Read};

use indicatif::{ProgressBar, ProgressStyle};

/// The report on one file's download.
pub(super) struct FileProgress {
    bar: Option<ProgressBar>,
}

impl FileProgress {
    /// Starts the report. `size` in bytes, when the server tells it.
    pub(super) fn start(shown: bool, model: &str, file: &str, size: Option<u64>) -> Self {
        if !shown {
            return Self { bar: None };
        }
        if !io::stderr().is_terminal() {
            let length = size.map(|size| format!(" ({size} bytes)")).unwrap_or_default();
            tracing::info!("downloading {file} of {model}{length}");
            return Self { bar: None };
        }
        let bar = size.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = "{msg:32} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(file.to_owned());
        Self { bar: Some(bar) }
    }

    /// Counts what passes through.
    pub(super) fn wrap<R: Read>(&self, content: R) -> impl Read {
        Counted {
            content,
            bar: self.bar.clone(),
        }
    }
}

impl Drop for FileProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

struct Counted<R> {
    content: R,
    bar: Option<ProgressBar>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.content.read(buffer)?;
        if let Some(bar) = &self.bar {
            bar.inc(read as u64);
        }
        Ok(read)
    }
}
