//! Verdicts, evidence, choices.

use ghostfleet::drill::record::Request;
use ghostfleet::drill::report::{document, junit, page};
use ghostfleet::drill::{DrillError, Front, Options, Report, Scenario, Status, Verdict, run};
use ghostfleet::faults::journal::Event;

use crate::scene::{run_with, scenario};

fn statuses(report: &Report) -> Vec<Status> {
    report.judgements.iter().map(|judgement| judgement.status).collect()
}

#[test]
fn a_healthy_fleet_passes_and_what_clients_saw_is_on_record() {
    let report = run_with(
        &scenario(
            "rate = 40\narrivals = \"fixed\"\nprompt_tokens = 40\noutput_tokens = 12",
            r#"
            [[check]]
            expect = "error_rate == 0"
            [[check]]
            expect = "completed >= 60"
            [[check]]
            expect = "max itl < 1s"
            [[check]]
            expect = "leaked anything == 0"
            [[check]]
            expect = "no request reaches w1"
            "#,
        ),
        1,
    );
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
    assert_eq!(statuses(&report)[4], Status::Skipped, "the load chose the workers");
    let record = &report.record;
    let is_whole = |request: &Request| request.tokens == 12 && request.is_judged;
    assert!(record.requests.iter().all(is_whole), "{:?}", record.requests.first());
    assert_eq!(record.notes, Vec::<String>::new(), "length and content were judged");
    let mut served: Vec<u32> = record
        .requests
        .iter()
        .flat_map(|request| request.workers.clone())
        .collect();
    assert_eq!(served.len(), record.requests.len(), "each request came to one worker");
    served.sort_unstable();
    served.dedup();
    assert_eq!(served, [0, 1, 2, 3]);
    assert_eq!(record.arrivals.len(), record.requests.len());
}

#[test]
fn a_fault_that_never_happens_is_told_in_every_report() {
    let report = run_with(
        &scenario(
            "concurrency = 4\nprompt_tokens = 40\noutput_tokens = 12",
            r#"
            [[at]]
            at = "500ms"
            mark = "odd"
            may_miss = true
            do = ["w0 crash p=0.000001", "w1 slow factor=2 for=500ms"]
            [[at]]
            at = "1500ms"
            mark = "clear"
            do = "faults clear"
            [[check]]
            expect = "error_rate == 0"
            "#,
        ),
        1,
    );
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
    let counts: Vec<(&str, bool)> = report.record.moments[0]
        .faults
        .iter()
        .map(|tally| (tally.line.as_str(), tally.happened > 0))
        .collect();
    assert_eq!(
        counts,
        [("w0 crash p=0.000001", false), ("w1 slow factor=2 for=500ms", true)]
    );
    assert_eq!(report.record.notes.len(), 1, "{:?}", report.record.notes);
    let (note, step) = (
        "step odd: w0 crash p=0.000001: this fault never happened",
        "w0 crash p=0.000001 (happened 0)",
    );
    let text = report.text();
    assert!(text.contains(&format!("note: {note}")) && text.contains(step), "{text}");
    let html = page(std::slice::from_ref(&report));
    assert!(html.contains(note) && html.contains(step), "{html}");
    let xml = junit(std::slice::from_ref(&report));
    assert!(xml.contains(&format!("<system-out>{note}")), "{xml}");
    let json = document(&report);
    assert!(json["notes"][0].as_str().unwrap().starts_with(note), "{json}");
    assert_eq!(json["moments"][0]["faults"][0]["happened"], 0);
}

#[test]
fn a_drill_whose_fault_never_happens_has_no_verdict_unless_it_may_miss() {
    let text = |may_miss: &str| {
        format!(
            "[[at]]\nat = \"500ms\"\nmark = \"odd\"\ndo = \"w0 crash p=0.000001\"\n{may_miss}\n[[check]]\nexpect = \"error_rate == 0\""
        )
    };
    let load = "rate = 10\nprompt_tokens = 40\noutput_tokens = 12";
    let report = run_with(&scenario(load, &text("")), 1);
    assert_eq!(report.verdict, Verdict::Error, "{}", report.text());
    let moment = &report.record.moments[0];
    assert!(
        moment.errors[0].contains("this fault never happened"),
        "{:?}",
        moment.errors
    );
    assert_eq!(moment.victims, Vec::<u32>::new(), "nobody was struck");
    let report = run_with(&scenario(load, &text("may_miss = true")), 1);
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
}

