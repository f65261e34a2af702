//! Measurements of finished requests.

use crate::types::SimTime;

use super::flight::Flight;
use super::record::{RequestRecord, Terminal};
use super::report::Sla;
use super::series::Series;
use super::sketch::Sketch;
use super::source::Source;

/// Everything that the report is made of.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    pub(crate) arrived: u64,
    pub(crate) completed: u64,
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

    /// Keeps a record of every request of a fleet with so many ranks per worker.
    pub(crate) fn keep_records(&mut self, dp_size: u32) {
        self.dp_size = dp_size;
        self.records = Some(Vec::new());
    }

    /// Keeps what happens over time.
    pub(crate) fn keep_series(&mut self) {
        self.series = Some(Box::default());
    }

    /// Counts a gap between two tokens as often as `requests` says.
    pub(crate) fn gap(&mut self, nanoseconds: u64, requests: u64) {
        let gap = ms(nanoseconds);
        self.itl_ms.add(gap, requests);
        if nanoseconds > 0 {
            self.per_user.add(1000.0 / gap, requests);
        }
    }

    /// Takes in a request with all its tokens.
    pub(crate) fn completed(&mut self, flight: &Flight, now: SimTime) {
        self.last_completion = self.last_completion.max(now);
        if flight.first_admit.is_none() {
            return;
        }
        if let Some(series) = &mut self.series {
            series.completed(flight, now);
        }
        self.completed += 1;
        self.input_tokens += u64::from(flight.turn.input_tokens);
        self.output_tokens += u64::from(flight.tokens);
        self.reused += u64::from(flight.reused);
        self.first_reused += u64::from(flight.first_reused);
        for &gap in &flight.gaps {
            self.gap(gap, 1);
        }
        let Some(first) = flight.first_token else { return };
        let ttft = ms(first.0 - flight.arrival.0);
        let e2e = ms(flight.last_token.0 - flight.arrival.0);
        self.ttft_ms.push(ttft);
        self.e2e_ms.push(e2e);
        if let Some(second) = flight.second_token {
            self.ttst_ms.push(ms(second.0 - first.0));
        }
        let tpot = (flight.tokens > 1).then(|| ms(flight.last_token.0 - first.0) / f64::from(flight.tokens - 1));
        self.tpot_ms.extend(tpot);
        if self.sla.is_met(ttft, e2e, flight.tokens) {
            self.good += 1;
            self.good_output_tokens += u64::from(flight.tokens);
        }
    }

    /// Keeps the record of a request, where records are wanted.
    pub(crate) fn record(&mut self, id: u64, flight: &Flight, terminal: Terminal, now: SimTime, source: &dyn Source) {
        let Some(records) = &mut self.records else { return };
        let tag = flight.turn.tag;
        let time = |time: Option<SimTime>| time.map(SimTime::as_ms);
        let tokens = flight.first_token.map(|first| (first, flight.last_token));
        let itl = tokens
            .filter(|_| flight.tokens > 1)
            .map(|(first, last)| ms(last.0 - first.0) / f64::from(flight.tokens - 1));
        let record = RequestRecord {
            session_id: source.session_name(tag),
            turn_index: flight.turn.turn,
            uuid: uuid(id),
            request_id: source.request_name(tag).map(str::to_owned),
            play_id: source.play_name(tag).map(str::to_owned),
            arrival_time_ms: flight.arrival.as_ms(),
            dispatched_at_ms: time(flight.dispatched),
            first_admit_ms: time(flight.first_admit),
            terminal_time_ms: now.as_ms(),
            first_token_ms: time(flight.first_token),
            last_token_ms: tokens.map(|(_, last)| last.as_ms()),
            ttft_ms: tokens.map(|(first, _)| ms(first.0 - flight.arrival.0)),
            ttst_ms: tokens
                .zip(flight.second_token)
                .map(|((first, _), second)| ms(second.0 - first.0)),
            e2e_latency_ms: tokens.map(|(_, last)| ms(last.0 - flight.arrival.0)),
            itl_ms: itl,
            input_length: flight.turn.input_tokens,
            requested_output_length: flight.turn.output_tokens,
            output_length: flight.tokens,
            reused_input_tokens: flight.reused,
            prefill_worker_idx: None,
            decode_worker_idx: flight.target.map(|target| target.worker * self.dp_size + target.rank),
            logical_worker_id: flight.target.map(|target| target.worker),
            dp_rank: flight.target.map(|target| target.rank),
            prefill_admit_ms: None,
            source_held_ms: None,
            destination_reserved_ms: None,
            destination_activated_ms: None,
            decode_admit_ms: None,
            source_released_ms: None,
            decode_reused_input_tokens: None,
            prefill_route_overlap_tokens: None,
            decode_route_overlap_tokens: None,
            route_outcome: if flight.queued { "queued" } else { "immediate" },
            route_queue_wait_ms: flight
                .dispatched
                .map_or(0.0, |dispatched| ms(dispatched.0 - flight.arrival.0)),
            selected_overlap_blocks: flight.overlap.map(|(selected, _)| selected),
            best_available_overlap_blocks: flight.overlap.map(|(_, best)| best),
            admission_count: flight.admissions,
            readmission_count: flight.admissions.saturating_sub(1),
            terminal_status: terminal,
        };
        records.push((flight.arrival, record));
    }

    /// The records by arrival.
    pub(crate) fn take_records(&mut self) -> Option<Vec<RequestRecord>> {
        let mut records = self.records.take()?;
        records.sort_by(|(a, left), (b, right)| a.cmp(b).then_with(|| left.uuid.cmp(&right.uuid)));
        Some(records.into_iter().map(|(_, record)| record).collect())
    }
}

/// A name of the usual form for a request.
fn uuid(id: u64) -> String {
    let (generation, slot) = (id >> 32, id & 0xffff_ffff);
    format!(
        "00000000-0000-0000-{:04x}-{:04x}{slot:08x}",
        generation >> 16,
        generation & 0xffff
    )
}
