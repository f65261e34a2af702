use super::*;
use crate::faults::select::KvEvents;

fn fleet() -> Vec<Candidate> {
    (0..4)
        .map(|id| Candidate {
            id: WorkerId(id),
            group: "a".to_owned(),
            labels: Vec::new(),
            alive: true,
            requests: u64::from(id),
            cached_blocks: 0,
            events: KvEvents::default(),
        })
        .collect()
}

fn ledger() -> Ledger {
    Ledger::new(1, Arc::new(Journal::new(|| SimTime::ZERO)))
}

fn at(ms: u64) -> SimTime {
    SimTime::of_nanos(ms * 1_000_000)
}

fn add(ledger: &mut Ledger, lines: &[&str], now: SimTime) -> Vec<FaultId> {
    let faults = lines.iter().map(|line| line.parse().unwrap()).collect();
    ledger.change(&[], faults, now, &fleet()).unwrap().0
}

fn phases(ledger: &Ledger) -> Vec<Phase> {
    ledger.list().iter().map(|listed| listed.phase).collect()
}

#[test]
fn a_fault_is_in_tables_for_its_window_only() {
    let mut ledger = ledger();
    add(&mut ledger, &["w1-w2 slow factor=2 from=1 to=3"], at(500));
    assert_eq!(ledger.next_due(), Some(at(1500)));
    assert_eq!(ledger.turn(at(1499), &fleet()), Turn::default());
    let turn = ledger.turn(at(1500), &fleet());
    assert_eq!(turn.touched, [WorkerId(1), WorkerId(2)].into());
    assert_eq!(
        (ledger.table(WorkerId(1)).len(), ledger.table(WorkerId(0)).len()),
        (1, 0)
    );
    assert_eq!(ledger.next_due(), Some(at(3500)));
    let turn = ledger.turn(at(3500), &fleet());
    assert_eq!(turn.touched.len(), 2);
    assert!(ledger.table(WorkerId(1)).is_empty());
    assert_eq!((phases(&ledger), ledger.next_due()), (vec![Phase::Over], None));
}

#[test]
fn the_hottest_worker_is_chosen_when_the_window_opens() {
    let mut ledger = ledger();
    add(&mut ledger, &["hottest crash from=1"], at(0));
    let mut later = fleet();
    later[0].requests = 100;
    let turn = ledger.turn(at(1000), &later);
    assert_eq!(turn.steps.len(), 1);
    assert_eq!(turn.steps[0].worker, WorkerId(0));
    assert_eq!(phases(&ledger), [Phase::Over]);
}

#[test]
fn changes_are_made_together_or_not_at_all() {
    let mut ledger = ledger();
    let [first] = add(&mut ledger, &["* slow factor=2"], at(0))[..] else {
        panic!()
    };
    let good = "w1 slow factor=3".parse::<Fault>().unwrap();
    let nobody = "w9 slow factor=3".parse::<Fault>().unwrap();
    let error = ledger.change(&[first], vec![good.clone(), nobody], at(0), &fleet());
    assert!(matches!(error, Err(FaultError::Nobody(_))));
    let error = ledger.change(&[first, FaultId(9)], vec![good.clone()], at(0), &fleet());
    assert_eq!(error, Err(FaultError::Unknown(FaultId(9))));
    assert_eq!(ledger.list().len(), 1);
    let (ids, _) = ledger.change(&[first], vec![good], at(0), &fleet()).unwrap();
    assert_eq!(ledger.list().iter().map(|l| l.id).collect::<Vec<_>>(), ids);
}

#[test]
fn handoffs_are_disturbed_where_they_are() {
    let mut ledger = ledger();
    let mut fleet = fleet();
    let never_ready = |line: &str| vec![line.parse::<Fault>().unwrap()];
    let error = ledger.change(&[], never_ready("* never_ready"), at(0), &fleet);
    assert!(matches!(error, Err(FaultError::Spared(..))), "{error:?}");
    fleet[1].labels.push(("role".to_owned(), "prefill".to_owned()));
    let error = ledger.change(&[], never_ready("w2 never_ready"), at(0), &fleet);
    assert!(matches!(error, Err(FaultError::Spared(..))), "{error:?}");
    // w3 is hotter, and has none.
    ledger
        .change(&[], never_ready("hottest never_ready"), at(0), &fleet)
        .unwrap();
    assert_eq!(ledger.turn(at(0), &fleet).touched, [WorkerId(1)].into());
}

