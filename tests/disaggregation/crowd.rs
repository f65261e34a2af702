//! Hundreds of handoffs while the rendezvous die under them.

use std::collections::BTreeMap;

use ghostfleet::actors::death::Death;

use crate::caller::{Answer, Outcome};
use crate::legs::{Handoff, Pair, end, prompt};
use crate::scene::Scene;

/// Prefill workers; the same number of decode workers follows.
const PAIRS: usize = 4;
/// Deaths of each rendezvous: as many as its supervisor makes good within a minute.
const DEATHS: u64 = 5;
/// Requests of each pair between two deaths.
const BURST: u32 = 20;

/// Threads of this process that do not sleep, this one left out.
fn awake() -> Vec<String> {
    let me = std::fs::read_link("/proc/thread-self").unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let others = tasks
        .filter_map(Result::ok)
        .filter(|task| Some(task.file_name().as_os_str()) != me.file_name());
    // A thread may end meanwhile.
    let stats = others.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    stats
        .filter(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')))
        .collect()
}

fn deaths(scene: &Scene, worker: usize) -> u64 {
    let path = format!("w{worker}/rendezvous");
    let deaths = scene.worker(worker).deaths;
    deaths
        .iter()
        .find(|death| death.path == path)
        .map_or(0, |death| death.deaths_total)
}

/// Both legs of one request to a pair, the decode leg first or the prefill leg.
fn both_legs(pair: &Pair, which: usize, request: u32, tokens: &[u32]) -> [Answer; 2] {
    let handoff = Handoff::new();
    let decode = || pair.decode_at(which, PAIRS + which, &handoff, tokens, 4);
    let prefill = || pair.prefill_at(which, &handoff, tokens);
    if request.is_multiple_of(2) {
        let decode = decode();
        [decode, prefill()]
    } else {
        let prefill = prefill();
        [decode(), prefill]
    }
}

#[test]
fn rendezvous_that_die_under_load_leave_no_request_hanging_and_no_thread_spinning() {
    let ports = ["0"; PAIRS].join(",");
    // Transfers of some milliseconds: handoffs die in every phase.
    let pair = Pair::groups(
        "kv_bytes_per_token = 100000\nkv_transfer_bandwidth = 1.0",
        &format!("num_workers = {PAIRS}\nbootstrap_ports = \"{ports}\""),
        &format!("num_workers = {PAIRS}"),
    );
    let mut ends: BTreeMap<bool, u64> = BTreeMap::new();
    for round in 1..=DEATHS {
        let mut legs = Vec::new();
        for request in 0..BURST {
            for which in 0..PAIRS {
                legs.extend(both_legs(&pair, which, request, &prompt(request, 30)));
            }
            if request == BURST / 2 {
                for which in 0..PAIRS {
                    let path = format!("w{which}/rendezvous");
                    pair.scene.cluster.kill(&path, Death::Crash).unwrap();
                }
            }
        }
        // Each leg comes to an end, whatever it met.
        for Outcome { complete, error, .. } in legs.into_iter().map(end) {
            assert!(complete);
            *ends.entry(error.is_none()).or_default() += 1;
        }
        pair.scene.until_nothing_is_left();
        // A rendezvous that spun instead of ending would never be seen to have died.
        pair.scene.until("every death is seen and made good", |scene| {
            (0..PAIRS).all(|which| deaths(scene, which) == round && scene.worker(which).restarts == round)
        });
    }
    let (well, failed) = (
        ends.get(&true).copied().unwrap_or(0),
        ends.get(&false).copied().unwrap_or(0),
    );
    assert_eq!(well + failed, DEATHS * u64::from(BURST) * PAIRS as u64 * 2);
    assert!(
        well > 0 && failed > 0,
        "some get through, some are struck: {well} and {failed}"
    );
    let snapshot = pair.scene.cluster.snapshot();
    for (worker, decode) in snapshot
        .workers
        .iter()
        .zip([false, true].into_iter().flat_map(|d| vec![d; PAIRS]))
    {
        let taken = DEATHS * u64::from(BURST);
        assert_eq!(worker.accepted_total, taken, "{}", worker.path);
        assert_eq!(worker.completed_total + worker.failed_total, taken, "{}", worker.path);
        let handoffs = worker.handoffs;
        if decode {
            assert_eq!(
                handoffs.completed_total + handoffs.failed_total,
                taken,
                "{}",
                worker.path
            );
        }
    }
    pair.scene.until("every thread sleeps", |_| awake().is_empty());
    // And the fleet works.
    for which in 0..PAIRS {
        let legs = both_legs(&pair, which, 0, &prompt(99, 30)).map(end);
        assert!(legs.iter().all(|leg| leg.error.is_none() && leg.complete), "{legs:?}");
    }
    pair.scene.until_nothing_is_left();
}