#[test]
fn a_fault_that_happens_while_the_drill_settles_has_happened() {
    let report = run_with(
        &scenario(
            "concurrency = 1\nrequests = 1\nstart = \"1500ms\"\nprompt_tokens = 40\noutput_tokens = 400",
            r#"
            [[at]]
            at = "500ms"
            do = "* response.cut tokens=300"
            [[check]]
            expect = "failed == 1"
            "#,
        ),
        1,
    );
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
    assert!(report.record.requests[0].ended > 2.0, "{:?}", report.record.requests);
    let tally = &report.record.moments[0].faults[0];
    assert_eq!((tally.asked, tally.happened), (1, 1));
    assert_eq!(report.record.notes, Vec::<String>::new());
}

#[test]
fn what_answers_consist_of_is_not_judged_where_no_client_can_know_it() {
    let plain = scenario(
        "rate = 10\nprompt_tokens = 40\noutput_tokens = 12",
        "[[check]]\nexpect = \"failed == 0\"",
    );
    let thinks = plain.fleet.text.replace(
        "num_workers = 4",
        "num_workers = 4\nreasoning = { start_thinking_token_id = 1001, end_thinking_token_id = 1002, thinking_ratio = 0.5 }",
    );
    let report = run_with(&Scenario::parse(&plain.path, &thinks).unwrap(), 1);
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
    let notes = &report.record.notes;
    assert!(
        notes.len() == 1 && notes[0].contains("was not looked at: answers begin with reasoning"),
        "{notes:?}"
    );
}

#[test]
fn a_fault_is_seen_by_checks_and_fails_the_drill() {
    let report = run_with(
        &scenario(
            "concurrency = 4\nprompt_tokens = 40\noutput_tokens = 12\nfirst_token_timeout = \"500ms\"",
            r#"
            [[at]]
            at = "500ms"
            mark = "cut"
            do = "w0-w1 response.cut tokens=3"
            [[at]]
            at = "1s"
            mark = "hang"
            do = ["heal w0-w1", "w2 hang"]
            [[check]]
            expect = "error_rate == 0 until 300ms"
            [[check]]
            expect = "failed(reset) == 0 after cut until hang"
            [[check]]
            expect = "failed(first_token_timeout) == 0 after hang"
            [[check]]
            expect = "victims == 2 after cut"
            [[check]]
            expect = "leaked anything == 0"
            "#,
        ),
        1,
    );
    assert_eq!(report.verdict, Verdict::Fail);
    let expected = [Status::Pass, Status::Fail, Status::Fail, Status::Pass, Status::Pass];
    assert_eq!(statuses(&report), expected, "{}", report.text());
    let hang = &report.record.moments[1];
    assert_eq!((hang.victims.as_slice(), hang.errors.len()), (&[2][..], 0));
}

/// Worker, number of the throw, whether it hit.
type Throw = (u32, u64, bool);

/// What was decided by dice: whom faults struck, and the first throws of each gate.
fn choices(report: &Report) -> (Vec<Vec<u32>>, Vec<Throw>) {
    let victims = report.record.moments.iter().map(|moment| moment.victims.clone());
    let mut draws: Vec<_> = report
        .record
        .journal
        .iter()
        .filter_map(|entry| {
            let Event::Drawn { worker, draw, hit, .. } = &entry.event else {
                return None;
            };
            (*draw < 5).then_some((worker.0, *draw, *hit))
        })
        .collect();
    draws.sort_unstable();
    (victims.collect(), draws)
}

#[test]
fn the_same_seed_makes_the_same_choices_and_another_seed_others() {
    let scenario = scenario(
        "rate = 60\nprompt_tokens = 40\noutput_tokens = 4\nrequests = 100",
        r#"
        [[at]]
        at = "100ms"
        do = ["* response.cut tokens=1 p=0.4", "random(2) slow factor=2"]
        [[at]]
        at = "1500ms"
        do = "kill random(2)"
        [[check]]
        expect = "requests >= 1"
        "#,
    );
    let (first, second, other) = (run_with(&scenario, 7), run_with(&scenario, 7), run_with(&scenario, 8));
    assert_eq!(choices(&first), choices(&second));
    assert_ne!(choices(&first), choices(&other));
    let (victims, draws) = choices(&first);
    assert_eq!(victims[1].len(), 2);
    assert!(draws.len() >= 10 && draws.iter().any(|draw| draw.2) && !draws.iter().all(|draw| draw.2));
}

