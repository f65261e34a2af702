//! Loads that are programs.

use std::path::{Path, PathBuf};

use ghostfleet::drill::report::{document, junit, page};
use ghostfleet::drill::{Front, Options, Report, Scenario, Status, Verdict, run};

use crate::scene::{run_with, scenario};

/// A load generator of a few lines: asks three times, and reports in the words of `scripts/aiperf`.
const STUB: &str = r#"
import json, sys, time, urllib.request
url, model, report, seed = sys.argv[1:]
ask = {"model": model, "prompt": [300 + int(seed)] * 20, "max_tokens": 4, "ignore_eos": True}
spans, errors = [], 0
for _ in range(3):
    begun = time.monotonic()
    try:
        request = urllib.request.Request(url + "/v1/completions", json.dumps(ask).encode(), {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=5).read()
        spans.append(1e3 * (time.monotonic() - begun))
    except OSError as error:
        errors += 1
print("asked", url)
figures = {"requests": {"completed": len(spans), "errors": errors}, "e2e_ms": {"max": max(spans, default=None)}}
json.dump(figures, open(report, "w"))
sys.exit("nothing answered" if not spans else 0)
"#;

fn stub() -> String {
    format!("command = ['python3', '-c', '''{STUB}''', '{{url}}', '{{model}}', '{{report}}', '{{seed}}']")
}

/// With the probe that `scene` has.
fn with_program(load: &str, rest: &str) -> Scenario {
    scenario(
        "name = \"probe\"\nrate = 10\nprompt_tokens = 20\noutput_tokens = 2",
        &format!("[[load]]\nname = \"stub\"\n{load}\n{rest}"),
    )
}

fn statuses(report: &Report) -> Vec<Status> {
    report.judgements.iter().map(|judgement| judgement.status).collect()
}

#[test]
fn a_program_loads_the_fleet_and_its_figures_decide_checks() {
    let scenario = with_program(
        &format!("{}\ntarget = \"workers\"", stub()),
        r#"
        [[check]]
        expect = "stub.requests.completed == 3"
        [[check]]
        expect = "stub.requests.errors == 0"
        [[check]]
        expect = "stub.e2e_ms.max < 5s"
        [[check]]
        expect = "stub.e2e_ms.max < 1ms"
        [[check]]
        expect = "stub.requests.lost == 0"
        "#,
    );
    let report = run_with(&scenario, 3);
    let expected = [Status::Pass, Status::Pass, Status::Pass, Status::Fail, Status::Fail];
    assert_eq!(statuses(&report), expected, "{}", report.text());
    let [stub] = &report.record.programs[..] else {
        panic!("one program: {:?}", report.record.programs);
    };
    assert!(!stub.failed && stub.how == "exit status: 0", "{stub:?}");
    assert_eq!(stub.words[6], "3", "the seed of this run");
    // Its requests came to the fleet beside those of the probe.
    assert_eq!(report.record.arrivals.len(), report.record.requests.len() + 3);
    let json = document(&report);
    assert_eq!(json["programs"][0]["report"]["requests"]["completed"], 3);
    assert!(page(std::slice::from_ref(&report)).contains("<td>requests.completed</td><td>3</td>"));
    assert!(report.text().contains("requests.completed 3"), "{}", report.text());
}

#[test]
fn a_program_that_fails_fails_the_drill_and_shows_what_it_said() {
    let check = "[[check]]\nexpect = \"error_rate == 0\"";
    let line = "command = \"sh -c 'echo no tokenizer there; exit 2' {url}\"";
    let report = run_with(&with_program(line, check), 1);
    assert_eq!(statuses(&report), [Status::Pass]);
    assert_eq!(report.verdict, Verdict::Fail);
    for text in [report.text(), page(std::slice::from_ref(&report))] {
        assert!(
            text.contains("exit status: 2") && text.contains("no tokenizer there"),
            "{text}"
        );
    }
    let xml = junit(&[report]);
    assert!(xml.contains("errors=\"1\"") && xml.contains("exit status: 2"), "{xml}");
}

#[test]
fn a_program_without_end_is_ended_with_the_drill_or_by_the_timeline() {
    let check = "[[check]]\nexpect = \"error_rate == 0\"";
    let endless = "command = \"sh -c 'while :; do sleep 0.1; done' {url}\"";
    let report = run_with(&with_program(&format!("{endless}\nwait = \"0s\""), check), 1);
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
    assert!(report.record.programs[0].how.contains("after the drill's end"));
    let step = "[[at]]\nat = \"1s\"\nmark = \"enough\"\ndo = \"load stub stop\"";
    let report = run_with(&with_program(endless, &format!("{step}\n{check}")), 1);
    let stub = &report.record.programs[0];
    assert!(stub.how.contains("stopped") && stub.ended < 2.0, "{stub:?}");
}

#[test]
#[ignore = "needs AIPerf"]
fn aiperf_loads_a_drill_and_its_figures_decide_checks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python: PathBuf = root.join(".venv/aiperf-0.13.0/bin/python");
    let named = std::env::var_os("GHOSTFLEET_AIPERF");
    assert!(
        named.is_some() || python.exists(),
        "run scripts/setup --with aiperf, or name a Python with GHOSTFLEET_AIPERF"
    );
    let text = r#"
        [scenario]
        name = "aiperf"
        duration = "5s"
        [fleet]
        model_path = "../tiny-model"
        model_name = "tiny"
        num_workers = 2
        http_port = 0
        discovery_backend = "mem"
        timing_model = { type = "fixed", prefill_ms = 1.0, decode_ms = 2.0 }
        [[load]]
        name = "aiperf"
        wait = "5m"
        command = ["{dir}/../../scripts/aiperf", "--url", "{url}", "--model", "{model}", "--json", "{report}", "--",
            "--concurrency", "2", "--request-count", "12", "--isl", "64", "--osl", "8"]
        [[check]]
        expect = "aiperf.requests.completed == 12"
        [[check]]
        expect = "aiperf.requests.error_rate < 1%"
        [[check]]
        expect = "aiperf.ttft_ms.p99 < 5s"
        [[check]]
        expect = "aiperf.itl_ms.p50 < 1s"
        [[check]]
        expect = "leaked anything == 0"
    "#;
    let scenario = Scenario::parse(&root.join("config/drills/test.toml"), text).unwrap();
    // A worker's own HTTP face is a router of a kind: it serves the model and answers.
    let front = Front::Made(Box::new(|cluster, _| {
        let face = cluster.snapshot().workers[0].http.unwrap();
        Ok(format!("http://{face}"))
    }));
    let options = Options {
        front,
        ..Options::default()
    };
    let report = run(&scenario, options).unwrap();
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
}
