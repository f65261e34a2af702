//! Finding the recordings of a folder.

use std::path::PathBuf;

/// Reads every `*.json` of `folder` and runs `check` on it; prints how many ran.
///
/// # Panics
/// When there is no case, or `check` panics on some.
pub(crate) fn run<T: serde::de::DeserializeOwned>(folder: &str, mut check: impl FnMut(&str, T)) {
    let root = std::env::var_os("GHOSTFLEET_GOLDEN_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
        PathBuf::from,
    );
    let directory = root.join(folder);
    let listing = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut failed = Vec::new();
    for path in &paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let text = std::fs::read_to_string(path).unwrap();
            check(
                &name,
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}")),
            );
        }));
        failed.extend(ran.is_err().then(|| name.into_owned()));
    }
    println!("{folder}: {} cases", paths.len());
    assert!(!paths.is_empty(), "no cases in {}", directory.display());
    assert!(
        failed.is_empty(),
        "{} of {} cases failed: {failed:?}",
        failed.len(),
        paths.len()
    );
}
