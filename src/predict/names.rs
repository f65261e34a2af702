//! What is wrong with the flags that a document was lowered to, under the names that the document has for them.

use super::document::{Document, Mode, Source};

/// Flags with engine arguments, and the pool that each is for.
const POOLS: [(&str, &str); 3] = [
    ("--extra-engine-args", "engine.workers.aggregated"),
    ("--prefill-engine-args", "engine.workers.prefill"),
    ("--decode-engine-args", "engine.workers.decode"),
];

/// Keys of engine arguments, and where a pool has them.
const OF_POOL: [(&str, &str); 6] = [
    ("engine.block_size", "kv_cache.block_size"),
    ("engine.num_gpu_blocks", "kv_cache.capacity.blocks"),
    ("engine.max_num_seqs", "scheduler.max_sequences"),
    ("engine.max_num_batched_tokens", "scheduler.max_batched_tokens"),
    ("engine.timing_model", "timing"),
    ("dp_size", "parallelism.attention_data"),
];

/// Keys of engine arguments that all pools have in common.
const OF_ENGINE: [(&str, &str); 3] = [
    ("engine.max_model_len", "engine.context_length"),
    (
        "engine.kv_transfer_bytes_per_token",
        "engine.kv_transfer.bytes_per_token",
    ),
    (
        "engine.kv_transfer_bandwidth",
        "engine.kv_transfer.bandwidth_gb_per_second",
    ),
];

/// Flags and their values.
const FLAGS: [(&str, &str); 12] = [
    ("--num-workers", "engine.workers.aggregated.parallelism.replicas"),
    ("--num-prefill-workers", "engine.workers.prefill.parallelism.replicas"),
    ("--num-decode-workers", "engine.workers.decode.parallelism.replicas"),
    ("--replay-concurrency", "traffic.load.concurrency"),
    ("--arrival-speedup-ratio", "traffic.load.speedup"),
    ("--agentic-lanes", "traffic.load.agentic_lanes"),
    ("--max-sim-time-seconds", "traffic.stop.max_virtual_time_seconds"),
    ("--trace-format", "traffic.source.format"),
    ("--trace-block-size", "traffic.source.block_size"),
    ("--router-mode", "router.policy"),
    ("router config:", "router:"),
    ("router_temperature", "temperature"),
];

/// Flags of the AIC performance model, which the document says in a word of its own.
const MEASURED: [(&str, &str); 8] = [
    ("--aic-system", "engine.hardware"),
    ("--aic-model-path", "engine.model"),
    ("--aic-backend-version", "engine.backend_version"),
    ("--aic-tp-size", "parallelism.tensor"),
    ("--aic-attention-dp-size", "parallelism.attention_data"),
    ("--aic-moe-tp-size", "parallelism.moe_tensor"),
    ("--aic-moe-ep-size", "parallelism.moe_expert"),
    ("--num-gpu-blocks-override", "kv_cache.capacity, type fixed"),
];

/// Values of synthetic load.
const LOAD: [(&str, &str); 6] = [
    ("--request-count", "traffic.stop"),
    ("request_count", "traffic.stop"),
    ("turns_per_session", "traffic.source.session.turns"),
    ("shared_prefix_ratio", "traffic.source.session.shared_prefix_ratio"),
    ("inter_turn_delay_ms", "traffic.source.session.inter_turn_delay_ms"),
    ("request_rate", "traffic.load"),
];

/// `error`, which a replay gave, in the words of `document`.
pub(super) fn of_document(error: &str, document: &Document) -> String {
    if let Some((pool, rest)) = POOLS
        .iter()
        .find_map(|(flag, pool)| Some((*pool, error.strip_prefix(flag)?.strip_prefix(": ")?)))
    {
        return in_pool(pool, rest);
    }
    let mut text = error.to_owned();
    for (flag, path) in FLAGS.iter().chain(&LOAD).chain(&MEASURED) {
        text = renamed(&text, flag, path);
    }
    text = renamed(
        &text,
        "dp_size",
        match document.engine.mode {
            Mode::Aggregated => "engine.workers.aggregated.parallelism.attention_data",
            Mode::Disaggregated => "parallelism.attention_data",
        },
    );
    let lengths = match document.traffic.source {
        Source::Synthetic { .. } => ("traffic.source.input_tokens", "traffic.source.output_tokens"),
        Source::SyntheticSession { .. } => (
            "traffic.source.new_input_tokens_per_turn",
            "traffic.source.output_tokens_per_turn",
        ),
        Source::Trace { .. } => return text,
    };
    renamed(&renamed(&text, "input_tokens", lengths.0), "output_tokens", lengths.1)
}

/// What is wrong with the engine arguments of a pool: a key in quotes and why.
fn in_pool(pool: &str, error: &str) -> String {
    let key = error.strip_prefix('`').and_then(|rest| rest.split_once('`'));
    let Some((key, why)) = key else {
        return format!("{pool}: {error}");
    };
    if let Some((_, path)) = OF_ENGINE.iter().find(|(known, _)| *known == key) {
        return format!("{path}{why}");
    }
    let path = OF_POOL
        .iter()
        .find(|(known, _)| *known == key)
        .map_or(key, |(_, path)| path);
    let why = MEASURED
        .iter()
        .fold(why.to_owned(), |why, (flag, path)| renamed(&why, flag, path));
    format!("{pool}.{path}{why}")
}

/// `text` with `to` wherever the whole word `from` stands.
fn renamed(text: &str, from: &str, to: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut found = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, behind) = (&rest[..at], &rest[at + from.len()..]);
        let whole = !before.ends_with(is_part) && !behind.starts_with(is_part);
        found.push_str(before);
        found.push_str(if whole { to } else { from });
        rest = behind;
    }
    found + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_flags_become_paths_of_the_document() {
        let text = "engine: {model: m, hardware: h}\ntraffic: {source: {type: synthetic-session}}";
        let document = super::super::read(serde_norway::from_str(text).unwrap()).unwrap();
        for (error, expected) in [
            (
                "--extra-engine-args: `engine.block_size` 0 must be at least 1",
                "engine.workers.aggregated.kv_cache.block_size 0 must be at least 1",
            ),
            (
                "--decode-engine-args: `engine.timing_model`: decode_ms -1 must be 0 or greater",
                "engine.workers.decode.timing: decode_ms -1 must be 0 or greater",
            ),
            (
                "--prefill-engine-args: `engine.max_model_len` 0 must be at least 1",
                "engine.context_length 0 must be at least 1",
            ),
            ("--prefill-engine-args: no engine", "engine.workers.prefill: no engine"),
            (
                "--num-workers 65536 with dp_size 5 makes 327680 ranks",
                "engine.workers.aggregated.parallelism.replicas 65536 with engine.workers.aggregated.parallelism.attention_data 5 makes 327680 ranks",
            ),
            (
                "input_tokens is 4000000000, expected at most 67108864",
                "traffic.source.new_input_tokens_per_turn is 4000000000, expected at most 67108864",
            ),
            (
                "request_count times turns_per_session is 9, expected at most 8",
                "traffic.stop times traffic.source.session.turns is 9, expected at most 8",
            ),
        ] {
            assert_eq!(of_document(error, &document), expected);
        }
    }
}
