//! An upstream that fails and recovers, as both doors see it: the rule of Azure API Management's backends (number of
//! failures, interval, statuses, trip duration, Retry-After accepted), shown against a real server.

use serde_json::{Value, json};

use super::{ANSWER, chat, delta};
use crate::door::{Answer, Setup, Stage, Way, both_doors, cases};

both_doors! {
    failing, ruled,
    [
        bad_requests_and_clients_that_leave_trip_nothing,
        it_trips_at_the_fifth_failure_is_probed_and_recovers,
    ]
}

both_doors! {
    told, ruled,
    [
        a_retry_after_of_a_day_is_taken_and_told_on,
    ]
}

both_doors! {
    spent, ruled,
    [
        a_spent_budget_is_passed_on_and_who_waits_is_served_after_it,
    ]
}

/// The example's rule, with a trip that a test can wait for.
fn ruled(_: Way) -> Setup {
    Setup::policy(
        "classes: [{name: standard, rank: 0, max_wait: 30s}]
pools: [{name: chat, models: ['*'], window: {requests: 2},
  breaker: {failures: 5, within: 30s, statuses: ['500-599'], trip_for: 300ms, accept_retry_after: true}}]",
    )
}

/// Waits until the pool's breaker is in a stage.
async fn until(stage: &Stage, name: &str) {
    stage.gateway.until(name, |seen| seen.engine.pools()[0].breaker.is_some_and(|stage| stage.name() == name)).await;
}

async fn pool(stage: &Stage) -> Value {
    stage.gateway.admin().await.get("/v1/pools", "").await.json()[0].clone()
}

/// A request of a tenant's that the upstream answers so.
async fn answered(stage: &mut Stage, tenant: &str, status: &str, body: &str) -> Answer {
    let mut client = stage.client().await;
    client.chat(&format!("x-tenant-id: {tenant}\r\n"), &chat(false)).await;
    let mut exchange = stage.upstream.next().await;
    exchange.answer(status, body).await;
    client.answer().await
}

/// A request of a tenant's that no upstream gets to see.
async fn refused(stage: &mut Stage, tenant: &str) -> Answer {
    let mut client = stage.client().await;
    client.chat(&format!("x-tenant-id: {tenant}\r\n"), &chat(false)).await;
    let answer = client.answer().await;
    assert!(stage.upstream.is_untouched(), "it is left alone");
    answer
}

/// Five failures of two tenants, the last with this header.
async fn fail(stage: &mut Stage, last: &str) {
    for (tenant, status) in [("a", "500 x"), ("b", "503 x"), ("a", "502 x"), ("b", "599 x")] {
        let answer = answered(stage, tenant, status, "{\"error\":{\"message\":\"theirs\"}}").await;
        assert_eq!(answer.json()["error"]["message"], "theirs", "an upstream's error goes to the client as it is");
    }
    assert_eq!(pool(stage).await["breaker"]["stage"], "serving", "four are too few");
    answered(stage, "a", &format!("503 x{last}"), "{}").await;
    assert_eq!(pool(stage).await["breaker"]["stage"], "tripped");
}

