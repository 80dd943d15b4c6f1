//! Every way a request can end settles as the flow of money says, and the books balance exactly.

use serde_json::{Value, json};
use tallygate::settings::Door;
use tallygate::units::{Span, VirtualTokens};

use super::{DONE, INPUT, USAGE, chat, cost, delta, shown};
use crate::door::{Setup, Stage, Way, both_doors, cases, once};

const THREE: &str = "one two three";

// What breaks off is charged by the speed of what completed before it, so it comes first.
both_doors! {
    ends, |_| Setup::default(),
    [
        a_client_that_leaves_before_the_first_token_pays_for_its_input,
        a_client_that_leaves_in_the_middle_pays_for_what_was_produced,
        a_usage_told_in_passing_makes_leaving_no_cheaper,
        an_upstreams_error_passes_and_costs_nothing,
        an_upstreams_error_that_reports_usage_costs_that,
        an_upstream_that_hangs_up_before_answering_is_our_502,
        a_stream_that_breaks_breaks_for_the_client_and_pays_for_what_was_produced,
        a_stream_that_ends_early_in_good_order_is_a_failure,
        an_error_in_a_stream_is_a_failure,
        an_answer_that_breaks_within_its_first_event_produced_nothing,
        a_stream_that_only_its_connection_ends_is_complete_with_its_final_event_alone,
        a_stream_completes_and_its_usage_is_settled_and_hidden,
        an_answer_in_one_piece_is_settled_for_its_usage_or_counted,
        a_usage_that_cannot_be_is_treated_as_missing_and_alarmed,
        a_client_that_leaves_the_queue_costs_nothing_and_is_gone_at_once,
        the_final_event_frees_the_slot_however_long_the_upstream_lingers,
        after_the_final_event_a_breaking_upstream_costs_nothing_more,
    ]
}

both_doors! {
    give_up_on_the_first_byte, |_| hurried(Door { begin_within: LITTLE, ..Door::default() }),
    [an_upstream_that_does_not_begin_is_our_504]
}

both_doors! {
    give_up_on_the_next_byte, |_| hurried(Door { idle_most: LITTLE, ..Door::default() }),
    [
        an_upstream_that_falls_silent_is_cut_off,
        after_the_final_event_a_silent_upstream_owes_nothing,
    ]
}

/// Little patience with the upstream: with the one silence that a case is about, so that a slow machine is not cut off
/// for the other.
const LITTLE: Span = Span::from_millis(600);

fn hurried(door: Door) -> Setup {
    Setup { door, ..Setup::default() }
}

async fn a_stream_completes_and_its_usage_is_settled_and_hidden(stage: &mut Stage) {
    let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
    let sent: Value = serde_json::from_slice(&exchange.body).expect("JSON");
    assert_eq!(sent["stream_options"]["include_usage"], true, "asked for on the client's behalf");
    assert_eq!(exchange.header("accept-encoding"), Some("identity"));
    exchange.chunk(&delta(" four")).await;
    client.read_until(" four").await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole && answer.status == 200, "{answer:?}");
    stage.assert_passed(&answer.body, &format!("{}{}{DONE}", shown(THREE), shown(" four")));
    assert!(answer.header("x-tallygate-decision").contains('-'));
    assert_eq!(answer.header("x-tallygate-queue-ms"), "0");
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
    let decision = answer.header("x-tallygate-decision");
    stage.recorded(decision, "tenant", json!("anonymous")).await;
    stage.recorded(decision, "charge", json!(23)).await;
}

