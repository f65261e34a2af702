//! Changes as they happen: server-sent events.
//!
//! `names`: once, what the columns of samples mean. `entry`: one entry of the journal. `sample`: figures, every so often.
//! `lost`: the reader was too slow, and entries before the next one are gone. A reader pulls: nothing is queued for it, so
//! a slow one costs nothing but its connection, and one that takes nothing at all loses that, too.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::answer::{Asked, Problem};
use super::figures::{self, Each};
use super::routes::Api;
use super::seats::{MAX_READERS, Seat, TENURE};
use crate::actors::control::Control;
use crate::actors::latency::LatencyCounts;

/// Longest silence of a stream while nothing happens: a comment comes so often, and tells that the fleet is there.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// How often the journal is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Entries that are taken from the journal at a time.
const PAGE: usize = 256;

/// What a reader wants.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Journal position to go on from; default: what comes from now on.
    after: Option<u64>,
    /// Time between samples, ms; 0: none. Default 1000, at least 100.
    every_ms: Option<u64>,
    /// Samples list every worker.
    workers: Option<Each>,
    /// Entries include the dice.
    #[serde(default)]
    draws: bool,
}

struct Reader {
    control: Control,
    after: u64,
    every: Option<Duration>,
    next_sample: Instant,
    each: Each,
    /// Times up to the last sample, so that each tells of its own interval.
    latency: LatencyCounts,
    draws: bool,
    ready: VecDeque<Event>,
    seat: Seat,
}

pub(super) async fn live(State(api): State<Arc<Api>>, Asked(wanted): Asked<Wanted>) -> Response {
    let Some(seat) = api.seats.take(Instant::now()) else {
        let soon = TENURE.as_secs();
        let full =
            format!("{MAX_READERS} readers have begun to follow the fleet within {soon} s; close one, or come back");
        return Problem(StatusCode::SERVICE_UNAVAILABLE, full).into_response();
    };
    let every = wanted.every_ms.unwrap_or(1000);
    let mut ready = VecDeque::new();
    if wanted.workers == Some(Each::Columns) {
        ready.push_back(event("names", &figures::names(&api.control)));
    }
    let reader = Reader {
        after: wanted.after.unwrap_or_else(|| api.control.journal().last()),
        control: api.control.clone(),
        every: (every > 0).then(|| Duration::from_millis(every.clamp(100, 3_600_000))),
        next_sample: Instant::now(),
        each: wanted.workers.unwrap_or(Each::No),
        latency: figures::latency(&api.control),
        draws: wanted.draws,
        ready,
        seat,
    };
    let stream = futures::stream::unfold(reader, async |mut reader| {
        let event = reader.next().await?;
        Some((Ok::<_, Infallible>(event), reader))
    });
    Sse::new(stream)
        .keep_alive(KeepAlive::new().interval(HEARTBEAT))
        .into_response()
}

fn event(name: &str, data: &impl serde::Serialize) -> Event {
    let event = Event::default().event(name);
    // Numbers, strings and lists: there is nothing in it that JSON cannot say.
    event.json_data(data).unwrap_or_default()
}

impl Reader {
    /// `None`: its place is somebody else's.
    async fn next(&mut self) -> Option<Event> {
        while !self.seat.is_lost() {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.look();
            if self.ready.is_empty() {
                tokio::select! {
                    () = self.seat.lost() => return None,
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
        }
        None
    }

    fn look(&mut self) {
        let page = self.control.journal().page(self.after, PAGE, self.draws);
        if page.lost {
            self.ready.push_back(event("lost", &json!({"after": self.after})));
        }
        self.after = page.next;
        let entries = page
            .entries
            .iter()
            .map(|entry| event("entry", entry).id(entry.seq.to_string()));
        self.ready.extend(entries);
        let now = Instant::now();
        if let Some(every) = self.every
            && now >= self.next_sample
        {
            self.next_sample = now + every;
            let counts = figures::latency(&self.control);
            let latency = counts.since(&self.latency).figures();
            self.latency = counts;
            self.ready
                .push_back(event("sample", &figures::fleet(&self.control, self.each, latency)));
        }
    }
}
