//! File work without a runtime and without waiting: the age of a file is set, not awaited.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::files::{Files, Moment};
use crate::transport::discovery::{DiscoveryError, Record};

const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "v1/instances/dynamo/backend/generate/2a";
const FILE: &str = "v1/instances/dynamo%2Fbackend%2Fgenerate%2F2a";

fn store() -> (tempfile::TempDir, Files) {
    let root = tempfile::tempdir().unwrap();
    let files = Files::open(root.path(), TTL).unwrap();
    (root, files)
}

fn record(key: &str, value: &str) -> Record {
    Record {
        key: key.into(),
        value: value.to_owned().into(),
    }
}

fn age(path: &PathBuf, age: Duration) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

/// So much later, on both clocks.
fn later(span: Duration) -> Moment {
    let now = Moment::now();
    Moment {
        wall: now.wall + span,
        steady: now.steady + span,
    }
}

fn names(directory: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_have_the_recorded_names_and_contents() {
    #[derive(serde::Deserialize)]
    struct Golden {
        key: String,
        file: String,
        value: String,
    }
    let golden: Vec<Golden> =
        serde_json::from_str(include_str!("../../../../tests/golden/discovery/mocker-1.4.2.json")).unwrap();
    let (root, mut files) = store();
    let lease = files.grant();
    let records: Vec<Record> = golden.iter().map(|golden| record(&golden.key, &golden.value)).collect();
    files.publish(&lease, &records).unwrap();
    for Golden { file, value, .. } in &golden {
        assert_eq!(&fs::read_to_string(root.path().join(file)).unwrap(), value);
    }
    let mut listed = files.list("v1/", Moment::now()).unwrap();
    let mut expected = records;
    expected.sort_by(|a, b| a.key.cmp(&b.key));
    listed.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(listed, expected);
}

#[test]
fn a_file_is_replaced_in_one_step_and_nothing_temporary_stays() {
    let (root, mut files) = store();
    let lease = files.grant();
    files.publish(&lease, &[record(KEY, "old")]).unwrap();
    let inode = fs::metadata(root.path().join(FILE)).unwrap().ino();
    files.publish(&lease, &[record(KEY, "new")]).unwrap();
    let replaced = fs::metadata(root.path().join(FILE)).unwrap();
    assert_ne!(
        replaced.ino(),
        inode,
        "written in place, where a watcher can see half of it"
    );
    assert_eq!(replaced.nlink(), 1);
    assert_eq!(fs::read(root.path().join(FILE)).unwrap(), b"new");
    assert_eq!(
        names(&root.path().join("v1/instances")),
        ["dynamo%2Fbackend%2Fgenerate%2F2a"]
    );
}

#[test]
fn touching_makes_every_file_of_the_lease_young_and_no_other() {
    let (root, mut files) = store();
    let lease = files.grant();
    files
        .publish(
            &lease,
            &[record(KEY, "a"), record("v1/mdc/dynamo/backend/generate/2a", "b")],
        )
        .unwrap();
    fs::write(root.path().join("v1/instances/x"), "{}").unwrap();
    let paths = [FILE, "v1/mdc/dynamo%2Fbackend%2Fgenerate%2F2a", "v1/instances/x"].map(|file| root.path().join(file));
    for path in &paths {
        age(path, TTL * 2);
    }
    assert!(files.touch(&lease).unwrap());
    assert_eq!(files.reap(Moment::now()).unwrap(), 1);
    assert_eq!(paths.map(|path| path.exists()), [true, true, false]);
}

#[test]
fn a_lease_with_a_reaped_file_is_lost_and_takes_its_other_files_along() {
    let (root, mut files) = store();
    let lease = files.grant();
    files
        .publish(&lease, &[record(KEY, "a"), record("v1/mdc/x", "b")])
        .unwrap();
    fs::remove_file(root.path().join(FILE)).unwrap();
    assert!(!files.touch(&lease).unwrap());
    assert!(!root.path().join("v1/mdc/x").exists());
    assert!(!files.touch(&lease).unwrap(), "lost once, lost for ever");
    assert!(matches!(
        files.publish(&lease, &[record(KEY, "a")]),
        Err(DiscoveryError::LeaseGone)
    ));

    let fresh = files.grant();
    files
        .publish(&fresh, &[record(KEY, "a"), record("v1/mdc/x", "b")])
        .unwrap();
    assert!(files.touch(&fresh).unwrap());
}

#[test]
fn revoking_removes_what_the_lease_still_holds() {
    let (root, mut files) = store();
    let (old, new) = (files.grant(), files.grant());
    files
        .publish(&old, &[record(KEY, "old"), record("v1/mdc/x", "old")])
        .unwrap();
    files.publish(&new, &[record(KEY, "new")]).unwrap();
    files.revoke(&old).unwrap();
    assert_eq!(fs::read(root.path().join(FILE)).unwrap(), b"new");
    assert!(!root.path().join("v1/mdc/x").exists());
    files.revoke(&old).unwrap();
    assert!(files.touch(&new).unwrap());
}

#[test]
fn withdrawn_keys_are_gone_and_do_not_end_the_lease() {
    let (root, mut files) = store();
    let lease = files.grant();
    files
        .publish(&lease, &[record(KEY, "a"), record("v1/mdc/x", "b")])
        .unwrap();
    files
        .withdraw(&[KEY.into(), "v1/instances/never-there".into()])
        .unwrap();
    assert!(!root.path().join(FILE).exists());
    assert!(files.touch(&lease).unwrap());
    assert!(root.path().join("v1/mdc/x").exists());
}

#[test]
fn a_dropped_lease_leaves_its_files_to_expire() {
    let (root, mut files) = store();
    let lease = files.grant();
    files.publish(&lease, &[record(KEY, "a")]).unwrap();
    drop(lease);
    assert_eq!(files.reap(Moment::now()).unwrap(), 0);
    assert!(root.path().join(FILE).exists());
    assert_eq!(files.reap(later(TTL + Duration::from_secs(1))).unwrap(), 1);
    assert!(!root.path().join(FILE).exists());
}

#[test]
fn the_reaper_spares_young_temporary_and_irregular_files() {
    let (root, mut files) = store();
    let instances = root.path().join("v1/instances");
    for name in ["stale", "young", ".tmp_0123456789abcdef"] {
        fs::write(instances.join(name), "{}").unwrap();
    }
    age(&instances.join("stale"), TTL + Duration::from_secs(1));
    age(&instances.join(".tmp_0123456789abcdef"), TTL * 100);
    age(&instances.join("young"), TTL / 2);
    fs::create_dir(instances.join("directory")).unwrap();
    symlink("/nowhere", instances.join("link")).unwrap();
    assert_eq!(files.reap(later(Duration::from_secs(1))).unwrap(), 1);
    assert_eq!(
        names(&instances),
        [".tmp_0123456789abcdef", "directory", "link", "young"]
    );
}

#[test]
fn listing_leaves_out_expired_files_and_names_that_no_store_writes() {
    let (root, mut files) = store();
    let lease = files.grant();
    let keys = [
        "v1/instances/a/b/c/1",
        "v1/instances/a/b/c/2",
        "v1/instances/a/x/c/1",
        "v1/mdc/a/b/c/1",
    ];
    files.publish(&lease, &keys.map(|key| record(key, "{}"))).unwrap();
    let stale = root.path().join("v1/instances/a%2Fb%2Fc%2F3");
    fs::write(&stale, "{}").unwrap();
    age(&stale, TTL * 2);
    for name in ["bad%zz", ".tmp_x"] {
        fs::write(root.path().join("v1/instances").join(name), "{}").unwrap();
    }
    let listed = |prefix: &str| -> Vec<String> {
        let records = files.list(prefix, Moment::now()).unwrap();
        records.into_iter().map(|record| record.key).collect()
    };
    assert_eq!(listed("v1/instances/"), &keys[..3]);
    assert_eq!(listed("v1/instances/a/b/"), &keys[..2]);
    assert_eq!(listed("v1/"), keys);
    assert_eq!(listed("v2/"), [""; 0]);
}

#[test]
fn a_deleted_root_loses_the_leases_and_is_made_again_by_the_next_record() {
    let (root, mut files) = store();
    let lease = files.grant();
    files.publish(&lease, &[record(KEY, "a")]).unwrap();
    fs::remove_dir_all(root.path()).unwrap();
    assert_eq!(files.reap(Moment::now()).unwrap(), 0);
    assert_eq!(files.list("v1/", Moment::now()).unwrap(), []);
    assert!(!files.touch(&lease).unwrap());
    let fresh = files.grant();
    files.publish(&fresh, &[record(KEY, "a")]).unwrap();
    assert!(root.path().join(FILE).exists());
}

#[test]
fn keys_that_are_no_record_or_too_long_are_refused() {
    let (_root, mut files) = store();
    let lease = files.grant();
    for key in ["", "v1/instances/", "v2/instances/x", "../v1/instances/x"] {
        let error = files.publish(&lease, &[record(key, "")]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("'{key}' is not below v1/instances/")),
            "{error}"
        );
    }
    let long = format!("v1/instances/{}", "/".repeat(86));
    let error = files.publish(&lease, &[record(&long, "")]).unwrap_err().to_string();
    assert!(error.contains("more than 255 bytes"), "{error}");
    files
        .publish(&lease, &[record(&format!("v1/instances/{}", "/".repeat(85)), "")])
        .unwrap();
}

