//! Every way a request can end settles as the flow of money says, and the books balance exactly.

use serde_json::{Value, json};
use tallygate::settings::Door;
use tallygate::units::{Span, VirtualTokens};

use super::{fronted, fronted_as, streaming};
use crate::door::{Front, Setup, once, usual};
use crate::proxy::{DONE, INPUT, USAGE, chat, cost, delta, shown};

#[tokio::test]
async fn a_stream_completes_and_its_usage_is_settled_and_hidden() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (mut client, mut exchange) = streaming(&front, &mut upstream).await;
    let sent: Value = serde_json::from_slice(&exchange.body).expect("JSON");
    assert_eq!(sent["stream_options"]["include_usage"], true, "asked for on the client's behalf");
    assert_eq!(exchange.header("accept-encoding"), Some("identity"));
    exchange.chunk(&delta(" four")).await;
    client.read_until(" four").await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole && answer.status == 200, "{answer:?}");
    assert_eq!(answer.body, format!("{}{}{DONE}", shown("one two three"), shown(" four")));
    assert_eq!(answer.header("x-tallygate-queue-ms"), "0");
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
    let record = front.record(answer.header("x-tallygate-decision")).await;
    assert_eq!((&record["tenant"], &record["charge"]), (&json!("anonymous"), &json!(23)), "{record}");
}

#[tokio::test]
async fn a_stream_cut_at_every_byte_comes_out_the_same() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let mut client = front.client().await;
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
async fn an_answer_in_one_piece_passes_as_it_is_and_is_settled_for_its_usage() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(false)).await;
    let mut exchange = upstream.next().await;
    assert_eq!(exchange.body, chat(false).to_string().into_bytes(), "untouched");
    let reported = json!({
        "choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 20, "completion_tokens": 5},
    });
    exchange.answer("200 OK", &reported.to_string()).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()), (200, reported));
    assert_eq!(gateway.ended().await, (cost(20, 5), once("completed")));
}

#[tokio::test]
async fn the_final_event_frees_the_slot_however_long_the_upstream_lingers() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (mut client, mut exchange) = streaming(&front, &mut upstream).await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    client.read_until("[DONE]").await;
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
    drop(client);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")), "settled once");
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_costs_nothing_and_is_gone_at_once() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (mut first, mut exchange) = streaming(&front, &mut upstream).await;
    let mut second = front.client().await;
    second.chat("", &chat(true)).await;
    gateway.until_queued(1).await;
    let left = std::time::Instant::now();
    drop(second);
    gateway.until_queued(0).await;
    assert!(left.elapsed().as_millis() < 100, "gone after {:?}", left.elapsed());
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(first.answer().await.whole);
    assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
    assert!(upstream.is_untouched(), "the second never went upstream");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_token_pays_for_its_input() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let exchange = upstream.next().await;
    drop(client);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 0), once("client_aborted")));
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_pays_for_what_was_produced() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (client, exchange) = streaming(&front, &mut upstream).await;
    drop(client);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("client_aborted")));
}

#[tokio::test]
async fn an_upstreams_error_passes_and_costs_nothing() {
    for (status, kept) in [("500 Internal Server Error", 500), ("429 Too Many Requests", 429)] {
        let Some((gateway, mut upstream, front)) = fronted().await else { return };
        let mut client = front.client().await;
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
async fn an_upstream_that_gives_no_answer_is_said_in_the_clients_dialect() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    drop(upstream.next().await);
    let message = client.answer().await.refusal(502, "upstream_unreachable");
    assert!(message.contains("upstream_reset_before_response_started"), "{message}");
    assert_eq!(gateway.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));

    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address").local_addr().expect("bound");
    let front = Front::start(&gateway, closed).await.expect("there is one");
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    client.answer().await.refusal(502, "upstream_unreachable");
    gateway.ended().await;
}

#[tokio::test]
async fn an_upstream_that_is_too_late_for_envoy_is_a_504_in_the_clients_dialect() {
    let (gateway, mut upstream) = usual().await;
    let hurried = |config: String| {
        config.replace("timeout: 0s\n                http_filters", "timeout: 0.1s\n                http_filters")
    };
    let Some(front) = Front::edited(&gateway, upstream.address(), hurried).await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let exchange = upstream.next().await;
    client.answer().await.refusal(504, "upstream_timed_out");
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 0), once("timed_out")));
}

#[tokio::test]
async fn an_upstream_that_does_not_begin_is_given_up() {
    let door = Door { begin_within: Span::from_millis(50), ..Door::default() };
    let Some((gateway, mut upstream, front)) = fronted_as(Setup { door, ..Setup::default() }).await else { return };
    let mut client = front.client().await;
    client.chat("", &chat(true)).await;
    let exchange = upstream.next().await;
    assert_eq!(client.answer().await.status, 503, "Envoy's status_on_error");
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 0), once("timed_out")));
}

#[tokio::test]
async fn a_stream_that_breaks_breaks_for_the_client_and_pays_for_what_was_produced() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (mut client, exchange) = streaming(&front, &mut upstream).await;
    drop(exchange);
    assert!(!client.answer().await.whole, "a part is not taken for the whole");
    // Envoy ends the conversation as it does when a client leaves. The charge is the same.
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("client_aborted")));
}

#[tokio::test]
async fn a_stream_that_ends_early_or_reports_an_error_is_a_failure() {
    for last in ["", "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"] {
        let Some((gateway, mut upstream, front)) = fronted().await else { return };
        let (mut client, mut exchange) = streaming(&front, &mut upstream).await;
        if !last.is_empty() {
            exchange.chunk(last).await;
        }
        exchange.end().await;
        let answer = client.answer().await;
        assert_eq!((answer.whole, answer.body), (true, format!("{}{last}", shown("one two three"))));
        assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("upstream_failed")));
    }
}

#[tokio::test]
async fn an_envoy_that_is_killed_gives_everything_back() {
    let Some((gateway, mut upstream, front)) = fronted().await else { return };
    let (_client, exchange) = streaming(&front, &mut upstream).await;
    let mut queued = front.client().await;
    queued.chat("", &chat(true)).await;
    gateway.until_queued(1).await;
    front.kill().await;
    exchange.closed().await;
    gateway.until_queued(0).await;
    let (settled, outcomes) = gateway.ended().await;
    // The slot may reach the one that waited a moment before its own end does. Then that pays for its input.
    assert!(settled >= cost(INPUT, 3) && settled <= cost(2 * INPUT, 3), "{settled:?}");
    assert_eq!(outcomes.keys().collect::<Vec<_>>(), ["client_aborted"]);
    assert!(upstream.is_untouched(), "nothing more went upstream");
}
