//! Every way a request can end, and what it is settled for.

use serde_json::{Value, json};
use tallygate::settings::Door;
use tallygate::units::{Span, VirtualTokens};

use super::{DONE, INPUT, USAGE, chat, cost, delta, shown, streaming};
use crate::door::{Setup, Upstream, once, usual};

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

    // The same connection serves the next request, whose answer says nothing of usage and is counted. It is for another
    // model, of which nothing was learnt.
    let mut other = chat(false);
    other["model"] = json!("other");
    client.chat("", &other).await;
    let silent = json!({"choices": [{"message": {"content": "one two three"}}]});
    upstream.next().await.answer("200 OK", &silent.to_string()).await;
    assert_eq!(client.answer().await.json(), silent);
    let (settled, _) = gateway.ended().await;
    assert_eq!(settled, VirtualTokens::whole(21) + cost(INPUT, 3));
    let metrics = gateway.admin().await.get("/metrics", "").await.body;
    assert!(metrics.contains("tallygate_estimated_usage_total{outcome=\"completed\",pool=\"chat\"} 1"), "alarmed");
}

#[tokio::test]
async fn a_usage_that_cannot_be_is_treated_as_missing_and_alarmed() {
    let (gateway, mut upstream) = usual().await;
    let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
    exchange.chunk(&format!("{}{DONE}", USAGE.replace(":6,", ":10000001,"))).await;
    exchange.end().await;
    assert!(client.answer().await.whole);
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("completed")), "as it was counted");
    let text = gateway.gate().metrics().render(&tallygate::observe::Gauges::default()).expect("metrics render");
    assert!(text.contains("tallygate_disbelieved_usage_total{pool=\"chat\"} 1"), "{text}");
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
async fn a_usage_told_in_passing_makes_leaving_no_cheaper() {
    for (told, output) in [(1, 3), (5, 5)] {
        let (gateway, mut upstream) = usual().await;
        let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
        let usage = json!({"prompt_tokens": INPUT, "completion_tokens": told});
        let running = json!({"choices": [{"index": 0, "delta": {"content": ""}}], "usage": usage});
        exchange.chunk(&format!("data: {running}\n\n")).await;
        client.read_until("\"content\":\"\"").await;
        drop(client);
        exchange.closed().await;
        assert_eq!(gateway.ended().await, (cost(INPUT, output), once("client_aborted")), "told of {told}");
        let text = gateway.gate().metrics().render(&tallygate::observe::Gauges::default()).expect("metrics render");
        let estimated = "tallygate_estimated_usage_total{outcome=\"client_aborted\",pool=\"chat\"} 1";
        assert!(text.contains(estimated), "no report was final: {text}");
    }
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
async fn after_the_final_event_a_lingering_or_breaking_upstream_is_a_good_end() {
    for lingers in [true, false] {
        let mut upstream = Upstream::start().await;
        let door = Door { idle_most: Span::from_millis(300), ..Door::default() };
        let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
        let (mut client, mut exchange) = streaming(&gateway, &mut upstream).await;
        exchange.chunk(&format!("{USAGE}{DONE}")).await;
        client.read_until("[DONE]").await;
        let lingering = lingers.then_some(exchange);
        let answer = client.answer().await;
        assert_eq!((answer.whole, answer.body), (true, format!("{}{DONE}", shown("one two three"))), "{lingers}");
        assert_eq!(gateway.ended().await, (cost(11, 6), once("completed")));
        if let Some(exchange) = lingering {
            exchange.closed().await;
        }
    }
}

#[tokio::test]
async fn a_stream_that_only_its_connection_ends_is_whole_with_its_final_event_alone() {
    for (last, whole, ending) in [(DONE, true, "completed"), ("", false, "upstream_failed")] {
        let (gateway, mut upstream) = usual().await;
        let mut client = gateway.client().await;
        client.chat("", &chat(true)).await;
        let mut exchange = upstream.next().await;
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await;
        exchange.send(&format!("{}{last}", delta("one two three"))).await;
        client.read_until("one two three").await;
        drop(exchange);
        let answer = client.answer().await;
        assert_eq!((answer.whole, answer.body), (whole, format!("{}{last}", shown("one two three"))));
        assert_eq!(gateway.ended().await, (cost(INPUT, 3), once(ending)));
    }
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
async fn an_upstream_that_falls_silent_is_cut_off() {
    let mut upstream = Upstream::start().await;
    let door = Door { idle_most: Span::from_millis(200), ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    let (mut client, exchange) = streaming(&gateway, &mut upstream).await;
    assert!(!client.answer().await.whole);
    exchange.closed().await;
    assert_eq!(gateway.ended().await, (cost(INPUT, 3), once("timed_out")));
}
