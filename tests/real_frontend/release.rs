//! The Dynamo releases that the tests run against, and what differs between their frontends.

use std::path::{Path, PathBuf};

/// A supported release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// 1.6.1, the reference.
    V1_6_1,
    /// 1.4.2.
    V1_4_2,
    /// 1.3.1, the last that reads KV events from `JetStream`. Only for that.
    V1_3_1,
}

impl Release {
    /// As in `ai-dynamo==...`.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V1_6_1 => "1.6.1",
            Self::V1_4_2 => "1.4.2",
            Self::V1_3_1 => "1.3.1",
        }
    }

    /// The Python that has this release: `GHOSTFLEET_DYNAMO_161`, `_142` or `_131`, else what `scripts/setup` made.
    ///
    /// # Panics
    /// When there is none; the message says how to get it.
    pub(crate) fn python(self) -> PathBuf {
        let variable = format!("GHOSTFLEET_DYNAMO_{}", self.version().replace('.', ""));
        let python = std::env::var_os(&variable).map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join(format!(".venv/dynamo-{}/bin/python", self.version())),
            PathBuf::from,
        );
        assert!(
            python.is_file(),
            "{} does not exist; run scripts/setup, or set {variable} to a Python with ai-dynamo {}",
            python.display(),
            self.version()
        );
        python
    }

    /// `DYN_TCP_RESPONSE_STREAM_HOST` for loopback: before 1.6 it wants the interface's name, and refuses an address.
    pub(crate) fn loopback_response_host(self) -> &'static str {
        match self {
            Self::V1_6_1 => "127.0.0.1",
            Self::V1_4_2 | Self::V1_3_1 => "lo",
        }
    }
}

/// Makes one test per release of each function, all of them left to `scripts/test`.
macro_rules! on_each_release {
    ($($(#[doc = $doc:literal])* fn $name:ident($release:ident) $body:block)+) => {
        $(
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                $(#[doc = $doc])*
                fn check($release: $crate::release::Release) $body

                #[test]
                #[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
                fn dynamo_1_6_1() {
                    check($crate::release::Release::V1_6_1);
                }

                #[test]
                #[ignore = "needs etcd and the Dynamo frontends: scripts/test"]
                fn dynamo_1_4_2() {
                    check($crate::release::Release::V1_4_2);
                }
            }
        )+
    };
}
pub(crate) use on_each_release;
