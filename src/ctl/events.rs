//! Server-sent events of a fleet, as they come.

use std::io::{BufRead, BufReader, Read};

/// Longest event: columns of tens of thousands of workers.
const MAX_EVENT_BYTES: u64 = 64 << 20;

/// Server-sent events, each its name and its data.
pub(super) struct Events<R> {
    reader: BufReader<R>,
}

impl<R: Read> Events<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader: BufReader::new(reader),
        }
    }

    /// The next one; `None` when the stream has ended.
    pub(super) fn next(&mut self) -> std::io::Result<Option<(String, String)>> {
        let (mut name, mut data) = (String::new(), String::new());
        let mut line = String::new();
        let mut left = MAX_EVENT_BYTES;
        loop {
            line.clear();
            let read = (&mut self.reader).take(left).read_line(&mut line)?;
            left -= read as u64;
            if left == 0 {
                return Err(std::io::Error::other("an event without an end"));
            }
            if read == 0 {
                return Ok(None);
            }
            let text = line.trim_end_matches(['\r', '\n']);
            if let Some(word) = text.strip_prefix("event:") {
                word.trim().clone_into(&mut name);
            } else if let Some(rest) = text.strip_prefix("data:") {
                data.push_str(rest.trim_start());
            } else if text.is_empty() && !data.is_empty() {
                return Ok(Some((name, data)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let endless = std::io::repeat(b'x');
        let error = Events::new(endless).next().unwrap_err();
        assert!(error.to_string().contains("without an end"));
        let mut cut = Events::new(&b"event: sample\ndata: {}"[..]);
        assert!(cut.next().unwrap().is_none());
    }
}
