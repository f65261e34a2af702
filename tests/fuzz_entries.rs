//! The entry functions of the fuzz targets over their corpora, over damaged pieces of them, and over random bytes.

#![allow(clippy::unwrap_used)]

// Public for the targets of the fuzz crate.
#[allow(unreachable_pub)]
#[path = "../fuzz/entries.rs"]
mod entries;

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

/// Inputs kept for a target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn every_corpus_is_survived() {
    for (target, entry) in entries::ALL {
        let corpus = corpus(target);
        assert!(corpus.len() >= 3, "{target} has a corpus");
        for bytes in corpus {
            entry(&bytes);
        }
    }
}

/// Well-formed input with some bytes replaced, put in or taken out, or with a piece of another input in it.
fn damaged() -> impl Strategy<Value = (usize, Vec<u8>)> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..5_u8);
    (0..entries::ALL.len()).prop_flat_map(move |target| {
        let inputs = corpus(entries::ALL[target].0);
        let other = prop::sample::select(inputs.clone());
        let parts = (prop::sample::select(inputs), other, vec(change.clone(), 1..6));
        parts.prop_map(move |(mut bytes, other, changes)| {
            for (at, byte, kind) in changes {
                let at = at.index(bytes.len().max(1)).min(bytes.len());
                match kind {
                    _ if at >= bytes.len() => bytes.push(byte),
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => drop(bytes.remove(at)),
                    3 => drop(bytes.splice(at..at, other.iter().copied().take(usize::from(byte)))),
                    _ => bytes.truncate(at),
                }
            }
            (target, bytes)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_survived(bytes in vec(any::<u8>(), 0..300)) {
        for (_, entry) in entries::ALL {
            entry(&bytes);
        }
    }

    #[test]
    fn damaged_input_is_survived((target, bytes) in damaged()) {
        (entries::ALL[target].1)(&bytes);
    }
}
