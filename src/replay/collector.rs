//! Measurements of finished requests.

use crate::router::Target;
use crate::types::SimTime;

use super::flight::{AdmissionLog, Flight, RouteLog};
use super::record::{AdmissionRecord, RequestRecord, RoutingRecord, Terminal};
use super::report::Sla;
use super::series::Series;
use super::sketch::Sketch;
use super::source::Source;

/// Everything that the report is made of.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) arrived: u64,
    pub(crate) completed: u64,
    pub(crate) rejected: u64,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) reused: u64,
    pub(crate) first_reused: u64,
    pub(crate) prefilled: u64,
    pub(crate) last_completion: SimTime,
    pub(crate) ttft_ms: Vec<f64>,
    pub(crate) ttst_ms: Vec<f64>,
    pub(crate) tpot_ms: Vec<f64>,
    pub(crate) e2e_ms: Vec<f64>,
    pub(crate) itl_ms: Sketch,
    pub(crate) per_user: Sketch,
    pub(crate) good: u64,
    pub(crate) good_output_tokens: u64,
    sla: Sla,
    pub(crate) series: Option<Box<Series>>,
    records: Option<Vec<(SimTime, RequestRecord)>>,
    dp_size: u32,
    block_size: u32,
    /// Requests are routed to the decode side first.
    decode_first: bool,
}

/// A completed request, in the words of a policy's window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) input_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) ttft_ms: Option<f64>,
    pub(crate) tpot_ms: Option<f64>,
}

/// Nanoseconds as ms.
#[allow(clippy::cast_precision_loss)]
fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

impl Collector {
    pub(crate) fn set_sla(&mut self, sla: Sla) {
        self.sla = sla;
    }

    /// Keeps a record of every request of a fleet with so many ranks per worker and tokens per block, whose decode side may
    /// be asked first.
    pub(crate) fn keep_records(&mut self, dp_size: u32, block_size: u32, decode_first: bool) {
        self.decode_first = decode_first;
        self.dp_size = dp_size;
        self.block_size = block_size;
        self.records = Some(Vec::new());
    }

    /// Keeps what happens over time.
    pub(crate) fn keep_series(&mut self) {
        self.series = Some(Box::default());
    }

    pub(crate) fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Counts a gap between two tokens as often as `requests` says.
    pub(crate) fn gap(&mut self, nanoseconds: u64, requests: u64) {
        let gap = ms(nanoseconds);
        self.itl_ms.add(gap, requests);
        if nanoseconds > 0 {
            self.per_user.add(1000.0 / gap, requests);
        }
    }

    /// Takes in a request with all its tokens; `None` if it never ran.
    pub(crate) fn completed(&mut self, flight: &Flight, now: SimTime) -> Option<Sample> {
        self.last_completion = self.last_completion.max(now);
        flight.first_admit?;
        if let Some(series) = &mut self.series {
            series.completed(flight, now);
        }
        let mut sample = Sample {
            input_tokens: flight.turn.input_tokens,
            output_tokens: flight.tokens,
            ttft_ms: None,
            tpot_ms: None,
        };
        self.completed += 1;
        self.input_tokens += u64::from(flight.turn.input_tokens);
        self.output_tokens += u64::from(flight.tokens);
        self.reused += u64::from(flight.reused);
        self.first_reused += u64::from(flight.first_reused);
        for &gap in &flight.gaps {
            self.gap(gap, 1);
        }
        let Some(first) = flight.first_token else {
            return Some(sample);
        };
        let ttft = first.ms_since(flight.arrival);
        let e2e = flight.last_token.ms_since(flight.arrival);
        self.ttft_ms.push(ttft);
        self.e2e_ms.push(e2e);
        if let Some(second) = flight.second_token {
            self.ttst_ms.push(second.ms_since(first));
        }
        let tpot = (flight.tokens > 1).then(|| flight.last_token.ms_since(first) / f64::from(flight.tokens - 1));
        self.tpot_ms.extend(tpot);
        (sample.ttft_ms, sample.tpot_ms) = (Some(ttft), tpot);
        if self.sla.is_met(ttft, e2e, flight.tokens) {
            self.good += 1;
            self.good_output_tokens += u64::from(flight.tokens);
        }
        Some(sample)
    }

