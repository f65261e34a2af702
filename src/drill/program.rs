//! Runs the program of a load, and ends it: it has a process group of its own, and nothing of that outlives the drill.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::group;
use super::load::{Pace, Targets};
use super::record::ProgramRun;
use super::scenario::program::{Places, Program};
use super::tail::tail;

/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// A program that is told to end has so long to clean up.
const GRACE: Duration = Duration::from_secs(10);

/// The same where the drill itself is told to end, which must not wait long.
const SHORT_GRACE: Duration = Duration::from_secs(3);

/// Longest report.
const MAX_REPORT: u64 = 16 << 20;

/// All that running one takes.
pub(super) struct Job {
    pub(super) program: Program,
    pub(super) targets: Targets,
    pub(super) model: String,
    pub(super) seed: u64,
    /// The scenario's directory.
    pub(super) dir: PathBuf,
    /// Where its report and its output go.
    pub(super) scratch: PathBuf,
    /// The drill's start.
    pub(super) epoch: Instant,
    /// The drill's end has come.
    pub(super) over: CancellationToken,
}

/// Why a program is no longer waited for.
enum Ended {
    Itself,
    /// As the timeline says.
    Stopped,
    /// Too long after the drill's end.
    Late,
}

impl Job {
    fn path(&self, end: &str) -> PathBuf {
        let path = self.scratch.join(format!("{}.{end}", self.program.name));
        std::path::absolute(&path).unwrap_or(path)
    }

    fn places(&self) -> Result<Places, String> {
        let authority = self.targets.pick(0).ok_or("no worker with an HTTP face is alive")?;
        let dir = std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone());
        Ok(Places {
            values: [
                format!("http://{authority}"),
                self.program.model.clone().unwrap_or_else(|| self.model.clone()),
                self.path("json").display().to_string(),
                self.seed.to_string(),
                self.program.name.clone(),
                dir.display().to_string(),
            ],
        })
    }

    fn start(&self, run: &mut ProgramRun) -> Result<Running, String> {
        let places = self.places()?;
        run.words = self.program.words.iter().map(|word| places.fill(word)).collect();
        let env = self.program.env.iter().map(|(name, value)| (name, places.fill(value)));
        let child = group::leader(&run.words, &self.path("log"))
            .map_err(|error| format!("its output cannot be kept: {error}"))?
            .envs(env)
            .spawn();
        let child = child.map_err(|error| {
            format!(
                "cannot start {:?}: {error}; it is looked for from the directory that the drill runs in, and {{dir}} is the scenario's",
                run.words[0]
            )
        })?;
        Ok(Running { child, over: false })
    }

    fn now(&self) -> f64 {
        self.epoch.elapsed().as_secs_f64()
    }
}

/// Runs a program once, from when its load starts until it has ended; `None` if its load never starts.
pub(super) async fn run(job: Job, mut pace: watch::Receiver<Pace>) -> Option<ProgramRun> {
    loop {
        if pace.borrow_and_update().running {
            break;
        }
        tokio::select! {
            () = job.over.cancelled() => return None,
            changed = pace.changed() => changed.ok()?,
        }
    }
    let mut run = ProgramRun {
        name: job.program.name.clone(),
        started: job.now(),
        ..ProgramRun::default()
    };
    let mut running = match job.start(&mut run) {
        Ok(running) => running,
        Err(why) => {
            (run.how, run.failed, run.ended) = (why, true, job.now());
            return Some(run);
        }
    };
    let ended = tokio::select! {
        biased;
        ended = until_over(&job, &mut running) => ended,
        () = stopped(&mut pace, &job.over) => Ended::Stopped,
    };
    let status = running.end(GRACE).await;
    run.ended = job.now();
    tell(&job, &mut run, &ended, status);
    run.output = tail(&job.path("log"));
    Some(run)
}

async fn until_over(job: &Job, running: &mut Running) -> Ended {
    let mut deadline = None;
    loop {
        if running.has_ended() {
            return Ended::Itself;
        }
        if job.over.is_cancelled() {
            let by = *deadline.get_or_insert_with(|| Instant::now() + job.program.wait.duration());
            if Instant::now() >= by {
                return Ended::Late;
            }
        }
        tokio::select! {
            () = sleep(LOOK) => {}
            () = job.over.cancelled(), if deadline.is_none() => {}
        }
    }
}

