//! The proxy on real sockets: every ending of a request settles as the design's table of the flow of money says, and
//! the books balance to the last millionth.

use serde_json::{Value, json};
use tallygate::settings::Door;
use tallygate::units::{Bytes, Span, VirtualTokens};

use crate::door::{Exchange, Gateway, Setup, Upstream, once, usual};

/// Input tokens of [`chat`]: one of text, four of markup, three for the reply.
const INPUT: u64 = 8;

fn chat(stream: bool) -> Value {
    json!({"model": "m", "stream": stream, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]})
}

/// What so much input and output costs by the default weights.
fn cost(input: u64, output: u64) -> VirtualTokens {
    VirtualTokens::whole(input + 2 * output)
}

fn delta(text: &str) -> String {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": null});
    format!("data: {chunk}\n\n")
}

fn shown(text: &str) -> String {
    delta(text).replace(",\"usage\":null", "")
}

const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":6,\"total_tokens\":17}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// A client whose streamed request has reached the upstream and got three tokens.
async fn streaming(gateway: &Gateway, upstream: &mut Upstream) -> (crate::door::Client, Exchange) {
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta("one two three")).await;
    client.read_until("one two three").await;
    (client, exchange)
}

#[tokio::test]
async fn a_stream_completes_and_its_usage_is_settled_and_hidden() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
    let sent: Value = serde_json::from_slice(&exchange.body).expect("JSON");
    assert_eq!(sent["stream_options"]["include_usage"], true, "asked for on the client's behalf");
    exchange.chunk(&delta(" four")).await;
    client.read_until(" four").await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole && answer.status == 200);
    assert_eq!(answer.body, format!("{}{}{DONE}", shown("one two three"), shown(" four")));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert_eq!(answer.header("x-tallygate-queue-ms"), "0");
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
}

#[tokio::test]
async fn a_client_that_asked_for_usage_sees_it() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    let mut body = chat(true);
    body["stream_options"] = json!({"include_usage": true});
    client.chat("", &body).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, body.to_string().into_bytes(), "untouched");
    exchange.begin().await;
    exchange.chunk(&format!("{}{USAGE}{DONE}", delta("x"))).await;
    exchange.end().await;
    assert_eq!(client.answer().await.body, format!("{}{USAGE}{DONE}", delta("x")));
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
}

#[tokio::test]
async fn a_stream_cut_at_every_byte_comes_out_the_same() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    for byte in format!("{}: still there\r\n\r\n{USAGE}{DONE}", delta("hi")).bytes() {
        exchange.chunk(&char::from(byte).to_string()).await;
    }
    exchange.end().await;
    assert_eq!(client.answer().await.body, format!("{}: still there\r\n\r\n{DONE}", shown("hi")));
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
}

#[tokio::test]
async fn an_answer_in_one_piece_is_settled_for_its_usage_or_counted() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.chat("", &chat(false)).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, chat(false).to_string().into_bytes(), "untouched");
    let reported = json!({
        "choices": [{"message": {"content": "hi"}}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10}},
    });
    exchange.answer("200 OK", &reported.to_string()).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()), (200, reported));
    // Ten uncached at 1, ten cached at 0.1, five out at 2.
    assert_eq!(gateway.ended().await, (VirtualTokens::whole(10 + 1 + 10), once("completed")));

    // The same connection serves the next request, whose answer says nothing of usage and is counted.
    client.chat("", &chat(false)).await;
    let silent = json!({"choices": [{"message": {"content": "one two three"}}]});
    upstream.next().await.answer("200 OK", &silent.to_string()).await;
    assert_eq!(client.answer().await.json(), silent);
    let (settled, _) = gateway.ended().await;
    assert_eq!(settled, VirtualTokens::whole(21) + cost(INPUT, 3));
    let metrics = gateway.admin().await.get("/metrics", "").await.body;
    assert!(metrics.contains("tallygate_estimated_usage_total{outcome=\"completed\",pool=\"chat\"} 1"), "alarmed");
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_costs_nothing_and_is_gone_at_once() {
    let (gateway, mut upstream) = usual().await;
    let (mut first, mut exchange) = streaming(&gateway, &mut upstream).await;
    let mut second = gateway.client().await;
    second.chat("", &chat(true)).await;
    gateway.until_queued(1).await;
    drop(second);
    gateway.until_queued(0).await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(first.answer().await.whole);
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
    assert!(upstream.is_untouched(), "the second never went upstream");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_pays_for_its_input() {
    for stream in [true, false] {
        let (gateway, mut upstream) = usual().await;
        let mut client = gateway.client().await;
        client.chat("", &chat(stream)).await;
        let exchange = upstream.next().await;
        drop(client);
        exchange.closed().await;
        assert_eq!(gateway.ended().await, (cost(INPUT, 0), once("client_aborted")), "streamed: {stream}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_pays_for_what_was_produced() {
    let (gateway, mut upstream) = usual().await;
    let (client, exchange) = streaming(&gateway, &mut upstream).await;
    drop(client);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("client_aborted")));
}

#[tokio::test]
async fn the_final_event_frees_the_slot_however_long_the_upstream_lingers() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    client.read_until("[DONE]").await;
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
    drop(client);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")), "settled once");
}

