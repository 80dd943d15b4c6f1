//! Retry budgets, as both doors see them: who says that it tries again, and what an Envoy before the upstream tells.

use super::{ANSWER, chat};
use crate::door::{Answer, Setup, Stage, both_doors, cases};

both_doors! {
    budget, |_| Setup::policy(
        "pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 0}}]\nretries: {ratio: 10%, floor: 3}"
    ),
    [
        retries_are_counted_and_refused_and_coming_back_when_told_is_none,
    ]
}

async fn ask(stage: &mut Stage, tries: &str, status: &str) -> Option<Answer> {
    let mut client = stage.client().await;
    client.chat(&format!("x-stainless-retry-count: {tries}\r\n"), &chat(false)).await;
    let answer = client.answer();
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => Some(answer),
        mut exchange = stage.upstream.next() => {
            exchange.answer(status, ANSWER).await;
            Some(answer.await)
        }
    }
}

async fn retries_are_counted_and_refused_and_coming_back_when_told_is_none(stage: &mut Stage) {
    let asked = [("0", "500 x"), ("1", "500 x"), ("2", "500 x\r\nx-envoy-attempt-count: 2")];
    for (tries, status) in asked {
        assert_eq!(ask(stage, tries, status).await.expect("answered").status, 500);
    }
    // Two retries, and a further attempt of the upstream's own proxy.
    let refused = ask(stage, "1", "200 OK").await.expect("answered");
    let message = refused.refusal(429, "retry_budget");
    assert!(message.contains("3 in the last minute, of at most 3"), "{message}");
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(ask(stage, "0", "200 OK").await.expect("answered").status, 200, "a first try is none");
    // Whoever is refused for the queue is told to come back, and may.
    let (running, exchange) =
        stage.streaming("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two three\"}}]}\n\n").await;
    let mut client = stage.client().await;
    client.chat("x-stainless-retry-count: 0\r\n", &chat(false)).await;
    client.answer().await.refusal(429, "queue_full");
    drop(running);
    exchange.closed().await;
    stage.ended().await;
    assert_eq!(ask(stage, "1", "200 OK").await.expect("answered").status, 200);
    ask(stage, "1", "200 OK").await.expect("answered").refusal(429, "retry_budget");
}
