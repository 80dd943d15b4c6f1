//! Rates and budgets at the doors: what is refused, when it is let in, and what every answer tells of what is left.

use serde_json::{Value, json};

use super::chat;
use crate::door::{Setup, Stage, both_doors, cases, every_door};

every_door! {
    rates, |_| Setup::policy("limits:\n- {name: rpm, requests: 2, every: 1h}\n- {name: user-tpm, per: user, tokens: 1000000, every: 1m}"),
    [a_rate_refuses_and_every_answer_tells_what_is_left]
}

every_door! {
    input, |_| Setup::policy("limits: [{name: itpm, input_tokens: 50, every: 1m}]"),
    [an_input_beyond_the_burst_is_too_large_for_good]
}

both_doors! {
    money, |_| Setup::policy("cost: {models: [{match: '*', price: {input: 1000, output: 1000000}}]}\nbudgets: [{name: run, money: 10, period: task, warn_at: [50%]}]"),
    [a_budget_of_money_is_settled_by_usage_and_warns]
}

every_door! {
    demoted, |_| Setup::policy("limits: [{name: rpm, requests: 1, every: 1h, when_exceeded: {demote: batch}}]\nbudgets: [{name: day, requests: 1, period: day, when_spent: shadow}]"),
    [what_is_demoted_and_what_is_shadowed_can_be_read_in_its_decision]
}

async fn read(stage: &Stage, path: &str) -> Value {
    let mut admin = stage.gateway.admin().await;
    admin.get(path, "").await.json()
}

const USAGE: &str = r#"{"usage":{"prompt_tokens":5,"completion_tokens":5}}"#;

async fn a_rate_refuses_and_every_answer_tells_what_is_left(stage: &mut Stage) {
    let mut client = stage.client().await;
    for left in ["1", "0"] {
        client.chat("x-user-id: u\r\n", &chat(false)).await;
        stage.upstream.next().await.answer("200 OK", USAGE).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining-requests")), (200, left));
        assert_eq!(answer.header("x-ratelimit-limit-requests"), "2");
        assert_eq!(answer.header("x-ratelimit-limit-tokens"), "1000000");
    }
    client.chat("", &chat(false)).await;
    let answer = client.answer().await;
    answer.refusal(429, "rate_limited");
    let seconds: u64 = answer.header("retry-after").parse().expect("seconds");
    assert!((1_790..=1_870).contains(&seconds), "half an hour for one more, and a minute of jitter at most: {seconds}");
    assert_eq!(answer.header("x-should-retry"), "false");
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), "0");
    let message = answer.json()["error"]["message"].as_str().expect("words").to_owned();
    assert!(message.contains("nothing is left of the 2 requests that this tenant may use at once"), "{message}");
    let decision = read(stage, &format!("/v1/decisions/{}", answer.header("x-tallygate-decision"))).await;
    assert_eq!(decision["key"], "limits[0]");
    assert!(decision["what_would_have_let_it_in"].as_str().is_some_and(|words| words.contains("limits[0].requests")));
    client.chat("x-tenant-id: other\r\n", &chat(false)).await;
    stage.upstream.next().await.answer("200 OK", USAGE).await;
    assert_eq!(client.answer().await.status, 200, "another tenant's is not touched");
}

async fn an_input_beyond_the_burst_is_too_large_for_good(stage: &mut Stage) {
    let mut client = stage.client().await;
    let large = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello ".repeat(60)}]});
    client.chat("", &large).await;
    let answer = client.answer().await;
    answer.refusal(413, "too_large");
    assert!(answer.body.contains("a limit allows at most 50 input tokens at once"), "{}", answer.body);
}

async fn a_budget_of_money_is_settled_by_usage_and_warns(stage: &mut Stage) {
    let mut client = stage.client().await;
    let ask = json!({"model": "gpt-4o", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]});
    let mut told = Vec::new();
    for _ in 0..3 {
        client.chat("x-task-id: run-1\r\n", &ask).await;
        let usage = r#"{"usage":{"prompt_tokens":1000,"completion_tokens":2}}"#;
        stage.upstream.next().await.answer("200 OK", usage).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        stage.gateway.ended().await;
        told.push(answer.headers.contains_key("x-tallygate-budget-warning"));
    }
    assert_eq!(told, [false, true, true], "each holds 2 and a little, and is settled for 3");
    client.chat("x-task-id: run-1\r\n", &ask).await;
    let answer = client.answer().await;
    answer.refusal(429, "budget_spent");
    assert_eq!(answer.header("retry-after"), "", "no time brings it back");
    assert!(answer.header("x-tallygate-budget").starts_with("\"run\";left=1;of=10;unit=money;period=lifetime"));
    client.chat("x-task-id: run-2\r\n", &ask).await;
    stage.upstream.next().await.answer("200 OK", USAGE).await;
    assert_eq!(client.answer().await.status, 200);
    let rows = read(stage, "/v1/budgets").await;
    assert_eq!((&rows[0]["of"], &rows[0]["used"], &rows[0]["unit"]), (&json!("run-1"), &json!(9.0), &json!("money")));
}

async fn what_is_demoted_and_what_is_shadowed_can_be_read_in_its_decision(stage: &mut Stage) {
    let mut client = stage.client().await;
    let mut decisions = Vec::new();
    for _ in 0..2 {
        client.chat("", &chat(false)).await;
        stage.upstream.next().await.answer("200 OK", USAGE).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200);
        let id = answer.header("x-tallygate-decision").to_owned();
        decisions.push(read(stage, &format!("/v1/decisions/{id}")).await);
    }
    assert_eq!(decisions[0]["demoted"], Value::Null);
    assert_eq!(decisions[1]["demoted"], json!({"from": "standard", "to": "batch", "by": "rpm", "key": "limits[0]"}));
    assert_eq!(decisions[1]["shadowed_by"], json!(["day"]));
    assert_eq!(decisions[0]["shadowed_by"], json!([]));
}