#[test]
fn loads_change_as_the_timeline_says() {
    let report = run_with(
        &scenario(
            "name = \"probe\"\nrate = 10\narrivals = \"fixed\"\nprompt_tokens = 20\noutput_tokens = 2",
            r#"
            [[at]]
            at = "1s"
            mark = "more"
            do = "load probe rate=100"
            [[at]]
            at = "1500ms"
            mark = "none"
            do = "load probe stop"
            [[check]]
            expect = "requests <= 12 until more"
            [[check]]
            expect = "requests >= 25 after more until none"
            [[check]]
            expect = "requests == 0 after none + 100ms"
            "#,
        ),
        1,
    );
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
}

#[test]
fn a_drill_that_can_decide_nothing_is_refused() {
    let all_need_a_router = scenario("rate = 1", "[[check]]\nexpect = \"no request reaches w1\"");
    let error = run(&all_need_a_router, Options::default()).unwrap_err();
    assert!(
        matches!(error, DrillError::Input(_)) && error.exit_code() == 2,
        "{error}"
    );
    assert!(error.to_string().contains("--frontend"), "{error}");
}

#[test]
fn a_router_that_does_not_come_up_is_no_verdict() {
    let scenario = scenario("rate = 1", "[[check]]\nexpect = \"error_rate == 0\"");
    let frontend = ghostfleet::drill::scenario::server::Server::from_line("sh -c 'echo no such {port} >&2; exit 3'");
    let options = Options {
        front: Front::Instead(Some(frontend.unwrap())),
        ..Options::default()
    };
    let error = run(&scenario, options).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    let text = error.to_string();
    assert!(text.contains("has ended") && text.contains("no such "), "{text}");
}

#[test]
fn a_router_may_be_made_when_the_fleet_is_up() {
    // One of the workers' own faces is a router of a kind: it serves the model and answers.
    let mut scenario = scenario(
        "rate = 20\nprompt_tokens = 20\noutput_tokens = 2",
        "[[check]]\nexpect = \"requests reaching w2 >= 10\"",
    );
    scenario.fleet.keys.insert("http_port".into(), 0.into());
    let front = Front::Made(Box::new(|cluster, _| {
        let face = cluster.snapshot().workers[2].http.unwrap();
        Ok(format!("http://{face}"))
    }));
    let report = run(
        &scenario,
        Options {
            front,
            ..Options::default()
        },
    )
    .unwrap();
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.text());
    assert!(report.record.has_frontend);
}

#[test]
fn a_step_that_cannot_be_carried_out_leaves_no_verdict() {
    let scenario = scenario(
        "rate = 10\nprompt_tokens = 20\noutput_tokens = 2",
        r#"
        [[at]]
        at = "200ms"
        do = "kill w1"
        [[at]]
        at = "600ms"
        mark = "late"
        do = "drain w1"
        [[check]]
        expect = "failed == 0"
        "#,
    );
    let report = run_with(&scenario, 1);
    assert_eq!(report.verdict, Verdict::Error, "{}", report.text());
    let errors = &report.record.moments[1].errors;
    assert!(errors[0].contains("w1 is not alive"), "{errors:?}");
}

#[test]
fn a_step_that_strikes_what_is_not_there_is_refused_before_the_drill_begins() {
    for (step, words) in [
        ("w0 crash actor=r9", "actor=r9: no worker that w0 selects has it"),
        (
            "* panic actor=rendezvous",
            "actor=rendezvous: no worker that * selects has it",
        ),
        ("w0 never_ready", "only prefill workers have handoffs"),
        ("w0,w7 slow factor=2", "w7 selects no worker"),
        ("kill w1,w9-w12", "w9-w12 selects no worker"),
    ] {
        let scenario = scenario(
            "rate = 10\nprompt_tokens = 20\noutput_tokens = 2",
            &format!("[[at]]\nat = \"200ms\"\ndo = \"{step}\"\n[[check]]\nexpect = \"failed == 0\""),
        );
        let error = run(&scenario, Options::default()).unwrap_err();
        assert!(matches!(error, DrillError::Input(_)), "{error}");
        let error = error.to_string();
        assert!(error.contains(words) && error.contains(step), "{error}");
    }
}
