//! The engine's gauges, under the names vLLM gives them, so that what scrapes one scrapes the other.

use std::fmt::Write as _;

use crate::units::Tokens;

use super::driver::Load;

/// The text of `/metrics`, in the Prometheus exposition format.
pub(super) fn text(load: &Load, kv_tokens: Tokens, model: &str) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    let used = load.resident.get() as f64 / kv_tokens.get().max(1) as f64;
    let lines = [
        ("num_requests_running", "gauge", "Requests in the running batch.", load.running.to_string()),
        ("num_requests_waiting", "gauge", "Requests waiting to be processed.", load.waiting.to_string()),
        ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", format!("{used:.6}")),
        ("prompt_tokens_total", "counter", "Input tokens taken.", load.input_total.to_string()),
        ("generation_tokens_total", "counter", "Output tokens produced.", load.output_total.to_string()),
    ];
    let capacity = format!(
        "# HELP vllm:cache_config_info Information of the cache.\n# TYPE vllm:cache_config_info gauge\n\
         vllm:cache_config_info{{block_size=\"1\",num_gpu_blocks=\"{kv_tokens}\"}} 1\n"
    );
    lines.into_iter().fold(capacity, |mut out, (name, kind, help, value)| {
        let written = write!(
            out,
            "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\nvllm:{name}{{model_name=\"{model}\"}} {value}\n"
        );
        written.expect("a string takes all");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::{Load, text};
    use crate::units::Tokens;

    #[test]
    fn gauges_carry_vllms_names_and_usage_is_a_fraction() {
        let load = Load { running: 3, waiting: 2, resident: Tokens::new(2_500), ..Load::default() };
        let text = text(&load, Tokens::new(10_000), "demo");
        for line in [
            "vllm:num_requests_running{model_name=\"demo\"} 3\n",
            "vllm:num_requests_waiting{model_name=\"demo\"} 2\n",
            "vllm:kv_cache_usage_perc{model_name=\"demo\"} 0.250000\n",
            "# TYPE vllm:generation_tokens_total counter\n",
            "vllm:cache_config_info{block_size=\"1\",num_gpu_blocks=\"10000\"} 1\n",
        ] {
            assert!(text.contains(line), "{line:?} is missing from {text}");
        }
    }
}
