//! What is not let through is told why, in words the SDKs understand, and leaves no trace; who calls cannot be forged.

use serde_json::{Value, json};
use tallygate::settings::Door;
use tallygate::units::{Bytes, VirtualTokens};

use super::{ANSWER, DONE, USAGE, chat, delta};
use crate::door::{Gateway, Setup, Stage, Way, both_doors, cases, every_door};

every_door! {
    full, |_| Setup::policy("pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 0}}]"),
    [
        a_full_queue_refuses_in_words_the_sdks_understand,
    ]
}

every_door! {
    waiting, |_| Setup::default(),
    [
        what_is_not_dispatched_by_its_deadline_expires,
        a_core_that_drains_refuses_newcomers_and_finishes_what_runs,
    ]
}

every_door! {
    limits, bounded,
    [
        what_cannot_be_served_is_told_so,
    ]
}

both_doors! {
    memory, scarce,
    [
        bodies_share_one_bound_of_memory,
    ]
}

every_door! {
    keys, keyed,
    [
        a_key_of_ours_names_the_tenant_and_stays_here,
    ]
}

every_door! {
    forged, distrusting,
    [
        what_a_client_forges_counts_for_nothing_and_stays_here,
    ]
}

fn bounded(_: Way) -> Setup {
    let policy = "identity: {class_not_granted: refuse}
pools: [{name: chat, models: ['served'], window: {requests: 1}, max_request_tokens: 100}]";
    Setup { door: Door { body_most: Bytes::new(5_000), ..Door::default() }, ..Setup::policy(policy) }
}

fn scarce(_: Way) -> Setup {
    let most = Bytes::new(4_096);
    let within = tallygate::units::Span::from_millis(100);
    Setup {
        door: Door { body_most: most, bodies_most: most, body_within: within, ..Door::default() },
        ..Setup::default()
    }
}

/// The key is "sk-acme", known by its SHA-256.
fn keyed(way: Way) -> Setup {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    let hex = sha2::Sha256::digest(b"sk-acme").iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes it");
        hex
    });
    let files = vec![("keys.yaml", format!("keys: [{{sha256: {hex}, tenant: acme}}]\n"))];
    let policy = "identity: {tenant: [{api_key: keys.yaml}]}\npools: [{name: chat, models: ['*']}]";
    // Envoy shows the upstream its own key.
    let upstream_key = (way == Way::Proxy).then(|| http::HeaderValue::from_static("Bearer sk-upstream"));
    Setup { door: Door { upstream_key, ..Door::default() }, files, ..Setup::policy(policy) }
}

/// Headers name tenants, but on the other door only.
fn distrusting(way: Way) -> Setup {
    let other = if way.config().is_some() { "proxy" } else { "grpc" };
    Setup::policy(&format!(
        "identity: {{tenant: [{{metadata: envoy.filters.http.jwt_authn/payload.org}}, {{header: x-tenant-id}}, \
         {{fallback: nobody}}], trust: [{other}], class: [{{header: x-priority}}]}}\n\
         classes: [{{name: fast, rank: 0}}, {{name: standard, rank: 1}}]\ndefault_class: standard\n\
         tenants: [{{match: acme, weight: 9, classes: [fast]}}, {{match: '*', classes: [standard]}}]\n\
         pools: [{{name: chat, models: ['*'], window: {{requests: 1}}}}]"
    ))
}

async fn row(gateway: &Gateway, tenant: &str) -> Value {
    let rows = gateway.admin().await.get(&format!("/v1/tenants/{tenant}"), "").await;
    if rows.status == 404 { Value::Null } else { rows.json()[0].clone() }
}

async fn a_full_queue_refuses_in_words_the_sdks_understand(stage: &mut Stage) {
    let (running, exchange) = stage.streaming(&delta("one two three")).await;
    for stream in [true, false] {
        let mut client = stage.client().await;
        client.chat("", &chat(stream)).await;
        let answer = client.answer().await;
        let message = answer.refusal(429, "queue_full");
        assert!(message.contains("try again in"), "{message}");
        let secs: u64 = answer.header("retry-after").parse().expect("whole seconds");
        let millis: u64 = answer.header("retry-after-ms").parse().expect("milliseconds");
        assert!(secs >= 1 && millis.div_ceil(1_000) == secs, "{secs} s, {millis} ms");
        assert_eq!(answer.header("x-should-retry"), "");
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
        stage.recorded(answer.header("x-tallygate-decision"), "details", json!("tallygate_queue_full")).await;
    }
    let mut client = stage.client().await;
    client.post("/v1/messages", "", r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"x"}]}"#).await;
    let answer = client.answer().await;
    answer.refusal(429, "queue_full");
    let body = answer.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("rate_limit_error")));
    drop(running);
    exchange.closed().await;
}