#[tokio::test]
async fn an_upstreams_error_passes_and_costs_nothing() {
    for (status, kept) in [("500 Internal Server Error", 500), ("429 Too Many Requests", 429), ("400 Bad Request", 400)]
    {
        let (gateway, mut upstream) = usual().await;
        let mut client = gateway.client().await;
        client.chat("", &chat(true)).await;
        let body = "{\"error\":{\"message\":\"theirs\",\"code\":\"theirs\"}}";
        upstream.next().await.answer(status, body).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.body.as_str()), (kept, body));
        assert_eq!(answer.header("x-tallygate-reason"), "", "not ours");
        assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
    }
}

#[tokio::test]
async fn an_upstreams_error_that_reports_usage_costs_that() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.chat("", &chat(false)).await;
    let body = "{\"error\":{},\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":0}}";
    upstream.next().await.answer("503 Service Unavailable", body).await;
    assert_eq!(client.answer().await.status, 503);
    assert_eq!(gateway.ended().await, (cost(9, 0), once("upstream_failed")));
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_our_502() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address").local_addr().expect("bound");
    let gateway = Setup::default().start(&format!("http://{closed}")).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let message = client.answer().await.refusal(502, "upstream_unreachable");
    assert!(message.contains("cannot be reached"), "{message}");
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
}

#[tokio::test]
async fn an_upstream_that_hangs_up_before_answering_is_our_502() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    drop(upstream.next().await);
    client.answer().await.refusal(502, "upstream_unreachable");
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
}

#[tokio::test]
async fn a_stream_that_breaks_breaks_for_the_client_too() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, exchange) = streaming(&gateway, &mut upstream).await;
    drop(exchange);
    assert!(!client.answer().await.whole, "a part is not taken for the whole");
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("upstream_failed")));
}

#[tokio::test]
async fn a_stream_that_ends_early_in_good_order_is_a_failure() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert_eq!((answer.whole, answer.body), (true, shown("one two three")));
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("upstream_failed")));
}

#[tokio::test]
async fn an_error_in_a_stream_is_a_failure() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
    let error = "data: {\"error\":{\"message\":\"out of memory\"}}\n\n";
    exchange.chunk(&format!("{error}{DONE}")).await;
    exchange.end().await;
    assert_eq!(client.answer().await.body, format!("{}{error}{DONE}", shown("one two three")));
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("upstream_failed")));
}

#[tokio::test]
async fn an_upstream_that_does_not_begin_is_our_504() {
    let mut upstream = Upstream::start().await;
    let door = Door { begin_within: Span::from_millis(50), ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let exchange = upstream.next().await;
    let message = client.answer().await.refusal(504, "upstream_timed_out");
    assert!(message.contains("within 50 ms"), "{message}");
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 0), once("timed_out")));
}

#[tokio::test]
async fn an_upstream_that_falls_silent_is_cut_off() {
    let mut upstream = Upstream::start().await;
    let door = Door { idle_most: Span::from_millis(200), ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    let (mut client, exchange) = streaming(&gateway, &mut upstream).await;
    assert!(!client.answer().await.whole);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("timed_out")));
}