#[test]
fn a_root_that_is_a_file_is_named_with_the_way_out() {
    let root = tempfile::NamedTempFile::new().unwrap();
    let error = Files::open(root.path(), TTL).unwrap_err().to_string();
    assert!(error.contains(root.path().to_str().unwrap()), "{error}");
    assert!(error.contains("a file is in the way"), "{error}");
}

#[test]
fn a_clock_that_jumps_ahead_costs_no_living_record() {
    let (root, mut files) = store();
    let lease = files.grant();
    files.publish(&lease, &[record(KEY, "ours")]).unwrap();
    let other = root.path().join("v1/instances/other");
    fs::write(&other, "{}").unwrap();
    assert_eq!(files.reap(Moment::now()).unwrap(), 0);
    let day = Duration::from_secs(24 * 3600);
    let jumped = |steady: Duration| Moment {
        wall: Moment::now().wall + day + steady,
        steady: Moment::now().steady + steady,
    };
    assert_eq!(files.reap(jumped(Duration::ZERO)).unwrap(), 0);
    assert!(root.path().join(FILE).exists() && other.exists());
    assert_eq!(files.list("v1/", jumped(Duration::ZERO)).unwrap().len(), 2);
    // Ours is touched in time, the other is not.
    assert!(files.touch(&lease).unwrap());
    assert_eq!(files.reap(jumped(TTL / 2)).unwrap(), 0);
    assert_eq!(files.reap(jumped(TTL * 9 / 10)).unwrap(), 0);
    drop(lease);
    assert_eq!(files.reap(jumped(TTL + Duration::from_secs(1))).unwrap(), 2);
}

