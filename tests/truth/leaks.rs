//! Things that are held although nobody uses them.

use crate::admin::Admin;
use crate::caller::{call, chat};
use crate::command::ctl;

#[test]
fn what_a_request_holds_is_a_leak_until_it_has_ended() {
    let admin = Admin::start(&["--num-workers", "2"]);
    let (code, leaks, _) = ctl(&admin, &["leaks", "--for", "0"]);
    assert_eq!((code, &leaks["total"]), (0, &0.into()));
    let mut answer = call(&admin.scene.address(1), "held", &chat(&[1, 2, 3, 4, 5], 30_000)).unwrap();
    answer.read_tokens(1);
    let (code, leaks, error) = ctl(&admin, &["leaks", "--for", "0.1"]);
    assert_eq!(code, 3, "{leaks} {error}");
    assert_eq!(leaks["open_requests"], 1);
    assert!(
        error.contains("1 requests are still open") && !error.contains("leaked:"),
        "{error}"
    );
    assert_eq!(leaks["by_kind"]["streams"], 1);
    assert_eq!(leaks["by_kind"]["sequences"], 1);
    assert!(leaks["by_kind"]["blocks"].as_u64() >= Some(2), "{leaks}");
    let holders = leaks["leaks"].as_array().unwrap().iter();
    assert!(holders.clone().all(|leak| leak["holder"] == "w1"), "{leaks}");
    answer.say("kill");
    admin.scene.until_nothing_is_left();
    assert_eq!(ctl(&admin, &["leaks", "--for", "0"]).0, 0);
}
