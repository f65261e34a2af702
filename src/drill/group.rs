//! Ends a program with everything that it has started.

use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// Time to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// How often it is looked whether all of them have gone.
const LOOK: Duration = Duration::from_millis(10);

/// Ends the process group that `child` leads: it has to have been started with `process_group(0)`. Waits for it.
pub(super) fn end(child: &mut Child) {
    // The number stays the group's for as long as any process of it is there, its leader or not.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let begun = Instant::now();
        let mut is_there = kill_process_group(group, Signal::TERM).is_ok();
        while is_there && begun.elapsed() < GRACE {
            std::thread::sleep(LOOK);
            // A leader that is not waited for would keep the group there.
            let _ = child.try_wait();
            is_there = test_kill_process_group(group).is_ok();
        }
        if is_there {
            // Fails only when they have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
    let _ = child.wait();
}