#[test]
fn a_clock_that_is_set_back_does_not_keep_the_dead_alive() {
    let (root, mut files) = store();
    let lease = files.grant();
    files
        .publish(&lease, &[record(KEY, "dead"), record("v1/mdc/x", "dead")])
        .unwrap();
    assert_eq!(files.reap(Moment::now()).unwrap(), 0);
    drop(lease);
    let hour = Duration::from_secs(3600);
    let set_back = |steady: Duration| Moment {
        wall: Moment::now().wall.checked_sub(hour).unwrap(),
        steady: Moment::now().steady + steady,
    };
    assert_eq!(files.reap(set_back(TTL / 2)).unwrap(), 0);
    assert_eq!(files.reap(set_back(TTL + Duration::from_secs(1))).unwrap(), 2);
    assert!(!root.path().join(FILE).exists());
}

#[test]
fn a_lease_that_nobody_renews_runs_out_whatever_the_date_of_its_files() {
    let (root, mut files) = store();
    let lease = files.grant();
    files.publish(&lease, &[record(KEY, "a")]).unwrap();
    let file = fs::File::options().write(true).open(root.path().join(FILE)).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3600))
        .unwrap();
    assert_eq!(files.reap(later(TTL / 2)).unwrap(), 0);
    assert_eq!(files.reap(later(TTL + Duration::from_secs(1))).unwrap(), 1);
    assert!(!files.touch(&lease).unwrap());
}

#[test]
fn an_old_foreign_file_is_read_once_and_again_when_it_has_changed() {
    let (root, mut files) = store();
    let path = root.path().join("v1/instances/notes");
    let long_ago = SystemTime::now() - TTL * 3;
    let put = |content: &str, modified: SystemTime| {
        fs::write(&path, content).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
    };
    put("x ", long_ago);
    assert_eq!(files.reap(Moment::now()).unwrap(), 0);
    // Nothing tells that it is a record now, unless it is read again.
    put("{}", long_ago);
    assert_eq!(files.reap(Moment::now()).unwrap(), 0);
    put("{}", long_ago + TTL / 2);
    assert_eq!(files.reap(Moment::now()).unwrap(), 1);
}

#[test]
fn foreign_files_neither_show_up_nor_get_in_the_way() {
    let (root, mut files) = store();
    let instances = root.path().join("v1/instances");
    for (name, content) in [("a-stale", "{}"), ("z-stale", r#"{"a": 1}"#), ("notes.txt", "x")] {
        fs::write(instances.join(name), content).unwrap();
        age(&instances.join(name), TTL * 2);
    }
    fs::write(instances.join("not-a-name-%zz"), [0xff, 0xfe]).unwrap();
    fs::write(root.path().join("v1/mdc/huge"), vec![b'x'; 5 << 20]).unwrap();
    fs::write(root.path().join("v1/unknown-bucket"), "x").unwrap();
    assert_eq!(files.reap(Moment::now()).unwrap(), 2);
    assert_eq!(files.list("v1/", Moment::now()).unwrap(), []);
    for path in ["v1/unknown-bucket", "v1/instances/notes.txt"] {
        assert!(root.path().join(path).exists(), "not ours to delete: {path}");
    }
}
