//! Two-part frames.
//!
//! | Bytes | Field |
//! |---|---|
//! | 0..8 | header length, u64 big-endian |
//! | 8..16 | data length, u64 big-endian |
//! | 16..24 | checksum, u64 big-endian; 0 = not used |
//! | 24.. | header, then data |
//!
//! A frame with a header only is control, one with data only is payload; a request carries both.
//! Source: Dynamo 1.6.1 and 1.4.2, golden vectors G2 and G4.

/// Length of the fixed prefix.
pub const PREFIX_BYTES: usize = 24;

/// Longest control header that is accepted.
pub const MAX_HEADER_BYTES: u64 = 128 * 1024;

/// A frame that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Shorter than its prefix says.
    #[error("two-part frame is truncated: {have} of {need} bytes")]
    Truncated {
        /// Bytes present.
        have: usize,
        /// Bytes announced.
        need: u64,
    },
    /// A length over its limit.
    #[error("two-part {part} of {bytes} bytes exceeds the limit of {limit}")]
    TooLong {
        /// `header` or `data`.
        part: &'static str,
        /// Announced length.
        bytes: u64,
        /// Limit.
        limit: u64,
    },
}

/// Lengths of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Header bytes.
    pub header: u64,
    /// Data bytes.
    pub data: u64,
}

/// Reads a prefix and checks both lengths against their limits.
///
/// # Errors
/// [`FrameError::TooLong`].
pub fn decode_prefix(bytes: &[u8; PREFIX_BYTES], max_data: u64) -> Result<Prefix, FrameError> {
    let word = |at: usize| {
        let mut raw = [0; 8];
        raw.copy_from_slice(&bytes[at..at + 8]);
        u64::from_be_bytes(raw)
    };
    let prefix = Prefix {
        header: word(0),
        data: word(8),
    };
    if prefix.header > MAX_HEADER_BYTES {
        return Err(FrameError::TooLong {
            part: "header",
            bytes: prefix.header,
            limit: MAX_HEADER_BYTES,
        });
    }
    if prefix.data > max_data {
        return Err(FrameError::TooLong {
            part: "data",
            bytes: prefix.data,
            limit: max_data,
        });
    }
    Ok(prefix)
}

/// Splits a complete frame into header and data.
///
/// # Errors
/// [`FrameError`] when the buffer is shorter than announced or a length is over its limit.
pub fn split(frame: &[u8]) -> Result<(&[u8], &[u8]), FrameError> {
    let Some((prefix, rest)) = frame.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(FrameError::Truncated {
            have: frame.len(),
            need: PREFIX_BYTES as u64,
        });
    };
    let Prefix { header, data } = decode_prefix(prefix, u64::from(u32::MAX))?;
    let need = header + data;
    if (rest.len() as u64) < need {
        return Err(FrameError::Truncated {
            have: frame.len(),
            need: need + PREFIX_BYTES as u64,
        });
    }
    let header_end = usize::try_from(header).unwrap_or(usize::MAX);
    let end = usize::try_from(need).unwrap_or(usize::MAX);
    Ok((&rest[..header_end], &rest[header_end..end]))
}

/// Appends a frame.
pub fn write(out: &mut Vec<u8>, header: &[u8], data: &[u8]) {
    out.reserve(PREFIX_BYTES + header.len() + data.len());
    out.extend_from_slice(&prefix(header.len(), data.len()));
    out.extend_from_slice(header);
    out.extend_from_slice(data);
}

/// Prefix of a frame whose parts have these lengths.
pub fn prefix(header_bytes: usize, data_bytes: usize) -> [u8; PREFIX_BYTES] {
    let mut out = [0; PREFIX_BYTES];
    out[..8].copy_from_slice(&(header_bytes as u64).to_be_bytes());
    out[8..16].copy_from_slice(&(data_bytes as u64).to_be_bytes());
    out
}

/// Appends a data-only frame whose body `body` writes in place, so that nothing is copied.
pub fn write_data(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    body(out);
    let data = (out.len() - start - PREFIX_BYTES) as u64;
    out[start + 8..start + 16].copy_from_slice(&data.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_splits_into_what_was_written() {
        let mut out = Vec::new();
        write(&mut out, b"head", b"body!");
        assert_eq!(split(&out), Ok((&b"head"[..], &b"body!"[..])));
        let mut in_place = Vec::new();
        write_data(&mut in_place, |out| out.extend_from_slice(b"body!"));
        assert_eq!(split(&in_place), Ok((&b""[..], &b"body!"[..])));
    }

    #[test]
    fn truncated_and_oversized_frames_are_errors() {
        let mut out = Vec::new();
        write(&mut out, b"head", b"body!");
        for len in 0..out.len() {
            assert!(split(&out[..len]).is_err(), "{len} bytes");
        }
        out[0] = 1;
        assert!(matches!(split(&out), Err(FrameError::TooLong { part: "header", .. })));
        let huge = [0xff; PREFIX_BYTES];
        assert!(split(&huge).is_err());
    }
}