async fn what_is_not_dispatched_by_its_deadline_expires(stage: &mut Stage) {
    let (running, exchange) = stage.streaming(&delta("one two three")).await;
    let mut client = stage.client().await;
    client.chat("x-tallygate-deadline-ms: 40\r\n", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(429, "expired");
    assert!(!answer.header("retry-after").is_empty());
    drop(running);
    exchange.closed().await;
}

async fn a_core_that_drains_refuses_newcomers_and_finishes_what_runs(stage: &mut Stage) {
    let (mut running, mut exchange) = stage.streaming(&delta("one two three")).await;
    stage.gateway.gate().start_draining().expect("not broken");
    for (path, kind) in [("/v1/chat/completions", "server_error"), ("/v1/messages", "overloaded_error")] {
        let mut client = stage.client().await;
        client.post(path, "", &chat(true).to_string()).await;
        let answer = client.answer().await;
        answer.refusal(503, "draining");
        assert_eq!(answer.json()["error"]["type"], kind);
        assert!(!answer.header("retry-after").is_empty());
    }
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(running.answer().await.whole, "finished");
}

/// Its books are not to be looked at any more, so it is no case of a table.
async fn break_the_core(way: Way) {
    let Some(mut stage) = Stage::set(way, Setup::default()).await else { return };
    let gate = stage.gateway.gate().clone();
    let fault = tokio::task::spawn_blocking(move || gate.look(|_| panic!("on purpose")).unwrap_or(()));
    assert!(fault.await.is_err());
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    let message = client.answer().await.refusal(500, "internal");
    assert!(message.contains("it was not sent on"), "{message}");
    assert!(stage.upstream.is_untouched());
    let mut admin = stage.gateway.admin().await;
    assert_eq!(admin.get("/healthz", "").await.status, 500);
    assert_eq!(admin.get("/readyz", "").await.status, 503);
    assert_eq!(admin.get("/v1/tenants", "").await.status, 503);
    assert!(admin.get("/metrics", "").await.body.contains("tallygate_rejected_total{reason=\"internal\"} 1"));
}

#[tokio::test]
async fn a_broken_core_lets_nothing_through_and_says_so_to_probes_by_proxy() {
    break_the_core(Way::Proxy).await;
}

#[tokio::test]
async fn a_broken_core_lets_nothing_through_and_says_so_to_probes_by_envoy() {
    break_the_core(Way::Envoy).await;
}

#[tokio::test]
async fn a_broken_core_lets_nothing_through_and_says_so_to_probes_by_ext_authz() {
    break_the_core(Way::Authz).await;
}

/// Path, headers, body, status, reason, and words of the message.
type Refusal = (&'static str, &'static str, String, u16, &'static str, &'static str);

fn refusals() -> Vec<Refusal> {
    let served = |name: &str, value: Value| {
        let mut body = json!({"model": "served", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4});
        body[name] = value;
        body.to_string()
    };
    let plain = || served("x", json!(1));
    let long = || served("messages", json!([{"role": "user", "content": "hello ".repeat(200)}]));
    let (chat, messages) = ("/v1/chat/completions", "/v1/messages");
    let largest = "the largest request admitted is 100";
    let spelled = "exactly as its documentation writes it";
    vec![
        (chat, "", "{".into(), 400, "malformed", "the body: EOF while parsing an object at line 1 column 1"),
        (chat, "", "[1]".into(), 400, "malformed", "must be a JSON object"),
        (chat, "", String::new(), 400, "malformed", "the body is missing"),
        (chat, "", served("n", json!(0)), 400, "malformed", "n must be between 1 and"),
        (chat, "", long(), 413, "too_large", largest),
        (messages, "", long(), 413, "too_large", largest),
        (chat, "", served("model", json!("other")), 404, "model_not_found", "\"other\""),
        (messages, "", served("model", json!("other")), 404, "model_not_found", "\"other\""),
        (chat, "x-priority: vip\r\n", plain(), 403, "class_not_granted", "wish for one of standard"),
        (messages, "x-priority: vip\r\n", plain(), 403, "class_not_granted", "wish for one of standard"),
        (chat, "", served("background", json!(true)), 400, "unsupported", "background"),
        ("/v1/responses", "", served("background", json!(true)), 400, "unsupported", "background"),
        (chat, "", served("x", json!("x".repeat(6_000))), 413, "too_large", "5000 bytes"),
        (chat, "content-encoding: br\r\n", plain(), 400, "unsupported", "Content-Encoding"),
        (chat, "content-encoding: gzip\r\n", plain(), 400, "malformed", "not encoded as its header says"),
        (chat, "x-tallygate-deadline-ms: soon\r\n", plain(), 400, "malformed", "milliseconds"),
        (chat, "x-tenant-id: a\r\nx-tenant-id: b\r\n", plain(), 400, "malformed", "more than once"),
        (chat, "connection: upgrade\r\nupgrade: websocket\r\n", plain(), 400, "unsupported", "WebSocket"),
        (
            "/v1/realtime?model=served",
            "connection: upgrade\r\nupgrade: websocket\r\n",
            String::new(),
            400,
            "unsupported",
            "WebSocket",
        ),
        ("/v1/completions", "", "{}".into(), 400, "malformed", "model is missing"),
        ("/v1/embeddings", "", "{}".into(), 400, "malformed", "model is missing"),
        ("/v1/chat/completions/", "", plain(), 400, "unsupported", spelled),
        ("/v1/chat/completions/?x=1", "", plain(), 400, "unsupported", spelled),
        ("//v1/chat/completions", "", plain(), 400, "unsupported", spelled),
        ("/v1/%63hat/completions", "", plain(), 400, "unsupported", spelled),
        ("/v1/chat%2Fcompletions", "", plain(), 400, "unsupported", spelled),
        ("/V1/Messages", "", plain(), 400, "unsupported", spelled),
        ("/v1/realtime/sessions", "", "{}".into(), 400, "unsupported", "realtime"),
        ("/v1/files", "", "{}".into(), 400, "unsupported", "is not metered"),
        (
            "/v1/files",
            "content-type: multipart/form-data; boundary=x\r\n",
            "--x--".into(),
            400,
            "unsupported",
            "is not metered",
        ),
    ]
}

async fn what_cannot_be_served_is_told_so(stage: &mut Stage) {
    for (path, headers, body, status, reason, words) in refusals() {
        let unread = stage.way == Way::BodyFree && path == "/v1/chat/completions" && headers.is_empty();
        if unread && (words.starts_with("n must be") || words == "background") {
            // What Envoy's record does not tell goes on, for the upstream to refuse.
            continue;
        }
        // Envoy refuses this before it comes to us, who put it into words of ours.
        let (by_envoy, words) = if unread && words.contains("EOF") { (true, "cannot be read") } else { (false, words) };
        for anthropic in [false, true] {
            let mut client = stage.client().await;
            let version = if anthropic { "anthropic-version: 2023-06-01\r\n" } else { "" };
            client.post(path, &format!("{headers}{version}"), &body).await;
            let answer = client.answer().await;
            let message = answer.refusal(status, reason);
            assert!(message.contains(words), "{path} {headers}: {message}");
            assert_eq!(answer.header("retry-after"), "", "coming back would not help: {reason}");
            // In the shape of the API that was called, and of the SDK that calls.
            let theirs = (anthropic && !by_envoy) || path == "/v1/messages";
            assert_eq!(answer.json()["type"] == "error", theirs, "{path}: {}", answer.body);
            let id = if theirs { "request-id" } else { "x-request-id" };
            assert_eq!(answer.header(id), answer.header("x-tallygate-decision"));
        }
    }
    // Over ext_authz nothing is asked before the body is there, and this one never is.
    if stage.way != Way::Authz {
        let model = stage.client().await.get("/v1/models", "content-length: 1\r\n").await;
        model.refusal(400, "unsupported");
    }
    assert_eq!(stage.ended().await, (VirtualTokens::ZERO, std::collections::BTreeMap::new()), "no trace");
}

async fn bodies_share_one_bound_of_memory(stage: &mut Stage) {
    let (running, exchange) = stage.streaming(&delta("one two three")).await;
    let padded = |length: usize| {
        let mut body = chat(true);
        body["padding"] = json!("x".repeat(length));
        body
    };
    let mut first = stage.client().await;
    first.chat("", &padded(3_000)).await;
    stage.gateway.until_queued(1).await;
    let mut second = stage.client().await;
    second.chat("", &padded(3_000)).await;
    let answer = second.answer().await;
    let message = answer.refusal(429, "queue_full");
    assert!(message.contains("memory") && !answer.header("retry-after").is_empty(), "{message}");
    // Whoever leaves the queue gives back what its body took.
    drop(first);
    stage.gateway.until_queued(0).await;
    let mut third = stage.client().await;
    third.chat("x-tallygate-deadline-ms: 20\r\n", &padded(3_000)).await;
    third.answer().await.refusal(429, "expired");
    drop(running);
    exchange.closed().await;
}

async fn a_key_of_ours_names_the_tenant_and_stays_here(stage: &mut Stage) {
    for (headers, words) in [
        ("", "send an API key"),
        ("authorization: Bearer sk-wrong\r\n", "not known"),
        ("x-api-key: sk-wrong\r\n", "not known"),
    ] {
        for path in ["/v1/chat/completions", "/v1/messages"] {
            let mut client = stage.client().await;
            client.post(path, headers, &chat(false).to_string()).await;
            let answer = client.answer().await;
            let message = answer.refusal(401, "unidentified");
            assert!(message.contains(words), "{message}");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
        stage.client().await.get("/v1/models", headers).await.refusal(401, "unidentified");
    }
    for (count, headers) in ["authorization: Bearer sk-acme\r\n", "x-api-key: sk-acme\r\n"].into_iter().enumerate() {
        let mut client = stage.client().await;
        client.chat(headers, &chat(false)).await;
        let mut exchange = stage.upstream.next().await;
        let upstreams_own = (stage.way == Way::Proxy).then_some("Bearer sk-upstream");
        assert_eq!(exchange.header("authorization"), upstreams_own, "only the proxy has one to show");
        assert!(!exchange.head.contains("sk-acme"), "{}", exchange.head);
        exchange.answer("200 OK", ANSWER).await;
        assert_eq!(client.answer().await.status, 200);
        stage.ended().await;
        assert_eq!(row(&stage.gateway, "acme").await["admitted_total"], count + 1);
    }
}

/// Everything somebody might write to be taken for somebody else, or for us.
const FORGED: &str = "x-tenant-id: acme\r\nx-tallygate-tenant: acme\r\nx-tallygate-class: fast\r\nx-priority: fast\r\n\
    x-tallygate-decision: 00000001-1\r\nx-tallygate-lease: 1\r\nx-tallygate-reason: draining\r\n\
    x-tallygate-queue-ms: 0\r\nx-custom: kept\r\n";

async fn what_a_client_forges_counts_for_nothing_and_stays_here(stage: &mut Stage) {
    for path in ["/v1/chat/completions", "/v1/messages", "/v1/models"] {
        let mut client = stage.client().await;
        if path == "/v1/models" {
            client.send(format!("GET {path} HTTP/1.1\r\nhost: g\r\n{FORGED}\r\n").as_bytes()).await;
        } else {
            client.post(path, FORGED, &chat(false).to_string()).await;
        }
        let mut exchange = stage.upstream.next().await;
        assert!(!exchange.head.contains("x-tallygate"), "{}", exchange.head);
        assert_eq!(exchange.header("x-custom"), Some("kept"));
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\nx-tallygate-decision: forged\r\n\
            x-tallygate-reason: forged\r\nx-tallygate-charge: 0\r\nx-request-id: theirs\r\n\r\n{}";
        exchange.send(head).await;
        let answer = client.answer().await;
        let decision = answer.header("x-tallygate-decision");
        assert!(decision.contains('-') && decision != "00000001-1", "ours: {decision}");
        assert_eq!((answer.header("x-tallygate-reason"), answer.header("x-tallygate-charge")), ("", ""));
        assert_eq!(answer.header("x-request-id"), "theirs");
    }
    stage.ended().await;
    let nobody = row(&stage.gateway, "nobody").await;
    assert_eq!(
        (&nobody["admitted_total"], &nobody["class"], &nobody["weight"]),
        (&json!(2), &json!("standard"), &json!(1.0))
    );
    assert_eq!(row(&stage.gateway, "acme").await, Value::Null, "nobody is taken for it");
}
