//! Passes begin and end; tokens reach requests.

use crate::engine::{Forward, Output, Semantics};
use crate::router::Target;
use crate::types::{RequestId, SimTime};

use super::super::fleet::Doing;
use super::super::flight::{AdmissionLog, Flight};
use super::super::planner::ForwardMetrics;
use super::super::record::Terminal;
use super::super::source::Source;
use super::super::timeline::Timeline;
use super::{Harness, Place};

impl Harness {
    /// Starts the next pass of a worker, if it has work.
    pub(super) fn start(&mut self, place: Place) {
        let now = self.now;
        let pool = &mut self.pools[place.pool as usize];
        let told = pool.router.hears_lower();
        let worker = pool.worker(place.worker);
        let Some(ends_at) = worker.start(now) else {
            // Others may change when a worker that shares memory has to look.
            if !worker.shares()
                && let Some(at) = worker.wakes_at(told)
            {
                self.wakes.push(std::cmp::Reverse((at.max(now), place)));
            }
            return;
        };
        self.turns += 1;
        self.passes.push(std::cmp::Reverse((ends_at, place)));
        // Orders wait for its end, which must not be passed over then.
        worker.quiet &= worker.commands.is_empty();
        if worker.quiet {
            return;
        }
        let prefill_side = self.is_prefill_side(place.pool);
        let keeps_records = self.collector.keeps_records();
        let pool = &mut self.pools[place.pool as usize];
        for rank_number in 0..pool.spec.dp_size {
            let rank = &mut pool.worker(place.worker).ranks[rank_number as usize];
            if rank.doing != Doing::Pass {
                continue;
            }
            let mut pass = std::mem::take(&mut rank.pass);
            for &RequestId(id) in &pass.preempted {
                let Some(flight) = self.flights.get(id) else { continue };
                let Some(first) = flight.stretch.take() else { continue };
                let last = rank.line.last();
                close_stretch(flight, first, last, &rank.line);
                flight.stretches.push((first, last));
                rank.interrupt();
            }
            for admission in &pass.admissions {
                let Some(flight) = self.flights.get(admission.id.0) else {
                    continue;
                };
                note_admission(flight, admission.cached_tokens, prefill_side, now);
                if keeps_records {
                    flight.admitted.push(AdmissionLog {
                        at: now,
                        prefill: prefill_side,
                        reused: admission.cached_tokens,
                        from_host: admission.from_host,
                        again: admission.again,
                    });
                }
            }
            if self.events_at_start {
                let target = Target {
                    worker: place.worker,
                    rank: rank_number,
                };
                pool.router.apply(target, &mut pass.kv_events, now);
            }
            pool.worker(place.worker).ranks[rank_number as usize].pass = pass;
        }
    }

    /// A worker without a pass may go on, or has something to tell of its memory below the GPU.
    pub(super) fn wake(&mut self, place: Place) {
        let now = self.now;
        self.turns += 1;
        let pool = &mut self.pools[place.pool as usize];
        if !pool.has(place.worker) || pool.worker(place.worker).busy {
            return;
        }
        let told = pool.router.hears_lower();
        let shares = pool.shares();
        let looks = if told || shares { pool.spec.dp_size } else { 0 };
        for rank_number in 0..looks {
            let rank = &mut pool.worker(place.worker).ranks[rank_number as usize];
            let mut pass = std::mem::take(&mut rank.pass);
            rank.engine.end_transfers(now, &mut pass);
            let target = Target {
                worker: place.worker,
                rank: rank_number,
            };
            pool.router.apply(target, &mut pass.kv_events, now);
            if told {
                pool.router.apply_lower(target, &mut pass.tier_events, now);
            }
            pool.worker(place.worker).ranks[rank_number as usize].pass = pass;
        }
        if shares {
            pool.worker(place.worker).rest();
        }
        self.list(place);
    }

    /// Ranks of a worker that shares memory see what others have done to it during the pass that ends, and let them see what
    /// they have computed.
    fn end_shared(&mut self, place: Place) {
        let now = self.now;
        let pool = &mut self.pools[place.pool as usize];
        if !pool.shares() {
            return;
        }
        for rank_number in 0..pool.spec.dp_size {
            let rank = &mut pool.worker(place.worker).ranks[rank_number as usize];
            let mut pass = std::mem::take(&mut rank.pass);
            let idle = rank.doing == Doing::Nothing;
            if idle {
                pass.clear();
            }
            rank.engine.end_pass(now, &mut pass);
            if idle {
                let target = Target {
                    worker: place.worker,
                    rank: rank_number,
                };
                pool.router.apply(target, &mut pass.kv_events, now);
                pool.router.apply_lower(target, &mut pass.tier_events, now);
            }
            pool.worker(place.worker).ranks[rank_number as usize].pass = pass;
        }
    }

