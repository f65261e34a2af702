//! Weka traces: one JSON document per conversation with an agent, its subagents nested in it.
//!
//! `{id, models?, block_size, hash_id_scope: "local", requests: [...]}`, where a request is `{type: "n" | "s", t, model, in,
//! out, hash_ids?, api_time?, ...}` (times in seconds) or `{type: "subagent", t, agent_id, subagent_type, status,
//! duration_ms?, requests: [...]}`, whose requests are of the first kind. A `.json` file holds one document, a `.jsonl` file
//! any number.
//!
//! A corpus is read twice: what nested times count from and the digest depend on all of it ([`WekaCorpus`]), then each
//! document becomes one play of a request graph ([`WekaReader`], [`lower`]); memory holds one document and the graph.
//!
//! Source: fields, refusals, digest and graph as Dynamo 1.6.1 (`aisimulate-core` 0.13.0) has them.

mod chains;
mod document;
mod locate;
mod lower;

use std::collections::BTreeSet;
use std::io::{self, BufReader, Read, Seek};

use serde::Deserialize;

use crate::engine::Semantics;
use crate::plain_words::{placeless, plain};

use super::super::agentic::{AgenticRequest, Graph, GraphOrigin, IdSink};
use super::line::{TraceError, spooling};
use document::Document;
use locate::line_of;

/// Seconds that two times may differ by and still count as equal.
const EPSILON_S: f64 = 1e-6;
/// What the digest of the files begins with.
const CORPUS_DOMAIN: &[u8] = b"aisimulate-weka-corpus-v1\0";
/// What the digest of the files and of what nested times count from begins with.
const MEANING_DOMAIN: &[u8] = b"aisimulate-weka-corpus-semantics-v2\0";

/// What times inside a subagent count from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NestedTimes {
    /// The subagent's marker, if any nested time of all traces lies before its marker; else the trace's begin.
    #[default]
    Auto,
    /// The trace's begin.
    Absolute,
    /// The marker.
    Relative,
}

impl<R: Seek> Seek for Hashing<R> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

/// One file of a corpus.
#[derive(Debug, Clone)]
pub struct WekaFile {
    /// Name for messages.
    pub shown: String,
    /// Name within the corpus, which names its requests and keeps its hash ids apart from those of other files.
    pub relative: String,
    /// It may hold several documents.
    pub several: bool,
    /// Its size.
    pub bytes: u64,
}

/// The first reading of a corpus: every document is checked.
#[derive(Debug, Default)]
pub struct WekaCorpus {
    hasher: Box<blake3::Hasher>,
    block_tokens: Option<u32>,
    documents: Vec<u64>,
    /// Subagents with requests.
    nests: bool,
    /// A nested time lies before its marker.
    before_marker: bool,
    name: Option<String>,
}

/// The second reading of a corpus, in the same order.
#[derive(Debug)]
pub struct WekaReader {
    relative: bool,
    /// How the report calls that.
    basis: &'static str,
    block_tokens: u32,
    digest: String,
    /// Documents of each file.
    documents: Vec<u64>,
    files: usize,
    plays: u64,
    requests: Vec<AgenticRequest>,
    models: BTreeSet<String>,
    ids: IdSink,
}

impl WekaCorpus {
    /// A corpus; `block_tokens` is what the traces' block size has to be, if anything.
    pub fn new(block_tokens: Option<u32>) -> Self {
        let mut hasher: Box<blake3::Hasher> = Box::default();
        hasher.update(CORPUS_DOMAIN);
        Self {
            hasher,
            block_tokens,
            ..Self::default()
        }
    }

    /// Reads and checks one file.
    ///
    /// # Errors
    /// [`TraceError`] names the file, the line and the path of the field.
    pub fn scan<R: Read + Seek>(&mut self, file: &WekaFile, reader: R) -> Result<(), TraceError> {
        self.name.get_or_insert_with(|| file.shown.clone());
        let relative = file.relative.as_bytes();
        self.hasher.update(&(relative.len() as u64).to_le_bytes());
        self.hasher.update(relative);
        self.hasher.update(&file.bytes.to_le_bytes());
        let mut hashing = Hashing {
            reader,
            hasher: std::mem::take(&mut self.hasher),
            bytes: 0,
        };
        let read = each_document(file, &mut hashing, |document, _| {
            document.check()?;
            let size = document.block_size;
            if *self.block_tokens.get_or_insert(size) != size {
                let before = self.block_tokens.unwrap_or(0);
                return Err(format!(
                    "block_size is {size}, expected {before} as before or as --trace-block-size says"
                ));
            }
            for subagent in document.subagents() {
                self.nests |= !subagent.requests.is_empty();
                self.before_marker |= subagent.begins_before_marker();
            }
            Ok(())
        });
        self.hasher = hashing.hasher;
        self.documents.push(read?);
        if hashing.bytes == file.bytes {
            return Ok(());
        }
        let (found, expected) = (hashing.bytes, file.bytes);
        Err(wrong_file(
            file,
            format!("the file changed while it was read: {found} bytes, expected {expected}"),
        ))
    }