/// Until its load is stopped before the drill's end, which stops every load.
async fn stopped(pace: &mut watch::Receiver<Pace>, over: &CancellationToken) {
    let told = pace.wait_for(|pace| !pace.running).await.is_ok();
    if !told || over.is_cancelled() {
        std::future::pending::<()>().await;
    }
}

/// How it ended, and what it reports.
fn tell(job: &Job, run: &mut ProgramRun, ended: &Ended, status: Option<ExitStatus>) {
    let status = status.map_or_else(|| "unknown status".to_owned(), |status| status.to_string());
    let by_itself = matches!(ended, Ended::Itself);
    run.how = match ended {
        Ended::Itself => status.clone(),
        Ended::Stopped => "ended when its load was stopped".to_owned(),
        Ended::Late => format!("ended {} after the drill's end (wait)", job.program.wait),
    };
    run.failed = by_itself && status != ExitStatus::default().to_string();
    if !job.program.reports() {
        return;
    }
    match read_report(&job.path("json")) {
        Ok(report) => run.report = Some(report),
        Err(why) => {
            run.how = format!("{}; {why}", run.how);
            run.failed |= by_itself;
        }
    }
}

fn read_report(path: &Path) -> Result<Value, String> {
    let file = File::open(path).map_err(|error| format!("it has left no report: {error}"))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_REPORT + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("its report cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_REPORT {
        return Err(format!("its report is longer than {MAX_REPORT} bytes"));
    }
    match serde_json::from_slice(&bytes) {
        Ok(report @ Value::Object(_)) => Ok(report),
        Ok(_) => Err("its report is no JSON object".to_owned()),
        Err(error) => Err(format!("its report is no JSON: {error}")),
    }
}

/// A program under way; it ends with this.
struct Running {
    child: Child,
    over: bool,
}

