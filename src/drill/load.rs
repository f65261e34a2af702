//! Carries a load out: an open loop or a closed one, and what became of each request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{self, Answer, Ask, failure};
use super::connections::Connections;
use super::content::{Content, Foretold};
use super::plan::Plan;
use super::record::{Failure, Request};
use super::scenario::load::Load;
use crate::types::Token;

/// A client of a closed loop whose request fails at once tries again no sooner than this.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// Whom loads ask.
#[derive(Debug, Clone)]
pub(super) enum Targets {
    /// A router at `host:port`.
    Router(String),
    /// HTTP faces of the workers that live, as of the last look.
    Workers(Arc<Mutex<Vec<SocketAddr>>>),
}

impl Targets {
    pub(super) fn pick(&self, number: u64) -> Option<String> {
        match self {
            Self::Router(authority) => Some(authority.clone()),
            Self::Workers(faces) => {
                let faces = faces.lock().unwrap_or_else(PoisonError::into_inner);
                let turn = usize::try_from(number).unwrap_or(0).checked_rem(faces.len())?;
                Some(faces[turn].to_string())
            }
        }
    }
}

/// What of a load can be changed while it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    pub(super) running: bool,
    pub(super) rate: f64,
    pub(super) concurrency: u32,
}

impl Pace {
    pub(super) fn of(load: &Load) -> Self {
        Self {
            running: false,
            rate: load.rate.unwrap_or(0.0),
            concurrency: load.concurrency.unwrap_or(0),
        }
    }

    /// Of a program, which has no pace but its own.
    pub(super) fn of_program() -> Self {
        Self {
            running: false,
            rate: 0.0,
            concurrency: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn on() -> Self {
        Self {
            running: true,
            ..Self::of_program()
        }
    }
}

/// What all requests of a load share.
pub(super) struct Shared {
    pub(super) position: usize,
    pub(super) load: Load,
    pub(super) model: String,
    pub(super) plan: Plan,
    pub(super) targets: Targets,
    /// What answers consist of; `None`: nobody knows it beforehand.
    foretold: Option<Foretold>,
    /// The drill's start.
    pub(super) epoch: Instant,
    pub(super) results: Arc<Mutex<Vec<Request>>>,
    /// Clients give up.
    pub(super) give_up: CancellationToken,
    pub(super) requests: TaskTracker,
    connections: Connections,
    next: AtomicU64,
    in_flight: AtomicU32,
}

impl Shared {
    pub(super) fn new(
        (position, load): (usize, Load),
        model: String,
        (plan, targets, foretold): (Plan, Targets, Option<Foretold>),
        epoch: Instant,
        results: Arc<Mutex<Vec<Request>>>,
        give_up: CancellationToken,
        requests: TaskTracker,
    ) -> Self {
        Self {
            position,
            connections: Connections::new(load.keep_alive),
            load,
            model,
            plan,
            targets,
            foretold,
            epoch,
            results,
            give_up,
            requests,
            next: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
        }
    }

    /// A number for the next request, while there are any left.
    fn number(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Relaxed);
        self.load.requests.is_none_or(|most| number < most).then_some(number)
    }

    fn body(&self, number: u64, is_foretold: bool) -> Bytes {
        let tokens = self.load.output_tokens;
        let prompt: Vec<Token> = self.plan.prompt(number);
        let mut body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": true,
            "seed": self.plan.seed(number),
            "stream": self.load.stream,
        });
        let mut extra_fields = vec!["worker_id", "timing"];
        match self.targets {
            Targets::Router(_) => extra_fields.extend(is_foretold.then_some("completion_token_ids")),
            Targets::Workers(_) => body["return_token_ids"] = is_foretold.into(),
        }
        body["nvext"] = json!({"extra_fields": extra_fields});
        if self.load.stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body.to_string().into()
    }

    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.epoch).as_secs_f64()
    }

    /// Sends a request and notes what became of it. Returns whether it went well.
    async fn run(&self, number: u64) -> bool {
        let sent = Instant::now();
        let length = (self.load.prompt_tokens, self.load.output_tokens);
        let content = |foretold| Content::new(foretold, self.plan.seed(number), length);
        let mut answer = Answer {
            content: self.foretold.clone().map(content),
            ..Answer::default()
        };
        match self.targets.pick(number) {
            None => answer.failure = Some(failure("connect", "no worker with an HTTP face is alive")),
            Some(authority) => {
                let ask = Ask {
                    authority,
                    body: self.body(number, answer.content.is_some()),
                    stream: self.load.stream,
                    tokens: Some(self.load.output_tokens),
                    first_token_timeout: self.load.first_token_timeout.duration(),
                    timeout: self.load.timeout.duration(),
                };
                self.in_flight.fetch_add(1, Relaxed);
                let over = tokio::select! {
                    () = client::ask(ask, &self.connections, &mut answer) => true,
                    () = self.give_up.cancelled() => false,
                };
                self.in_flight.fetch_sub(1, Relaxed);
                if !over {
                    answer.give_up(sent.elapsed());
                    answer.failure = Some(failure("unfinished", "the drill was over"));
                }
            }
        }
        let went_well = answer.failure.is_none();
        self.note(number, sent, answer);
        went_well
    }

    fn note(&self, number: u64, sent: Instant, answer: Answer) {
        let sent_at = self.seconds(sent);
        let after = |span: Duration| sent_at + span.as_secs_f64();
        let counted = answer.counted();
        let heard = answer.heard;
        let tokens = match (&answer.failure, counted) {
            (None, Some(tokens)) => tokens,
            (Some(_), _) | (None, None) => heard.texts,
        };
        let request = Request {
            load: self.position,
            number,
            sent: sent_at,
            first: answer.first.map(after),
            last: answer.last.map(after),
            ended: self.seconds(Instant::now()),
            tokens,
            is_counted: counted.is_some(),
            is_judged: answer.is_judged,
            gap: answer.gap.as_secs_f64(),
            failure: answer.failure,
            id: heard.id,
            instance: heard.instance,
            workers: Vec::new(),
            believed_hit: heard.believed_hit,
        };
        self.results
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request);
    }

    fn not_sent(&self, number: u64) {
        let many = self.load.max_in_flight;
        let answer = Answer {
            failure: Some(Failure {
                kind: "not_sent".to_owned(),
                detail: format!("{many} requests were under way already"),
            }),
            ..Answer::default()
        };
        self.note(number, Instant::now(), answer);
    }
}

