//! What is let through passes as it is: bodies, headers, streams, to the last byte.

use serde_json::{Value, json};

use super::{ANSWER, DONE, USAGE, chat, cost, delta, shown};
use crate::door::{Setup, Stage, both_doors, cases, once};

both_doors! {
    pass, |_| Setup::default(),
    [
        a_request_without_a_body_passes_unmetered,
        a_client_that_asked_for_usage_sees_it,
        a_stream_cut_at_every_byte_comes_out_the_same,
        a_stream_whose_length_was_promised_is_whole_without_what_is_hidden,
        headers_that_are_not_for_the_upstream_stay_here,
        a_large_body_passes_byte_for_byte_and_is_counted,
        a_compressed_body_is_read_and_sent_on_plain,
        a_body_of_twenty_megabytes_passes,
    ]
}

both_doors! {
    renamed, |_| Setup::policy(ALIASED),
    [
        a_model_is_renamed_as_its_pool_says,
        counting_passes_unmetered_to_the_models_own_pool,
        other_paths_pass_where_the_policy_says_so_and_no_spelling_gets_round_the_meter,
    ]
}

const ALIASED: &str = "unmetered: pass\n\
    pools: [{name: chat, models: ['big'], aliases: [{from: 'gpt-4o*', to: big}], window: {requests: 1}}]";

async fn a_client_that_asked_for_usage_sees_it(stage: &mut Stage) {
    let mut client = stage.client().await;
    let mut body = chat(true);
    body["stream_options"] = json!({"include_usage": true});
    // Of a model of its own: where clients of a model ask for usage themselves, bodies of its requests need not be read.
    body["model"] = json!("gpt-4o-mini");
    client.chat("", &body).await;
    let mut exchange = stage.upstream.next().await;
    assert_eq!(exchange.body, body.to_string().into_bytes(), "untouched");
    exchange.begin().await;
    exchange.chunk(&format!("{}{USAGE}{DONE}", delta("x"))).await;
    exchange.end().await;
    stage.assert_passed(&client.answer().await.body, &format!("{}{USAGE}{DONE}", delta("x")));
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
}

async fn a_stream_cut_at_every_byte_comes_out_the_same(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin().await;
    for byte in format!("{}: still there\r\n\r\n{USAGE}{DONE}", delta("hi")).bytes() {
        exchange.chunk(&char::from(byte).to_string()).await;
    }
    exchange.end().await;
    stage.assert_passed(&client.answer().await.body, &format!("{}: still there\r\n\r\n{DONE}", shown("hi")));
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
}

async fn a_request_without_a_body_passes_unmetered(stage: &mut Stage) {
    let mut client = stage.client().await;
    let asking = client.get("/v1/models?limit=5", "authorization: Bearer theirs\r\n");
    let answering = async {
        let mut exchange = stage.upstream.next().await;
        assert!(exchange.head.starts_with("GET /v1/models?limit=5 HTTP/1.1"), "{}", exchange.head);
        assert_eq!(exchange.header("authorization"), Some("Bearer theirs"));
        exchange.answer("200 OK", "{\"data\":[]}").await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!((answer.status, answer.body.as_str()), (200, "{\"data\":[]}"));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert!(stage.gateway.outcomes().is_empty());
}

async fn headers_that_are_not_for_the_upstream_stay_here(stage: &mut Stage) {
    let mut client = stage.client().await;
    let headers = "accept-encoding: gzip\r\nx-tallygate-deadline-ms: 9000\r\nx-tallygate-x: y\r\nx-custom: kept\r\n";
    client.chat(headers, &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    assert_eq!(exchange.header("accept-encoding"), Some("identity"));
    assert_eq!(exchange.header("x-custom"), Some("kept"));
    assert!(!exchange.head.contains("x-tallygate"), "{}", exchange.head);
    let host = exchange.header("host").expect("there is one");
    assert_eq!(
        host == "gateway",
        stage.either(false, true),
        "the proxy names the upstream; Envoy keeps what it was told"
    );
    let forged = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\nx-tallygate-decision: forged\r\nx-request-id: theirs\r\n\r\n{}";
    exchange.send(forged).await;
    let answer = client.answer().await;
    assert_ne!(answer.header("x-tallygate-decision"), "forged");
    assert_eq!(answer.header("x-request-id"), "theirs");
}

async fn a_model_is_renamed_as_its_pool_says(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    let sent: Value = serde_json::from_slice(&exchange.body).expect("JSON");
    assert_eq!(sent["model"], "big");
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}").await;
    assert_eq!(client.answer().await.status, 200);
}

async fn a_large_body_passes_byte_for_byte_and_is_counted(stage: &mut Stage) {
    let mut client = stage.client().await;
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(20_000);
    let body = json!({"model": super::MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]});
    client.chat("", &body).await;
    let mut exchange = stage.upstream.next().await;
    assert_eq!(exchange.body, body.to_string().into_bytes());
    let expected =
        stage.gateway.gate().look(|seen| seen.engine.requests()[0].expected.input().get()).expect("not broken");
    assert!((195_000..205_000).contains(&expected), "ten tokens a sentence, not {expected}");
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":200000,\"completion_tokens\":1}}").await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(stage.ended().await, (cost(200_000, 1), once("completed")));
}

