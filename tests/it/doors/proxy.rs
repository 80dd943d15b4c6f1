//! What only the proxy can show: it connects to upstreams itself, and reads bodies as they come.

use serde_json::json;
use tallygate::settings::Door;
use tallygate::units::{Bytes, Span, VirtualTokens};

use super::chat;
use crate::door::{Setup, Shut, Upstream, once};

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_is_our_502() {
    let shut = Shut::start();
    let gateway = Setup::default().start(&shut.url()).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let message = client.answer().await.refusal(502, "upstream_unreachable");
    assert!(message.contains("cannot be reached"), "{message}");
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
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

/// Some servers close a connection behind a streamed answer without having said so.
#[tokio::test]
async fn no_request_is_written_to_a_connection_that_carried_a_stream() {
    let mut upstream = Upstream::start().await;
    let gateway = Setup::default().start(&upstream.url()).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = gateway.client().await;
        client.chat("", &chat(true)).await;
        // An upstream here reads one request of a connection: another one on it would never come out.
        let mut exchange = upstream.next().await;
        let head = "content-type: text/event-stream\r\ntransfer-encoding: chunked";
        exchange.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n")).await;
        exchange.chunk("data: [DONE]\n\n").await;
        exchange.end().await;
        assert_eq!(client.answer().await.status, 200);
        open.push(exchange);
    }
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
async fn bodies_share_one_bound_of_memory_until_the_upstream_has_answered() {
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
