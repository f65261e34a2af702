//! Seeded requests.

use ghostfleet::transport::request_plane::Codec;
use serde::Serialize;

/// Ids below are left to special tokens.
const FIRST_TOKEN: u32 = 10;

/// Recipe of all prompts of a run.
#[derive(Debug)]
pub(crate) struct Prompts {
    pub(crate) seed: u64,
    /// Length of each.
    pub(crate) tokens: u32,
    /// Requests `n`, `n + groups`, .. begin alike.
    pub(crate) groups: u64,
    /// Length of what they share.
    pub(crate) prefix_tokens: u32,
    /// Ids stay below.
    pub(crate) vocabulary: u32,
}

/// The part of a preprocessed request that a worker without logits reads; both releases accept the rest missing.
#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    token_ids: Vec<u32>,
    stop_conditions: StopConditions,
    sampling_options: Nothing,
    output_options: Nothing,
    eos_token_ids: [u32; 1],
    mdc_sum: Option<&'a str>,
    annotations: [&'a str; 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    routing: Option<Routing>,
    router_config_override: Option<Nothing>,
}

#[derive(Serialize)]
struct StopConditions {
    max_tokens: u32,
    min_tokens: u32,
    ignore_eos: bool,
    stop: Option<[&'static str; 0]>,
    stop_token_ids_hidden: Option<[u32; 0]>,
}

#[derive(Serialize)]
struct Routing {
    dp_rank: u64,
}

#[derive(Serialize)]
struct Nothing {}

impl Prompts {
    /// Encoded request `number`, for exactly `output_tokens` tokens.
    pub(crate) fn request(
        &self,
        number: u64,
        model: &str,
        output_tokens: u32,
        rank: Option<u64>,
        codec: Codec,
    ) -> Vec<u8> {
        let request = Request {
            model,
            token_ids: self.prompt(number),
            stop_conditions: StopConditions {
                max_tokens: output_tokens,
                min_tokens: output_tokens,
                ignore_eos: true,
                stop: None,
                stop_token_ids_hidden: None,
            },
            sampling_options: Nothing {},
            output_options: Nothing {},
            eos_token_ids: [2],
            mdc_sum: None,
            annotations: [],
            routing: rank.map(|dp_rank| Routing { dp_rank }),
            router_config_override: None,
        };
        match codec {
            Codec::Msgpack => rmp_serde::to_vec_named(&request).expect("plain data"),
            Codec::Json => serde_json::to_vec(&request).expect("plain data"),
        }
    }

    fn prompt(&self, number: u64) -> Vec<u32> {
        let mut shared = Draw::new(self.seed, 2 * (number % self.groups));
        let mut own = Draw::new(self.seed, 2 * number + 1);
        let span = u64::from(self.vocabulary - FIRST_TOKEN);
        (0..self.tokens)
            .map(|position| {
                let draw = if position < self.prefix_tokens {
                    &mut shared
                } else {
                    &mut own
                };
                let below = draw.next() % span;
                FIRST_TOKEN + u32::try_from(below).expect("below a u32")
            })
            .collect()
    }
}

/// Weyl sequence with a mixing step: enough to make prompts differ.
struct Draw(u64);

impl Draw {
    fn new(seed: u64, stream: u64) -> Self {
        let mut draw = Self(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        draw.next();
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xe703_7ed1_a0b4_28db);
        mixed ^ (mixed >> 29)
    }
}
