//! The command: exit codes and the files that it writes.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::scene::drills;

const SCENARIO: &str = r#"
    [scenario]
    name = "short & sweet"
    duration = "1s"
    [fleet]
    config = "CONFIG"
    num_workers = 2
    http_port = 0
    discovery_backend = "mem"
    timing_model = { type = "fixed", prefill_ms = 1.0, decode_ms = 1.0 }
    [[load]]
    rate = 30
    prompt_tokens = 20
    output_tokens = 4
    [[at]]
    at = "500ms"
    mark = "slow"
    do = "w0 slow factor=2"
    [[check]]
    expect = "error_rate EXPECTED"
    why = "nothing is wrong"
    [[check]]
    expect = "spread < 9"
"#;

/// A directory with a scenario.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new(expected: &str) -> Self {
        let place = TempDir::new().unwrap();
        let config = drills().join("../quickstart.toml").display().to_string();
        let text = SCENARIO.replace("EXPECTED", expected).replace("CONFIG", &config);
        std::fs::write(place.path().join("x.toml"), text).unwrap();
        Self(place)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ghostfleet"));
        command.arg("drill").args(args).current_dir(self.0.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["DYN_", "ETCD_", "NATS_", "GHOSTFLEET_"]
                .iter()
                .any(|lead| name.starts_with(lead))
            {
                command.env_remove(name);
            }
        }
        command
    }

    pub(crate) fn drill(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_drill_that_passes_exits_with_0_and_writes_its_reports() {
    let place = Place::new("== 0");
    let output = place.drill(&[
        "x.toml", "--seed", "9", "--json", "o.json", "--junit", "o.xml", "--html", "o.html",
    ]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{stdout}{}", text(&output.stderr));
    assert!(
        stdout.contains("short & sweet: PASS") && stdout.contains("skip  spread < 9"),
        "{stdout}"
    );
    let json: Value = serde_json::from_str(&place.read("o.json")).unwrap();
    assert_eq!((&json["verdict"], &json["seed"]), (&"pass".into(), &9.into()));
    assert_eq!(json["checks"][1]["status"], "skipped");
    assert_eq!(json["workers"], 2);
    assert_eq!(json["moments"][0]["victims"], serde_json::json!([0]));
    assert!(json["series"]["slices"].as_array().unwrap().len() >= 4);
    let xml = place.read("o.xml");
    assert!(
        xml.contains("<testsuite name=\"short &amp; sweet\" tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"1\""),
        "{xml}"
    );
    let html = place.read("o.html");
    assert!(html.contains("<svg") && html.contains("short &amp; sweet: pass</h2>") && html.contains(">slow</text>"));
    for outside in ["http://", "https://", "<script", "src="] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn a_drill_that_fails_exits_with_3_and_says_why() {
    let place = Place::new("> 50%");
    let output = place.drill(&["x.toml", "x.toml", "--junit", "o.xml"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{stdout}{}", text(&output.stderr));
    assert!(
        stdout.contains("FAIL  error_rate > 50%  0.00%; wanted > 50.00%"),
        "{stdout}"
    );
    assert!(stdout.contains("nothing is wrong"), "{stdout}");
    let xml = place.read("o.xml");
    assert_eq!(
        xml.matches("<failure message=\"0.00%; wanted &gt; 50.00%\">").count(),
        2,
        "{xml}"
    );
}

#[test]
fn bad_input_exits_with_2_and_names_the_way_out() {
    let place = Place::new("< 1%");
    std::fs::write(
        place.0.path().join("bad.toml"),
        place.read("x.toml").replace("rate = 30", "rat = 30"),
    )
    .unwrap();
    let fleet = place.read("x.toml").replace("num_workers", "num_wrokers");
    std::fs::write(place.0.path().join("fleet.toml"), fleet).unwrap();
    for (args, words) in [
        (&["bad.toml"][..], "did you mean `rate`?"),
        (&["fleet.toml"], "did you mean `num_workers`?"),
        (&["missing.toml"], "cannot be read"),
        (&["x.toml", "--frontend", "nowhere"], "http://host:port"),
        (&["x.toml", "--frontend-command", "router"], "{port}"),
        (
            &["x.toml", "--frontend", "http://x:1", "--no-frontend"],
            "cannot be used with",
        ),
    ] {
        let output = place.drill(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn reports_that_would_overwrite_each_other_or_a_scenario_are_refused_before_anything_runs() {
    let place = Place::new("== 0");
    let whole = place.read("x.toml");
    std::os::unix::fs::symlink("later", place.path().join("link")).unwrap();
    std::fs::write(place.path().join("there"), "kept").unwrap();
    std::fs::hard_link(place.path().join("there"), place.path().join("twin")).unwrap();
    let absolute = place.path().join("o").display().to_string();
    for (args, words) in [
        (
            &["--json", "o", "--junit", "o"][..],
            "--junit o is the same file as --json, which",
        ),
        (
            &["--json", "o", "--junit", "./o"],
            "--junit ./o is the same file as --json (o)",
        ),
        (
            &["--json", &absolute, "--html", "o"],
            "--html o is the same file as --json",
        ),
        (
            &["--junit", "link", "--html", "later"],
            "--html later is the same file as --junit (link)",
        ),
        (
            &["--junit", "there", "--html", "twin"],
            "--html twin is the same file as --junit (there)",
        ),
        (&["--json", "x.toml"], "--json x.toml is the same file as the scenario"),
        (&["--html", "./x.toml"], "is the same file as the scenario (x.toml)"),
    ] {
        let args: Vec<&str> = ["x.toml"].iter().chain(args).copied().collect();
        let output = place.drill(&args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: nothing runs");
    }
    assert!(!place.path().join("o").exists(), "nothing is made");
    assert_eq!((place.read("x.toml"), place.read("there")), (whole, "kept".to_owned()));
    let output = place.drill(&["x.toml", "--json", "/dev/null", "--junit", "/dev/null", "--html", "o"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_drill_that_is_told_to_end_ends_its_router_and_has_no_verdict() {
    let place = Place::new("< 1%");
    let router = "[frontend]\ncommand = [\"sh\", \"-c\", \"echo $$ > pid.new; mv pid.new pid; exec sleep 600 # {port}\"]\n[[load]]";
    let text = place.read("x.toml").replace("[[load]]", router);
    std::fs::write(place.0.path().join("x.toml"), text).unwrap();
    let mut drill = Command::new(env!("CARGO_BIN_EXE_ghostfleet"))
        .args(["drill", "x.toml", "--junit", "o.xml"])
        .current_dir(place.0.path())
        .spawn()
        .unwrap();
    let pid = place.0.path().join("pid");
    let begun = std::time::Instant::now();
    while !pid.exists() {
        assert!(begun.elapsed() < Duration::from_secs(40), "the router never starts");
        std::thread::sleep(Duration::from_millis(20));
    }
    let router = place.read("pid").trim().to_owned();
    let signal = |name: &str, pid: &str| Command::new("kill").args(["-s", name, pid]).status().unwrap().success();
    assert!(signal("TERM", &drill.id().to_string()));
    assert_eq!(drill.wait().unwrap().code(), Some(1));
    // A pid that is gone cannot be signalled.
    assert!(!signal("0", &router), "the router is still there");
    assert!(
        place
            .read("o.xml")
            .contains("<error message=\"the drill was told to end\">")
    );
}
