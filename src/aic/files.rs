//! Files of a bounded size, as text and as JSON objects.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::{Map, Value};

use super::AicError;

/// Largest file that is read, bytes. The largest config known is 3 MB: one that lists the format of every layer.
const MAX_BYTES: u64 = 16 << 20;

/// A whole text file.
pub(super) fn text(path: &Path) -> Result<String, AicError> {
    let failed = |source: io::Error| AicError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(content(
            path,
            format!("it is larger than {MAX_BYTES} bytes; is it the right file?"),
        ));
    }
    Ok(text)
}

/// A JSON file with an object at the top.
pub(super) fn json_object(path: &Path) -> Result<Map<String, Value>, AicError> {
    serde_json::from_str(&text(path)?).map_err(|error| content(path, error.to_string()))
}

/// As [`json_object`]; `None`: there is no such file.
pub(super) fn optional_json_object(path: &Path) -> Result<Option<Map<String, Value>>, AicError> {
    match json_object(path) {
        Ok(object) => Ok(Some(object)),
        Err(AicError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// An error about what is in a file.
pub(super) fn content(path: &Path, why: impl Into<String>) -> AicError {
    AicError::Content {
        path: path.to_owned(),
        why: why.into(),
    }
}
