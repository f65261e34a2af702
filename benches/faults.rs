//! What a gate costs: with an empty table, with a table full of faults for other gates, with a fault of its own.
//!
//! ```console
//! $ cargo bench --bench faults
//! ```
//!
//! `an atomic load` is what an empty table should cost, measured beside it; `is_quiet` is all that a gate does which asks
//! that first.

#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use criterion::{Criterion, criterion_group, criterion_main};
use ghostfleet::faults::draw::Dice;
use ghostfleet::faults::kind::{DoorFault, EventFault, Kind, PassFault};
use ghostfleet::faults::table::OpenFault;
use ghostfleet::faults::{Fault, FaultId, Journal, Selector, WorkerFaults};
use ghostfleet::types::{SimTime, WorkerId};

fn table(kinds: impl IntoIterator<Item = Kind>) -> WorkerFaults {
    let table = WorkerFaults::new(WorkerId(0), Arc::new(Journal::new(|| SimTime::ZERO)));
    let open = kinds.into_iter().zip(1..).map(|(kind, id)| {
        let fault = Fault::new(Selector::all(), kind);
        Arc::new(OpenFault::new(FaultId(id), &fault, Dice::new(7, id)))
    });
    table.set(open.collect());
    table
}

fn gates(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate");
    let load = AtomicU32::new(0);
    group.bench_function("an atomic load", |b| b.iter(|| black_box(&load).load(Relaxed) & 4 == 0));
    let empty = table([]);
    group.bench_function("empty table, is_quiet", |b| {
        b.iter(|| black_box(&empty).is_quiet::<PassFault>());
    });
    group.bench_function("empty table", |b| b.iter(|| black_box(&empty).ask::<PassFault>()));
    assert_eq!(empty.looked(), 0, "an empty table is never looked into");
    let others = table((0..64).map(|_| EventFault::Drop {}.into()));
    group.bench_function("64 faults of other gates", |b| {
        b.iter(|| black_box(&others).ask::<PassFault>());
    });
    assert_eq!(others.looked(), 0, "faults of other gates are never looked at");
    let own = table([PassFault::Slow { factor: 2.0 }.into(), DoorFault::Refuse {}.into()]);
    group.bench_function("a fault of its own", |b| b.iter(|| black_box(&own).ask::<PassFault>()));
    group.finish();
}

criterion_group!(benches, gates);
criterion_main!(benches);
