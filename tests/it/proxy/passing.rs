//! What is let through passes as it is: bodies, headers, streams, to the last byte.

use serde_json::{Value, json};
use tallygate::units::VirtualTokens;

use super::{DONE, USAGE, chat, cost, delta, shown, streaming};
use crate::door::{Setup, Upstream, once, usual};

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

#[tokio::test]
async fn a_large_body_passes_byte_for_byte_and_is_counted() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(20_000);
    let body = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": text}]});
    client.chat("", &body).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, body.to_string().into_bytes());
    let expected = gateway.gate().look(|seen| seen.engine.requests()[0].expected.input().get()).expect("not broken");
    assert!((195_000..205_000).contains(&expected), "ten tokens a sentence, not {expected}");
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":200000,\"completion_tokens\":1}}").await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(gateway.ended().await, (cost(200_000, 1), once("completed")));
}

#[tokio::test]
async fn a_compressed_body_is_read_and_sent_on_plain() {
    let (gateway, mut upstream) = usual().await;
    let mut client = gateway.client().await;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, chat(false).to_string().as_bytes()).expect("memory takes it");
    let body = encoder.finish().expect("memory takes it");
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n"
    );
    client.send(&[head.as_bytes(), &body].concat()).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, chat(false).to_string().into_bytes());
    assert_eq!(exchange.header("content-encoding"), None);
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}").await;
    assert_eq!(client.answer().await.status, 200);
}