#[test]
fn what_a_durable_stream_does_not_have_is_not_disturbed() {
    let mut ledger = ledger();
    let mut fleet = fleet();
    fleet[0].events = KvEvents::Durable;
    let add = |ledger: &mut Ledger, line: &str, fleet: &[Candidate]| {
        ledger.change(&[], vec![line.parse().unwrap()], at(0), fleet)
    };
    for kind in ["stale_epoch", "recovery_hanging", "duplicate_source"] {
        let error = add(&mut ledger, &format!("w0 {kind}"), &fleet).unwrap_err().to_string();
        assert!(
            error.contains("w0 selects no worker") && error.contains("JetStream"),
            "{error}"
        );
        add(&mut ledger, &format!("* {kind}"), &fleet).unwrap();
    }
    assert!(!ledger.turn(at(0), &fleet).touched.contains(&WorkerId(0)));
    add(&mut ledger, "w0 silent", &fleet).unwrap();
    assert_eq!(ledger.turn(at(0), &fleet).touched, [WorkerId(0)].into());
}

#[test]
fn workers_that_announce_nothing_are_not_told_to_announce_it_wrongly() {
    let mut ledger = ledger();
    let mut fleet = fleet();
    fleet[3].events = KvEvents::None;
    for kind in ["silent", "storm per_s=5", "recovery_hanging", "duplicate_source"] {
        let faults = |select: &str| vec![format!("{select} {kind}").parse().unwrap()];
        let error = ledger.change(&[], faults("w3"), at(0), &fleet).unwrap_err().to_string();
        assert!(error.contains("announces no KV blocks"), "{error}");
        // w3 is the hottest, and has nothing to be silent about.
        ledger.change(&[], faults("hottest"), at(0), &fleet).unwrap();
        assert_eq!(ledger.turn(at(0), &fleet).touched, [WorkerId(2)].into(), "{kind}");
    }
}

#[test]
fn a_flapping_worker_crashes_and_returns_until_its_window_closes_and_is_left_alive() {
    let mut ledger = ledger();
    add(&mut ledger, &["w1 flap up_ms=300 down_ms=100 to=1"], at(0));
    let mut seen = Vec::new();
    let mut now = at(0);
    loop {
        for step in ledger.turn(now, &fleet()).steps {
            seen.push((now.as_nanos() / 1_000_000, step.act.word()));
        }
        match ledger.next_due() {
            Some(next) => now = next,
            None => break,
        }
    }
    let expected = [
        (0, "crash"),
        (100, "restart"),
        (400, "crash"),
        (500, "restart"),
        (800, "crash"),
        (900, "restart"),
    ];
    assert_eq!(seen, expected);
    let mut ledger = self::ledger();
    add(&mut ledger, &["w1 flap up_ms=300 down_ms=500 to=0.2"], at(0));
    ledger.turn(at(0), &fleet());
    ledger.turn(at(200), &fleet());
    assert_eq!(
        ledger.turn(at(500), &fleet()).steps[0].act,
        Act::Restart { same_id: false }
    );
}

#[test]
fn a_fault_that_is_removed_brings_back_whom_it_has_taken_down() {
    for line in [
        "w1 flap up_ms=300 down_ms=500 same_id=true",
        "w1 crash restart_after_ms=500 same_id=true",
    ] {
        let mut ledger = ledger();
        let ids = add(&mut ledger, &[line, "w2 crash"], at(0));
        assert_eq!(ledger.turn(at(0), &fleet()).steps.len(), 2, "{line}");
        let (_, turn) = ledger.change(&ids, Vec::new(), at(100), &fleet()).unwrap();
        let restart = Step {
            fault: ids[0],
            worker: WorkerId(1),
            act: Act::Restart { same_id: true },
            is_deed: false,
        };
        assert_eq!(turn.steps, [restart], "{line}: w2 was to stay dead");
        assert_eq!(ledger.next_due(), None, "{line}");
    }
    // One that is up when its flap is removed stays up.
    let mut ledger = ledger();
    let ids = add(&mut ledger, &["w1 flap up_ms=300 down_ms=100"], at(0));
    ledger.turn(at(0), &fleet());
    ledger.turn(at(100), &fleet());
    let (_, turn) = ledger.change(&ids, Vec::new(), at(200), &fleet()).unwrap();
    assert_eq!((turn.steps, ledger.next_due()), (Vec::new(), None));
}

