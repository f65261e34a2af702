//! Measured profiles: every form is read, converted as the peer converts it, and refused with the file and array named.

// Times that are read back or hit a point of the grid are equal to the last bit.
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ghostfleet::engine::{DecodeBatch, PassTiming, PrefillBatch, Profile, ProfilePoints};
use ghostfleet::profile::{convert, load, save};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Bytes of an array as NumPy writes it.
fn npy(dtype: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
    header.push_str(&" ".repeat((header.len() + 11).next_multiple_of(64) - header.len() - 11));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    bytes
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// One row of numbers.
fn row(values: &[f64]) -> Vec<u8> {
    npy("<f8", &format!("({},)", values.len()), &doubles(values))
}

fn write_npz(path: &Path, arrays: &[(&str, Vec<u8>)], method: CompressionMethod) {
    let mut archive = ZipWriter::new(File::create(path).unwrap());
    // NumPy leaves room for sizes above 4 GiB.
    let options = SimpleFileOptions::default().compression_method(method).large_file(true);
    for (name, bytes) in arrays {
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

/// The grid of the recorded engine cases.
fn arrays() -> Vec<(&'static str, Vec<u8>)> {
    let itl = [2.0, 3.0, 4.0, 3.0, 5.0, 8.0, 10.0, 12.0, 20.0];
    vec![
        ("prefill_isl", row(&[100.0, 200.0, 400.0])),
        ("prefill_ttft_ms", row(&[10.0, 18.0, 50.0])),
        ("decode_active_kv_tokens", row(&[0.0, 100.0, 1000.0])),
        ("decode_context_length", row(&[1.0, 100.0, 200.0])),
        ("decode_itl", npy("<f8", "(3, 3)", &doubles(&itl))),
    ]
}

fn prefill(tokens: u32) -> PrefillBatch {
    PrefillBatch {
        requests: 1,
        mean_isl: tokens,
        mean_prefix: 0,
    }
}

fn decode(kv_tokens: u64, mean_context: u32) -> DecodeBatch {
    DecodeBatch {
        requests: 1,
        kv_tokens,
        mean_context,
        capacity_tokens: 1 << 20,
    }
}

#[derive(Debug, Deserialize)]
struct Case {
    rule: String,
    prefill: Value,
    decode: Value,
    expected: Expected,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Expected {
    Refused {
        error: String,
    },
    Grid {
        prefill_isl: Vec<f64>,
        prefill_ttft_ms: Vec<f64>,
        decode_active_kv_tokens: Vec<f64>,
        decode_context_length: Vec<f64>,
        decode_itl: Vec<Vec<f64>>,
    },
}

fn cases() -> Vec<(String, Case)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/profile");
    let mut paths: Vec<PathBuf> = directory
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    assert!(!paths.is_empty());
    let case = |path: &PathBuf| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    paths
        .iter()
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), case(path)))
        .collect()
}

/// The two older JSON files.
fn json_directory(prefill: &Value, decode: &Value) -> TempDir {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("prefill_raw_data.json"), prefill.to_string()).unwrap();
    std::fs::write(directory.path().join("decode_raw_data.json"), decode.to_string()).unwrap();
    directory
}

/// The same data as NPZ files, with whole numbers as integers where all are whole.
fn npz_directory(prefill: &Value, decode: &Value) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (side, data) in [("prefill", prefill), ("decode", decode)] {
        let folder = directory.path().join(format!("selected_{side}_interpolation"));
        std::fs::create_dir(&folder).unwrap();
        let arrays: Vec<(&str, Vec<u8>)> = data
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| {
                let values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
                let shape = format!("({},)", values.len());
                let integers: Option<Vec<i64>> = values.iter().map(Value::as_i64).collect();
                let bytes = match integers {
                    Some(integers) => {
                        let bytes: Vec<u8> = integers.iter().flat_map(|value| value.to_le_bytes()).collect();
                        npy("<i8", &shape, &bytes)
                    }
                    None => row(&values.iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>()),
                };
                (name.as_str(), bytes)
            })
            .collect();
        write_npz(&folder.join("raw_data.npz"), &arrays, CompressionMethod::Deflated);
    }
    directory
}

