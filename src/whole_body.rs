//! Bodies of requests, read whole within bounds.

use std::fmt::Display;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

/// What is still read of a body that was refused for its length.
const MOST_DISCARDED_BYTES: usize = 64 << 20;

/// A body that was not taken.
#[derive(Debug)]
pub(crate) enum Untaken {
    /// Longer than the limit.
    TooLong,
    /// Did not end within the patience.
    TooSlow,
    /// Its connection or its encoding broke, with the reason.
    Broken(String),
}

/// All of `body`, at most `limit` bytes of it, within `patience`.
///
/// The rest of a body that is too long is read and thrown away behind the answer (within bounds): a socket that is closed
/// while its peer still writes is reset, and the answer would be lost with it.
pub(crate) async fn read_whole<B>(mut body: B, limit: usize, patience: Duration) -> Result<Bytes, Untaken>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Display,
{
    let gathered = tokio::time::timeout(patience, gather(&mut body, limit)).await;
    let taken = gathered.unwrap_or(Err(Untaken::TooSlow));
    if matches!(taken, Err(Untaken::TooLong)) {
        tokio::spawn(tokio::time::timeout(patience, discard(body)));
    }
    taken
}

async fn gather<B>(body: &mut B, limit: usize) -> Result<Bytes, Untaken>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Untaken::TooLong);
    }
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Untaken::Broken(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(Untaken::TooLong);
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

async fn discard<B>(mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = MOST_DISCARDED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