async fn it_trips_at_the_fifth_failure_is_probed_and_recovers(stage: &mut Stage) {
    fail(stage, "").await;
    let answer = refused(stage, "c").await;
    let message = answer.refusal(503, "breaker_tripped");
    assert!(message.contains("left alone") && message.contains("try again in"), "{message}");
    assert_eq!(answer.json()["error"]["type"], "server_error");
    assert!(!answer.header("retry-after").is_empty() && answer.header("x-should-retry").is_empty());
    let mut client = stage.client().await;
    client.post("/v1/messages", "", r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"x"}]}"#).await;
    let answer = client.answer().await;
    answer.refusal(529, "breaker_tripped");
    assert_eq!(answer.json()["error"]["type"], "overloaded_error");

    until(stage, "probing").await;
    // The first that comes is the probe; the second waits for what becomes of it.
    let mut first = stage.client().await;
    first.chat("x-tenant-id: a\r\n", &chat(false)).await;
    let mut probe = stage.upstream.next().await;
    let mut second = stage.client().await;
    second.chat("x-tenant-id: b\r\n", &chat(false)).await;
    stage.gateway.until_queued(1).await;
    assert!(stage.upstream.is_untouched());
    probe.answer("200 OK", ANSWER).await;
    assert_eq!(first.answer().await.status, 200);
    let mut next = stage.upstream.next().await;
    next.answer("200 OK", ANSWER).await;
    assert_eq!(second.answer().await.status, 200);
    assert_eq!(pool(stage).await["breaker"]["stage"], "serving");
    let metrics = stage.gateway.admin().await.get("/metrics", "").await.body;
    for (stage, count) in [("tripped", 1), ("probing", 1), ("serving", 1)] {
        let line = format!("tallygate_breaker_shifts_total{{pool=\"chat\",stage=\"{stage}\",whose=\"pool\"}} {count}");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

async fn a_retry_after_of_a_day_is_taken_and_told_on(stage: &mut Stage) {
    fail(stage, "\r\nretry-after: 86400").await;
    let left = pool(stage).await["breaker"]["for_s"].as_f64().expect("a time");
    assert!((86_300.0..=86_400.0).contains(&left), "{left}");
    let answer = refused(stage, "c").await;
    answer.refusal(503, "breaker_tripped");
    let told: f64 = answer.header("retry-after").parse().expect("seconds");
    assert!((86_300.0..=86_400.0 * 1.2 + 2.0).contains(&told), "{told}");
    assert_eq!(answer.header("x-should-retry"), "false", "no SDK keeps such a wait");
}

async fn a_spent_budget_is_passed_on_and_who_waits_is_served_after_it(stage: &mut Stage) {
    let mut clients = Vec::new();
    let mut exchanges = Vec::new();
    for tenant in ["a", "b"] {
        let mut client = stage.client().await;
        client.chat(&format!("x-tenant-id: {tenant}\r\n"), &chat(false)).await;
        exchanges.push(stage.upstream.next().await);
        clients.push(client);
    }
    let mut waiting = stage.client().await;
    waiting.chat("x-tenant-id: c\r\n", &chat(false)).await;
    stage.gateway.until_queued(1).await;
    let spent = json!({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}).to_string();
    for mut exchange in exchanges {
        exchange.answer("429 Too Many Requests\r\nretry-after-ms: 700", &spent).await;
    }
    // The first is its tenant's alone, and so the one that waited is sent; the second is everybody's.
    let mut unharmed = stage.upstream.next().await;
    for mut client in clients {
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("retry-after-ms")), (429, "700"));
        assert_eq!(
            (answer.header("x-tallygate-reason"), &answer.json()["error"]["code"]),
            ("", &json!("rate_limit_exceeded"))
        );
    }
    let mut late = stage.client().await;
    late.chat("x-tenant-id: d\r\n", &chat(false)).await;
    let begun = std::time::Instant::now();
    until(stage, "paused").await;
    stage.gateway.until_queued(1).await;
    unharmed.answer("200 OK", ANSWER).await;
    assert_eq!(waiting.answer().await.status, 200);
    let mut exchange = stage.upstream.next().await;
    assert!(begun.elapsed().as_millis() >= 200, "{:?}", begun.elapsed());
    exchange.answer("200 OK", ANSWER).await;
    assert_eq!(late.answer().await.status, 200);
}

async fn bad_requests_and_clients_that_leave_trip_nothing(stage: &mut Stage) {
    for (status, tenant) in [("400 x", "a"), ("404 x", "b"), ("422 x", "a")].repeat(5) {
        answered(stage, tenant, status, "{}").await;
    }
    for tenant in ["a", "b"].repeat(5) {
        let mut client = stage.client().await;
        client.chat(&format!("x-tenant-id: {tenant}\r\n"), &chat(true)).await;
        let mut exchange = stage.upstream.next().await;
        exchange.begin().await;
        exchange.chunk(&delta("one")).await;
        client.read_until("one").await;
        drop(client);
        exchange.closed().await;
    }
    stage.ended().await;
    let breaker = pool(stage).await["breaker"].clone();
    assert_eq!((&breaker["stage"], &breaker["tenants"]), (&json!("serving"), &json!([])));
}