fn assert_close(found: f64, expected: f64, what: &str) {
    // The peer solves the same equations by another route; the results differ by rounding, which the inverse of a badly
    // scaled pair of columns magnifies.
    let tolerance = 1e-6 * expected.abs().max(1.0);
    assert!(
        (found - expected).abs() <= tolerance,
        "{what}: {found} instead of {expected}"
    );
}

#[test]
fn profiler_results_are_converted_as_the_peer_converts_them() {
    for (name, case) in cases() {
        for directory in [
            json_directory(&case.prefill, &case.decode),
            npz_directory(&case.prefill, &case.decode),
        ] {
            let found = load(directory.path());
            let Expected::Grid {
                prefill_isl,
                prefill_ttft_ms,
                decode_active_kv_tokens,
                decode_context_length,
                decode_itl,
            } = &case.expected
            else {
                let Expected::Refused { error } = &case.expected else {
                    unreachable!()
                };
                let ours = found.unwrap_err().to_string();
                assert!(
                    ours.contains("gets faster"),
                    "{name}: {ours} where the peer says {error}"
                );
                continue;
            };
            if prefill_isl.first() == prefill_isl.last() {
                // The peer writes a grid that its engine then cannot use.
                let error = found.unwrap_err().to_string();
                assert!(error.contains("fewer than two different prompt lengths"), "{error}");
                continue;
            }
            let points = found
                .unwrap_or_else(|error| panic!("{name} ({}): {error}", case.rule))
                .points();
            for at in 0..10 {
                assert_close(points.prefill_isl[at * 11], prefill_isl[at], &name);
                assert_close(points.prefill_ttft_ms[at * 11], prefill_ttft_ms[at], &name);
                assert_close(
                    points.decode_active_kv_tokens[at * 11],
                    decode_active_kv_tokens[at],
                    &name,
                );
                assert_close(points.decode_context_length[at * 11], decode_context_length[at], &name);
                for (column, &expected) in decode_itl[at].iter().enumerate() {
                    assert_close(points.decode_itl[at * 1100 + column * 11], expected, &name);
                }
            }
        }
    }
}

#[test]
fn npz_files_are_read_stored_and_deflated() {
    let directory = TempDir::new().unwrap();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let path = directory.path().join("perf.npz");
        write_npz(&path, &arrays(), method);
        let profile = load(&path).unwrap();
        assert_eq!(profile.prefill_ms(prefill(300)), 34.0);
        assert_eq!(profile.decode_ms(decode(100, 150)), 6.5);
    }
}

#[test]
fn an_unusable_array_is_refused_by_name() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("perf.npz");
    let integers: Vec<u8> = [100i64, 200, 400]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let cases: Vec<(&str, Option<Vec<u8>>, &str)> = vec![
        (
            "decode_itl",
            None,
            "has no array decode_itl; it has decode_active_kv_tokens, decode_context_length, prefill_isl",
        ),
        (
            "prefill_isl",
            Some(npy("<i8", "(3,)", &integers)),
            "has element type <i8; save it as float64",
        ),
        (
            "prefill_isl",
            Some(npy("|O", "(3,)", &[])),
            "has element type |O; save it as float64",
        ),
        (
            "prefill_isl",
            Some(npy("<f4", "(0,)", &[])),
            "has element type <f4; save it as float64",
        ),
        (
            "prefill_isl",
            Some(row(&[])),
            "prefill_isl has 0 point(s); interpolation needs at least 2",
        ),
        (
            "prefill_isl",
            Some(row(&[100.0, 90.0, 400.0])),
            "prefill_isl must rise strictly, but entry 1 is 90 after 100",
        ),
        (
            "prefill_isl",
            Some(row(&[100.0, f64::NAN, 400.0])),
            "prefill_isl entry 1 is NaN",
        ),
        (
            "prefill_ttft_ms",
            Some(row(&[1.0, 2.0])),
            "prefill_ttft_ms has 2 entries but its axes have 3 points",
        ),
        (
            "prefill_ttft_ms",
            Some(npy("<f8", "(3, 1)", &doubles(&[1.0; 3]))),
            "has shape [3, 1] instead of 1 axes",
        ),
        ("decode_itl", Some(row(&[1.0; 9])), "has shape [9] instead of 2 axes"),
        (
            "decode_itl",
            Some(npy("<f8", "(9, 1)", &doubles(&[1.0; 9]))),
            "has shape [9, 1] instead of [3, 3]",
        ),
        ("decode_itl", Some(npy("<f8", "(3, 3)", &[0; 71])), "it ends early"),
        (
            "decode_itl",
            Some(npy("<f8", "(99999, 99999)", &[])),
            "it has more than 4194304 elements",
        ),
        ("decode_itl", Some(b"no array".to_vec()), "it is no NumPy array"),
    ];
    for (name, bytes, message) in cases {
        let mut broken = arrays();
        broken.retain(|(other, _)| *other != name);
        broken.extend(bytes.map(|bytes| (name, bytes)));
        write_npz(&path, &broken, CompressionMethod::Stored);
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains(message), "{name}: {error}");
        assert!(error.contains("perf.npz"), "{error}");
    }
}

