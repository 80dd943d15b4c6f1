use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use super::{Demo, start};
use crate::costing::Encoding;
use crate::sim::EngineSpec;
use crate::units::Tokens;
use crate::wire::dialect::{Dialect, Reply, StreamEnd};

/// Steps of about a millisecond, so that a test takes no longer than it must.
fn quick(kv_tokens: u64) -> EngineSpec {
    serde_json::from_value(json!({
        "kv_tokens": kv_tokens,
        "decode_step": {"base_ms": 0.5, "per_sequence_ms": 0.0, "per_resident_token_ms": 0.0},
        "prefill": {"floor_ms": 0.5, "per_token_ms": 0.0, "overhead_ms": 0.0, "batch_tokens": 3072},
    }))
    .expect("a valid engine")
}

async fn engine(kv_tokens: u64) -> Demo {
    start(quick(kv_tokens), 1, SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port")
}

type Http = Client<HttpConnector, Full<Bytes>>;

fn client() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

async fn post(client: &Http, demo: &Demo, body: &Value) -> http::Response<Incoming> {
    post_to(client, demo, "/v1/chat/completions", body).await
}

async fn post_to(client: &Http, demo: &Demo, path: &str, body: &Value) -> http::Response<Incoming> {
    let request = Request::post(format!("http://{}{path}", demo.address()))
        .body(Full::from(body.to_string()))
        .expect("a valid request");
    client.request(request).await.expect("the demo answers")
}

async fn get(client: &Http, demo: &Demo, path: &str) -> (StatusCode, String) {
    let request =
        Request::get(format!("http://{}{path}", demo.address())).body(Full::default()).expect("a valid request");
    let response = client.request(request).await.expect("the demo answers");
    (response.status(), text(response).await)
}

async fn text(response: http::Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn chat(extra: &Value) -> Value {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Say something nice."}]});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

fn events(stream: &str) -> Vec<Value> {
    let data = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

#[tokio::test]
async fn a_whole_answer_is_as_long_as_asked_and_says_so() {
    let demo = engine(10_000).await;
    let response = post(&client(), &demo, &chat(&json!({"max_tokens": 12, "ignore_eos": true}))).await;
    assert_eq!(response.status(), StatusCode::OK);
    let answer: Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(answer["usage"], json!({"prompt_tokens": 11, "completion_tokens": 12, "total_tokens": 23}));
    let words = answer["choices"][0]["message"]["content"].as_str().expect("text");
    assert_eq!(words.split(' ').count(), 12, "{words}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    demo.shutdown().await;
}

#[tokio::test]
async fn a_stream_has_one_chunk_a_token_and_tells_usage_where_asked() {
    let demo = engine(10_000).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let asked = json!({"max_tokens": 5, "ignore_eos": true, "stream": true, "stream_options": options});
    let stream = text(post(&client(), &demo, &chat(&asked)).await).await;
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    let chunks = events(&stream);
    let counts: Vec<u64> = chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().expect("usage")).collect();
    assert_eq!(counts, [0, 1, 2, 3, 4, 5, 5, 5], "role, five tokens, finish, usage");
    assert_eq!(chunks[7]["choices"], json!([]));
    let plain = json!({"max_tokens": 5, "ignore_eos": true, "stream": true});
    let stream = text(post(&client(), &demo, &chat(&plain)).await).await;
    assert!(!stream.contains("usage"), "{stream}");
    assert_eq!(events(&stream).len(), 7);
    demo.shutdown().await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place_queued_or_running() {
    let demo = engine(1_000).await;
    let client = client();
    let long = chat(&json!({"max_tokens": 900, "ignore_eos": true, "stream": true}));
    let mut running = post(&client, &demo, &long).await.into_body();
    running.frame().await.expect("a frame").expect("a first token");
    // The second does not fit beside the first, so its headers come and its first token does not.
    let queued = post(&client, &demo, &long).await;
    let mut load = demo.load();
    load.wait_for(|load| load.running == 1 && load.waiting == 1).await.expect("running");
    drop(queued);
    load.wait_for(|load| load.running == 1 && load.waiting == 0).await.expect("running");
    drop(running);
    let idle = *load.wait_for(|load| load.running == 0).await.expect("running");
    assert_eq!(idle.resident.get(), 0);
    assert!(idle.output_total.get() < 900, "the rest was not produced");
    demo.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_in_openai_shape() {
    let demo = engine(100).await;
    let client = client();
    let response = post(&client, &demo, &chat(&json!({"max_tokens": 100, "ignore_eos": true}))).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let error: Value = serde_json::from_str(&text(response).await).expect("JSON");
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    assert_eq!(error["error"]["type"], "invalid_request_error");
    let response = post(&client, &demo, &json!({"model": "demo"})).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(text(response).await.contains("missing field `messages`"));
    let (status, body) = get(&client, &demo, "/v2").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("GET /v2 is not served here"), "{body}");
    demo.shutdown().await;
}

/// Whole and streamed, every API says the same text and usage, as the gateway's own readers read it.
#[tokio::test]
async fn the_other_apis_say_what_they_used_whole_and_streamed() {
    let demo = engine(10_000).await;
    let client = client();
    for (dialect, body) in [
        (Dialect::OpenAiCompletions, json!({"prompt": "hello", "max_tokens": 3})),
        (Dialect::OpenAiResponses, json!({"input": "hello", "max_output_tokens": 3})),
        (Dialect::AnthropicMessages, json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})),
    ] {
        let mut body = body;
        body["model"] = "demo".into();
        let read = |body: &Value| dialect.parse(dialect.path(), &Bytes::from(body.to_string())).expect("valid").answer;
        let whole = text(post_to(&client, &demo, dialect.path(), &body).await).await;
        let reply = read(&body).read(whole.as_bytes(), Encoding::O200k);
        assert!(matches!(reply, Reply::Reported(usage) if usage.output() <= Tokens::new(3)), "{dialect:?}: {whole}");
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let stream = text(post_to(&client, &demo, dialect.path(), &body).await).await;
        let mut observer = read(&body).observer(Encoding::O200k);
        observer.push(&Bytes::from(stream.clone()));
        assert_eq!(observer.end(), StreamEnd::Final, "{dialect:?}: {stream}");
        let usage = observer.usage().expect("reported");
        assert_eq!(usage.output(), observer.counted().0, "{dialect:?}: {stream}");
    }
    let body = json!({"model": "demo", "input": ["hello", "world"]});
    let embeddings = text(post_to(&client, &demo, "/v1/embeddings", &body).await).await;
    let embeddings: Value = serde_json::from_str(&embeddings).expect("JSON");
    assert_eq!(
        (embeddings["data"].as_array().map(Vec::len), &embeddings["usage"]["prompt_tokens"]),
        (Some(2), &json!(2))
    );
    let wrong = post_to(&client, &demo, "/v1/messages", &json!({"model": "demo"})).await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    assert!(text(wrong).await.contains("max_tokens is missing"));
    demo.shutdown().await;
}

#[tokio::test]
async fn gauges_health_and_models_answer() {
    let demo = engine(1_000).await;
    let client = client();
    assert_eq!(get(&client, &demo, "/health").await.0, StatusCode::OK);
    assert!(get(&client, &demo, "/v1/models").await.1.contains(r#""id":"demo""#));
    let whole = post(&client, &demo, &chat(&json!({"max_tokens": 3, "ignore_eos": true}))).await;
    text(whole).await;
    let metrics = get(&client, &demo, "/metrics").await.1;
    assert!(metrics.contains("vllm:num_requests_running{model_name=\"demo\"} 0\n"), "{metrics}");
    assert!(metrics.contains("vllm:generation_tokens_total{model_name=\"demo\"} 3\n"), "{metrics}");
    demo.shutdown().await;
}

#[tokio::test]
async fn stopping_cuts_streams_off_rather_than_ending_them_as_if_complete() {
    let demo = engine(1_000).await;
    let client = client();
    let long = chat(&json!({"max_tokens": 900, "ignore_eos": true, "stream": true}));
    let mut body = post(&client, &demo, &long).await.into_body();
    body.frame().await.expect("a frame").expect("a first token");
    let (collected, ()) = tokio::join!(body.collect(), demo.shutdown());
    assert!(collected.is_err(), "a stream that was cut off must not look complete");
}
