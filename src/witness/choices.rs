//! Any frontend: it routes, and says where to.
//!
//! Prompts of random tokens are planted, each at one rank, through the frontend itself (`nvext.backend_instance_id`,
//! `nvext.dp_rank`). Then it is asked where it would send each of them (annotation `query_instance_id:`, which routes
//! without running), and how much of them it believes is cached there (`nvext.timing.kv_hit_rate`, of a request that runs).
//! As many prompts that were never sent are asked for too. Prompts are token ids on `/v1/completions`, which arrive at
//! workers unchanged. Source: Dynamo 1.6.1 and 1.4.2, recorded.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Server, WitnessError};
use crate::block_hash::hash_blocks;
use crate::truth::RankId;
use crate::truth::choice::Probe;
use crate::types::{HashSalt, SequenceHash, Token};

/// Token ids of planted prompts: any model has these.
const TOKENS: std::ops::Range<u32> = 100..400;

/// One frontend in KV mode.
pub struct Frontend {
    server: Server,
    model: String,
}

/// What a frontend says of one request.
struct Said {
    /// Id of the request.
    id: Option<String>,
    chosen: Option<RankId>,
    hit_rate: Option<f64>,
}

impl Frontend {
    /// The frontend at `url`; it is asked for `model`, or for the first model that it serves.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn new(url: &str, model: Option<String>) -> Result<Self, WitnessError> {
        let server = Server::new(url)?;
        let model = match model {
            Some(model) => model,
            None => first_model(&server)?,
        };
        Ok(Self { server, model })
    }

    /// The frontend at `url`, asked for `model`; no answer is waited for longer than `patience`.
    ///
    /// # Errors
    /// [`WitnessError::Url`].
    pub fn of_model(url: &str, model: String, patience: Duration) -> Result<Self, WitnessError> {
        let server = Server::with_patience(url, patience)?;
        Ok(Self { server, model })
    }

    fn complete(&self, prompt: &[Token], nvext: &Value) -> Result<Said, WitnessError> {
        self.complete_as(None, prompt, nvext)
    }

    fn complete_as(&self, id: Option<&str>, prompt: &[Token], nvext: &Value) -> Result<Said, WitnessError> {
        let mut nvext = nvext.clone();
        nvext["extra_fields"] = json!(["worker_id", "timing"]);
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": 1, "ignore_eos": true, "nvext": nvext,
        });
        let answer: Value = parse(
            &self.server,
            "/v1/completions",
            &self.server.post_as(id, "/v1/completions", &body)?,
        )?;
        let id = answer["id"].as_str();
        let nvext = &answer["nvext"];
        let worker = &nvext["worker_id"];
        // Where prefill and decode are apart, prompts are cached at the prefill worker.
        let rank =
            |worker: &Value, rank: &Value| Some(RankId::new(worker.as_u64()?, u32::try_from(rank.as_u64()?).ok()?));
        Ok(Said {
            // `cmpl-<id>`
            id: id.map(|id| id.split_once('-').map_or(id, |(_, inner)| inner).to_owned()),
            chosen: rank(&worker["prefill_worker_id"], &worker["prefill_dp_rank"])
                .or_else(|| rank(&worker["decode_worker_id"], &worker["decode_dp_rank"])),
            hit_rate: nvext["timing"]["kv_hit_rate"].as_f64(),
        })
    }
}

fn parse(server: &Server, path: &str, text: &str) -> Result<Value, WitnessError> {
    serde_json::from_str(text).map_err(|error| WitnessError::Form {
        whom: server.at(path),
        reason: error.to_string(),
    })
}

fn first_model(server: &Server) -> Result<String, WitnessError> {
    let models = parse(server, "/v1/models", &server.get("/v1/models")?)?;
    let name = models["data"][0]["id"].as_str().map(str::to_owned);
    name.ok_or_else(|| WitnessError::Form {
        whom: server.at("/v1/models"),
        reason: "it serves no model yet".to_owned(),
    })
}

/// Prompts for one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    planted: Vec<Vec<Token>>,
    unknown: Vec<Vec<Token>>,
    block_size: usize,
}

