use super::{Page, Unread, read_page};
use crate::units::{EngineGauges, Share, Tokens};

/// What the pages of real engines look like around the lines that matter, shortened.
const VLLM: &str = "\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation=\"0\"} 9866.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 8.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests broken down by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"} 6.0
vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"deferred\"} 2.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.8101265822784809
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine=\"0\",model_name=\"tiny\"} 4.0
vllm:num_preemptions_created{engine=\"0\",model_name=\"tiny\"} 1.7881e+09
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size=\"32\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",num_cpu_blocks=\"None\",num_gpu_blocks=\"80\",num_gpu_blocks_override=\"80\"} 1.0
vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\",model_name=\"tiny\"} 0.0
vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"+Inf\",model_name=\"tiny\"} 12.0
";

const OLD_VLLM: &str = "\
vllm:num_requests_running{model_name=\"m\"} 3
vllm:num_requests_waiting{model_name=\"m\"} 1
vllm:num_requests_swapped{model_name=\"m\"} 9
vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5
vllm:cpu_cache_usage_perc{model_name=\"m\"} 0.9
vllm:num_preemptions_total{model_name=\"m\"} 0
";

const SGLANG: &str = "\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 7.0
sglang:num_running_reqs{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"1\"} 7.0
sglang:num_used_tokens{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 3000.0
sglang:token_usage{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 0.28
sglang:num_queue_reqs{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 2.0
sglang:num_queue_reqs{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"1\"} 2.0
sglang:num_retracted_requests_total{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 3.0
sglang:max_total_num_tokens{engine_type=\"unified\",model_name=\"m\",pp_rank=\"0\",tp_rank=\"0\"} 161721.0
";

const TRTLLM: &str = "\
trtllm_num_requests_running{engine_type=\"undefined\",model_name=\"m\"} 5.0
trtllm_num_requests_waiting{engine_type=\"undefined\",model_name=\"m\"} 11.0
trtllm_max_num_active_requests{engine_type=\"undefined\",model_name=\"m\"} 2048.0
trtllm_kv_cache_utilization{engine_type=\"undefined\",model_name=\"m\"} 0.61
trtllm_kv_cache_max_blocks{engine_type=\"undefined\",model_name=\"m\"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type=\"undefined\",model_name=\"m\"} 32.0
";

const TRITON: &str = "\
nv_inference_pending_request_count{model=\"ensemble\",version=\"1\"} 40
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"waiting\",version=\"1\"} 3
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"context\",version=\"1\"} 1
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"scheduled\",version=\"1\"} 4
nv_trt_llm_request_metrics{model=\"tensorrt_llm\",request_type=\"max\",version=\"1\"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"tensorrt_llm\",version=\"1\"} 0.25
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"tensorrt_llm\",version=\"1\"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\",model=\"tensorrt_llm\",version=\"1\"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"tensorrt_llm\",version=\"1\"} 400
";

const TGI: &str = "\
# TYPE tgi_queue_size gauge
tgi_queue_size 7
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
tgi_batch_current_max_tokens 2048
tgi_request_queue_duration_bucket{le=\"+Inf\"} 40
";

const LLAMA_CPP: &str = "\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1270
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 6
# HELP llamacpp:n_busy_slots_per_decode Average number of busy slots per llama_decode() call
# TYPE llamacpp:n_busy_slots_per_decode counter
llamacpp:n_busy_slots_per_decode 3.95
";

fn gauges(waiting: u64, running: u64) -> EngineGauges {
    EngineGauges { waiting: Some(waiting), running: Some(running), ..EngineGauges::default() }
}

#[test]
fn every_engine_is_read_by_its_own_names() {
    let share = |part| Share::new(part).ok();
    let tokens = |count| Some(Tokens::new(count));
    let pages = [
        (
            VLLM,
            "vLLM",
            EngineGauges {
                kv_usage: share(0.810_127),
                preemptions: Some(4),
                kv_capacity: tokens(2_560),
                ..gauges(6, 4)
            },
        ),
        (OLD_VLLM, "vLLM", EngineGauges { kv_usage: share(0.5), preemptions: Some(0), ..gauges(1, 3) }),
        (
            SGLANG,
            "SGLang",
            EngineGauges { kv_usage: share(0.28), preemptions: Some(3), kv_capacity: tokens(161_721), ..gauges(2, 7) },
        ),
        (TRTLLM, "TensorRT-LLM", EngineGauges { kv_usage: share(0.61), kv_capacity: tokens(32_000), ..gauges(11, 5) }),
        (TRITON, "Triton", EngineGauges { kv_usage: share(0.25), kv_capacity: tokens(25_600), ..gauges(3, 4) }),
        (TGI, "TGI", gauges(7, 4)),
        (LLAMA_CPP, "llama.cpp", gauges(6, 4)),
    ];
    for (page, engine, gauges) in pages {
        assert_eq!(read_page(page), Ok(Page { engine, gauges }), "{engine}");
    }
}

#[test]
fn what_is_missing_or_impossible_is_unknown() {
    // Renamed, as happened to vLLM's: the rest still counts.
    let renamed = VLLM.replace("num_requests_waiting", "queue_depth").replace("kv_cache_usage_perc", "kv_usage");
    let page = read_page(&renamed).expect("the rest is there");
    assert_eq!((page.gauges.waiting, page.gauges.kv_usage, page.gauges.running), (None, None, Some(4)));
    for bad in ["NaN", "-1", "+Inf"] {
        let page = format!("llamacpp:requests_deferred {bad}\nllamacpp:requests_processing 1\n");
        let gauges = read_page(&page).expect("one is fine").gauges;
        assert_eq!((gauges.waiting, gauges.running), (None, Some(1)), "{bad}");
    }
    // An engine that does not know its memory yet.
    for unknown in ["num_gpu_blocks=\"None\"", "num_gpu_blocks=\"0\"", "other=\"80\""] {
        let page = VLLM.replace("num_gpu_blocks=\"80\"", unknown);
        assert_eq!(read_page(&page).expect("the rest is there").gauges.kv_capacity, None, "{unknown}");
    }
}

#[test]
fn engines_of_one_page_are_summed_and_repeated_reports_are_not() {
    let page = "\
vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2
vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 3
vllm:num_requests_running{engine=\"0\",model_name=\"m\",pid=\"7\"} 4
vllm:num_requests_running{engine=\"0\",model_name=\"m\",pid=\"8\"} 4
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.2
vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.7
vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"10\"} 1
vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"10\"} 1
";
    let expected = EngineGauges { kv_usage: Share::new(0.7).ok(), kv_capacity: Some(Tokens::new(320)), ..gauges(5, 4) };
    assert_eq!(read_page(page).expect("read").gauges, expected);
}

#[test]
fn a_page_of_something_else_is_no_idle_engine() {
    for page in ["", "up 1\n", "process_cpu_seconds_total 3\nvllm:num_requests_waitin 0\n"] {
        assert_eq!(read_page(page), Err(Unread::NoGauges));
    }
    let error = read_page("<!doctype html>\n<p>not found\n").expect_err("a web page").to_string();
    assert!(error.contains("line 1") && error.contains("Prometheus"), "{error}");
    assert!(Unread::NoGauges.to_string().contains("--enable-metrics"), "what to do about it");
}
