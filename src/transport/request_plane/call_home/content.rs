//! Answers whose frames are not as they should be.

use crate::faults::kind::ResponseFault;
use crate::faults::table::Due;
use crate::transport::request_plane::two_part;

/// What is wrong with the frames of one answer.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) no_prologue: Option<Due<ResponseFault>>,
    duplicate_final: Option<Due<ResponseFault>>,
    missing_final: Option<Due<ResponseFault>>,
    /// Tokens before a frame that is none.
    malformed: Option<(u32, Due<ResponseFault>)>,
}

impl Content {
    /// What these faults do to frames.
    pub(super) fn of(faults: Vec<Due<ResponseFault>>) -> Self {
        let mut content = Self::default();
        for fault in faults {
            match *fault {
                ResponseFault::NoPrologue {} => content.no_prologue = Some(fault),
                ResponseFault::DuplicateFinal {} => content.duplicate_final = Some(fault),
                ResponseFault::MissingFinal {} => content.missing_final = Some(fault),
                ResponseFault::MalformedFrame { after_tokens } => content.malformed = Some((after_tokens, fault)),
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

    /// How often the last item is sent, now that it is.
    pub(super) fn finals(&self) -> u32 {
        if let Some(fault) = &self.missing_final {
            fault.happened();
            return 0;
        }
        match &self.duplicate_final {
            Some(fault) => {
                fault.happened();
                2
            }
            None => 1,
        }
    }

    /// The next token comes after `tokens` others: what goes out before it, to `out`.
    pub(super) fn before_token(&self, tokens: u32, out: &mut Vec<u8>) {
        if let Some((after, fault)) = &self.malformed
            && *after == tokens
        {
            fault.happened();
            write_malformed(out);
        }
    }
}

/// A prefix whose lengths and checksum nobody can believe, and a few bytes of what it announces.
fn write_malformed(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0xff; two_part::PREFIX_BYTES]);
    out.extend_from_slice(b"not a frame");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_too_late_in_an_answer_has_not_happened() {
        let malformed = ResponseFault::MalformedFrame { after_tokens: 3 };
        let both = [
            malformed,
            ResponseFault::MissingFinal {},
            ResponseFault::DuplicateFinal {},
        ];
        let content = Content::of(both.into_iter().map(Due::alone).collect());
        let mut out = Vec::new();
        for tokens in 0..3 {
            content.before_token(tokens, &mut out);
        }
        let count = |fault: Option<&Due<ResponseFault>>| fault.map(Due::count);
        let malformed = content.malformed.as_ref().map(|(_, fault)| fault);
        assert!(out.is_empty() && count(malformed) == Some(0));
        assert_eq!(content.finals(), 0);
        assert_eq!(count(content.missing_final.as_ref()), Some(1));
        assert_eq!(
            count(content.duplicate_final.as_ref()),
            Some(0),
            "there was no last item"
        );
        content.before_token(3, &mut out);
        assert!(!out.is_empty() && count(malformed) == Some(1));
    }
}