async fn a_stream_whose_length_was_promised_is_whole_without_what_is_hidden(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = stage.upstream.next().await;
    let body = format!("{}{USAGE}{DONE}", delta("hi"));
    let head = format!("connection: close\r\ncontent-type: text/event-stream\r\ncontent-length: {}", body.len());
    exchange.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}")).await;
    let answer = client.answer().await;
    assert!(answer.whole);
    stage.assert_passed(&answer.body, &format!("{}{DONE}", shown("hi")));
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
}

pub(super) fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, text.as_bytes()).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

async fn a_compressed_body_is_read_and_sent_on_plain(stage: &mut Stage) {
    for (path, plain) in [
        ("/v1/chat/completions", chat(false).to_string()),
        ("/v1/messages/count_tokens", r#"{"model":"m","messages":[]}"#.to_owned()),
    ] {
        let mut client = stage.client().await;
        let body = gzip(&plain);
        let length = body.len();
        let headers = format!("host: g\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n");
        client.send(&[format!("POST {path} HTTP/1.1\r\n{headers}").as_bytes(), &body].concat()).await;
        let mut exchange = stage.upstream.next().await;
        assert_eq!(String::from_utf8_lossy(&exchange.body), plain);
        assert_eq!(exchange.header("content-encoding"), None);
        exchange.answer("200 OK", ANSWER).await;
        assert_eq!(client.answer().await.status, 200);
    }
}

async fn a_body_of_twenty_megabytes_passes(stage: &mut Stage) {
    let mut client = stage.client().await;
    let mut body = chat(true);
    body["messages"][0]["content"] = json!([
        {"type": "text", "text": "hello"},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{}", "A".repeat(20_000_000))}},
    ]);
    client.chat("", &body).await;
    let mut exchange = stage.upstream.next().await;
    assert!(exchange.body.len() > 20_000_000, "{}", exchange.body.len());
    exchange.begin().await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(client.answer().await.whole);
}

async fn counting_passes_unmetered_to_the_models_own_pool(stage: &mut Stage) {
    for path in ["/v1/messages/count_tokens", "/v1/responses/input_tokens"] {
        let mut client = stage.client().await;
        client.post(path, "", r#"{"model":"gpt-4o-mini","input":"x"}"#).await;
        let mut exchange = stage.upstream.next().await;
        assert!(exchange.head.starts_with(&format!("POST {path} ")), "{}", exchange.head);
        assert_eq!(exchange.body, br#"{"model":"big","input":"x"}"#);
        exchange.answer("200 OK", r#"{"input_tokens":3}"#).await;
        assert_eq!(client.answer().await.body, r#"{"input_tokens":3}"#);
    }
    let mut client = stage.client().await;
    client.post("/v1/messages/count_tokens", "", r#"{"model":"other"}"#).await;
    let answer = client.answer().await;
    answer.refusal(404, "model_not_found");
    assert_eq!(answer.json()["type"], "error", "in Anthropic's shape");
    assert!(stage.ended().await.1.is_empty(), "nothing was metered");
}

async fn other_paths_pass_where_the_policy_says_so_and_no_spelling_gets_round_the_meter(stage: &mut Stage) {
    for (path, content, body) in [
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=x", "--x--"),
        ("/v1/files?purpose=batch", "multipart/form-data; boundary=x", "--x--"),
        ("/v1/threads/t/messages", "application/json", "{\"role\":\"user\"}"),
    ] {
        let mut client = stage.client().await;
        client.post(path, &format!("content-type: {content}\r\n"), body).await;
        let mut exchange = stage.upstream.next().await;
        assert_eq!(
            (exchange.header("content-type"), String::from_utf8_lossy(&exchange.body)),
            (Some(content), body.into())
        );
        assert!(exchange.head.starts_with(&format!("POST {path} ")), "{}", exchange.head);
        exchange.answer("200 OK", "{}").await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200);
        assert!(answer.header("x-tallygate-decision").contains('-'));
    }
    for path in ["/v1/chat/completions/", "/v1//completions", "/V1/messages", "/v1/realtime/sessions"] {
        let mut client = stage.client().await;
        client.post(path, "", "{}").await;
        client.answer().await.refusal(400, "unsupported");
    }
    assert!(stage.upstream.is_untouched());
}
