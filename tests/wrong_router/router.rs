//! A KV router in miniature: it knows workers, their load and their caches, chooses, and moves requests that break off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use ghostfleet::block_hash::hash_blocks;
use ghostfleet::model::detokenize::Detokenizer;
use ghostfleet::model::tokenizer::ModelTokenizer;
use ghostfleet::model::{HubOptions, Model};
use ghostfleet::truth::RankId;
use ghostfleet::types::HashSalt;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;

use crate::index::{Stream, StreamId};
use crate::plane::{Said, call};
use crate::wrong::Wrong;

/// The fleet's vocabulary.
fn tokenizer() -> &'static ModelTokenizer {
    static TOKENIZER: OnceLock<ModelTokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let model = Model::resolve("config/tiny-model", &HubOptions::default()).unwrap();
        ModelTokenizer::load(&model).unwrap()
    })
}

/// Answers that one worker gives at a time.
const SLOTS: u32 = 16;

/// How often a request may be moved.
const MOVES: u32 = 3;

/// How long a worker that failed is left alone.
const REST: Duration = Duration::from_secs(5);

/// A publisher that has said nothing for so long is silent, to a router that minds.
const SILENCE: Duration = Duration::from_millis(1500);

/// A piece of an answer.
#[derive(Debug)]
pub(crate) enum Step {
    /// One token, from this rank of this instance, which was believed to have this share of the prompt.
    Token {
        id: u32,
        instance: u64,
        rank: u32,
        hit: f64,
    },
    /// The end of the answer.
    Done { tokens: u32, reason: &'static str },
    /// There will be none.
    Failed(String),
}

impl Step {
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Failed(_))
    }

    /// As clients see it.
    pub(crate) fn chunk(&self, id: &str, text: &mut Detokenizer) -> Value {
        match self {
            Self::Token {
                id: token,
                instance,
                rank,
                hit,
            } => json!({
                "id": format!("cmpl-{id}"), "choices": [{"text": text.push(tokenizer(), *token).unwrap()}],
                "nvext": {
                    "completion_token_ids": [token],
                    "worker_id": {"decode_worker_id": instance, "decode_dp_rank": rank}, "timing": {"kv_hit_rate": hit},
                },
            }),
            Self::Done { tokens, reason } => json!({
                "id": format!("cmpl-{id}"), "choices": [{"text": "", "finish_reason": reason}],
                "usage": {"completion_tokens": tokens},
            }),
            Self::Failed(why) => json!({"error": {"message": why}}),
        }
    }
}

/// A worker as the router knows it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) address: String,
    pub(crate) total_blocks: u64,
    /// Answers under way, and blocks of their prompts.
    active: u32,
    active_blocks: u64,
    rests_until: Option<Instant>,
    /// When its publishers last said something.
    pub(crate) heard: Instant,
}