#[tokio::test]
async fn a_full_queue_refuses_in_words_the_sdks_understand() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 0}}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let (_running, _exchange) = streaming(&gateway, &mut upstream).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let answer = client.answer().await;
    let message = answer.refusal(429, "queue_full");
    assert!(message.contains("try again in"), "{message}");
    let secs: u64 = answer.header("retry-after").parse().expect("whole seconds");
    let millis: u64 = answer.header("retry-after-ms").parse().expect("milliseconds");
    assert!(secs >= 1 && millis.div_ceil(1_000) == secs, "{secs} s, {millis} ms");
    assert_eq!(answer.header("x-should-retry"), "");
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    assert!(upstream.is_untouched());
}

#[tokio::test]
async fn what_is_not_dispatched_by_its_deadline_expires() {
    let (gateway, mut upstream) = usual().await;
    let (_running, _exchange) = streaming(&gateway, &mut upstream).await;
    let mut client = gateway.client().await;
    client.chat("x-tallygate-deadline-ms: 40\r\n", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(429, "expired");
    assert!(!answer.header("retry-after").is_empty());
}

#[tokio::test]
async fn what_cannot_be_served_is_told_so() {
    let upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['served'], window: {requests: 1}, max_request_tokens: 100}]";
    let door = Door { body_most: Bytes::new(5_000), ..Door::default() };
    let gateway = Setup { door, ..Setup::policy(policy) }.start(&upstream.url()).await;
    let served = |name: &str, value: Value| {
        let mut body = json!({"model": "served", "messages": [{"role": "user", "content": "hello"}]});
        body[name] = value;
        body.to_string()
    };
    let chat = "/v1/chat/completions";
    let cases: &[(&str, &str, String, u16, &str, &str)] = &[
        (chat, "", "{".into(), 400, "malformed", "the body: EOF while parsing an object at line 1 column 1"),
        (chat, "", "[1]".into(), 400, "malformed", "must be a JSON object"),
        (chat, "", served("n", json!(0)), 400, "malformed", "n must be between 1 and"),
        (chat, "", served("max_tokens", json!(1_000)), 413, "too_large", "the largest request admitted is 100"),
        (chat, "", served("model", json!("other")), 404, "model_not_found", "\"other\""),
        (chat, "", served("background", json!(true)), 400, "unsupported", "background"),
        (chat, "", served("x", json!("x".repeat(6_000))), 413, "too_large", "5000 bytes"),
        (chat, "content-encoding: gzip\r\n", served("x", json!(1)), 400, "unsupported", "Content-Encoding"),
        (chat, "x-tallygate-deadline-ms: soon\r\n", served("x", json!(1)), 400, "malformed", "milliseconds"),
        (chat, "x-tenant-id: a\r\nx-tenant-id: b\r\n", served("x", json!(1)), 400, "malformed", "more than once"),
        (chat, "connection: upgrade\r\nupgrade: websocket\r\n", served("x", json!(1)), 400, "unsupported", "WebSocket"),
        ("/v1/completions", "", "{}".into(), 400, "malformed", "model is missing"),
        ("/v1/chat/completions/", "", "{}".into(), 400, "unsupported", "exactly as its documentation writes it"),
        ("/v1/realtime/sessions", "", "{}".into(), 400, "unsupported", "realtime"),
        ("/v1/files", "", "{}".into(), 400, "unsupported", "is not metered"),
    ];
    for (path, headers, body, status, reason, words) in cases {
        let mut client = gateway.client().await;
        client.post(path, headers, body).await;
        let answer = client.answer().await;
        let message = answer.refusal(*status, reason);
        assert!(message.contains(words), "{message}");
        assert_eq!(answer.header("retry-after"), "", "coming back would not help: {reason}");
    }
    let model = gateway.client().await.get("/v1/models", "content-length: 1\r\n").await;
    model.refusal(400, "unsupported");
    let (settled, outcomes) = gateway.ended().await;
    assert_eq!((settled, outcomes.len()), (VirtualTokens::ZERO, 0), "no trace");
}