impl Prompts {
    /// `count` prompts of `blocks` blocks of `block_size` tokens, half of them to be planted. The same seed makes the same
    /// prompts.
    pub fn new(seed: u64, count: usize, blocks: usize, block_size: usize) -> Self {
        let tokens = blocks.max(1) * block_size.max(1);
        let span = u64::from(TOKENS.end - TOKENS.start);
        let prompt = |number: usize| -> Vec<Token> {
            // A hash of seed, prompt and place: no two prompts begin alike.
            let mut hash = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64 + 1);
            let next = |_| {
                hash = hash.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                TOKENS.start + u32::try_from((mixed ^ (mixed >> 31)) % span).unwrap_or(0)
            };
            (0..tokens).map(next).collect()
        };
        let half = count.div_ceil(2);
        Self {
            planted: (0..half).map(prompt).collect(),
            unknown: (half..count).map(prompt).collect(),
            block_size: block_size.max(1),
        }
    }

    /// Sends the prompts that are to be planted, to one rank each, in turn. Returns who has which.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn plant(&self, frontend: &Frontend, ranks: &[RankId]) -> Result<Vec<RankId>, WitnessError> {
        let mut holders = Vec::new();
        for (prompt, rank) in self.planted.iter().zip(ranks.iter().cycle()) {
            frontend.complete(prompt, &pinned(*rank))?;
            holders.push(*rank);
        }
        Ok(holders)
    }

    /// Asks for every prompt. `holders`: what [`Self::plant`] said. A prompt that was not planted runs where the router
    /// wants it to.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn probe(&self, frontend: &Frontend, holders: &[RankId]) -> Result<Vec<Probe>, WitnessError> {
        let mut probes = Vec::new();
        for (number, (prompt, holder)) in self.planted.iter().zip(holders).enumerate() {
            let would = frontend.complete(prompt, &json!({"annotations": ["query_instance_id:"]}))?;
            probes.push(self.probe_of(format!("planted {number}"), prompt, &would));
            let at_holder = frontend.complete(prompt, &pinned(*holder))?;
            let at_holder = Said {
                chosen: Some(*holder),
                ..at_holder
            };
            probes.push(self.probe_of(format!("planted {number}, at its rank"), prompt, &at_holder));
        }
        for (number, prompt) in self.unknown.iter().enumerate() {
            let ran = frontend.complete(prompt, &json!({}))?;
            probes.push(Probe {
                is_first: true,
                ..self.probe_of(format!("unknown {number}"), prompt, &ran)
            });
        }
        Ok(probes)
    }

    /// Sends planted prompts by their numbers, as requests with these ids, each to its holder where there is one, and notes
    /// whom the frontend says that it has chosen, and what it believes is cached there. A holder that does not answer is not asked again, and nobody is
    /// after `within`.
    pub fn believed<'a>(
        &self,
        frontend: &Frontend,
        holders: &[Option<RankId>],
        prompts: impl Iterator<Item = (usize, &'a str)>,
        within: Duration,
    ) -> Vec<Probe> {
        let begun = Instant::now();
        let mut silent: Vec<Option<RankId>> = Vec::new();
        let mut probes = Vec::new();
        for (number, id) in prompts {
            let Some(prompt) = self.planted.get(number) else {
                continue;
            };
            let holder = holders.get(number % holders.len().max(1)).copied().flatten();
            if begun.elapsed() >= within || silent.contains(&holder) {
                continue;
            }
            let nvext = holder.map_or_else(|| json!({}), pinned);
            match frontend.complete_as(Some(id), prompt, &nvext) {
                Ok(said) => {
                    let request = said.id.clone().unwrap_or_else(|| id.to_owned());
                    probes.push(self.probe_of(request, prompt, &said));
                }
                Err(error) => {
                    tracing::debug!(%error, "a prompt was not answered");
                    silent.push(holder);
                }
            }
        }
        probes
    }

    fn probe_of(&self, request: String, prompt: &[Token], said: &Said) -> Probe {
        let blocks: Vec<SequenceHash> = hash_blocks(prompt, self.block_size, &HashSalt::default(), false)
            .into_iter()
            .map(|block| block.block_hash)
            .collect();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let of_blocks = |rate: f64| (rate.clamp(0.0, 1.0) * blocks.len() as f64).round() as u32;
        Probe {
            request,
            chosen: said.chosen,
            reported: said.hit_rate.map(of_blocks),
            blocks,
            is_first: false,
        }
    }
}

fn pinned(rank: RankId) -> Value {
    json!({"backend_instance_id": rank.worker.0, "dp_rank": rank.rank.0})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_follow_from_the_seed_and_share_no_beginning() {
        let prompts = Prompts::new(7, 9, 2, 16);
        assert_eq!((prompts.planted.len(), prompts.unknown.len()), (5, 4));
        assert_eq!(prompts, Prompts::new(7, 9, 2, 16));
        assert_ne!(prompts, Prompts::new(8, 9, 2, 16));
        let mut beginnings: Vec<&[Token]> = prompts
            .planted
            .iter()
            .chain(&prompts.unknown)
            .map(|prompt| &prompt[..16])
            .collect();
        beginnings.sort_unstable();
        beginnings.dedup();
        assert_eq!(beginnings.len(), 9);
        assert!(prompts.planted.iter().flatten().all(|token| TOKENS.contains(token)));
    }

    #[test]
    fn a_hit_rate_is_a_share_of_the_blocks_of_a_prompt() {
        let prompts = Prompts::new(7, 2, 4, 16);
        let said = Said {
            id: None,
            chosen: Some(RankId::new(1, 0)),
            hit_rate: Some(0.75),
        };
        let probe = prompts.probe_of("p".to_owned(), &prompts.planted[0], &said);
        assert_eq!((probe.blocks.len(), probe.reported), (4, Some(3)));
    }
}
