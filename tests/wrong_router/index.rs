//! What the router believes is cached where.

use std::collections::BTreeMap;

use ghostfleet::truth::RankId;
use serde_json::Value;

use crate::wrong::Wrong;

/// One publisher's stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    blocks: BTreeMap<u64, Known>,
    /// Where a block stands: behind which, with which tokens.
    places: BTreeMap<(Option<u64>, u64), u64>,
    /// Id of the last event that was applied.
    pub(crate) last_id: u64,
    /// Events that wait for those before them; `Some` while the publisher is asked.
    pub(crate) waiting: Option<Vec<Value>>,
    /// Blocks that were ever announced and not withdrawn, by count.
    pub(crate) announced: u64,
}

#[derive(Debug)]
struct Known {
    parent: Option<u64>,
    local: u64,
    copies: u32,
}

/// What an event calls for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    Nothing,
    /// Events before it are missing, from this id on.
    Ask(u64),
}

impl Stream {
    /// A stream whose publisher is being asked for what it begins with.
    pub(crate) fn asking() -> Self {
        Self {
            waiting: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Takes an event as it comes.
    pub(crate) fn take(&mut self, event: &Value, wrong: Option<Wrong>) -> Next {
        let id = event["event"]["event_id"].as_u64().unwrap_or(0);
        if id <= self.last_id {
            return Next::Nothing;
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.push(event.clone());
            return Next::Nothing;
        }
        if id > self.last_id + 1 {
            self.waiting = Some(vec![event.clone()]);
            return Next::Ask(self.last_id + 1);
        }
        self.last_id = id;
        self.apply(&event["event"]["data"], wrong);
        Next::Nothing
    }

    /// Takes what the publisher answered; then what has waited.
    pub(crate) fn recover(&mut self, answer: &Value, wrong: Option<Wrong>) {
        if let Some(dump) = answer.get("TreeDump") {
            self.forget();
            for event in dump["events"].as_array().into_iter().flatten() {
                self.apply(&event["event"]["data"], wrong);
            }
            self.last_id = dump["last_event_id"].as_u64().unwrap_or(0);
        } else if let Some(events) = answer.get("Events") {
            for event in events["events"].as_array().into_iter().flatten() {
                self.apply(&event["event"]["data"], wrong);
            }
            self.last_id = self.last_id.max(events["last_event_id"].as_u64().unwrap_or(0));
        }
        self.go_on(wrong);
    }

    /// What has waited is applied, whatever is still missing.
    pub(crate) fn go_on(&mut self, wrong: Option<Wrong>) {
        for event in self.waiting.take().unwrap_or_default() {
            let id = event["event"]["event_id"].as_u64().unwrap_or(0);
            if id > self.last_id {
                self.last_id = id;
                self.apply(&event["event"]["data"], wrong);
            }
        }
    }

    fn forget(&mut self) {
        self.blocks.clear();
        self.places.clear();
        self.announced = 0;
    }

    fn apply(&mut self, data: &Value, wrong: Option<Wrong>) {
        if data == "cleared" {
            return self.forget();
        }
        if let Some(stored) = data.get("stored") {
            let mut parent = stored["parent_hash"].as_u64();
            for block in stored["blocks"].as_array().into_iter().flatten() {
                let (Some(hash), Some(local)) = (block["block_hash"].as_u64(), block["tokens_hash"].as_u64()) else {
                    continue;
                };
                self.announced += 1;
                if let Some(known) = self.blocks.get_mut(&hash) {
                    known.copies += u32::from(wrong == Some(Wrong::DuplicatesCount));
                } else {
                    let known = Known {
                        parent,
                        local,
                        copies: 1,
                    };
                    self.blocks.insert(hash, known);
                    self.places.insert((parent, local), hash);
                }
                parent = Some(hash);
            }
        }
        for hash in data["removed"]["block_hashes"].as_array().into_iter().flatten() {
            let Some(hash) = hash.as_u64() else { continue };
            self.announced = self.announced.saturating_sub(1);
            let Some(known) = self.blocks.get_mut(&hash) else {
                continue;
            };
            known.copies -= 1;
            if known.copies == 0 {
                let place = (known.parent, known.local);
                self.blocks.remove(&hash);
                self.places.remove(&place);
            }
        }
    }

    /// Blocks of a prompt that are cached, before the first that is not.
    pub(crate) fn overlap(&self, locals: &[u64]) -> u32 {
        let (mut parent, mut credit) = (None, 0);
        for local in locals {
            let Some(hash) = self.places.get(&(parent, *local)) else {
                break;
            };
            credit += self.blocks[hash].copies;
            parent = Some(*hash);
        }
        credit
    }
}

/// Name of a stream: rank and publisher.
pub(crate) type StreamId = (RankId, u64);
