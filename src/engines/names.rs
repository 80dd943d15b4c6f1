//! What each engine calls its gauges.
//!
//! | engine | waiting | running | KV in use | pushed out | KV capacity |
//! |---|---|---|---|---|---|
//! | vLLM | `num_requests_waiting_by_reason{reason="capacity"}`, else `num_requests_waiting` | `num_requests_running` | `kv_cache_usage_perc`, formerly `gpu_cache_usage_perc` | `num_preemptions_total` | `cache_config_info`: `num_gpu_blocks` × `block_size` |
//! | SGLang | `num_queue_reqs` | `num_running_reqs` | `token_usage` | `num_retracted_requests_total` | `max_total_num_tokens` |
//! | TensorRT-LLM | `num_requests_waiting` | `num_requests_running` | `kv_cache_utilization` | – | `kv_cache_max_blocks` × `kv_cache_tokens_per_block` |
//! | Triton | `request_metrics{request_type="waiting"}`, else `nv_inference_pending_request_count` | `…{request_type="scheduled"}` | `kv_cache_block_metrics{kv_cache_block_type="fraction"}` | – | `…="max"` × `…="tokens_per"` |
//! | TGI | `queue_size` | `batch_current_size` | – | – | – |
//! | llama.cpp | `requests_deferred` | `requests_processing` | `kv_cache_usage_ratio`, where it has it | – | – |
//!
//! A gauge that an engine writes several times, once for each of its models or data-parallel engines, is summed (of a
//! usage the highest counts). The ranks that share one engine's work, and the processes that serve one engine's API,
//! each repeat the same numbers: of those the highest counts once. A value that cannot be (not a number, below zero)
//! is unknown.

use std::collections::BTreeMap;

use crate::units::{EngineGauges, Share, Tokens};

use super::exposition::{self, Malformed, Sample};

/// Labels that tell apart who reports the same numbers, not what is reported.
const REPORTERS: [&str; 6] = ["pid", "tp_rank", "pp_rank", "moe_ep_rank", "api_server", "instance"];

/// A page of metrics as an engine's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Which engine writes so.
    pub engine: &'static str,
    /// What it says; something, always.
    pub gauges: EngineGauges,
}

/// A page that tells nothing of an engine's load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// It is not in the format.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It has none of the names.
    #[error(
        "it has no gauge of an engine known here (vLLM, SGLang, TensorRT-LLM, Triton, TGI, llama.cpp); some need an \
         option to show them (SGLang --enable-metrics, llama.cpp --metrics), and TensorRT-LLM shows them at \
         /prometheus/metrics"
    )]
    NoGauges,
}

/// One metric, and the label it must carry.
#[derive(Clone, Copy)]
struct Pick {
    name: &'static str,
    label: Option<(&'static str, &'static str)>,
}

const fn named(name: &'static str) -> Pick {
    Pick { name, label: None }
}

const fn with(name: &'static str, label: &'static str, value: &'static str) -> Pick {
    Pick { name, label: Some((label, value)) }
}

/// Where an engine says how many tokens fit.
#[derive(Clone, Copy)]
enum Capacity {
    Nowhere,
    Tokens(Pick),
    /// Blocks, and tokens a block.
    Blocks(Pick, Pick),
    /// The same in two labels of one metric.
    Labels {
        name: &'static str,
        blocks: &'static str,
        tokens_per_block: &'static str,
    },
}

/// What one engine calls its gauges. Of several names the first that is there counts.
struct Engine {
    name: &'static str,
    waiting: &'static [Pick],
    running: &'static [Pick],
    kv_usage: &'static [Pick],
    preemptions: &'static [Pick],
    capacity: Capacity,
}

const ENGINES: [Engine; 6] = [
    Engine {
        name: "vLLM",
        waiting: &[
            with("vllm:num_requests_waiting_by_reason", "reason", "capacity"),
            named("vllm:num_requests_waiting"),
        ],
        running: &[named("vllm:num_requests_running")],
        kv_usage: &[named("vllm:kv_cache_usage_perc"), named("vllm:gpu_cache_usage_perc")],
        preemptions: &[named("vllm:num_preemptions_total")],
        capacity: Capacity::Labels {
            name: "vllm:cache_config_info",
            blocks: "num_gpu_blocks",
            tokens_per_block: "block_size",
        },
    },
    Engine {
        name: "SGLang",
        waiting: &[named("sglang:num_queue_reqs")],
        running: &[named("sglang:num_running_reqs")],
        kv_usage: &[named("sglang:token_usage")],
        preemptions: &[named("sglang:num_retracted_requests_total")],
        capacity: Capacity::Tokens(named("sglang:max_total_num_tokens")),
    },
    Engine {
        name: "TensorRT-LLM",
        waiting: &[named("trtllm_num_requests_waiting")],
        running: &[named("trtllm_num_requests_running")],
        kv_usage: &[named("trtllm_kv_cache_utilization")],
        preemptions: &[],
        capacity: Capacity::Blocks(named("trtllm_kv_cache_max_blocks"), named("trtllm_kv_cache_tokens_per_block")),
    },
    Engine {
        name: "Triton",
        waiting: &[
            with("nv_trt_llm_request_metrics", "request_type", "waiting"),
            named("nv_inference_pending_request_count"),
        ],
        running: &[with("nv_trt_llm_request_metrics", "request_type", "scheduled")],
        kv_usage: &[with("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction")],
        preemptions: &[],
        capacity: Capacity::Blocks(
            with("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"),
            with("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"),
        ),
    },
    Engine {
        name: "TGI",
        waiting: &[named("tgi_queue_size")],
        running: &[named("tgi_batch_current_size")],
        kv_usage: &[],
        preemptions: &[],
        capacity: Capacity::Nowhere,
    },
    Engine {
        name: "llama.cpp",
        waiting: &[named("llamacpp:requests_deferred")],
        running: &[named("llamacpp:requests_processing")],
        kv_usage: &[named("llamacpp:kv_cache_usage_ratio")],
        preemptions: &[],
        capacity: Capacity::Nowhere,
    },
];

