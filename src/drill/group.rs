//! Starts programs so that each ends with everything that it has started.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// Time to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// How often it is looked whether all of them have gone.
const LOOK: Duration = Duration::from_millis(10);

/// A program, its arguments behind it in `words`, that will lead a process group of its own, reads nothing, and says
/// everything to the file `log`.
///
/// # Errors
/// The log cannot be written.
pub(super) fn leader(words: &[String], log: &Path) -> io::Result<Command> {
    let output = File::create(log)?;
    let errors = output.try_clone()?;
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0);
    Ok(command)
}

/// Ends the process group that `child` leads: a command of [`leader`] has to have started it. Waits for it.
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