#[test]
fn a_small_file_that_unpacks_to_a_huge_one_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("perf.npz");
    let mut bomb = arrays();
    bomb.last_mut().unwrap().1 = npy("<f8", "(10000, 10000)", &vec![0; 8 << 20]);
    write_npz(&path, &bomb, CompressionMethod::Deflated);
    assert!(path.metadata().unwrap().len() < 100_000);
    assert!(
        load(&path)
            .unwrap_err()
            .to_string()
            .contains("more than 4194304 elements")
    );
}

#[test]
fn paths_of_no_known_form_are_refused_with_the_forms_that_are() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("notes.txt");
    std::fs::write(&file, "not a profile").unwrap();
    for path in [directory.path(), &file] {
        let error = load(path).unwrap_err().to_string();
        for form in [
            "prefill_ttft_ms",
            "selected_decode_interpolation/raw_data.npz",
            "prefill_raw_data.json",
        ] {
            assert!(error.contains(form), "{error}");
        }
    }
    let error = load(&directory.path().join("absent")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read") && error.contains("absent"), "{error}");
    let huge = directory.path().join("huge.npz");
    File::create(&huge).unwrap().set_len(300 << 20).unwrap();
    assert!(load(&huge).unwrap_err().to_string().contains("has 314572800 bytes"));
    assert!(
        load(Path::new("/dev/zero"))
            .unwrap_err()
            .to_string()
            .contains("not a regular file")
    );
}

#[test]
fn a_directory_needs_both_sides_and_whole_files() {
    let (_, case) = cases().into_iter().find(|(name, _)| name == "noisy-plane").unwrap();
    let directory = json_directory(&case.prefill, &case.decode);
    let decode = directory.path().join("decode_raw_data.json");
    let refused = |message: &str| {
        let error = load(directory.path()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    std::fs::remove_file(&decode).unwrap();
    refused("has prefill data but lacks selected_decode_interpolation/raw_data.npz or decode_raw_data.json");
    std::fs::write(&decode, "{\"x_kv_usage\": [0.5").unwrap();
    refused("decode_raw_data.json: EOF while parsing");
    let broken = |key: &str, value: Value| {
        let mut data = case.decode.clone();
        data[key] = value;
        std::fs::write(&decode, data.to_string()).unwrap();
    };
    broken("z_itl", json!([1.0]));
    refused("x_kv_usage and z_itl have different lengths");
    let per_cent: Vec<f64> = case.decode["x_kv_usage"]
        .as_array()
        .unwrap()
        .iter()
        .map(|usage| usage.as_f64().unwrap() * 100.0)
        .collect();
    broken("x_kv_usage", json!(per_cent));
    refused("it is a share of max_kv_tokens from 0 to 1, not per cent");
    broken("max_kv_tokens", json!("many"));
    refused("decode_raw_data.json: invalid type: string \"many\", expected f64");
    broken("max_kv_tokens", json!(0));
    refused("gives no KV tokens at all");
    let contexts = case.decode["y_context_length"].as_array().unwrap().len();
    broken("y_context_length", json!(vec![0; contexts]));
    refused("y_context_length entry 0 is 0; every entry must be a finite number");
    let mut data = case.decode.clone();
    data.as_object_mut().unwrap().remove("z_itl");
    std::fs::write(&decode, data.to_string()).unwrap();
    refused("missing field `z_itl`");
}

#[test]
fn npz_data_is_preferred_to_json_data_on_each_side_alone() {
    let (_, case) = cases().into_iter().find(|(name, _)| name == "noisy-plane").unwrap();
    let both = npz_directory(&case.prefill, &case.decode);
    std::fs::write(both.path().join("prefill_raw_data.json"), "broken").unwrap();
    let npz = load(both.path()).unwrap();
    std::fs::remove_dir_all(both.path().join("selected_decode_interpolation")).unwrap();
    std::fs::write(both.path().join("decode_raw_data.json"), case.decode.to_string()).unwrap();
    assert_eq!(load(both.path()).unwrap(), npz);
}

#[test]
fn a_refused_profile_leaves_no_file() {
    let directory = TempDir::new().unwrap();
    let out = directory.path().join("out.npz");
    convert(directory.path(), &out).unwrap_err();
    assert!(!out.exists());
}

#[test]
fn a_profile_is_not_written_over_itself() {
    let (_, case) = cases().into_iter().find(|(name, _)| name == "noisy-plane").unwrap();
    let directory = json_directory(&case.prefill, &case.decode);
    let raw = directory.path().join("prefill_raw_data.json");
    let before = std::fs::read(&raw).unwrap();
    let error = convert(directory.path(), &raw).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("is the same file as the profile"), "{error}");
    assert_eq!(std::fs::read(&raw).unwrap(), before);
    let out = directory.path().join("out.npz");
    convert(directory.path(), &out).unwrap();
    let before = std::fs::read(&out).unwrap();
    convert(&out, &directory.path().join("./out.npz")).unwrap_err();
    assert_eq!(std::fs::read(&out).unwrap(), before);
}

fn axis() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::btree_set(0u32..5_000_000, 2..12).prop_map(|set| set.into_iter().map(f64::from).collect())
}