async fn an_answer_in_one_piece_is_settled_for_its_usage_or_counted(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    assert_eq!(exchange.body, chat(false).to_string().into_bytes(), "untouched");
    let reported = json!({
        "choices": [{"message": {"content": "hi"}}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10}},
    });
    exchange.answer("200 OK", &reported.to_string()).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.json()), (200, reported));
    // Ten uncached at 1, ten cached at 0.1, five out at 2.
    assert_eq!(stage.ended().await, (VirtualTokens::whole(10 + 1 + 10), once("completed")));

    // The same connection serves the next request, whose answer says nothing of usage and is counted.
    client.chat("", &chat(false)).await;
    let silent = json!({"choices": [{"message": {"content": THREE}}]});
    stage.upstream.next().await.answer("200 OK", &silent.to_string()).await;
    assert_eq!(client.answer().await.json(), silent);
    if stage.way == Way::BodyFree {
        // Without a record nobody says that it ended, so it is charged by estimate, and the next of its kind is read.
        let (settled, outcomes) = stage.ended().await;
        assert_eq!(outcomes, once("client_aborted"));
        assert!(settled >= cost(stage.input(&chat(false), 0), 0), "{settled:?}");
        client.chat("", &chat(false)).await;
        stage.upstream.next().await.answer("200 OK", &silent.to_string()).await;
        assert_eq!(client.answer().await.json(), silent);
    }
    assert_eq!(stage.ended().await, (cost(INPUT, 3), once("completed")));
    let estimated = "tallygate_estimated_usage_total{outcome=\"completed\",pool=\"chat\"} ";
    assert!(counted(stage, estimated).await >= 1, "alarmed");
}

async fn a_usage_that_cannot_be_is_treated_as_missing_and_alarmed(stage: &mut Stage) {
    let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
    exchange.chunk(&format!("{}{DONE}", USAGE.replace(":6,", ":10000001,"))).await;
    exchange.end().await;
    assert!(client.answer().await.whole);
    assert_eq!(stage.ended().await, (cost(INPUT, 3), once("completed")), "as it was counted");
    let metrics = stage.gateway.admin().await.get("/metrics", "").await.body;
    assert!(metrics.contains("tallygate_disbelieved_usage_total{pool=\"chat\"} 1"), "{metrics}");
}

async fn a_client_that_leaves_the_queue_costs_nothing_and_is_gone_at_once(stage: &mut Stage) {
    let (mut first, mut exchange) = stage.streaming(&delta(THREE)).await;
    let mut second = stage.client().await;
    second.chat("", &chat(true)).await;
    stage.gateway.until_queued(1).await;
    let left = std::time::Instant::now();
    drop(second);
    stage.gateway.until_queued(0).await;
    assert!(left.elapsed().as_millis() < 100, "gone after {:?}", left.elapsed());
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    exchange.end().await;
    assert!(first.answer().await.whole);
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
}

async fn a_client_that_leaves_before_the_first_token_pays_for_its_input(stage: &mut Stage) {
    for stream in [true, false] {
        let mut client = stage.client().await;
        client.chat("", &chat(stream)).await;
        let exchange = stage.upstream.next().await;
        drop(client);
        exchange.closed().await;
        // Of a stream without usage Envoy leaves no record, so its body is read.
        let input = if stream { INPUT } else { stage.input(&chat(stream), INPUT) };
        assert_eq!(stage.ended().await, (cost(input, 0), once("client_aborted")), "streamed: {stream}");
    }
}

async fn a_client_that_leaves_in_the_middle_pays_for_what_was_produced(stage: &mut Stage) {
    let (client, exchange) = stage.streaming(&delta(THREE)).await;
    drop(client);
    exchange.closed().await;
    assert_eq!(stage.ended().await, (cost(INPUT, 3), once("client_aborted")));
}

async fn a_usage_told_in_passing_makes_leaving_no_cheaper(stage: &mut Stage) {
    for (count, (told, output)) in [(1, 3), (5, 5)].into_iter().enumerate() {
        let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
        let estimated = "tallygate_estimated_usage_total{outcome=\"client_aborted\",pool=\"chat\"} ";
        let before = counted(stage, estimated).await;
        let usage = json!({"prompt_tokens": INPUT, "completion_tokens": told});
        let running = json!({"choices": [{"index": 0, "delta": {"content": ""}}], "usage": usage});
        exchange.chunk(&format!("data: {running}\n\n")).await;
        client.read_until("\"content\":\"\"").await;
        drop(client);
        exchange.closed().await;
        assert_eq!(stage.ended().await, (cost(INPUT, output), once("client_aborted")), "told of {told}");
        assert_eq!(counted(stage, estimated).await, before + 1, "{count}: no report was final");
    }
}

