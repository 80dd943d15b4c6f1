//! What is not let through is told why, in words the SDKs understand, and leaves no trace.

use serde_json::{Value, json};
use tallygate::settings::Door;
use tallygate::units::{Bytes, Span, VirtualTokens};

use super::{INPUT, chat, cost, streaming};
use crate::door::{Setup, Upstream, once, usual};

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
        (
            chat,
            "",
            served("messages", json!([{"role": "user", "content": "hello ".repeat(200)}])),
            413,
            "too_large",
            "the largest request admitted is 100",
        ),
        (chat, "", served("model", json!("other")), 404, "model_not_found", "\"other\""),
        (chat, "", served("background", json!(true)), 400, "unsupported", "background"),
        (chat, "", served("x", json!("x".repeat(6_000))), 413, "too_large", "5000 bytes"),
        (chat, "content-encoding: br\r\n", served("x", json!(1)), 400, "unsupported", "Content-Encoding"),
        (chat, "content-encoding: gzip\r\n", served("x", json!(1)), 400, "malformed", "not encoded as its header says"),
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
async fn a_body_that_is_announced_too_large_is_refused_before_it_comes() {
    let upstream = Upstream::start().await;
    let door = Door { body_most: Bytes::new(5_000), ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    for expects in ["", "expect: 100-continue\r\n"] {
        let mut client = gateway.client().await;
        let head = format!("host: gateway\r\n{expects}content-length: 5001\r\n\r\n");
        client.send(format!("POST /v1/chat/completions HTTP/1.1\r\n{head}").as_bytes()).await;
        client.answer().await.refusal(413, "too_large");
    }
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
async fn bodies_share_one_bound_of_memory() {
    let mut upstream = Upstream::start().await;
    let (most, within) = (Bytes::new(4_096), Span::from_millis(100));
    let door = Door { body_most: most, bodies_most: most, body_within: within, ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    let padded = |length: usize| {
        let mut body = chat(true);
        body["padding"] = json!("x".repeat(length));
        body
    };
    let mut first = gateway.client().await;
    first.chat("", &padded(3_000)).await;
    let mut exchange = upstream.next().await;
    let mut second = gateway.client().await;
    second.chat("", &padded(3_000)).await;
    let answer = second.answer().await;
    let message = answer.refusal(429, "queue_full");
    assert!(message.contains("memory") && !answer.header("retry-after").is_empty(), "{message}");
    // The upstream has answered, so the first body is not needed any more.
    exchange.begin().await;
    first.read_until("\r\n\r\n").await;
    let mut third = gateway.client().await;
    third.chat("x-tallygate-deadline-ms: 20\r\n", &padded(3_000)).await;
    third.answer().await.refusal(429, "expired");
}

#[tokio::test]
async fn an_https_upstream_that_speaks_no_tls_is_unreachable() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let gateway = Setup::default().start(&format!("https://{}", plain.local_addr().expect("bound"))).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let (mut hello, _) = crate::door::within("a connection", plain.accept()).await.expect("it comes");
    tokio::io::AsyncWriteExt::write_all(&mut hello, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("it reads");
    client.answer().await.refusal(502, "upstream_unreachable");
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
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
async fn a_broken_core_lets_nothing_through_and_says_so_to_probes() {
    let (gateway, mut upstream) = usual().await;
    let gate = gateway.gate().clone();
    let fault = tokio::task::spawn_blocking(move || gate.look(|_| panic!("on purpose")).unwrap_or(()));
    assert!(fault.await.is_err());
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let message = client.answer().await.refusal(500, "internal");
    assert!(message.contains("it was not sent on"), "{message}");
    assert!(upstream.is_untouched());
    let mut admin = gateway.admin().await;
    assert_eq!(admin.get("/healthz", "").await.status, 500);
    assert_eq!(admin.get("/readyz", "").await.status, 503);
    assert_eq!(admin.get("/v1/tenants", "").await.status, 503);
    assert!(admin.get("/metrics", "").await.body.contains("tallygate_rejected_total{reason=\"internal\"} 1"));
}