    /// Ends the first reading and begins the second, in which hash ids go to `ids`.
    ///
    /// # Errors
    /// [`TraceError`] when there is nothing to replay.
    pub fn settle(self, nested: NestedTimes, ids: IdSink) -> Result<WekaReader, TraceError> {
        if self.documents.is_empty() {
            return Err(TraceError::File {
                file: self.name.unwrap_or_default(),
                what: "no requests in the trace".into(),
            });
        }
        let (relative, basis) = match nested {
            NestedTimes::Relative => (true, "relative"),
            NestedTimes::Auto if !self.nests => (false, "not_applicable"),
            NestedTimes::Auto if self.before_marker => (true, "relative"),
            NestedTimes::Absolute | NestedTimes::Auto => (false, "absolute"),
        };
        let content = self.hasher.finalize().to_hex();
        let mut meaning = blake3::Hasher::new();
        meaning.update(MEANING_DOMAIN);
        for part in [content.as_str(), basis] {
            meaning.update(&(part.len() as u64).to_le_bytes());
            meaning.update(part.as_bytes());
        }
        Ok(WekaReader {
            relative,
            basis,
            block_tokens: self.block_tokens.unwrap_or(1),
            digest: meaning.finalize().to_hex().to_string(),
            documents: self.documents,
            files: 0,
            plays: 0,
            requests: Vec::new(),
            models: BTreeSet::new(),
            ids,
        })
    }
}

impl WekaReader {
    /// Reads one file and adds its plays to the graph.
    ///
    /// # Errors
    /// [`TraceError`] when documents make no graph, or the file changed since the first reading.
    pub fn read<R: Read + Seek>(&mut self, file: &WekaFile, reader: R) -> Result<(), TraceError> {
        let expected = self.documents.get(self.files).copied();
        self.files += 1;
        let mut reader = reader;
        let found = each_document(file, &mut reader, |document, source| {
            // What the first reading saw may be gone.
            document.check()?;
            if document.block_size != self.block_tokens {
                return Err("the file changed while it was read".into());
            }
            let play = lower::Play {
                source,
                ordinal: self.plays,
                relative: self.relative,
                block_tokens: self.block_tokens,
            };
            self.plays += 1;
            let requests = play.requests(document, &mut self.ids)?;
            for request in &requests {
                if !self.models.contains(&request.model) {
                    self.models.insert(request.model.clone());
                }
            }
            self.requests.extend(requests);
            Ok(())
        })?;
        if expected == Some(found) {
            return Ok(());
        }
        Err(wrong_file(file, "the file changed while it was read".into()))
    }

    /// The graph of all traces.
    ///
    /// # Errors
    /// [`TraceError`] when hash ids cannot be written away.
    pub fn finish(self) -> Result<Graph, TraceError> {
        Ok(Graph {
            ids: self.ids.finish().map_err(spooling)?,
            origin: GraphOrigin {
                format: "weka".into(),
                digest: self.digest,
                models: self.models.into_iter().collect(),
                nested_times: Some(self.basis),
            },
            requests: self.requests,
            block_tokens: self.block_tokens,
            rules: Semantics::V1_6_1,
        })
    }
}

/// Bytes on their way to a parser.
struct Hashing<R> {
    reader: R,
    hasher: Box<blake3::Hasher>,
    bytes: u64,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(into)?;
        self.hasher.update(&into[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

/// What is wrong in a document: its number in the file, the line as far as it is known, the path of the field and what.
struct Fault {
    document: u64,
    line: u64,
    what: String,
}

/// Why documents are not read on.
enum Stop {
    Whole(TraceError),
    At(Fault),
}

/// Hands on each document of a file with the name of its source; returns how many there are.
fn each_document<R: Read + Seek>(
    file: &WekaFile,
    reader: &mut R,
    take: impl FnMut(Document, &str) -> Result<(), String>,
) -> Result<u64, TraceError> {
    read_documents(file, &mut *reader, take).map_err(|stop| match stop {
        Stop::Whole(error) => error,
        Stop::At(Fault { document, line, what }) => {
            let found = line_of(reader, document, &what);
            wrong_line(file, found.unwrap_or(line), &what)
        }
    })
}

fn read_documents<R: Read>(
    file: &WekaFile,
    reader: R,
    mut take: impl FnMut(Document, &str) -> Result<(), String>,
) -> Result<u64, Stop> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(reader));
    let mut count = 0_u64;
    loop {
        // What is left stands on the line on which the next document begins.
        let begin = match json.end() {
            Ok(()) => break,
            Err(error) if error.is_syntax() => error.line() as u64,
            Err(error) => {
                let what = placeless(&error.to_string()).to_owned();
                return Err(Stop::Whole(wrong_line(file, error.line() as u64, &what)));
            }
        };
        let read = serde_path_to_error::deserialize(&mut json);
        let document: Document = read.map_err(|error| {
            let (path, inner) = (error.path().to_string(), error.inner());
            if !inner.is_data() {
                let what = format!("not JSON: {}", placeless(&inner.to_string()));
                return Stop::Whole(wrong_line(file, inner.line() as u64, &what));
            }
            Stop::At(Fault {
                document: count,
                line: begin,
                what: plain(&path, &inner.to_string()),
            })
        })?;
        if count == 1 && !file.several {
            let what = "a second document; a file of several must end in .jsonl";
            return Err(Stop::Whole(wrong_file(file, what.into())));
        }
        let source = if file.several {
            format!("{}#{count:06}", file.relative)
        } else {
            file.relative.clone()
        };
        take(document, &source).map_err(|what| {
            Stop::At(Fault {
                document: count,
                line: begin,
                what,
            })
        })?;
        count += 1;
    }
    if count == 0 {
        return Err(Stop::Whole(wrong_file(file, "no requests in the trace".into())));
    }
    Ok(count)
}

fn wrong_file(file: &WekaFile, what: String) -> TraceError {
    TraceError::File {
        file: file.shown.clone(),
        what,
    }
}

fn wrong_line(file: &WekaFile, line: u64, what: &str) -> TraceError {
    TraceError::Line {
        file: file.shown.clone(),
        line,
        what: what.to_owned(),
    }
}

#[cfg(test)]
mod tests;