fn points() -> impl Strategy<Value = ProfilePoints> {
    (axis(), axis(), axis(), any::<u64>()).prop_map(|(isl, kv, context, seed)| {
        let mut state = seed;
        let mut times = |count: usize| -> Vec<f64> {
            let mut next = || {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                f64::from(u32::try_from(state >> 33).unwrap()) / 1e6
            };
            (0..count).map(|_| next()).collect()
        };
        ProfilePoints {
            prefill_ttft_ms: times(isl.len()),
            decode_itl: times(kv.len() * context.len()),
            prefill_isl: isl,
            decode_active_kv_tokens: kv,
            decode_context_length: context,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_saved_profile_predicts_the_same(
        points in points(),
        asked in proptest::collection::vec((1u32..200_000, 0u64..2_000_000, 1u32..200_000), 1..20),
    ) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("perf.npz");
        let profile = Profile::new(points).unwrap();
        save(&profile, &path).unwrap();
        let again = load(&path).unwrap();
        for (tokens, kv, context) in asked {
            prop_assert_eq!(again.prefill_ms(prefill(tokens)), profile.prefill_ms(prefill(tokens)));
            prop_assert_eq!(again.decode_ms(decode(kv, context)), profile.decode_ms(decode(kv, context)));
        }
        let bytes = std::fs::read(&path).unwrap();
        let copy = directory.path().join("copy.npz");
        prop_assert_eq!(convert(&path, &copy).unwrap(), profile);
        prop_assert_eq!(std::fs::read(&copy).unwrap(), bytes);
    }

    #[test]
    fn a_converted_directory_predicts_what_it_does_itself(
        case in 0usize..64,
        asked in proptest::collection::vec((1u32..200_000, 0u64..2_000_000, 1u32..200_000), 1..20),
    ) {
        let usable: Vec<_> = cases().into_iter().filter(|(_, case)| load(json_directory(&case.prefill, &case.decode).path()).is_ok()).collect();
        let (_, case) = &usable[case % usable.len()];
        let directory = json_directory(&case.prefill, &case.decode);
        let profile = load(directory.path()).unwrap();
        let path = directory.path().join("out.npz");
        convert(directory.path(), &path).unwrap();
        let again = load(&path).unwrap();
        for (tokens, kv, context) in asked {
            prop_assert_eq!(again.prefill_ms(prefill(tokens)), profile.prefill_ms(prefill(tokens)));
            prop_assert_eq!(again.decode_ms(decode(kv, context)), profile.decode_ms(decode(kv, context)));
        }
    }
}