/// The number behind a line of the metrics.
async fn counted(stage: &Stage, line: &str) -> u64 {
    let metrics = stage.gateway.admin().await.get("/metrics", "").await.body;
    metrics.lines().find_map(|found| found.strip_prefix(line)).map_or(0, |count| count.parse().expect("a count"))
}

async fn the_final_event_frees_the_slot_however_long_the_upstream_lingers(stage: &mut Stage) {
    let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    client.read_until("[DONE]").await;
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
    drop(client);
    exchange.closed().await;
    assert_eq!(stage.ended().await.0, VirtualTokens::ZERO, "settled once");
}

async fn after_the_final_event_a_breaking_upstream_costs_nothing_more(stage: &mut Stage) {
    let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    client.read_until("[DONE]").await;
    drop(exchange);
    let answer = client.answer().await;
    // Nothing is missing. The proxy says so; Envoy breaks the client's connection with the upstream's.
    assert_eq!(answer.whole, stage.either(true, false));
    stage.assert_passed(&answer.body, &format!("{}{DONE}", shown(THREE)));
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
}

async fn a_stream_that_only_its_connection_ends_is_complete_with_its_final_event_alone(stage: &mut Stage) {
    for (last, ending) in [("", "upstream_failed"), (DONE, "completed")] {
        let mut client = stage.client().await;
        client.chat("", &chat(true)).await;
        let mut exchange = stage.upstream.next().await;
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await;
        exchange.send(&format!("{}{last}", delta(THREE))).await;
        client.read_until(THREE).await;
        drop(exchange);
        let answer = client.answer().await;
        stage.assert_passed(&answer.body, &format!("{}{last}", shown(THREE)));
        // Whether it was whole nobody can tell who does not read it. The proxy does, and Envoy does not; the layer is not
        // told by the service behind it how its answers end.
        assert_eq!(answer.whole, stage.way != Way::Proxy || !last.is_empty());
        assert_eq!(stage.ended().await, (cost(INPUT, 3), once(ending)));
    }
}

async fn an_upstreams_error_passes_and_costs_nothing(stage: &mut Stage) {
    for (status, kept) in [("500 Internal Server Error", 500), ("429 Too Many Requests", 429), ("400 Bad Request", 400)]
    {
        let mut client = stage.client().await;
        client.chat("", &chat(true)).await;
        let body = "{\"error\":{\"message\":\"theirs\",\"code\":\"theirs\"}}";
        stage.upstream.next().await.answer(status, body).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.body.as_str()), (kept, body));
        assert_eq!(answer.header("x-tallygate-reason"), "", "not ours");
        assert_eq!(stage.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
    }
}

async fn an_upstreams_error_that_reports_usage_costs_that(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(false)).await;
    let body = "{\"error\":{},\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":0}}";
    stage.upstream.next().await.answer("503 Service Unavailable", body).await;
    assert_eq!(client.answer().await.status, 503);
    assert_eq!(stage.ended().await, (cost(9, 0), once("upstream_failed")));
}

async fn an_upstream_that_hangs_up_before_answering_is_our_502(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    drop(stage.upstream.next().await);
    let message = client.answer().await.refusal(502, "upstream_unreachable");
    let words = match stage.way {
        Way::Proxy => "broke the connection before it answered",
        // What the client behind it says.
        Way::Layer => "client error (SendRequest)",
        Way::Envoy | Way::BodyFree | Way::Authz => "upstream_reset_before_response_started",
    };
    assert!(message.contains(words), "{message}");
    assert_eq!(stage.ended().await, (VirtualTokens::ZERO, once("upstream_failed")));
}

