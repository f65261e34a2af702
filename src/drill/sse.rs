//! What a router says: server-sent events, and the pieces of an answer in them. Pure: bytes in, facts out.

use std::iter;

use serde::Deserialize;
use serde_json::Value;

use crate::types::Token;

/// Longest line of a stream.
const MAX_LINE: usize = 1 << 20;

/// Splits a stream into the data of its events.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
}

/// A line that is too long to be one.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Takes bytes as they come; hands each complete `data:` line to `each`.
    ///
    /// # Errors
    /// [`TooLong`] when a line does not end.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut bytes = bytes;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, after) = bytes.split_at(end);
            bytes = &after[1..];
            if self.rest.is_empty() {
                data_of(line, &mut each);
            } else {
                self.rest.extend_from_slice(line);
                data_of(&self.rest, &mut each);
                self.rest.clear();
            }
        }
        if self.rest.len() + bytes.len() > MAX_LINE {
            return Err(TooLong);
        }
        self.rest.extend_from_slice(bytes);
        Ok(())
    }
}

fn data_of(line: &[u8], each: &mut impl FnMut(&[u8])) {
    if let Some(data) = line.strip_prefix(b"data:") {
        each(data.trim_ascii());
    }
}

/// A chunk of a streamed answer, or a whole one.
#[derive(Debug, Default, Deserialize)]
struct Chunk {
    id: Option<String>,
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    nvext: Option<Nvext>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    text: Option<String>,
    finish_reason: Option<String>,
    /// As an engine's own face tells them.
    token_ids: Option<Vec<Token>>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    completion_tokens: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Nvext {
    worker_id: Option<WorkerIds>,
    timing: Option<Timing>,
    /// As a Dynamo frontend tells them.
    completion_token_ids: Option<Vec<Token>>,
}

#[derive(Debug, Deserialize)]
struct WorkerIds {
    decode_worker_id: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Timing {
    kv_hit_rate: Option<f64>,
}

/// What is known of an answer so far.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Heard {
    /// Id that the router gave the request.
    pub id: Option<String>,
    /// Instance that serves it, as the router says.
    pub instance: Option<u64>,
    /// Share of the prompt that the router took for cached.
    pub believed_hit: Option<f64>,
    /// Pieces of text.
    pub texts: u32,
    /// Ids of tokens that have come since somebody took them from here.
    pub ids: Vec<Token>,
    /// Text, likewise.
    pub text: String,
    /// Tokens, as the usage at the end says.
    pub usage_tokens: Option<u32>,
    /// A finish reason has come.
    pub finished: bool,
    /// `[DONE]` has come.
    pub done: bool,
    /// First error in the stream.
    pub error: Option<String>,
    /// First data that is no JSON.
    pub malformed: Option<String>,
}

/// Longest text of an error that is kept.
const KEPT_TEXT: usize = 200;

impl Heard {
    /// Takes the data of one event; returns whether it carries a piece of text.
    pub fn event(&mut self, data: &[u8]) -> bool {
        if data == b"[DONE]" {
            self.done = true;
            return false;
        }
        let Ok(chunk) = serde_json::from_slice(data) else {
            self.malformed
                .get_or_insert_with(|| kept(&String::from_utf8_lossy(data)));
            return false;
        };
        self.chunk(chunk)
    }

    fn chunk(&mut self, chunk: Chunk) -> bool {
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            self.error.get_or_insert_with(|| {
                let message = error["message"]
                    .as_str()
                    .map_or_else(|| error.to_string(), str::to_owned);
                kept(&message)
            });
        }
        if self.id.is_none() {
            self.id = chunk.id;
        }
        if let Some(nvext) = chunk.nvext {
            self.instance = self.instance.or(nvext.worker_id.and_then(|ids| ids.decode_worker_id));
            self.believed_hit = self.believed_hit.or(nvext.timing.and_then(|timing| timing.kv_hit_rate));
            self.ids.extend(nvext.completion_token_ids.into_iter().flatten());
        }
        if let Some(tokens) = chunk.usage.and_then(|usage| usage.completion_tokens) {
            self.usage_tokens = Some(tokens);
        }
        let mut has_text = false;
        for choice in chunk.choices {
            let ends = choice.finish_reason.is_some();
            self.finished |= ends;
            self.text.extend(choice.text.as_deref());
            // The piece that only ends an answer is no token.
            self.ids.extend(choice.token_ids.into_iter().flatten());
            has_text |= choice.text.is_some_and(|text| !(ends && text.is_empty()));
        }
        self.texts += u32::from(has_text);
        has_text
    }
}

/// The beginning of a text, on one line.
pub fn kept(text: &str) -> String {
    let words = text.split_whitespace();
    let mut chars = words.flat_map(|word| iter::once(' ').chain(word.chars())).skip(1);
    let mut line: String = chars.by_ref().take(KEPT_TEXT).collect();
    if chars.next().is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_cut_anywhere_and_read_all_the_same() {
        let stream = b": hello\nevent: x\ndata: {\"id\":\"cmpl-a\",\"choices\":[{\"text\":\"a\"}],\"nvext\":{\"worker_id\":\
            {\"decode_worker_id\":7},\"timing\":{\"kv_hit_rate\":0.5}}}\r\n\r\ndata:{\"choices\":[{\"text\":\"\",\
            \"finish_reason\":\"length\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"completion_tokens\":9}}\n\ndata: [DONE]\n\n";
        for size in [1, 2, 7, 64, stream.len()] {
            let (mut lines, mut heard, mut texts) = (Lines::default(), Heard::default(), 0);
            for piece in stream.chunks(size) {
                lines.push(piece, |data| texts += u32::from(heard.event(data))).unwrap();
            }
            assert_eq!(
                (texts, heard.texts, heard.usage_tokens),
                (1, 1, Some(9)),
                "pieces of {size}"
            );
            assert!(heard.finished && heard.done && heard.error.is_none() && heard.malformed.is_none());
            assert_eq!(
                (heard.id.as_deref(), heard.instance, heard.believed_hit),
                (Some("cmpl-a"), Some(7), Some(0.5))
            );
        }
    }

    #[test]
    fn errors_and_nonsense_in_a_stream_are_kept() {
        let mut heard = Heard::default();
        heard.event(br#"{"error":{"message":"no worker","code":503}}"#);
        heard.event(b"{nonsense");
        assert_eq!(heard.error.as_deref(), Some("no worker"));
        assert_eq!(heard.malformed.as_deref(), Some("{nonsense"));
    }

    #[test]
    fn a_text_that_is_kept_is_one_line_and_says_that_it_goes_on() {
        assert_eq!(kept("<html>\r\n  <p>not\there</p>\n"), "<html> <p>not here</p>");
        let long = kept(&"line\n".repeat(1000));
        assert!(long.len() <= KEPT_TEXT + 3 && long.ends_with("..."), "{long}");
        assert_eq!(kept(&"x".repeat(KEPT_TEXT)), "x".repeat(KEPT_TEXT));
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut lines = Lines::default();
        let long = vec![b'x'; MAX_LINE / 2];
        assert_eq!(lines.push(&long, |_| ()), Ok(()));
        assert_eq!(lines.push(&long, |_| ()), Ok(()));
        assert_eq!(lines.push(&long, |_| ()), Err(TooLong));
    }
}