impl Worker {
    pub(crate) fn new(address: String, total_blocks: u64) -> Self {
        Self {
            address,
            total_blocks,
            active: 0,
            active_blocks: 0,
            rests_until: None,
            heard: Instant::now(),
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) model: String,
    pub(crate) block_size: usize,
    pub(crate) workers: BTreeMap<u64, Worker>,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    /// Workers that an event has brought back.
    pub(crate) revived: BTreeSet<u64>,
    turn: usize,
}

/// The router.
pub(crate) struct Router {
    pub(crate) wrong: Option<Wrong>,
    state: Mutex<State>,
    /// Held while a request is routed.
    pub(crate) routing: tokio::sync::Mutex<()>,
}

impl Router {
    pub(crate) fn new(wrong: Option<Wrong>) -> Self {
        Self {
            wrong,
            state: Mutex::default(),
            routing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    pub(crate) fn model(&self) -> String {
        self.state().model.clone()
    }

    /// As a frontend's health page lists them.
    pub(crate) fn instances(&self) -> Vec<Value> {
        let state = self.state();
        let ids = state.workers.keys();
        ids.map(|id| json!({"endpoint": "generate", "instance_id": id}))
            .collect()
    }

    /// Serves one request to its end, over several workers if need be.
    pub(crate) async fn run(
        &self,
        (id, seed): (&str, Option<i64>),
        mut prompt: Vec<u32>,
        max_tokens: u32,
        steps: Sender<Step>,
    ) {
        let mut told = 0;
        let asked = prompt.len();
        let mut avoided = None;
        for _ in 0..=MOVES {
            let Some(seat) = self.route(&prompt, avoided).await else {
                break;
            };
            if self.is(Wrong::MoveRepeats) || self.is(Wrong::MoveReplays) {
                prompt.truncate(asked);
            }
            let missing = if self.is(Wrong::MoveRepeats) {
                max_tokens
            } else {
                max_tokens - told
            };
            let outcome = self
                .attempt((id, seed), &mut prompt, missing, &seat, &steps, &mut told)
                .await;
            self.rise(&seat, outcome == Outcome::Complete);
            match outcome {
                Outcome::Complete => {
                    return done(&steps, told, "length").await;
                }
                Outcome::Lost if told > 0 && self.is(Wrong::CutIsTheEnd) => {
                    self.mark_down(&seat);
                    return done(&steps, told, "stop").await;
                }
                Outcome::ClientGone => return,
                Outcome::Lost => {
                    avoided = Some(seat.instance);
                    self.mark_down(&seat);
                }
            }
        }
        // A client that is gone hears nothing.
        let _ = steps
            .send(Step::Failed("no worker can serve this now".to_owned()))
            .await;
    }

    async fn attempt(
        &self,
        (id, seed): (&str, Option<i64>),
        prompt: &mut Vec<u32>,
        tokens: u32,
        seat: &Seat,
        steps: &Sender<Step>,
        told: &mut u32,
    ) -> Outcome {
        let body = json!({
            "token_ids": prompt, "stop_conditions": {"max_tokens": tokens, "ignore_eos": true},
            "routing": {"dp_rank": seat.rank}, "sampling_options": {"seed": seed},
        });
        let Ok(mut answer) = call(&seat.address, id, &body).await else {
            return Outcome::Lost;
        };
        let mut complete = false;
        loop {
            let said = tokio::select! {
                said = answer.next() => said,
                () = steps.closed(), if !self.is(Wrong::CancelIsLost) => {
                    answer.kill().await;
                    return Outcome::ClientGone;
                }
            };
            match said {
                Ok(Said::Item(item)) if item["data"].get("error").is_some_and(|error| !error.is_null()) => {
                    return Outcome::Lost;
                }
                Ok(Said::Item(item)) => {
                    complete |= item["complete_final"] == true;
                    for token in item["data"]["data"]["token_ids"].as_array().into_iter().flatten() {
                        let token = u32::try_from(token.as_u64().unwrap_or(0)).unwrap();
                        prompt.push(token);
                        *told += 1;
                        let token = Step::Token {
                            id: token,
                            instance: seat.instance,
                            rank: seat.rank,
                            hit: seat.hit,
                        };
                        if steps.send(token).await.is_err() && !self.is(Wrong::CancelIsLost) {
                            answer.kill().await;
                            return Outcome::ClientGone;
                        }
                    }
                }
                Ok(Said::End) if complete => return Outcome::Complete,
                Ok(Said::End) | Err(_) => return Outcome::Lost,
            }
        }
    }

    /// Chooses a worker and takes a seat there.
    async fn route(&self, prompt: &[u32], avoided: Option<u64>) -> Option<Seat> {
        let _routing = self.routing.lock().await;
        let state = &mut *self.state();
        let blocks = hash_blocks(prompt, state.block_size.max(1), &HashSalt::default(), false);
        let locals: Vec<u64> = blocks.iter().map(|block| block.tokens_hash.0).collect();
        state.turn += 1;
        let starves = self.is(Wrong::SilenceStarves);
        let best = self.best(state, &locals, avoided, starves);
        let (rank, overlap) = best.or_else(|| self.best(state, &locals, avoided, false))?;
        let worker = state.workers.get_mut(&rank.worker.0)?;
        worker.active += 1;
        worker.active_blocks += locals.len() as u64;
        #[allow(clippy::cast_precision_loss)]
        let hit = f64::from(overlap) / locals.len().max(1) as f64;
        Some(Seat {
            instance: rank.worker.0,
            rank: rank.rank.0,
            address: worker.address.clone(),
            blocks: locals.len() as u64,
            hit,
        })
    }

    /// The cheapest worker: the one with the fewest blocks to compute, its load included. Equal ones take turns.
    fn best(&self, state: &State, locals: &[u64], avoided: Option<u64>, starves: bool) -> Option<(RankId, u32)> {
        let now = Instant::now();
        let count = state.workers.len().max(1);
        let mut best: Option<((u64, usize), RankId, u32)> = None;
        for (position, (instance, worker)) in state.workers.iter().enumerate() {
            let rests = worker.rests_until.is_some_and(|until| until > now);
            let is_silent = now.duration_since(worker.heard) > SILENCE;
            let streams = || state.streams.iter().filter(|((rank, _), _)| rank.worker.0 == *instance);
            let announced: u64 = streams().map(|(_, stream)| stream.announced).sum();
            if (rests && !self.is(Wrong::DeadForEver))
                || (Some(*instance) == avoided && count > 1)
                || worker.active >= SLOTS
                || (starves && is_silent)
                || (self.is(Wrong::BlockSizeIgnored) && announced > worker.total_blocks)
            {
                continue;
            }
            let overlap: u32 = streams().map(|(_, stream)| stream.overlap(locals)).sum();
            let cost = if self.is(Wrong::SilenceAttracts) && is_silent {
                0
            } else {
                let active = if self.is(Wrong::LoadIgnored) {
                    0
                } else {
                    worker.active_blocks
                };
                (locals.len() as u64).saturating_sub(overlap.into()) + active
            };
            let order = (cost, (position + count - state.turn % count) % count);
            if best.is_none_or(|(least, ..)| order < least) {
                best = Some((order, RankId::new(*instance, 0), overlap));
            }
        }
        best.map(|(_, rank, overlap)| (rank, overlap))
    }

    /// Gives a seat back.
    fn rise(&self, seat: &Seat, is_complete: bool) {
        if self.is(Wrong::PinnedSlots) && !is_complete {
            return;
        }
        if let Some(worker) = self.state().workers.get_mut(&seat.instance) {
            worker.active = worker.active.saturating_sub(1);
            worker.active_blocks = worker.active_blocks.saturating_sub(seat.blocks);
        }
    }

    /// A worker that failed rests; one that has restarted meanwhile is another process.
    fn mark_down(&self, seat: &Seat) {
        if let Some(worker) = self.state().workers.get_mut(&seat.instance)
            && worker.address == seat.address
        {
            worker.rests_until = Some(Instant::now() + REST);
        }
    }
}

/// Ends an answer; a client that is gone hears nothing.
async fn done(steps: &Sender<Step>, tokens: u32, reason: &'static str) {
    let _ = steps.send(Step::Done { tokens, reason }).await;
}

/// A place at a worker.
struct Seat {
    instance: u64,
    rank: u32,
    address: String,
    blocks: u64,
    hit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Complete,
    ClientGone,
    Lost,
}