    /// A request ended: keeps its record, where records are wanted.
    pub(crate) fn record(&mut self, flight: &Flight, terminal: Terminal, now: SimTime, source: &dyn Source) {
        self.rejected += u64::from(terminal != Terminal::Completed);
        let Some(records) = &mut self.records else { return };
        let tag = flight.turn.tag;
        let time = |time: Option<SimTime>| time.map(SimTime::as_ms);
        let tokens = flight.first_token.map(|first| (first, flight.last_token));
        let itl = tokens
            .filter(|_| flight.tokens > 1)
            .map(|(first, last)| last.ms_since(first) / f64::from(flight.tokens - 1));
        let handoff = flight.handoff.as_deref();
        let index = |target: Target| target.worker * self.dp_size + target.rank;
        // Where a worker turns a request away it counts as nobody's.
        let target = flight.route.target.filter(|_| terminal != Terminal::Failed);
        let first_route = handoff.map_or(&flight.route, |handoff| &handoff.route);
        let block_size = self.block_size;
        let overlap_tokens = |route: &RouteLog| route.overlap.map_or(0, |(selected, _)| selected * block_size);
        let routing = |pool, route| routing(pool, route, self.dp_size, block_size);
        let session = source.tells_sessions().then(|| source.session_name(tag));
        let in_play = source.play_name(tag).is_some();
        let record = RequestRecord {
            turn_index: session.as_ref().filter(|_| !in_play).map(|_| flight.turn.turn),
            session_id: session,
            agentic: source.identity(tag),
            uuid: uuid(flight.ordinal),
            request_id: source.request_name(tag).map(str::to_owned),
            play_id: source.play_name(tag).map(str::to_owned),
            arrival_time_ms: flight.arrival.as_ms(),
            dispatched_at_ms: in_play.then(|| flight.sent_out.as_ms()),
            first_admit_ms: time(flight.first_admit),
            terminal_time_ms: now.as_ms(),
            first_token_ms: time(flight.first_token),
            last_token_ms: tokens.map(|(_, last)| last.as_ms()),
            ttft_ms: tokens.map(|(first, _)| first.ms_since(flight.arrival)),
            ttst_ms: tokens
                .zip(flight.second_token)
                .map(|((first, _), second)| second.ms_since(first)),
            e2e_latency_ms: tokens.map(|(_, last)| last.ms_since(flight.arrival)),
            itl_ms: itl,
            input_length: flight.turn.input_tokens,
            requested_output_length: flight.turn.output_tokens,
            output_length: flight.tokens,
            reused_input_tokens: handoff
                .and_then(|handoff| handoff.prefill_reused)
                .unwrap_or(flight.reused),
            first_admission_g1_reused_input_tokens: flight.admitted.first().and_then(AdmissionLog::gpu_reused),
            first_admission_host_reused_input_tokens: flight.admitted.first().and_then(|first| first.from_host),
            prefill_worker_idx: handoff.and_then(|handoff| handoff.route.target).map(index),
            decode_worker_idx: target.map(index),
            logical_worker_id: target.map(|target| target.worker),
            dp_rank: target.map(|target| target.rank),
            prefill_admit_ms: handoff.and_then(|handoff| time(handoff.prefill_admit)),
            source_held_ms: handoff.and_then(|handoff| time(handoff.source_held)),
            destination_reserved_ms: handoff.and_then(|handoff| time(handoff.destination_reserved)),
            destination_activated_ms: handoff.and_then(|handoff| time(handoff.destination_activated)),
            decode_admit_ms: handoff.and_then(|handoff| time(handoff.decode_admit)),
            source_released_ms: handoff.and_then(|handoff| time(handoff.source_released)),
            decode_reused_input_tokens: handoff.and_then(|handoff| handoff.decode_reused),
            prefill_route_overlap_tokens: handoff
                .filter(|handoff| handoff.route.was_asked())
                .map(|handoff| overlap_tokens(&handoff.route)),
            decode_route_overlap_tokens: handoff
                .filter(|_| flight.route.was_asked())
                .map(|_| overlap_tokens(&flight.route)),
            route_outcome: outcome(first_route),
            route_queue_wait_ms: wait_ms(first_route),
            selected_overlap_blocks: first_route.overlap.map(|(selected, _)| selected),
            best_available_overlap_blocks: first_route.overlap.map(|(_, best)| best),
            routing_history: match handoff {
                None => vec![routing("agg", &flight.route)],
                Some(handoff) => {
                    let mut routes = [("prefill", &handoff.route), ("decode", &flight.route)];
                    if self.decode_first {
                        routes.reverse();
                    }
                    let asked = routes.into_iter().filter(|(_, route)| route.was_asked());
                    asked.map(|(pool, route)| routing(pool, route)).collect()
                }
            },
            admission_history: admissions(flight),
            admission_count: flight.admissions,
            readmission_count: u32::try_from(flight.admitted.iter().filter(|admission| admission.again).count())
                .unwrap_or(u32::MAX),
            pressure_record_ordinals: Vec::new(),
            terminal_status: terminal,
        };
        records.push((flight.arrival, record));
    }