async fn a_stream_that_breaks_breaks_for_the_client_and_pays_for_what_was_produced(stage: &mut Stage) {
    let (mut client, exchange) = stage.streaming(&delta(THREE)).await;
    drop(exchange);
    assert!(!client.answer().await.whole, "a part is not taken for the whole");
    // Envoy ends the conversation as it does when a client leaves. The charge is the same.
    let ending = stage.either("upstream_failed", "client_aborted");
    assert_eq!(stage.ended().await, (cost(INPUT, 3), once(ending)));
}

async fn a_stream_that_ends_early_in_good_order_is_a_failure(stage: &mut Stage) {
    let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
    exchange.end().await;
    let answer = client.answer().await;
    assert!(answer.whole);
    stage.assert_passed(&answer.body, &shown(THREE));
    assert_eq!(stage.ended().await, (cost(INPUT, 3), once("upstream_failed")));
}

async fn an_error_in_a_stream_is_a_failure(stage: &mut Stage) {
    for (before, after) in [(delta(THREE), DONE), (delta(THREE), ""), (String::new(), DONE)] {
        let error = "data: {\"error\":{\"message\":\"one two three\"}}\n\n";
        let (mut client, mut exchange) = stage.streaming(&format!("{before}{error}")).await;
        exchange.chunk(&format!(": the end\n\n{after}")).await;
        exchange.end().await;
        let seen = if before.is_empty() { String::new() } else { shown(THREE) };
        let answer = client.answer().await;
        assert!(answer.whole);
        stage.assert_passed(&answer.body, &format!("{seen}{error}: the end\n\n{after}"));
        let cost = if before.is_empty() { VirtualTokens::ZERO } else { cost(INPUT, 3) };
        assert_eq!(stage.ended().await, (cost, once("upstream_failed")));
    }
}

async fn an_answer_that_breaks_within_its_first_event_produced_nothing(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    let mut exchange = stage.upstream.next().await;
    exchange.begin().await;
    exchange.chunk(&delta(THREE)[..20]).await;
    client.read_until("\r\n\r\n").await;
    drop(exchange);
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.whole), (200, false));
    // Who broke it off Envoy does not say, and whoever leaves pays for the input.
    let ended = stage.either((VirtualTokens::ZERO, once("upstream_failed")), (cost(INPUT, 0), once("client_aborted")));
    assert_eq!(stage.ended().await, ended);
}

async fn an_upstream_that_does_not_begin_is_our_504(stage: &mut Stage) {
    let mut client = stage.client().await;
    client.chat("", &chat(true)).await;
    let exchange = stage.upstream.next().await;
    let message = client.answer().await.refusal(504, "upstream_timed_out");
    assert!(message.contains("within 600 ms"), "{message}");
    exchange.closed().await;
    assert_eq!(stage.ended().await, (cost(INPUT, 0), once("timed_out")));
}

async fn an_upstream_that_falls_silent_is_cut_off(stage: &mut Stage) {
    let (mut client, exchange) = stage.streaming(&delta(THREE)).await;
    assert!(!client.answer().await.whole);
    exchange.closed().await;
    assert_eq!(stage.ended().await, (cost(INPUT, 3), once("timed_out")));
}

async fn after_the_final_event_a_silent_upstream_owes_nothing(stage: &mut Stage) {
    let (mut client, mut exchange) = stage.streaming(&delta(THREE)).await;
    exchange.chunk(&format!("{USAGE}{DONE}")).await;
    client.read_until("[DONE]").await;
    if stage.way.config().is_some() {
        // Envoy goes on without us, and leaves the end to the upstream; the proxy and the layer end the answer themselves.
        let longer = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(longer, client.read_until("0\r\n\r\n")).await.is_err(), "nobody ends it");
        exchange.end().await;
    }
    let answer = client.answer().await;
    assert!(answer.whole);
    stage.assert_passed(&answer.body, &format!("{}{DONE}", shown(THREE)));
    assert_eq!(stage.ended().await, (cost(11, 6), once("completed")));
    exchange.closed().await;
}
