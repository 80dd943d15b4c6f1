//! The engine's own report of its load, in a header of its answer: asked for where the policy says so, read, and kept
//! from the client.

use serde_json::json;

use super::{ANSWER, chat};
use crate::door::{Answer, Setup, Stage, both_doors, cases};

both_doors! {
    asked, |_| Setup::policy(
        "pools: [{name: chat, models: ['*'], window: {requests: 1}, engine: {orca: text, stale_after: 1h, every: 1m}}]",
    ),
    [a_report_is_asked_for_read_and_kept_here]
}

both_doors! {
    not_asked, |_| Setup::default(),
    [what_a_client_asks_for_passes_where_nobody_else_asks]
}

/// Has a chat answered with these headers; what the engine was asked, and what the client got.
async fn answered(stage: &mut Stage, asks: &str, headers: &str) -> (Option<String>, Answer) {
    let mut client = stage.client().await;
    client.chat(asks, &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    let asked = exchange.header("endpoint-load-metrics-format").map(str::to_owned);
    let (length, kind) = (ANSWER.len(), "content-type: application/json");
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{kind}\r\ncontent-length: {length}\r\n{headers}\r\n");
    exchange.send(&format!("{head}{ANSWER}")).await;
    (asked, client.answer().await)
}

async fn a_report_is_asked_for_read_and_kept_here(stage: &mut Stage) {
    let report = "endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=3, \
                  named_metrics.kv_cache_usage_perc=0.5\r\n";
    let (asked, answer) = answered(stage, "endpoint-load-metrics-format: bin\r\n", report).await;
    assert_eq!(asked.as_deref(), Some("text"), "whatever the client asked for");
    assert_eq!((answer.status, answer.header("endpoint-load-metrics")), (200, ""));
    let mut admin = stage.gateway.admin().await;
    let row = &admin.get("/v1/pools", "").await.json()[0];
    assert_eq!((&row["engine"], &row["engine_waiting"]), (&json!("seen"), &json!(3)), "{row}");
    assert_eq!((&row["engine_kv_usage"], &row["engine_running"]), (&json!(0.5), &json!(null)), "{row}");

    let (_, answer) = answered(stage, "", "endpoint-load-metrics: TEXT three\r\n").await;
    assert_eq!((answer.status, answer.header("endpoint-load-metrics")), (200, ""));
    let row = &admin.get("/v1/pools", "").await.json()[0];
    let fault = row["engine_faults"][0].as_str().expect("a fault");
    assert!(fault.contains("needs an `=`"), "{fault}");
    assert_eq!(row["engine_waiting"], 3, "what was known stays until it is old");
    let metrics = admin.get("/metrics", "").await.body;
    for line in [
        "tallygate_engine_blind{pool=\"chat\"} 0",
        "tallygate_engine_waiting_requests{pool=\"chat\"} 3",
        "tallygate_engine_reads_total{pool=\"chat\",result=\"failed\"} 1",
        "tallygate_engine_reads_total{pool=\"chat\",result=\"read\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(!metrics.contains("tallygate_engine_running_requests{"), "what is not known is not shown");
}

async fn what_a_client_asks_for_passes_where_nobody_else_asks(stage: &mut Stage) {
    let report = "endpoint-load-metrics: TEXT named_metrics.num_requests_waiting=3\r\n";
    let (asked, answer) = answered(stage, "endpoint-load-metrics-format: json\r\n", report).await;
    assert_eq!(asked.as_deref(), Some("json"));
    assert_eq!(answer.header("endpoint-load-metrics"), "TEXT named_metrics.num_requests_waiting=3");
    let row = &stage.gateway.admin().await.get("/v1/pools", "").await.json()[0];
    assert_eq!((&row["engine"], &row["engine_waiting"]), (&json!(null), &json!(null)), "{row}");
}
