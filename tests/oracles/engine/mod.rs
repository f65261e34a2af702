//! The engine core of the peer, pass by pass, and its replay, request by request.

mod crowd;
mod drive;
mod form;
mod handoff;
mod passes;
mod requests;

use form::Case;

#[test]
fn engine() {
    super::cases::run("engine", |name, case: Case| check(name, &case));
}

fn check(name: &str, case: &Case) {
    if let Some(expected) = &case.expected.engine_core_1_6_1 {
        passes::check(name, case, expected);
        handoff::check_commands(name, case, expected);
    }
    if let (Some(expected), Some(args)) = (&case.expected.dynamo_1_4_2, &case.engine_args) {
        requests::check(name, case, args, expected);
    }
    if let Some(expected) = &case.expected.dynamo_1_4_2 {
        handoff::check_pair(name, case, expected);
    }
}