#[test]
fn a_flap_that_was_looked_at_late_does_not_make_good_for_the_beats_it_missed() {
    let mut ledger = ledger();
    add(&mut ledger, &["w1 flap up_ms=50 down_ms=50 to=60"], at(0));
    let words = |turn: Turn| turn.steps.iter().map(|step| step.act.word()).collect::<Vec<_>>();
    assert_eq!(words(ledger.turn(at(0), &fleet())), ["crash"]);
    assert_eq!(words(ledger.turn(at(30_000), &fleet())), ["restart"]);
    assert_eq!(ledger.next_due(), Some(at(30_050)));
    // When the window has closed nothing is left over.
    assert_eq!(words(ledger.turn(at(61_000), &fleet())), Vec::<&str>::new());
    assert_eq!((phases(&ledger), ledger.next_due()), (vec![Phase::Over], None));
    let error = "w1 flap up_ms=1 down_ms=50".parse::<Fault>().unwrap_err().to_string();
    assert!(error.contains("up_ms 1 must be at least 50"), "{error}");
}

#[test]
fn healing_takes_faults_off_a_worker_and_leaves_its_neighbours() {
    let mut ledger = ledger();
    add(&mut ledger, &["* slow factor=2", "w1 hang"], at(0));
    ledger.turn(at(0), &fleet());
    let turn = ledger.heal(&[WorkerId(1)]);
    assert_eq!(turn.touched, [WorkerId(1)].into());
    assert_eq!(ledger.table(WorkerId(1)).len(), 0);
    assert_eq!(ledger.table(WorkerId(2)).len(), 1);
    assert_eq!(phases(&ledger), [Phase::Open, Phase::Over]);
}

#[test]
fn what_strikes_by_chance_strikes_the_same_workers_again() {
    let struck = |seed: u64| {
        let mut ledger = ledger();
        let many: Vec<Candidate> = (0..100)
            .map(|id| Candidate {
                id: WorkerId(id),
                ..fleet().remove(0)
            })
            .collect();
        let fault = format!("* crash p=0.2 seed={seed}").parse().unwrap();
        ledger.change(&[], vec![fault], at(0), &many).unwrap();
        let steps = ledger.turn(at(0), &many).steps;
        steps.iter().map(|step| step.worker.0).collect::<Vec<_>>()
    };
    let first = struck(7);
    assert_eq!(first, struck(7));
    assert_ne!(first, struck(8));
    assert!((8..35).contains(&first.len()), "{first:?}");
}

#[test]
fn a_step_is_marked_where_its_fault_happens_with_it() {
    for (line, deeds) in [
        ("w1 crash restart_after_ms=0", vec![("crash", true), ("restart", false)]),
        ("w1 drain restart_after_ms=0", vec![("drain", true), ("restart", false)]),
        ("w1 restart", vec![("crash", false), ("restart", true)]),
        ("w1 panic", vec![("panic", true)]),
        ("w1 clear_cache", vec![("clear_cache", true)]),
    ] {
        let mut ledger = ledger();
        add(&mut ledger, &[line], at(0));
        let steps = ledger.turn(at(0), &fleet()).steps;
        let marked: Vec<_> = steps.iter().map(|step| (step.act.word(), step.is_deed)).collect();
        assert_eq!(marked, deeds, "{line}");
    }
    let mut ledger = ledger();
    add(&mut ledger, &["w1 flap up_ms=100 down_ms=100"], at(0));
    for (now, deed) in [(0, true), (100, false), (200, true)] {
        assert_eq!(ledger.turn(at(now), &fleet()).steps[0].is_deed, deed, "at {now}");
    }
}

#[test]
fn what_came_of_faults_is_known_when_they_are_listed_no_more() {
    let mut ledger = ledger();
    let many = KEPT_OVER as u64 + 44;
    let lines: Vec<&str> = (0..many).map(|_| "w1 crash").collect();
    let ids = add(&mut ledger, &lines, at(0));
    assert_eq!(ledger.turn(at(0), &fleet()).steps.len() as u64, many);
    // Whoever carries steps out still finds what counts them, and may be late.
    let first = ledger.struck(ids[0], WorkerId(1)).unwrap();
    ledger.struck(ids[1], WorkerId(1)).unwrap().note(true);
    ledger.turn(at(1), &fleet());
    assert_eq!(ledger.list().len(), KEPT_OVER);
    let sums = |asked| Sums {
        added: many,
        removed: 0,
        forgotten: 44,
        asked,
        happened: asked,
    };
    assert_eq!(ledger.sums(), sums(1));
    first.note(true);
    assert_eq!(ledger.sums(), sums(2));
    drop(first);
    ledger.turn(at(2), &fleet());
    assert!(ledger.bygone.is_settled());
    let last = ledger.counters().pop().unwrap();
    ledger.change(&ids[44..], Vec::new(), at(3), &fleet()).unwrap();
    last.1[0].note(true);
    let wanted = Sums {
        removed: KEPT_OVER as u64,
        ..sums(3)
    };
    assert_eq!(ledger.sums(), wanted);
}
