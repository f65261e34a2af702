//! Drills that do not run to their end: what is told of them, and what becomes of the others.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::command::{Place, text};

/// Another scenario of the place, changed.
fn write(place: &Place, name: &str, changes: &[(&str, &str)]) {
    let mut scenario = place.read("x.toml");
    for (from, to) in changes {
        assert!(scenario.contains(from), "{from}");
        scenario = scenario.replace(from, to);
    }
    std::fs::write(place.path().join(name), scenario).unwrap();
}

/// Runs it until it says so.
fn begin(place: &Place, args: &[&str]) -> Child {
    let mut drill = place
        .command(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(drill.stderr.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains("running")),
        "the drill never runs"
    );
    // Whoever writes to a pipe that nobody reads may wait for ever.
    std::thread::spawn(move || lines.for_each(drop));
    drill
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args(["-s", name, pid]).status().unwrap().success());
}

/// Whether a process runs; one that has ended and that nobody has waited for does not.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default();
    !state.is_empty() && !state.starts_with('Z')
}

fn json(place: &Place) -> Value {
    serde_json::from_str(&place.read("o.json")).unwrap()
}

#[test]
fn a_drill_whose_frontend_does_not_start_is_an_error_in_every_report_and_the_next_one_runs() {
    let place = Place::new("== 0");
    let name = ("short & sweet", "no <router>");
    let router = ("[[load]]", "[frontend]\ncommand = \"no-such-router {port}\"\n[[load]]");
    write(&place, "a.toml", &[name, router]);
    let args = [
        "a.toml", "x.toml", "--json", "o.json", "--junit", "o.xml", "--html", "o.html", "--seed", "77",
    ];
    let output = place.drill(&args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for words in [
        "no <router>: cannot start",
        "no-such-router",
        ".venv/dynamo-1.6.1/bin:$PATH",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    assert!(text(&output.stdout).contains("short & sweet: PASS"));
    let json = json(&place);
    let error = json[0]["error"].as_str().unwrap();
    assert!(error.contains("no-such-router"), "{error}");
    assert_eq!((&json[0]["seed"], &json[1]["seed"]), (&77.into(), &77.into()));
    assert_eq!(
        (&json[0]["verdict"], &json[0]["name"]),
        (&"error".into(), &"no <router>".into())
    );
    assert_eq!((&json[1]["verdict"], &json[1]["error"]), (&"pass".into(), &Value::Null));
    let xml = place.read("o.xml");
    let suite = "<testsuite name=\"no &lt;router&gt;\" tests=\"1\" failures=\"0\" errors=\"1\"";
    assert!(
        xml.contains(suite) && xml.contains("<error message=\"cannot start"),
        "{xml}"
    );
    assert!(
        xml.contains("<testsuite name=\"short &amp; sweet\" tests=\"2\""),
        "{xml}"
    );
    let html = place.read("o.html");
    assert!(html.contains("no &lt;router&gt;: error</h2>") && !html.contains("NaN"));
}

#[test]
fn an_interrupted_drill_tells_what_it_saw_and_the_next_ones_are_not_run() {
    let place = Place::new("== 0");
    write(
        &place,
        "long.toml",
        &[("duration = \"1s\"", "duration = \"100s\"\nseed = 5")],
    );
    write(
        &place,
        "x.toml",
        &[("duration = \"1s\"", "duration = \"1s\"\nseed = 6")],
    );
    let mut drill = begin(&place, &["long.toml", "x.toml", "--json", "o.json", "--junit", "o.xml"]);
    signal("INT", &drill.id().to_string());
    assert_eq!(drill.wait().unwrap().code(), Some(130));
    let json = json(&place);
    assert_eq!(json[0]["error"], "the drill was interrupted");
    assert!(
        json[0]["duration_s"].as_f64().is_some_and(|s| 0.0 < s && s < 90.0),
        "{}",
        json[0]["duration_s"]
    );
    assert_eq!(json[1]["verdict"], "not_run");
    assert_eq!((&json[0]["seed"], &json[1]["seed"]), (&5.into(), &6.into()));
    let xml = place.read("o.xml");
    assert!(xml.contains("<error message=\"the drill was interrupted\">"), "{xml}");
    assert!(
        xml.contains("<skipped message=\"not run: the drill was interrupted\"/>"),
        "{xml}"
    );
}

#[test]
fn a_frontend_that_is_killed_ends_its_drill_with_what_was_seen() {
    let place = Place::new("== 0");
    // A worker's own face is a router of a kind: it lists the model and answers.
    let serve = format!(
        "echo $$ > pid; exec {} serve --config {} --num-workers 1 --discovery-backend mem --http-port {{port}}",
        env!("CARGO_BIN_EXE_ghostfleet"),
        crate::scene::drills().join("../quickstart.toml").display()
    );
    let router = format!("[frontend]\ncommand = [\"sh\", \"-c\", \"{serve}\"]\n[[load]]");
    let long = ("duration = \"1s\"", "duration = \"100s\"");
    write(&place, "long.toml", &[long, ("[[load]]", &router)]);
    let mut drill = begin(&place, &["long.toml", "x.toml", "--json", "o.json", "--junit", "o.xml"]);
    signal("KILL", place.read("pid").trim());
    assert_eq!(drill.wait().unwrap().code(), Some(1));
    let json = json(&place);
    let error = json[0]["error"].as_str().unwrap();
    assert!(error.contains("the frontend has ended (signal: 9"), "{error}");
    assert_eq!((&json[0]["workers"], &json[0]["frontend"]), (&2.into(), &true.into()));
    assert_eq!(json[1]["verdict"], "pass");
    let xml = place.read("o.xml");
    assert!(
        xml.contains("<error message=\"the frontend has ended (signal: 9"),
        "{xml}"
    );
}

#[test]
fn everything_that_a_frontend_command_has_started_ends_with_the_drill() {
    let place = Place::new("== 0");
    let router = "[frontend]\nready_within = \"1s\"\n\
        command = [\"sh\", \"-c\", \"sleep 1000 & echo $! > one; sleep 999 & echo $! > two; wait\", \"{port}\"]\n[[load]]";
    write(&place, "a.toml", &[("[[load]]", router)]);
    let output = place.drill(&["a.toml"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("not ready within 1 s") && stderr.contains("wrote nothing"),
        "{stderr}"
    );
    for name in ["one", "two"] {
        assert!(!runs(&place.read(name)), "{name} is still there");
    }
}

/// A server that is no router of this fleet: it lists no model.
fn stranger() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut reader = BufReader::new(socket.unwrap());
            let head = (&mut reader)
                .lines()
                .take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
            head.for_each(drop);
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{\"data\":[]}";
            // Whoever asked may be gone.
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn a_frontend_that_does_not_find_the_fleet_is_told_where_it_registers() {
    let place = Place::new("== 0");
    let store = place.path().join("store").display().to_string();
    let table = format!("[frontend]\nurl = {:?}\nready_within = \"500ms\"\n[[load]]", stranger());
    let table = ("[[load]]", table.as_str());
    write(&place, "file.toml", &[table, ("\"mem\"", "\"file\"")]);
    write(&place, "mem.toml", &[table]);
    for (name, words) in [
        (
            "file.toml",
            ["--discovery-backend file", store.as_str(), "--frontend-command"],
        ),
        ("mem.toml", ["mem", "use file or etcd", "does not list the model"]),
    ] {
        let mut drill = place.command(&[name]);
        let output = drill.env("DYN_FILE_KV", &store).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for words in words {
            assert!(stderr.contains(words), "{words}: {stderr}");
        }
    }
}

#[test]
fn a_missing_python_package_names_the_environment() {
    let place = Place::new("== 0");
    let router = "[frontend]\ncommand = [\"sh\", \"-c\", \"echo \\\"No module named 'dynamo'\\\"; exit 1\", \"{port}\"]\n[[load]]";
    write(&place, "a.toml", &[("[[load]]", router)]);
    let output = place.drill(&["a.toml"]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains(".venv/dynamo-1.6.1/bin:$PATH"), "{stderr}");
}

#[test]
fn steps_and_checks_about_workers_that_there_are_not_are_bad_input() {
    let place = Place::new("== 0");
    write(&place, "step.toml", &[("w0 slow factor=2", "w99 crash")]);
    write(&place, "check.toml", &[("spread < 9", "no request reaches w99")]);
    for name in ["step.toml", "check.toml"] {
        let output = place.drill(&[name]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("w99 selects no worker of this fleet"), "{stderr}");
    }
}

#[test]
fn a_step_that_cannot_be_carried_out_is_an_error_of_the_drill_and_no_failure_of_the_router() {
    let place = Place::new("> 50%");
    // Nobody is alive to be chosen.
    write(
        &place,
        "a.toml",
        &[("\"w0 slow factor=2\"", "[\"kill *\", \"drain random(1)\"]")],
    );
    let output = place.drill(&["a.toml", "--json", "o.json"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("step slow: drain random(1)"), "{stderr}");
    let json = json(&place);
    assert_eq!(json["verdict"], "error");
    assert_eq!(json["checks"].as_array().unwrap().len(), 2);
}

#[test]
fn checks_that_no_router_could_meet_or_fail_are_bad_input_before_anything_starts() {
    let place = Place::new("== 0");
    for (check, words) in [
        ("p99 ttft back under 2x within 300s", "does not fit in the drill"),
        ("error_rate == 0 after 2s", "its window is empty"),
        ("error_rate == 0 until slow + 9s", "the drill ends at 1 s"),
        ("victims == -1", "0 at least"),
        ("victims == 1.5", "whole number"),
        ("error_rate > 100%", "100% at most"),
        ("requests >= 0", "can never fail"),
        ("error_rate <= 100%", "can never fail"),
        ("failed(http_200) == 0", "no answer fails with 200"),
        ("error_rate == 0 over 100s", "without within"),
    ] {
        write(&place, "bad.toml", &[("spread < 9", check)]);
        let output = place.drill(&["bad.toml", "x.toml"]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{check}: {stderr}");
        assert!(stderr.contains(words) && stderr.contains(check), "{check}: {stderr}");
        assert!(output.stdout.is_empty(), "{check}: nothing runs");
    }
    let calm = [
        ("mark = \"slow\"", ""),
        ("do = \"w0 slow factor=2\"", "mark = \"calm\""),
        ("spread < 9", "p99 ttft < 2x"),
    ];
    write(&place, "calm.toml", &calm);
    let stderr = text(&place.drill(&["calm.toml"]).stderr);
    assert!(stderr.contains("nothing disturbs the fleet"), "{stderr}");
}
