//! The index of a frontend that serves it to others: Dynamo's `--serve-indexer`, releases 1.4.2 and 1.6.1.
//!
//! An endpoint `kv_indexer_query` of the workers' component, at the frontend, on the request plane:
//!
//! ```text
//! ask     {"model_name": str, "block_hashes": [u64 hash of each block's tokens, root first], "device_only": bool}
//! answer  {"TieredScores": {"device": {"scores": [[{"worker_id", "dp_rank"}, blocks]], "frequencies": []}, "lower_tier": []}}
//! ```
//!
//! Recorded from both releases.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{PATIENCE, WitnessError};
use crate::transport::request_plane::caller::ask;
use crate::truth::RankId;
use crate::truth::credit::{Credit, Question};

/// Name of the endpoint.
const ENDPOINT: &str = "kv_indexer_query";

/// One served index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedIndex {
    address: String,
    model: String,
}

impl ServedIndex {
    /// The one at an address, as `127.0.0.1:4000/<path>`.
    pub fn new(address: String, model: String) -> Self {
        Self { address, model }
    }

    /// Looks for one among discovery's instances: a list of `{"key", "value"}`.
    ///
    /// # Errors
    /// [`WitnessError::NotServed`] when there is none that can be asked.
    pub fn find(instances: &Value, model: String) -> Result<Self, WitnessError> {
        let values = instances
            .as_array()
            .into_iter()
            .flatten()
            .map(|record| &record["value"]);
        let mut served = values.filter(|value| value["endpoint"] == ENDPOINT).peekable();
        let reason = if served.peek().is_none() {
            "in this discovery; start one with --router-mode kv --serve-indexer"
        } else {
            "by TCP; start it with --request-plane tcp"
        };
        let address = served.find_map(|value| value["transport"]["tcp"].as_str());
        let address = address.ok_or(WitnessError::NotServed(reason))?;
        Ok(Self::new(address.to_owned(), model))
    }

    /// How much of a prompt each rank has, in the index's opinion.
    ///
    /// # Errors
    /// [`WitnessError`] names the address.
    pub fn ask(&self, question: &Question) -> Result<Credit, WitnessError> {
        let hashes: Vec<u64> = question.locals().iter().map(|hash| hash.0).collect();
        let body = json!({"model_name": self.model, "block_hashes": hashes, "device_only": true});
        let answer = ask(&self.address, &body, PATIENCE)?;
        let read = answer.first().map(read_scores);
        read.unwrap_or_else(|| Err("it is empty".to_owned()))
            .map_err(|reason| WitnessError::Form {
                whom: self.address.clone(),
                reason,
            })
    }
}

fn read_scores(answer: &Value) -> Result<Credit, String> {
    let scores = answer["TieredScores"]["device"]["scores"].as_array();
    let scores = scores.ok_or_else(|| answer.to_string().chars().take(200).collect::<String>())?;
    let score = |score: &Value| {
        let worker = score[0]["worker_id"].as_u64()?;
        let rank = u32::try_from(score[0]["dp_rank"].as_u64()?).ok()?;
        let blocks = u32::try_from(score[1].as_u64()?).ok()?;
        Some((RankId::new(worker, rank), blocks))
    };
    let credit: Option<BTreeMap<RankId, u32>> = scores.iter().map(score).collect();
    credit.map(Credit).ok_or_else(|| "a score is none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_answer_reads_as_blocks_per_rank() {
        let answer = json!({"TieredScores": {"device": {"frequencies": [], "scores": [
            [{"dp_rank": 0, "worker_id": 3_860_663_910_476_155_u64}, 4],
            [{"dp_rank": 1, "worker_id": 1_466_361_455_210_347_u64}, 2],
        ]}, "lower_tier": []}});
        let credit = read_scores(&answer).unwrap();
        let expected = [
            (RankId::new(1_466_361_455_210_347, 1), 2),
            (RankId::new(3_860_663_910_476_155, 0), 4),
        ];
        assert_eq!(credit, Credit(BTreeMap::from(expected)));
        assert!(
            read_scores(&json!({"Error": "no such model"}))
                .unwrap_err()
                .contains("no such model")
        );
        assert!(read_scores(&json!({"TieredScores": {"device": {"scores": [[1, 2]]}}})).is_err());
    }

    #[test]
    fn it_is_found_among_the_instances_of_discovery() {
        let instances = json!([
            {"key": "v1/instances/dynamo/backend/generate/1", "value": {"endpoint": "generate", "transport": {"tcp": "a/b"}}},
            {"key": "v1/instances/dynamo/backend/kv_indexer_query/2",
             "value": {"endpoint": "kv_indexer_query", "transport": {"tcp": "127.0.0.1:35703/4c2/dynamo/backend/q"}}},
        ]);
        let found = ServedIndex::find(&instances, "m".to_owned()).unwrap();
        assert_eq!(
            found,
            ServedIndex::new("127.0.0.1:35703/4c2/dynamo/backend/q".to_owned(), "m".to_owned())
        );
        let error = ServedIndex::find(&json!([]), "m".to_owned()).unwrap_err();
        assert!(error.to_string().contains("--serve-indexer"), "{error}");
    }
}