impl Engine {
    fn writes(&self, name: &str) -> bool {
        let lists = [self.waiting, self.running, self.kv_usage, self.preemptions];
        let listed = lists.into_iter().flatten().any(|pick| pick.name == name);
        listed
            || match self.capacity {
                Capacity::Nowhere => false,
                Capacity::Tokens(pick) => pick.name == name,
                Capacity::Blocks(blocks, each) => blocks.name == name || each.name == name,
                Capacity::Labels { name: metric, .. } => metric == name,
            }
    }

    fn gauges(&self, samples: &[Sample<'_>]) -> EngineGauges {
        let first = |picks: &[Pick]| picks.iter().find_map(|pick| values(samples, *pick));
        let total = |picks| first(picks).and_then(|values| whole(values.iter().sum()));
        let highest = first(self.kv_usage).and_then(|values| values.into_iter().reduce(f64::max));
        EngineGauges {
            waiting: total(self.waiting),
            running: total(self.running),
            kv_usage: highest.and_then(part),
            preemptions: total(self.preemptions),
            kv_capacity: self.capacity.tokens(samples),
        }
    }
}

impl Capacity {
    fn tokens(self, samples: &[Sample<'_>]) -> Option<Tokens> {
        let tokens = match self {
            Self::Nowhere => return None,
            Self::Tokens(pick) => values(samples, pick)?.iter().sum(),
            Self::Blocks(blocks, each) => {
                // Every block of an engine is as large as the others.
                let each = values(samples, each)?.into_iter().reduce(f64::max)?;
                values(samples, blocks)?.iter().sum::<f64>() * each
            }
            Self::Labels { name, blocks, tokens_per_block } => {
                let configured = samples.iter().filter(|sample| sample.name == name).map(|sample| {
                    let number = |label| sample.label(label).and_then(|text| text.parse::<f64>().ok());
                    Some((identity(sample), number(blocks)? * number(tokens_per_block)?))
                });
                let configured: Option<BTreeMap<_, _>> = configured.collect();
                configured?.values().sum()
            }
        };
        // No engine runs without memory: it does not know yet.
        whole(tokens).filter(|tokens| *tokens > 0).map(Tokens::new)
    }
}

/// What tells a sample apart from another of its name, but for who reports it.
fn identity<'a>(sample: &'a Sample<'_>) -> Vec<(&'a str, &'a str)> {
    let labels = sample.labels.iter().map(|(name, value)| (*name, &**value));
    let mut told: Vec<_> = labels.filter(|(name, _)| !REPORTERS.contains(name)).collect();
    told.sort_unstable();
    told
}

/// The values of a metric, one for each thing that is reported. Nothing where one of them cannot be.
fn values(samples: &[Sample<'_>], pick: Pick) -> Option<Vec<f64>> {
    let mut values: BTreeMap<_, f64> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.name == pick.name) {
        if pick.label.is_some_and(|(label, value)| sample.label(label) != Some(value)) {
            continue;
        }
        if !sample.value.is_finite() || sample.value < 0.0 {
            return None;
        }
        let value = values.entry(identity(sample)).or_default();
        *value = value.max(sample.value);
    }
    (!values.is_empty()).then(|| values.into_values().collect())
}

/// A count, which engines write as a decimal.
pub(super) fn whole(value: f64) -> Option<u64> {
    const MOST: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie within both")]
    (0.0..=MOST).contains(&value).then(|| value.round() as u64)
}

/// A fraction, which may be a little over one for a moment.
pub(super) fn part(value: f64) -> Option<Share> {
    Share::new(if value > 1.0 { 1.0 } else { value }).ok()
}

/// Reads a page of metrics.
///
/// # Errors
/// When it is not in the format, or has no gauge of an engine known here.
pub fn read_page(page: &str) -> Result<Page, Unread> {
    let samples = exposition::read(page, |name| ENGINES.iter().any(|engine| engine.writes(name)))?;
    let read = ENGINES.iter().map(|engine| Page { engine: engine.name, gauges: engine.gauges(&samples) });
    read.into_iter().find(|page| !page.gauges.is_empty()).ok_or(Unread::NoGauges)
}

#[cfg(test)]
mod tests;