/// Sends requests at a rate, however long answers take, until the pace's sender is gone.
pub(super) async fn open_loop(shared: Arc<Shared>, mut pace: watch::Receiver<Pace>) {
    let mut due = Instant::now();
    loop {
        let now = *pace.borrow_and_update();
        if !now.running {
            if pace.changed().await.is_err() {
                return;
            }
            due = Instant::now();
            continue;
        }
        tokio::select! {
            () = sleep_until(due) => {}
            changed = pace.changed() => {
                if changed.is_err() {
                    return;
                }
                // A new rate counts from now on.
                due = due.min(Instant::now() + Duration::from_secs_f64(1.0 / pace.borrow().rate.max(1e-3)));
                continue;
            }
        }
        let Some(number) = shared.number() else { return };
        // From when it was due, not from when the timer fired: lateness does not add up.
        due += shared.plan.gap(number, now.rate);
        if shared.in_flight.load(Relaxed) >= shared.load.max_in_flight {
            shared.not_sent(number);
            continue;
        }
        let own = Arc::clone(&shared);
        shared.requests.spawn(async move { own.run(number).await });
    }
}

/// Keeps so many clients busy, until the pace's sender is gone.
pub(super) async fn closed_loop(shared: Arc<Shared>, mut pace: watch::Receiver<Pace>) {
    let mut clients = 0;
    loop {
        let wanted = pace.borrow_and_update().concurrency;
        while clients < wanted {
            let (own, pace) = (Arc::clone(&shared), pace.clone());
            shared.requests.spawn(one_client(own, pace, clients));
            clients += 1;
        }
        if pace.changed().await.is_err() {
            return;
        }
    }
}

async fn one_client(shared: Arc<Shared>, mut pace: watch::Receiver<Pace>, index: u32) {
    loop {
        let now = *pace.borrow_and_update();
        if !now.running || index >= now.concurrency {
            if pace.changed().await.is_err() {
                return;
            }
            continue;
        }
        if pace.has_changed().is_err() {
            return;
        }
        let Some(number) = shared.number() else { return };
        if !shared.run(number).await {
            sleep(AFTER_FAILURE).await;
        }
    }
}
