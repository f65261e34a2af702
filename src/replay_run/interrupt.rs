//! Ctrl-C and SIGTERM: the first one ends a run early, a second one the process.
//!
//! While a workload is read there is no run yet that could end early, and the reader may wait for a pipe without end: then
//! the first one ends the process. Programs that plan end with it.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::RunError;
use super::outside;

/// Exit code of a process that a signal ended.
const INTERRUPTED: i32 = 130;
/// Between two looks at whether a reader began just behind the signal.
const LOOK: Duration = Duration::from_millis(20);

/// Workloads that are being read. Signals are the process's, and so is this.
static READING: AtomicUsize = AtomicUsize::new(0);

/// A replay that hears signals should end. As above.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Whether a signal wants the replay to end: for what waits where the run cannot be told.
pub(super) fn is_wanted() -> bool {
    WANTED.load(Ordering::SeqCst)
}

/// A workload is being read.
pub(super) struct Reading(());

impl Reading {
    pub(super) fn begin() -> Self {
        READING.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A flag that a first signal sets; a second one ends the process.
///
/// # Errors
/// [`RunError::Invalid`] when signals cannot be handled.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, RunError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let handlers = signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)));
        handlers.map_err(|error| unhandled(&error))?;
    }
    Ok(stop)
}

fn unhandled(error: &std::io::Error) -> RunError {
    RunError::Invalid(format!("cannot handle signals: {error}"))
}

/// A user's wish that one replay ends.
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    signals: Handle,
}

impl Interrupt {
    /// From now on signals are heard.
    ///
    /// # Errors
    /// As [`stop_flag`].
    pub(crate) fn new() -> Result<Self, RunError> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| unhandled(&error))?;
        let handle = signals.handle();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        std::thread::spawn(move || {
            if signals.forever().next().is_none() {
                // The replay is over.
                return;
            }
            flag.store(true, Ordering::SeqCst);
            WANTED.store(true, Ordering::SeqCst);
            while READING.load(Ordering::SeqCst) == 0 {
                if signals.pending().next().is_some() {
                    outside::end_all();
                    std::process::exit(INTERRUPTED);
                }
                if signals.is_closed() {
                    return;
                }
                std::thread::sleep(LOOK);
            }
            let said = "interrupted while the workload was read: nothing was replayed, and nothing is written";
            // Who does not read this still has the exit code.
            let _ = writeln!(std::io::stderr(), "error: {said}");
            outside::end_all();
            std::process::exit(INTERRUPTED);
        });
        Ok(Self { stop, signals: handle })
    }

    /// Whether a run should end.
    pub(crate) fn is_wanted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.signals.close();
        WANTED.store(false, Ordering::SeqCst);
    }
}
