//! The `generate` endpoint of a worker: decode the request, dial back, submit, mind the stream.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Dialer;
use super::open::{OpenAnswer, OpenAnswers};
use super::sink::SocketSink;
use super::stream::{self, Ended};
use crate::faults::draw::Dice;
use crate::faults::kind::{RequestFault, ResponseFault};
use crate::faults::table::Due;
use crate::faults::{FaultId, WorkerFaults};
use crate::transport::held::{HeldRequest, HeldRequests, Hold};
use crate::transport::intake::{Failure, Intake, Leg, Refusal, Submission, TokenSink, next_request_id};
use crate::transport::request_plane::control::Control;
use crate::transport::request_plane::endpoint::{Call, Endpoint};
use crate::transport::request_plane::figures::{CallError, CallInFlight, EndpointFigures};
use crate::transport::request_plane::mending::Mending;
use crate::transport::request_plane::request::{Asked, PreprocessedRequest};
use crate::transport::request_plane::tcp::frame::Ack;
use crate::transport::toxic::Toxics;
use crate::types::{EngineRequest, RequestId, span_of_ms};

/// Streams of one worker, counted.
#[derive(Debug, Default)]
pub struct StreamCounts {
    /// Accepted calls whose response socket is not closed yet.
    pub open: AtomicU32,
    /// Accepted since start.
    pub accepted: AtomicU64,
    /// Ended as they should.
    pub completed: AtomicU64,
    /// Ended with an error that the client was told.
    pub failed: AtomicU64,
    /// Ended by the client or because of it.
    pub cancelled: AtomicU64,
    /// What Dynamo's runtime counts of them.
    pub figures: Arc<EndpointFigures>,
    /// Those under way.
    pub answers: OpenAnswers,
    /// Calls that faults keep from being served; those that are served later count as open, too.
    pub held: Arc<HeldRequests>,
}

struct Disturbance {
    faults: Arc<WorkerFaults>,
    mending: Arc<Mending>,
}

/// What becomes of a call.
enum Fate {
    /// It is looked at after a while.
    Served {
        /// Delay, and the fault behind it.
        delay: Option<Delay>,
        /// What is said now.
        ack: Ack,
    },
    /// Nothing but this; what it means for whoever waits, if anybody does.
    Lost(Ack, Option<(Hold, FaultId)>),
}

type Delay = (Duration, FaultId);

/// One worker's `generate`.
pub struct GenerateEndpoint {
    intake: Arc<dyn Intake>,
    counts: Arc<StreamCounts>,
    max_open: u32,
    dialer: Dialer,
    faults: Option<Disturbance>,
    disaggregated_params: Option<Arc<serde_json::Value>>,
}

impl GenerateEndpoint {
    /// An endpoint in front of `intake` that takes at most `max_open` requests at a time.
    pub fn new(intake: Arc<dyn Intake>, counts: Arc<StreamCounts>, max_open: u32, dialer: Dialer) -> Self {
        Self {
            intake,
            counts,
            max_open,
            dialer,
            faults: None,
            disaggregated_params: None,
        }
    }

    /// The same, asking for faults. `mending` ends what they do to connections.
    #[must_use]
    pub fn disturbed_by(mut self, faults: Arc<WorkerFaults>, mending: Arc<Mending>) -> Self {
        self.faults = Some(Disturbance { faults, mending });
        self
    }

    /// What faults make of a call.
    fn fate(&self) -> Fate {
        let disturbance = self.faults.as_ref();
        let Some(Disturbance { faults, mending }) = disturbance.filter(|it| !it.faults.is_quiet::<RequestFault>())
        else {
            return Fate::Served {
                delay: None,
                ack: Ack::Accepted,
            };
        };
        // Before the dice: a fault that ends in between ends this, too.
        let mended = mending.token();
        let due = faults.draw::<RequestFault>();
        let happens = |is_it: fn(&RequestFault) -> bool| {
            let fault = due.iter().find(|fault| is_it(fault));
            fault.inspect(|fault| fault.happened()).map(Due::id)
        };
        if happens(|fault| matches!(fault, RequestFault::ResetPeer {})).is_some() {
            return Fate::Lost(Ack::Reset, None);
        }
        if let Some(fault) = happens(|fault| matches!(fault, RequestFault::BlackHole {})) {
            return Fate::Lost(Ack::Withheld(mended), Some((Hold::Swallowed, fault)));
        }
        let ack = if happens(|fault| matches!(fault, RequestFault::AckWithheld {})).is_some() {
            Ack::Withheld(mended)
        } else {
            Ack::Accepted
        };
        if let Some(fault) = happens(|fault| matches!(fault, RequestFault::NoCallHome {})) {
            return Fate::Lost(ack, Some((Hold::NotDialled, fault)));
        }
        let mut delay = None;
        for fault in &due {
            if let RequestFault::Latency { ms, jitter_ms } = **fault {
                fault.happened();
                let draw = self.counts.accepted.load(Ordering::Relaxed);
                let ms = ms + jitter_ms * Dice::new(draw, 1).unit(0);
                delay = Some((span_of_ms(ms), fault.id()));
            }
        }
        Fate::Served { delay, ack }
    }

