//! Engines' pages of metrics on real sockets: read, added up, blind when one cannot be read, and seen again.

use serde_json::{Value, json};

use crate::door::{Exchange, Gateway, Setup, Upstream};

const PAGE: &str = "vllm:num_requests_waiting 2\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.25\n\
                    vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n";

async fn watching(pages: &[&Upstream]) -> Gateway {
    let pages: Vec<String> = pages.iter().map(|page| format!("'{}/metrics'", page.url())).collect();
    let engine = format!("{{metrics: [{}], every: 100ms, stale_after: 200ms}}", pages.join(", "));
    Setup::policy(&format!("pools: [{{name: chat, models: ['*'], engine: {engine}}}]"))
        .start("http://127.0.0.1:1")
        .await
}

async fn page(exchange: &mut Exchange, text: &str) {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", text.len());
    exchange.send(&format!("{head}{text}")).await;
}

async fn row(gateway: &Gateway) -> Value {
    gateway.admin().await.get("/v1/pools", "").await.json()[0].clone()
}

/// Answers the next readings, until something holds of the pool's row, which comes with the reading after.
async fn until(gateway: &Gateway, engine: &mut Upstream, text: &str, holds: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..100 {
        page(&mut engine.next().await, text).await;
        let row = row(gateway).await;
        if holds(&row) {
            return row;
        }
    }
    panic!("a hundred readings changed nothing: {}", row(gateway).await);
}

#[tokio::test]
async fn what_engines_say_is_added_up_and_blindness_is_seen_everywhere() {
    let (mut one, mut other) = (Upstream::start().await, Upstream::start().await);
    let gateway = watching(&[&one, &other]).await;
    let blind = row(&gateway).await;
    assert_eq!((&blind["engine"], &blind["engine_age_s"]), (&json!("blind"), &json!(null)), "nothing was read yet");

    // Both are answered side by side, since each is read on its own.
    let answering = async |engine: &mut Upstream| loop {
        let mut exchange = engine.next().await;
        assert_eq!(exchange.header("accept"), Some("text/plain;version=0.0.4"));
        assert!(exchange.head.starts_with("GET /metrics HTTP/1.1"), "{}", exchange.head);
        page(&mut exchange, PAGE).await;
    };
    let seen = async {
        loop {
            let row = row(&gateway).await;
            if row["engine"] == "seen" {
                break row;
            }
        }
    };
    let row = tokio::select! {
        row = seen => row,
        () = answering(&mut one) => unreachable!("it goes on"),
        () = answering(&mut other) => unreachable!("it goes on"),
    };
    let shown = ["engine_waiting", "engine_running", "engine_kv_tokens"].map(|field| row[field].clone());
    assert_eq!(shown, [json!(4), json!(8), json!(3_200)], "{row}");
    assert_eq!((&row["engine_kv_usage"], &row["engine_faults"]), (&json!(0.25), &json!([])), "{row}");

    // One of two is gone: its last word grows old, and with it the pool.
    drop(other);
    let row = until(&gateway, &mut one, PAGE, |row| row["engine"] == "blind").await;
    assert_eq!((&row["engine_waiting"], &row["engine_kv_tokens"]), (&json!(null), &json!(null)), "{row}");
    assert!(row["engine_age_s"].is_number() && row["engine_faults"][0].is_string(), "{row}");
    let metrics = gateway.admin().await.get("/metrics", "").await.body;
    assert!(metrics.contains("tallygate_engine_blind{pool=\"chat\"} 1"), "{metrics}");
    assert!(!metrics.contains("tallygate_engine_waiting_requests{"), "what is not known is not shown: {metrics}");
}

#[tokio::test]
async fn a_page_that_cannot_be_read_says_why_and_what_to_do() {
    let mut engine = Upstream::start().await;
    let gateway = watching(&[&engine]).await;
    let huge = format!("{PAGE}# {}\n", "x".repeat(5 * 1024 * 1024));
    for (text, told) in [
        ("<html>\n", "line 1 is not in Prometheus' text format"),
        ("up 1\n", "--enable-metrics"),
        (&huge, "longer than 4 MiB"),
    ] {
        let faulty = |row: &Value| row["engine_faults"][0].as_str().is_some_and(|fault| fault.contains(told));
        // What is too long is not read to its end.
        let answering = async {
            loop {
                let mut exchange = engine.next().await;
                let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", text.len());
                exchange.try_send(&format!("{head}{text}")).await;
            }
        };
        let seen = async {
            while !faulty(&row(&gateway).await) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = crate::door::within(told, seen) => {}
            () = answering => unreachable!("it goes on"),
        }
        assert_eq!(row(&gateway).await["engine"], "blind");
    }
    let row = until(&gateway, &mut engine, PAGE, |row| row["engine"] == "seen").await;
    assert_eq!(row["engine_faults"], json!([]), "and is read again");
    let status = async |engine: &mut Upstream| engine.next().await.answer("404 Not Found", "{}").await;
    let told = loop {
        status(&mut engine).await;
        let row = self::row(&gateway).await;
        if let Some(fault) = row["engine_faults"][0].as_str() {
            break fault.to_owned();
        }
    };
    assert!(told.starts_with(&engine.url()) && told.contains("404 Not Found; is the address right?"), "{told}");
}

/// A gateway that sees the engine of another one's demo; both.
pub(crate) async fn seeing_the_demo() -> (Gateway, Gateway) {
    let demo = Setup { demo: true, ..Setup::default() }.start("").await;
    let (_, engine) = demo.app.upstreams()[0].clone();
    let policy =
        format!("pools: [{{name: chat, models: ['*'], engine: {{metrics: ['{engine}metrics'], every: 100ms}}}}]");
    let gateway = Setup::policy(&policy).start(&engine).await;
    let seen = async {
        while row(&gateway).await["engine"] != "seen" {
            tokio::task::yield_now().await;
        }
    };
    crate::door::within("the engine to be seen", seen).await;
    (gateway, demo)
}

#[tokio::test]
async fn the_demos_own_engine_is_read() {
    let (gateway, _demo) = seeing_the_demo().await;
    let row = row(&gateway).await;
    assert_eq!((&row["engine_waiting"], &row["engine_kv_tokens"]), (&json!(0), &json!(10_000)), "{row}");
}