    /// The pass of a worker ends now.
    pub(super) fn finish_pass(&mut self, place: Place, source: &mut dyn Source) {
        let now = self.now;
        self.end_shared(place);
        self.turns += 1;
        let pool = &mut self.pools[place.pool as usize];
        let dp_size = pool.spec.dp_size;
        let idle_tells = self.scaling.is_some() && pool.spec.engine.semantics == Semantics::V1_4_2;
        let worker = pool.worker(place.worker);
        worker.busy = false;
        let started = worker.started;
        if let Some(handoffs) = &mut self.handoffs {
            handoffs.resume(place, worker.commands.drain(..));
        }
        for rank_number in 0..dp_size {
            let pool = &mut self.pools[place.pool as usize];
            let rank = &mut pool.worker(place.worker).ranks[rank_number as usize];
            let doing = std::mem::replace(&mut rank.doing, Doing::Nothing);
            if doing == Doing::Nothing {
                // In Dynamo 1.4.2 ranks without work pass the time with the others, and say so.
                if idle_tells {
                    let target = Target {
                        worker: place.worker,
                        rank: rank_number,
                    };
                    rank.latest = Some(ForwardMetrics::of(target, now.since(started), &Forward::default()));
                    rank.silent_since = now;
                }
                continue;
            }
            rank.line.push(now, |gap, requests| self.collector.gap(gap, requests));
            if doing == Doing::Quiet {
                self.hear_facts(place, rank_number);
                continue;
            }
            let mut pass = std::mem::take(&mut rank.pass);
            self.collector.prefilled += pass.forward.prefill_tokens;
            let target = Target {
                worker: place.worker,
                rank: rank_number,
            };
            if let Some(scaling) = &mut self.scaling {
                rank.latest = Some(ForwardMetrics::of(target, now.since(started), &pass.forward));
                rank.silent_since = now;
                if place.pool == self.serving_pool {
                    scaling.count_decode(&pass.forward, pool.spec.engine.speculation.is_some());
                }
            }
            pool.router.apply(target, &mut pass.kv_events, now);
            pool.router.apply_lower(target, &mut pass.tier_events, now);
            for output in &pass.outputs {
                self.deliver(place.pool, target, output, source);
            }
            self.pools[place.pool as usize].worker(place.worker).ranks[rank_number as usize].pass = pass;
            self.hear_facts(place, rank_number);
        }
        let pool = &mut self.pools[place.pool as usize];
        if pool.shares() {
            pool.worker(place.worker).rest();
        }
        self.list(place);
    }

    /// One output: a token that matters, or an end.
    fn deliver(&mut self, pool: u8, target: Target, output: &Output, source: &mut dyn Source) {
        let prefill_side = self.is_prefill_side(pool);
        match *output {
            // The prefill side's own tokens are not the answer's, but its router hears of the last one.
            Output::Token {
                id, finish: Some(_), ..
            }
            | Output::Empty { id, .. }
                if prefill_side =>
            {
                self.pools[pool as usize].router.prefill_completed(id.0, self.now);
                self.release(pool, source);
            }
            Output::Token { .. } if prefill_side => {}
            Output::Token {
                id: RequestId(id),
                finish,
                ..
            } => self.token(pool, target, id, finish.is_some(), source),
            Output::Empty { id, .. } => self.end(id.0, Terminal::Completed, source),
            Output::Rejected { id, .. } => self.end(id.0, Terminal::Rejected, source),
        }
    }

    fn token(&mut self, pool: u8, target: Target, id: u64, last: bool, source: &mut dyn Source) {
        let now = self.now;
        let serving = &mut self.pools[pool as usize];
        let drafts = serving.spec.engine.speculation.is_some();
        let worker = serving.worker(target.worker);
        let exact = worker.is_exact();
        let rank = &mut worker.ranks[target.rank as usize];
        let Some(flight) = self.flights.get(id) else { return };
        let first = flight.tokens == 0;
        if let Some(scaling) = &mut self.scaling {
            scaling.count_token(first, drafts);
        }
        if exact || first || flight.is_interrupted() {
            if first {
                flight.first_token = Some(now);
            } else {
                flight.gaps.push(now.nanos_since(flight.last_token));
                flight.second_token = flight.second_token.or(Some(now));
            }
            if !exact {
                if !first {
                    rank.resume();
                }
                flight.stretch = Some(rank.line.open());
            }
            flight.tokens += 1;
            flight.last_token = now;
        } else if last && let Some(begin) = flight.stretch {
            close_stretch(flight, begin, rank.line.last(), &rank.line);
        }
        if last {
            self.end(id, Terminal::Completed, source);
        } else if first {
            self.pools[pool as usize].router.prefill_completed(id, now);
            self.release(pool, source);
        }
    }
}

fn note_admission(flight: &mut Flight, cached_tokens: u32, prefill_side: bool, now: SimTime) {
    if flight.admissions == 0 {
        flight.first_admit = Some(now);
        flight.first_reused = cached_tokens;
    }
    flight.admissions += 1;
    flight.reused = flight.reused.max(cached_tokens);
    if let Some(handoff) = &mut flight.handoff {
        let (admit, reused) = if prefill_side {
            (&mut handoff.prefill_admit, &mut handoff.prefill_reused)
        } else {
            (&mut handoff.decode_admit, &mut handoff.decode_reused)
        };
        admit.get_or_insert(now);
        *reused = (*reused).max(Some(cached_tokens));
    }
}

/// Books the tokens of a stretch that began with the token at the end of pass `first` and ends with that of pass `last`.
fn close_stretch(flight: &mut Flight, first: u64, last: u64, line: &Timeline) {
    if last <= first {
        return;
    }
    if flight.tokens == 1 {
        flight.second_token = line.end(first + 1);
    }
    flight.tokens += u32::try_from(last - first).unwrap_or(u32::MAX);
    flight.last_token = line.end(last).unwrap_or(flight.last_token);
}