    /// Takes out of the records what Dynamo 1.4.2 leaves out of those of a single worker: session and worker.
    pub(crate) fn tell_less(&mut self) {
        for (_, record) in self.records.iter_mut().flatten() {
            (record.session_id, record.turn_index) = (None, None);
            record.decode_worker_idx = None;
        }
    }

    /// The records by name, those without by arrival.
    pub(crate) fn take_records(&mut self) -> Option<Vec<RequestRecord>> {
        let mut records = self.records.take()?;
        records.sort_by(|(a, left), (b, right)| {
            let by_name = left.request_id.cmp(&right.request_id);
            by_name.then(a.cmp(b)).then_with(|| left.uuid.cmp(&right.uuid))
        });
        Some(records.into_iter().map(|(_, record)| record).collect())
    }
}

fn outcome(route: &RouteLog) -> &'static str {
    if route.queued { "queued" } else { "immediate" }
}

/// Time in a router's queue.
fn wait_ms(route: &RouteLog) -> f64 {
    route.sent.map_or(0.0, |sent| sent.ms_since(route.asked))
}

fn routing(pool: &'static str, route: &RouteLog, dp_size: u32, block_size: u32) -> RoutingRecord {
    RoutingRecord {
        pool,
        outcome: outcome(route),
        queue_entered_at_ms: route.queued.then(|| route.asked.as_ms()),
        released_at_ms: route.sent.filter(|_| route.queued).map(SimTime::as_ms),
        queue_wait_ms: wait_ms(route),
        logical_worker_id: route.target.map(|target| target.worker),
        scheduler_id: route.target.map(|target| target.worker * dp_size + target.rank),
        dp_rank: route.target.map(|target| target.rank),
        reported_overlap_tokens: route.overlap.map_or(0, |(selected, _)| selected * block_size),
        selected_overlap_blocks: route.overlap.map(|(selected, _)| selected),
        best_available_overlap_blocks: route.overlap.map(|(_, best)| best),
        overlap_regret_blocks: route.overlap.map(|(selected, best)| best.saturating_sub(selected)),
        placement_replica_id: route.replica,
    }
}

/// Admissions in order, numbered over all pools and in each.
fn admissions(flight: &Flight) -> Vec<AdmissionRecord> {
    let mut of_pool = [0; 2];
    let record = |(ordinal, admission): (u32, &AdmissionLog)| {
        let count = &mut of_pool[usize::from(admission.prefill)];
        let pool_admission_ordinal = *count;
        *count += 1;
        AdmissionRecord {
            admission_ordinal: ordinal,
            pool_admission_ordinal,
            pool: match (admission.prefill, flight.handoff.is_some()) {
                (true, _) => "prefill",
                (false, true) => "decode",
                (false, false) => "agg",
            },
            at_ms: admission.at.as_ms(),
            reused_input_tokens: admission.reused,
            g1_reused_input_tokens: admission.gpu_reused(),
            host_reused_input_tokens: admission.from_host,
            is_readmission: admission.again,
        }
    };
    (0..).zip(&flight.admitted).map(record).collect()
}

/// A name of the usual form for a request: its number.
fn uuid(ordinal: u64) -> String {
    format!(
        "00000000-0000-0000-{:04x}-{:012x}",
        ordinal >> 48,
        ordinal & 0xffff_ffff_ffff
    )
}
