//! A file store as a fleet uses it: many leases at once, expiry in the background, disks and directories that fail.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ghostfleet::transport::discovery::{Discovery, DiscoveryConfig, DiscoveryError, FileOptions, Record, Renewal};

async fn connect(root: &Path, ttl: Duration) -> Discovery {
    let options = FileOptions {
        root: root.to_owned(),
        ttl,
        ..FileOptions::default()
    };
    Discovery::connect(&DiscoveryConfig::File(options))
        .await
        .expect("a writable directory")
}

fn records(worker: u32) -> Vec<Record> {
    ["v1/instances/", "v1/mdc/"]
        .map(|bucket| Record {
            key: format!("{bucket}n/c/e/{worker:x}"),
            value: "{}".into(),
        })
        .to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_live_and_go_one_by_one() {
    let root = tempfile::tempdir().unwrap();
    let discovery = connect(root.path(), Duration::from_secs(10)).await;
    let started = (0..64).map(|worker| {
        let discovery = discovery.clone();
        tokio::spawn(async move {
            let lease = discovery.open().await.unwrap();
            discovery.publish(&lease, &records(worker)).await.unwrap();
            let alive = discovery.renew(&lease).await.unwrap();
            assert_eq!(
                alive,
                Renewal::Alive {
                    ttl: Duration::from_secs(10)
                }
            );
            lease
        })
    });
    let mut leases = Vec::new();
    for started in started.collect::<Vec<_>>() {
        leases.push(started.await.unwrap());
    }
    assert_eq!(discovery.list("v1/").await.unwrap().len(), 128);
    assert_eq!(discovery.list("v1/mdc/").await.unwrap().len(), 64);

    discovery.close(leases.remove(0)).await.unwrap();
    let key = records(1)[0].key.clone();
    discovery.withdraw(&leases[0], &[key]).await.unwrap();
    assert_eq!(discovery.list("v1/instances/").await.unwrap().len(), 62);
    assert_eq!(discovery.list("v1/mdc/").await.unwrap().len(), 63);
    assert_eq!(
        discovery.renew(&leases[0]).await.unwrap(),
        Renewal::Alive {
            ttl: Duration::from_secs(10)
        }
    );
}

#[tokio::test]
async fn files_that_nobody_touches_expire_in_the_background() {
    let root = tempfile::tempdir().unwrap();
    let stale = root.path().join("v1/instances/stale");
    std::fs::create_dir_all(stale.parent().unwrap()).unwrap();
    std::fs::write(&stale, "{}").unwrap();
    let file = std::fs::File::options().write(true).open(&stale).unwrap();
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(11))
        .unwrap();

    let discovery = connect(root.path(), Duration::from_secs(10)).await;
    let lease = discovery.open().await.unwrap();
    discovery.publish(&lease, &records(1)).await.unwrap();
    // The store looks for expired files right at its start; nothing but the file itself tells of it.
    let gone = async {
        while stale.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    assert_eq!(discovery.list("v1/").await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_second_store_on_the_same_directory_sees_the_records_and_cannot_renew_them() {
    let root = tempfile::tempdir().unwrap();
    let (one, two) = (
        connect(root.path(), Duration::from_secs(10)).await,
        connect(root.path(), Duration::from_secs(10)).await,
    );
    let lease = one.open().await.unwrap();
    one.publish(&lease, &records(7)).await.unwrap();
    assert_eq!(two.list("v1/").await.unwrap(), one.list("v1/").await.unwrap());
    assert!(matches!(two.renew(&lease).await, Err(DiscoveryError::ForeignLease)));
    assert!(matches!(
        two.publish(&lease, &records(7)).await,
        Err(DiscoveryError::ForeignLease)
    ));
    assert!(matches!(two.close(lease).await, Err(DiscoveryError::ForeignLease)));
}

#[tokio::test]
async fn a_time_to_live_below_a_second_is_refused() {
    let options = FileOptions {
        root: std::env::temp_dir().join("never-made"),
        ttl: Duration::from_millis(999),
        ..FileOptions::default()
    };
    let error = Discovery::connect(&DiscoveryConfig::File(options))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("at least 1 s"), "{error}");
}

/// Names a directory to the part of a test that runs in a process of its own.
const INSIDE: &str = "GHOSTFLEET_TEST_DIRECTORY";

/// Runs the body of `test` in another process: this one again, behind `wrapper`, which is given the directory first.
fn elsewhere(test: &str, wrapper: &[&str], program: &Path, directory: &Path) {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(directory).arg(program);
    command.args(["--exact", test, "--include-ignored", "--nocapture"]);
    let output = command.env(INSIDE, directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{failed}");
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Runs a test on a file system of 256 KiB that only it sees.
fn on_a_small_disk(test: &str, body: impl AsyncFnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(INSIDE) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(body(Path::new(&directory)));
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=256k none \"$0\" && exec \"$@\"";
    let wrapper: &[&str] = if is_root() {
        &["unshare", "--mount", "sh", "-c", mount]
    } else {
        &["unshare", "--mount", "--map-root-user", "sh", "-c", mount]
    };
    elsewhere(test, wrapper, &std::env::current_exe().unwrap(), directory.path());
}

/// Runs a test as a user for whom permissions count.
fn as_a_plain_user(test: &str, body: impl AsyncFnOnce(&Path)) {
    let directory = tempfile::tempdir().unwrap();
    if !is_root() {
        let inside = std::env::var_os(INSIDE);
        let directory = inside.as_deref().map_or(directory.path(), Path::new);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(body(directory));
    }
    // The program may lie where only its owner can look.
    let program = directory.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let become_nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let wrapper = [&["setpriv"][..], &become_nobody, &["sh", "-c", "exec \"$@\""]].concat();
    elsewhere(test, &wrapper, &program, directory.path());
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Writes until nothing more fits.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

fn run(command: &str, arguments: &[&str]) {
    let done = Command::new(command).args(arguments).status().unwrap();
    assert!(done.success(), "{command} {arguments:?}");
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_full_disk_is_told_keeps_what_is_there_and_is_forgotten_when_it_has_room_again() {
    let test = "a_full_disk_is_told_keeps_what_is_there_and_is_forgotten_when_it_has_room_again";
    on_a_small_disk(test, async |disk| {
        let root = disk.join("kv");
        let discovery = connect(&root, Duration::from_secs(10)).await;
        let lease = discovery.open().await.unwrap();
        discovery.publish(&lease, &records(1)).await.unwrap();
        fill(&disk.join("fill"));
        let large = Record {
            key: "v1/mdc/n/c/e/2".to_owned(),
            value: vec![b'x'; 8192].into(),
        };
        let refused = discovery
            .publish(&lease, std::slice::from_ref(&large))
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("free some space"), "{refused}");
        let options = FileOptions {
            root: disk.join("other"),
            ..FileOptions::default()
        };
        let refused = Discovery::connect(&DiscoveryConfig::File(options)).await.unwrap_err();
        assert!(refused.to_string().contains("free some space"), "{refused}");
        // What is there lives on, and no half of anything stays.
        assert!(matches!(discovery.renew(&lease).await.unwrap(), Renewal::Alive { .. }));
        assert_eq!(discovery.list("v1/").await.unwrap(), records(1));
        assert_eq!(names(&root.join("v1/mdc")), ["n%2Fc%2Fe%2F1"]);
        std::fs::remove_file(disk.join("fill")).unwrap();
        discovery.publish(&lease, &[large]).await.unwrap();
        assert_eq!(discovery.list("v1/").await.unwrap().len(), 3);
    });
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_disk_that_is_full_at_the_start_is_waited_for_within_the_limit() {
    let test = "a_disk_that_is_full_at_the_start_is_waited_for_within_the_limit";
    on_a_small_disk(test, async |disk| {
        fill(&disk.join("fill"));
        let options = |room_limit| {
            DiscoveryConfig::File(FileOptions {
                root: disk.join("kv"),
                room_limit,
                ..FileOptions::default()
            })
        };
        let refused = Discovery::connect(&options(Duration::from_millis(300)))
            .await
            .unwrap_err();
        for words in ["free some space", "waited 0.3 s for room"] {
            assert!(refused.to_string().contains(words), "{refused}");
        }
        let patient = options(Duration::from_secs(60));
        let mut connecting = std::pin::pin!(Discovery::connect(&patient));
        let early = tokio::time::timeout(Duration::from_millis(300), &mut connecting).await;
        assert!(early.is_err(), "it waits");
        std::fs::remove_file(disk.join("fill")).unwrap();
        let discovery = connecting.await.unwrap();
        let lease = discovery.open().await.unwrap();
        discovery.publish(&lease, &records(1)).await.unwrap();
        assert_eq!(discovery.list("v1/").await.unwrap(), records(1));
    });
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_disk_that_turns_read_only_is_told_and_used_again_when_it_is_back() {
    let test = "a_disk_that_turns_read_only_is_told_and_used_again_when_it_is_back";
    on_a_small_disk(test, async |disk| {
        let discovery = connect(&disk.join("kv"), Duration::from_secs(10)).await;
        let lease = discovery.open().await.unwrap();
        discovery.publish(&lease, &records(1)).await.unwrap();
        let disk = disk.to_str().unwrap();
        run("mount", &["-o", "remount,ro", disk]);
        let refused = discovery.publish(&lease, &records(2)).await.unwrap_err();
        assert!(refused.to_string().contains("writable file system"), "{refused}");
        discovery.renew(&lease).await.unwrap_err();
        run("mount", &["-o", "remount,rw", disk]);
        assert!(matches!(discovery.renew(&lease).await.unwrap(), Renewal::Alive { .. }));
        discovery.publish(&lease, &records(2)).await.unwrap();
        assert_eq!(discovery.list("v1/").await.unwrap().len(), 4);
    });
}

#[test]
#[ignore = "needs to mount a file system: scripts/test"]
fn a_foreign_file_that_cannot_be_deleted_keeps_no_other() {
    let test = "a_foreign_file_that_cannot_be_deleted_keeps_no_other";
    on_a_small_disk(test, async |disk| {
        let bucket = disk.join("kv/v1/instances");
        std::fs::create_dir_all(&bucket).unwrap();
        for name in ["a", "b", "c"] {
            let path = bucket.join(name);
            std::fs::write(&path, "{}").unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let old = std::time::SystemTime::now() - Duration::from_secs(60);
            file.set_modified(old).unwrap();
        }
        // In use as a mount point, so that nobody can delete it.
        let held = bucket.join("a");
        run("mount", &["--bind", held.to_str().unwrap(), held.to_str().unwrap()]);
        let discovery = connect(&disk.join("kv"), Duration::from_secs(10)).await;
        let begun = Instant::now();
        while names(&bucket).len() > 1 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", names(&bucket));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(names(&bucket), ["a"]);
        let lease = discovery.open().await.unwrap();
        discovery.publish(&lease, &records(1)).await.unwrap();
        assert_eq!(discovery.list("v1/").await.unwrap(), records(1));
    });
}

#[test]
fn wrong_permissions_are_told_with_the_way_out_and_foreign_secrets_are_skipped() {
    let test = "wrong_permissions_are_told_with_the_way_out_and_foreign_secrets_are_skipped";
    as_a_plain_user(test, async |directory| {
        let locked = directory.join("locked");
        std::fs::create_dir(&locked).unwrap();
        mode(&locked, 0o555);
        let options = FileOptions {
            root: locked.join("kv"),
            ..FileOptions::default()
        };
        let refused = Discovery::connect(&DiscoveryConfig::File(options)).await.unwrap_err();
        let way_out = format!("make {} writable for this user", locked.display());
        assert!(refused.to_string().contains(&way_out), "{refused}");

        let root = directory.join("kv");
        let discovery = connect(&root, Duration::from_secs(10)).await;
        let lease = discovery.open().await.unwrap();
        discovery.publish(&lease, &records(1)).await.unwrap();
        let secret = root.join("v1/instances/secret");
        std::fs::write(&secret, "{}").unwrap();
        mode(&secret, 0);
        assert_eq!(discovery.list("v1/").await.unwrap(), records(1));

        mode(&root.join("v1/mdc"), 0o555);
        let refused = discovery.publish(&lease, &records(2)).await.unwrap_err();
        assert!(refused.to_string().contains("writable for this user"), "{refused}");
        assert!(matches!(discovery.renew(&lease).await.unwrap(), Renewal::Alive { .. }));
        mode(&root.join("v1/mdc"), 0o755);
        discovery.publish(&lease, &records(2)).await.unwrap();
        mode(&locked, 0o755);
    });
}

/// A fleet of two workers on this directory whose files live for a second.
fn fleet(root: &Path) -> ghostfleet::cluster::Cluster {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tiny-model");
    let flags = ["--model-path", model.to_str().unwrap(), "--discovery-backend", "file"];
    let flags = flags.into_iter().chain(["--file-kv", "unused", "--num-workers", "2"]);
    let mut config = ghostfleet::serve::config_from(flags, &std::collections::BTreeMap::new()).unwrap();
    config.discovery = DiscoveryConfig::File(FileOptions {
        root: root.to_owned(),
        ttl: Duration::from_secs(1),
        ..FileOptions::default()
    });
    ghostfleet::cluster::Cluster::start(&config).unwrap()
}

/// Ids of the instances that `generate`.
fn listed(root: &Path) -> std::collections::BTreeSet<u64> {
    let files = names(&root.join("v1/instances"));
    let generate = files.iter().filter_map(|name| name.split_once("generate%2F"));
    generate.map(|(_, id)| u64::from_str_radix(id, 16).unwrap()).collect()
}

#[test]
fn two_fleets_in_one_directory_come_and_go_without_each_other() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let ids = |cluster: &ghostfleet::cluster::Cluster| -> std::collections::BTreeSet<u64> {
        let workers = cluster.snapshot().workers;
        workers.iter().map(|worker| worker.instance_id).collect()
    };
    let until = |what: &str, expected: &std::collections::BTreeSet<u64>| {
        let begun = Instant::now();
        while listed(root) != *expected {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:?}", listed(root));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (polite, crashing, staying) = (fleet(root), fleet(root), fleet(root));
    let all = [&polite, &crashing, &staying].map(ids);
    until("all three are listed", &all.iter().flatten().copied().collect());
    polite.stop();
    until("one has said goodbye", &all[1..].iter().flatten().copied().collect());
    // Ends without a goodbye: the others take its files away when they have run out.
    drop(crashing);
    until("one has run out", &all[2]);
    assert_eq!(ids(&staying), all[2], "it kept its leases all the time");
    staying.stop();
    until("nobody is left", &std::collections::BTreeSet::new());
}
