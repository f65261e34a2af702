//! Defaults that [`Settings::defaults`] does not say, because they follow from other settings or because it matters
//! whether somebody said them: what `--print-config` shows beside all that is said.

use serde_json::{Map, Value};

use super::disaggregation::PAIRING_TIMEOUT_MS;
use super::group::{ACCEPT_RATES, DRAFT_SEED, eviction_backend};
use super::layers::{Layered, Origin};
use super::settings::Settings;
use super::{choices::Finite, tiers, unread};
use crate::engine::{CapacityPolicy, SglangConfig};

/// Those of an engine that `s` describes.
fn defaults(layered: &Layered, s: &Settings) -> Settings {
    let sglang = SglangConfig::default();
    Settings {
        prefill_schedule_interval: Some(1),
        handoff_pairing_timeout_ms: Some(PAIRING_TIMEOUT_MS),
        sglang_schedule_policy: Some(sglang.schedule_policy),
        sglang_max_prefill_tokens: Some(sglang.max_prefill_tokens),
        sglang_chunked_prefill_size: sglang.chunked_prefill_size,
        sglang_clip_max_new_tokens: Some(sglang.clip_max_new_tokens),
        sglang_schedule_conservativeness: Some(Finite::literal(sglang.schedule_conservativeness)),
        sglang_radix_eviction_policy: Some(sglang.radix_eviction_policy),
        sglang_tlru_next_prompt_estimate: Some(sglang.tlru_next_prompt_estimate),
        sglang_prefill_decode_interval: Some(sglang.prefill_decode_interval),
        trtllm_capacity_scheduler_policy: Some(CapacityPolicy::default()),
        eviction_backend: eviction_backend(layered, s).ok(),
        aic_nextn_accept_rates: Some(ACCEPT_RATES.to_owned()),
        aic_mtp_seed: Some(DRAFT_SEED),
        ..tiers::implied(layered, s)
    }
}

/// Whether anything but the default is said; a printed config says all defaults.
pub(super) fn is_said(layered: &Layered, key: &str) -> bool {
    let is_default = |defaults: &Settings, value: &Value| {
        let defaults = serde_json::to_value(defaults).unwrap_or_default();
        defaults.get(key) == Some(value)
    };
    layered.value(key).is_some_and(|value| {
        let implied = || {
            layered
                .settings()
                .is_ok_and(|s| is_default(&defaults(layered, &s), value))
        };
        !is_default(&Settings::defaults(), value) && !implied()
    })
}

impl Layered {
    /// The same with every default that something reads.
    #[must_use]
    pub fn spelled_out(&self) -> Self {
        let mut spelled = self.clone();
        let Ok(s) = self.settings() else { return spelled };
        let Ok(Value::Object(all)) = serde_json::to_value(defaults(self, &s)) else {
            return spelled;
        };
        let unsaid = |key: &str| self.value(key).is_none() && unread::is_read(key, &s);
        let read = all.into_iter().filter(|(key, value)| !value.is_null() && unsaid(key));
        let read: Map<String, Value> = read.collect();
        if let Ok(read) = serde_json::from_value(Value::Object(read)) {
            spelled.put(&read, &Origin::Default);
        }
        spelled
    }
}
