//! Answers whose frames are not as they should be.

use crate::faults::kind::ResponseFault;
use crate::transport::request_plane::two_part;

/// What is wrong with the frames of one answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) no_prologue: bool,
    /// How often the last item is sent.
    pub(super) extra_finals: u32,
    pub(super) no_final: bool,
    /// Tokens before a frame that is none.
    pub(super) malformed_after: Option<u32>,
}

impl Content {
    pub(super) fn of(faults: &[ResponseFault]) -> Self {
        let mut content = Self::default();
        for fault in faults {
            match fault {
                ResponseFault::NoPrologue {} => content.no_prologue = true,
                ResponseFault::DuplicateFinal {} => content.extra_finals = 1,
                ResponseFault::MissingFinal {} => content.no_final = true,
                ResponseFault::MalformedFrame { after_tokens } => content.malformed_after = Some(*after_tokens),
                ResponseFault::Latency { .. }
                | ResponseFault::Bandwidth { .. }
                | ResponseFault::ResetPeer { .. }
                | ResponseFault::SlowClose { .. }
                | ResponseFault::LimitData { .. }
                | ResponseFault::Slicer { .. } => {}
            }
        }
        content
    }
}

/// A prefix whose lengths and checksum nobody can believe, and a few bytes of what it announces.
pub(super) fn write_malformed(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xff; two_part::PREFIX_BYTES]);
    out.extend_from_slice(b"not a frame");
}
