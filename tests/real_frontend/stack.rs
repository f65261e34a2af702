//! The surroundings of one test: a scratch directory, discovery, and the frontends it asks for.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::etcd::Etcd;
use crate::frontend::{Discovery, Frontend, FrontendOptions, RouterMode};
use crate::release::Release;

/// Discovery and scratch space; frontends and fleets of a test find each other through it.
pub(crate) struct Stack {
    /// The etcd, unless discovery goes through files.
    pub(crate) etcd: Option<Etcd>,
    discovery: Discovery,
    namespace: String,
    // Last: the servers above write into it until they have ended.
    scratch: TempDir,
}

impl Stack {
    /// With an etcd of its own.
    pub(crate) fn on_etcd() -> Self {
        let scratch = scratch();
        let etcd = Etcd::start(scratch.path());
        Self {
            discovery: Discovery::Etcd(etcd.endpoint()),
            etcd: Some(etcd),
            namespace: namespace(),
            scratch,
        }
    }

    /// With a directory; no server runs.
    pub(crate) fn on_files() -> Self {
        let scratch = scratch();
        let root = scratch.path().join("discovery");
        Self {
            etcd: None,
            discovery: Discovery::Files(root),
            namespace: namespace(),
            scratch,
        }
    }

    /// Where fleet and frontends find each other.
    pub(crate) fn discovery(&self) -> &Discovery {
        &self.discovery
    }

    /// The namespace of this test's workers.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A directory for files of the test.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A frontend that migrates nothing.
    pub(crate) fn frontend(&self, release: Release, router_mode: RouterMode) -> Frontend {
        self.frontend_with(&FrontendOptions {
            release,
            router_mode,
            migration_limit: 0,
        })
    }

    /// A frontend.
    pub(crate) fn frontend_with(&self, options: &FrontendOptions) -> Frontend {
        Frontend::start(self.scratch.path(), &self.discovery, &self.namespace, options)
    }
}

fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("ghostfleet-test-")
        .tempdir()
        .expect("the temporary directory is writable")
}

/// One that no other test uses, also not one in another process.
fn namespace() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The model directory that ships with the project.
pub(crate) fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model")
}