#[tokio::test]
async fn a_body_without_a_length_is_bounded_too() {
    let upstream = Upstream::start().await;
    let door = Door { body_most: Bytes::new(1_000), ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n").await;
    for _ in 0..3 {
        client.send(format!("1f4\r\n{}\r\n", "x".repeat(500)).as_bytes()).await;
    }
    client.send(b"0\r\n\r\n").await;
    client.answer().await.refusal(413, "too_large");
}

#[tokio::test]
async fn a_request_without_a_body_passes_unmetered() {
    let (gateway, mut upstream) = usual().await;
    let asking = async { gateway.client().await.get("/v1/models?limit=5", "authorization: Bearer theirs\r\n").await };
    let answering = async {
        let mut exchange = upstream.next().await;
        assert!(exchange.head.starts_with("GET /v1/models?limit=5 HTTP/1.1"), "{}", exchange.head);
        assert_eq!(exchange.header("authorization"), Some("Bearer theirs"));
        exchange.answer("200 OK", "{\"data\":[]}").await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!((answer.status, answer.body.as_str()), (200, "{\"data\":[]}"));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert!(gateway.outcomes().is_empty());
}

#[tokio::test]
async fn headers_that_are_not_for_the_upstream_stay_here() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    let headers = "accept-encoding: gzip\r\nx-tallygate-deadline-ms: 9000\r\nx-tallygate-x: y\r\nx-custom: kept\r\n";
    client.chat(headers, &chat(false)).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.header("accept-encoding"), Some("identity"));
    assert_eq!(exchange.header("x-custom"), Some("kept"));
    assert!(!exchange.head.contains("x-tallygate"), "{}", exchange.head);
    assert!(exchange.header("host").is_some_and(|host| host.starts_with("127.0.0.1")), "the upstream's own name");
    let forged =
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-tallygate-decision: forged\r\nx-request-id: theirs\r\n\r\n{}";
    exchange.send(forged).await;
    let answer = client.answer().await;
    assert_ne!(answer.header("x-tallygate-decision"), "forged");
    assert_eq!(answer.header("x-request-id"), "theirs");
}

#[tokio::test]
async fn a_model_is_renamed_as_its_pool_says() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['big'], aliases: [{from: 'm*', to: big}], window: {requests: 1}}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(false)).await;
    let mut exchange = upstream.next().await;
    let sent: Value = serde_json::from_slice(&exchange.body).expect("JSON");
    assert_eq!(sent["model"], "big");
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}").await;
    assert_eq!(client.answer().await.status, 200);
}

/// SHA-256 of "sk-acme".
fn keys() -> (&'static str, String) {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    let hex = sha2::Sha256::digest(b"sk-acme").iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes it");
        hex
    });
    ("keys.yaml", format!("keys: [{{sha256: {hex}, tenant: acme}}]\n"))
}

#[tokio::test]
async fn a_key_of_ours_names_the_tenant_and_stays_here() {
    let mut upstream = Upstream::start().await;
    let policy = "identity: {tenant: [{api_key: keys.yaml}]}\npools: [{name: chat, models: ['*']}]";
    let upstream_key = Some(http::HeaderValue::from_static("Bearer sk-upstream"));
    let door = Door { upstream_key, ..Door::default() };
    let gateway = Setup { door, files: vec![keys()], ..Setup::policy(policy) }.start(&upstream.url()).await;

    for (headers, words) in [("", "send an API key"), ("authorization: Bearer sk-wrong\r\n", "not known")] {
        let mut client = gateway.client().await;
        client.chat(headers, &chat(false)).await;
        let answer = client.answer().await;
        let message = answer.refusal(401, "unidentified");
        assert!(message.contains(words), "{message}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        gateway.client().await.get("/v1/models", headers).await.refusal(401, "unidentified");
    }
    let mut client = gateway.client().await;
    client.chat("authorization: Bearer sk-acme\r\n", &chat(false)).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.header("authorization"), Some("Bearer sk-upstream"));
    assert!(!exchange.head.contains("sk-acme"));
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}").await;
    assert_eq!(client.answer().await.status, 200);
    let rows = gateway.admin().await.get("/v1/tenants/acme", "").await.json();
    assert_eq!(rows[0]["admitted_total"], 1);
}

#[tokio::test]
async fn stopping_finishes_what_runs_and_refuses_what_comes() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
    let gate = gateway.gate().clone();
    let mut idle = gateway.client().await;
    idle.chat("", &json!({})).await;
    idle.answer().await.refusal(400, "malformed");
    let stopping = tokio::spawn(gateway.app.stop());
    crate::door::within("draining", async {
        while !gate.look(|seen| seen.draining).expect("not broken") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(client.answer().await.whole, "finished");
    crate::door::within("the end", stopping).await.expect("it stops");
    assert_eq!(gate.look(|seen| seen.ledger.total().live()), Ok(VirtualTokens::ZERO));
}