    /// The endpoint of a prefill worker: what its answers carry for the decode legs.
    #[must_use]
    pub fn of_prefill(mut self, disaggregated_params: serde_json::Value) -> Self {
        self.disaggregated_params = Some(Arc::new(disaggregated_params));
        self
    }

    async fn run(self: Arc<Self>, call: Call, open: OpenStream, delay: Option<Delay>) {
        let mut seat = None;
        if let Some((wait, fault)) = delay {
            let until = Instant::now() + wait;
            seat = Some(
                self.counts
                    .held
                    .hold(held(&call.control, Hold::Delayed { until }, fault)),
            );
            tokio::time::sleep_until(until).await;
        }
        let answer = self.counts.answers.begin(next_request_id(), &call);
        drop(seat);
        let ended = self.stream(call, &answer).await;
        self.counts.answers.end(answer.id);
        let counter = match &ended {
            Some((Ended::Complete, Told::Answer)) => &self.counts.completed,
            Some((Ended::Complete, Told::Error)) => &self.counts.failed,
            Some((Ended::Cancelled | Ended::Stalled | Ended::Broken | Ended::GivenUp | Ended::Refused(_), _))
            | None => &self.counts.cancelled,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let figures = &self.counts.figures;
        match ended {
            None => figures.count_error(CallError::ResponseStream),
            Some((Ended::Cancelled, _)) => figures.count_cancelled(),
            Some((Ended::Stalled | Ended::GivenUp, _)) => figures.count_error(CallError::PublishResponse),
            Some((Ended::Complete | Ended::Broken | Ended::Refused(_), _)) => {}
        }
        drop(open);
    }

    async fn stream(&self, Call { control, body, .. }: Call, answer: &OpenAnswer) -> Option<(Ended, Told)> {
        let decoded = PreprocessedRequest::decode(control.codec, &body);
        drop(body);
        let faults = self.faults.as_ref();
        let faults = faults.map_or_else(Vec::new, |disturbance| disturbance.faults.draw::<ResponseFault>());
        let (of_bytes, of_frames) = faults.into_iter().partition(|fault| fault.acts_on_bytes());
        let detour = Toxics::of(of_bytes).map(|toxics| (toxics, Dice::new(answer.id.0, 0)));
        let socket = match self.dialer.dial_by(control.address, detour).await {
            Ok(socket) => Arc::new(socket),
            Err(error) => {
                count_unreached(&control, &error);
                return None;
            }
        };
        let prompt_tokens = decoded.as_ref().map_or(0, |request| request.token_ids.len());
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        let asked = decoded
            .as_ref()
            .map_err(ToString::to_string)
            .and_then(PreprocessedRequest::asked)
            // A prefill leg has one token, whatever the client wants of the answer.
            .map(|asked| {
                if self.disaggregated_params.is_some() {
                    Asked::default()
                } else {
                    asked
                }
            });
        let sink = SocketSink::new(
            Arc::clone(&socket),
            (&control.subject, control.codec),
            prompt_tokens,
            asked.clone().unwrap_or_default(),
            self.disaggregated_params.clone(),
            &self.dialer.limits,
            of_frames,
        );
        answer.has_socket(&sink);
        let mut ids = Vec::with_capacity(1);
        let (submitted, kind) = match (decoded, asked) {
            (Ok(request), Ok(asked)) => {
                let submitted = self.submit((answer.id, request), &control.id, asked, &sink, &mut ids);
                (submitted, CallError::Generate)
            }
            (_, Err(error)) => (Err(Refusal::Invalid(error)), CallError::Deserialization),
            (Err(error), Ok(_)) => (Err(Refusal::Invalid(error.to_string())), CallError::Deserialization),
        };
        if let Err(refusal) = submitted {
            self.counts.figures.count_error(kind);
            tracing::debug!(request = %control.id, %refusal, "request failed on arrival");
            sink.failed(&match refusal {
                Refusal::Invalid(message) => Failure::InvalidRequest(message),
                // Both versions migrate a request that ends this way.
                Refusal::Overloaded | Refusal::Unavailable => Failure::ShuttingDown,
            });
        }
        // Handshake and prologue go out now, whenever the first token comes.
        sink.flush();
        let ended = stream::mind(&socket, &sink, &self.dialer.limits).await;
        self.counts.figures.count_sent(sink.sent_bytes());
        match &ended {
            // One of several answers may have failed while the others run.
            Ended::Complete if ids.len() > 1 => self.cancel(&ids),
            Ended::Complete | Ended::Broken => {}
            Ended::Cancelled | Ended::GivenUp => self.cancel(&ids),
            Ended::Refused(why) => {
                count_unreached(&control, &why);
                self.cancel(&ids);
                return None;
            }
            Ended::Stalled => {
                metrics::counter!("ghostfleet_streams_cancelled_total", "reason" => "stalled_reader").increment(1);
                tracing::warn!(address = %control.address, request = %control.id, "reader stalled; request cancelled");
                self.cancel(&ids);
            }
        }
        let told = if sink.has_failed() { Told::Error } else { Told::Answer };
        Some((ended, told))
    }

    /// Submits every answer that the request asks for, the first of them under the handle given. `ids`: those that were
    /// taken.
    fn submit(
        &self,
        (first_id, request): (RequestId, PreprocessedRequest),
        client_id: &str,
        asked: Asked,
        sink: &Arc<SocketSink>,
        ids: &mut Vec<RequestId>,
    ) -> Result<(), Refusal> {
        let leg = request.leg(client_id);
        let leg = leg.map_err(|error| Refusal::Invalid(error.to_string()))?;
        if matches!(leg, Leg::Met(_)) && asked.choices > 1 {
            let why = "n above 1 is not supported where prefill and decode workers meet; ask several times";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        let planned = request.wanted_answer().and_then(|name| self.intake.recorded(name));
        let seed = request.sampling_options.as_ref().and_then(|sampling| sampling.seed);
        let (first, mut dp_rank) = request.into_engine_request(first_id, client_id);
        let first = EngineRequest { planned, ..first };
        if asked.choices > 1 {
            // On one rank they share the prompt's blocks.
            dp_rank = Some(self.intake.choose_rank(dp_rank)?);
        }
        let mut first = Some(first);
        for choice in 0..asked.choices {
            let last = choice + 1 == asked.choices;
            let Some(mut request) = (if last { first.take() } else { first.clone() }) else {
                break;
            };
            if choice > 0 {
                request.id = next_request_id();
                request.key = crate::transport::intake::token_key(seed, client_id, choice as usize);
            }
            let id = request.id;
            let submitted = self.intake.submit(Submission {
                request,
                dp_rank,
                leg: leg.clone(),
                sink: sink.choice(choice),
            });
            if let Err(refusal) = submitted {
                self.cancel(ids);
                return Err(refusal);
            }
            ids.push(id);
        }
        Ok(())
    }

    fn cancel(&self, ids: &[RequestId]) {
        for id in ids {
            self.intake.cancel(*id);
        }
    }
}

impl Endpoint for GenerateEndpoint {
    fn accept(self: Arc<Self>, mut call: Call) -> Ack {
        if let Err(refusal) = self.intake.knock(&call.control.id) {
            return Ack::Overloaded(refusal.to_string());
        }
        if self.counts.open.load(Ordering::Relaxed) >= self.max_open {
            return Ack::Overloaded("worker at capacity".to_owned());
        }
        let (delay, ack) = match self.fate() {
            Fate::Served { delay, ack } => (delay, ack),
            Fate::Lost(ack, lost) => {
                if let Some((hold, fault)) = lost {
                    self.counts.held.lose(held(&call.control, hold, fault));
                }
                return ack;
            }
        };
        call.is_unacked |= matches!(ack, Ack::Withheld(_));
        let open = OpenStream::new(&self.counts, call.body.len());
        tokio::spawn(Arc::clone(&self).run(call, open, delay));
        ack
    }

    fn count_invalid(&self) {
        self.counts.figures.count_error(CallError::InvalidMessage);
    }
}

/// A call that is not served because of a fault.
fn held(control: &Control, hold: Hold, fault: FaultId) -> HeldRequest {
    HeldRequest::new(&control.id, control.address.to_string(), hold, fault)
}

struct OpenStream {
    counts: Arc<StreamCounts>,
    _call: CallInFlight,
}

/// What a client was told to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Answer,
    Error,
}

impl OpenStream {
    fn new(counts: &Arc<StreamCounts>, request_bytes: usize) -> Self {
        counts.open.fetch_add(1, Ordering::Relaxed);
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        Self {
            counts: Arc::clone(counts),
            _call: counts.figures.begin(request_bytes),
        }
    }
}

/// A response server to which no answer gets.
fn count_unreached(control: &Control, error: &dyn fmt::Display) {
    metrics::counter!("ghostfleet_call_home_failures_total").increment(1);
    tracing::warn!(address = %control.address, request = %control.id, %error, "cannot dial the response server");
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}