impl Running {
    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it has ended. It is not reaped: until then its id stays its own, and that of its group.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(self.group()), options), Ok(None))
    }

    fn signal(&self, signal: Signal) {
        // Fails only when nobody is left.
        let _ = kill_process_group(self.group(), signal);
    }

    /// Ends what is left of it, politely at first.
    async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        if !self.has_ended() {
            self.signal(Signal::TERM);
            let by = Instant::now() + grace;
            while !self.has_ended() && Instant::now() < by {
                sleep(LOOK).await;
            }
        }
        self.reap()
    }

    fn reap(&mut self) -> Option<ExitStatus> {
        self.signal(Signal::KILL);
        self.over = true;
        self.child.wait().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if !self.has_ended() {
            self.signal(Signal::TERM);
            let by = std::time::Instant::now() + SHORT_GRACE;
            while !self.has_ended() && std::time::Instant::now() < by {
                std::thread::sleep(LOOK);
            }
        }
        self.reap();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::drill::scenario::load::Target;
    use crate::drill::scenario::span::Span;

    struct Scene {
        folder: tempfile::TempDir,
        over: CancellationToken,
        pace: watch::Sender<Pace>,
        told: watch::Receiver<Pace>,
    }

    fn scene() -> Scene {
        let (pace, told) = watch::channel(Pace::on());
        Scene {
            folder: tempfile::tempdir().unwrap(),
            over: CancellationToken::new(),
            pace,
            told,
        }
    }

    impl Scene {
        fn job(&self, script: &str, wait: f64) -> Job {
            let words = ["sh", "-c", script, "{url}", "{report}", "{model}", "{seed}"];
            Job {
                program: Program {
                    name: "stub".into(),
                    words: words.map(str::to_owned).to_vec(),
                    env: BTreeMap::from([("DIR".to_owned(), "{dir}".to_owned())]),
                    start: Span(0.0),
                    stop: None,
                    wait: Span(wait),
                    target: Target::Router,
                    model: None,
                },
                targets: Targets::Router("127.0.0.1:9".into()),
                model: "tiny".into(),
                seed: 7,
                dir: "/some/dir".into(),
                scratch: self.folder.path().to_owned(),
                epoch: Instant::now(),
                over: self.over.clone(),
            }
        }

        async fn run(&self, script: &str, wait: f64) -> ProgramRun {
            run(self.job(script, wait), self.told.clone()).await.unwrap()
        }

        /// The first line of a file that the program writes.
        async fn line(&self, name: &str) -> String {
            loop {
                match std::fs::read_to_string(self.folder.path().join(name)) {
                    Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                    Ok(_) | Err(_) => sleep(LOOK).await,
                }
            }
        }
    }

    fn lives(pid: &str) -> bool {
        // A zombie that nobody has reaped yet is dead.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    #[tokio::test]
    async fn a_program_is_told_whom_to_ask_and_its_report_is_read() {
        let scene = scene();
        let script = r#"printf '{"url": "%s", "model": "%s", "n": %s, "dir": "%s"}' "$0" "$2" "$3" "$DIR" > "$1""#;
        let run = scene.run(script, 1.0).await;
        assert!(!run.failed, "{run:?}");
        let wanted = serde_json::json!({"url": "http://127.0.0.1:9", "model": "tiny", "n": 7, "dir": "/some/dir"});
        assert_eq!(run.report, Some(wanted));
        assert_eq!(run.figures(10), [("n".to_owned(), 7.0)]);
    }

    #[tokio::test]
    async fn a_program_that_fails_is_told_with_the_end_of_its_output() {
        let scene = scene();
        let run = scene.run("echo no such thing >&2; exit 4", 1.0).await;
        assert!(run.failed && run.how.contains("exit status: 4"), "{run:?}");
        assert_eq!(run.output, "no such thing");
        let run = scene.run("exit 0", 1.0).await;
        assert!(run.failed && run.how.contains("no report"), "{run:?}");
        let run = scene.run("echo '{\"a\":' > \"$1\"", 1.0).await;
        assert!(run.failed && run.how.contains("no JSON"), "{run:?}");
        let mut job = scene.job("", 1.0);
        job.program.words[0] = "/nowhere/program".into();
        let run = super::run(job, scene.told.clone()).await.unwrap();
        assert!(
            run.failed && run.how.contains("cannot start") && run.how.contains("{dir}"),
            "{run:?}"
        );
    }

    #[tokio::test]
    async fn a_program_that_goes_on_is_ended_with_all_that_it_started() {
        let scene = scene();
        // Deaf to the polite signal, and so is its child.
        let script = "trap '' TERM; sleep 600 & cd \"${1%/*}\"; echo $! > pid; wait; sleep 600";
        let job = scene.job(script, 0.0);
        let running = tokio::spawn(run(job, scene.told.clone()));
        let child = scene.line("pid").await;
        assert!(lives(&child));
        running.abort();
        assert!(running.await.is_err());
        // The kernel takes a moment to carry out what it was told.
        for _ in 0..250 {
            if !lives(&child) {
                return;
            }
            sleep(LOOK).await;
        }
        panic!("{child} outlives the program that was given up");
    }

    #[tokio::test]
    async fn the_drills_end_and_a_stop_end_it_and_what_it_reports_then_counts() {
        let scene = scene();
        let script =
            "trap 'echo {\\\"n\\\": 1} > \"$1\"; exit 1' TERM; echo up > \"${1%/*}/up\"; while :; do sleep 0.05; done";
        let running = tokio::spawn(run(scene.job(script, 0.0), scene.told.clone()));
        scene.line("up").await;
        scene.over.cancel();
        scene.pace.send_modify(|pace| pace.running = false);
        let late = running.await.unwrap().unwrap();
        assert!(!late.failed && late.how.contains("after the drill's end"), "{late:?}");
        assert_eq!(late.figures(1), [("n".to_owned(), 1.0)]);

        let scene = self::scene();
        let running = tokio::spawn(run(scene.job(script, 9.0), scene.told.clone()));
        scene.line("up").await;
        scene.pace.send_modify(|pace| pace.running = false);
        let stopped = running.await.unwrap().unwrap();
        assert!(!stopped.failed && stopped.how.contains("stopped"), "{stopped:?}");
        // A load that never starts has no program.
        scene.over.cancel();
        assert_eq!(run(scene.job(script, 9.0), scene.told.clone()).await, None);
    }
}
