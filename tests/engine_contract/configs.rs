//! Random engines.

use ghostfleet::engine::{
    CapacityPolicy, EngineConfig, EngineKind, EvictionBackend, Fidelity, PreemptionMode, RadixEviction, Reasoning,
    Semantics, SglangConfig, SglangPolicy, Speculation, TierBandwidth, TierConfig, Writes,
};
use proptest::prelude::*;

fn engines() -> impl Strategy<Value = (EngineKind, Fidelity)> {
    let kinds = prop::sample::select(EngineKind::ALL.to_vec());
    (kinds, prop::sample::select(vec![Fidelity::Real, Fidelity::Mocker]))
}

prop_compose! {
    fn speculations()(nextn in 1_u32..6, accept_rates in prop::collection::vec(0.0..1.0, 0..6), seed in any::<u64>()) -> Speculation {
        Speculation { nextn, accept_rates, seed }
    }
}

prop_compose! {
    fn sglang_configs()(
        schedule_policy in prop::sample::select(vec![
            SglangPolicy::Fcfs, SglangPolicy::Lpm, SglangPolicy::DfsWeight, SglangPolicy::Lof, SglangPolicy::Random,
            SglangPolicy::Hrrn, SglangPolicy::ShortestPrefillFirst, SglangPolicy::RoutingKey,
        ]),
        max_prefill_tokens in prop::sample::select(vec![16_u32, 64, 16_384]),
        chunked_prefill_size in prop::option::of(prop::sample::select(vec![16_u32, 32, 64])),
        clip_max_new_tokens in prop::sample::select(vec![4_u32, 4096]),
        schedule_conservativeness in prop::sample::select(vec![0.0, 0.1, 1.0]),
        radix_eviction_policy in prop::sample::select(vec![
            RadixEviction::Lru, RadixEviction::Mru, RadixEviction::Lfu, RadixEviction::Slru, RadixEviction::Fifo,
            RadixEviction::Filo, RadixEviction::Priority, RadixEviction::Tlru,
        ]),
        prefill_decode_interval in prop::sample::select(vec![0_u32, 0, 3]),
    ) -> SglangConfig {
        SglangConfig {
            schedule_policy,
            max_prefill_tokens,
            chunked_prefill_size,
            clip_max_new_tokens,
            schedule_conservativeness,
            radix_eviction_policy,
            tlru_threshold: 20,
            tlru_next_prompt_estimate: 4,
            prefill_decode_interval,
        }
    }
}

prop_compose! {
    fn tier_configs()(
        host_blocks in 1_u32..20,
        disk_blocks in 0_u32..12,
        storage in any::<bool>(),
        batch_blocks in prop::option::of(1_u32..6),
        latency_ms in prop::sample::select(vec![0.0, 0.0, 3.0]),
        speeds in prop::collection::vec(prop::sample::select(vec![0.0, 0.01, 0.5, 20.0]), 6),
    ) -> TierConfig {
        TierConfig {
            host_blocks,
            disk_blocks,
            storage,
            writes: batch_blocks.map_or(Writes::Through, |batch_blocks| Writes::OnEviction { batch_blocks }),
            bytes_per_token: 100_000,
            host_latency_ms: latency_ms,
            disk_latency_ms: latency_ms,
            host_shared: None,
            disk_shared: None,
            bandwidth: TierBandwidth {
                g1_to_g2: speeds[0],
                g2_to_g1: speeds[1],
                g2_to_g3: speeds[2],
                g3_to_g2: speeds[3],
                g2_to_g4: speeds[4],
                g4_to_g2: speeds[5],
            },
        }
    }
}

prop_compose! {
    pub(crate) fn configs()(
        (kind, fidelity) in engines(),
        num_gpu_blocks in 6_u32..40,
        block_size in prop::sample::select(vec![1_u32, 2, 4, 16]),
        max_num_seqs in prop::option::of(1_u32..9),
        max_num_batched_tokens in prop::option::of(8_u32..80),
        max_model_len in prop::option::of(20_u32..200),
        enable_prefix_caching in prop::bool::weighted(0.8),
        enable_chunked_prefill in prop::bool::weighted(0.8),
        eviction_backend in prop::sample::select(EvictionBackend::ALL.to_vec()),
        fifo in any::<bool>(),
        priority_scheduling in any::<bool>(),
        watermark in prop::sample::select(vec![0.0, 0.1]),
        reserve_full_isl in any::<bool>(),
        long_prefill_token_threshold in prop::sample::select(vec![0_u32, 5]),
        long_prefill_token_threshold_adaptive in any::<bool>(),
        sglang in sglang_configs(),
        speculation in prop::option::weighted(0.2, speculations()),
        old in prop::bool::weighted(0.2),
        tiers in prop::option::weighted(0.5, tier_configs()),
        max_utilization in any::<bool>(),
        thinking_ratio in prop::option::weighted(0.2, 0.0..1.0),
        seed in any::<u64>(),
    ) -> EngineConfig {
        EngineConfig {
            kind,
            fidelity,
            num_gpu_blocks,
            block_size,
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            // That policy cannot do without.
            enable_prefix_caching: enable_prefix_caching
                || (kind == EngineKind::Sglang && sglang.schedule_policy == SglangPolicy::ShortestPrefillFirst),
            enable_chunked_prefill,
            eviction_backend: if kind == EngineKind::Sglang { EvictionBackend::Native } else { eviction_backend },
            preemption_mode: if fifo { PreemptionMode::Fifo } else { PreemptionMode::Lifo },
            priority_scheduling,
            watermark,
            reserve_full_isl,
            long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive,
            sglang,
            tiers: tiers.filter(|tiers| {
                let possible = kind == EngineKind::Vllm && enable_prefix_caching && speculation.is_none();
                possible && (tiers.writes != Writes::Through || eviction_backend == EvictionBackend::Native)
            }),
            speculation,
            semantics: if old { Semantics::V1_4_2 } else { Semantics::V1_6_1 },
            capacity_policy: if max_utilization { CapacityPolicy::MaxUtilization } else { CapacityPolicy::GuaranteedNoEvict },
            reasoning: thinking_ratio.map(|ratio| Reasoning { start_token: 1100, end_token: 3, ratio }),
            seed,
            ..EngineConfig::default()
        }
    }
}
