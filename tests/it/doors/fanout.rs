//! Sessions and their sub-agents at the doors: who they are is in headers, and their caps hold.

use serde_json::json;

use super::chat;
use crate::door::{Client, Exchange, Setup, Stage, cases, every_door};

every_door! {
    pairs, |_| Setup::policy("fanout: {per_session: 2}"),
    [one_slot_of_a_session_stays_for_its_lead_whatever_its_agents_are_called]
}

every_door! {
    single, |_| Setup::policy("fanout: {per_session: 1}"),
    [a_session_says_nothing_about_another_tenants_session_of_the_same_name]
}

every_door! {
    told, |_| Setup::policy("fanout: {per_session: 2, per_tenant: 9}\npools: [{name: chat, models: ['*'], max_request_tokens: 100}]"),
    [answers_tell_what_is_left_in_flight]
}

const CLAUDE: (&str, &str) =
    ("x-claude-code-session-id: s1\r\n", "x-claude-code-session-id: s1\r\nx-claude-code-agent-id: a1\r\n");
const CODEX: (&str, &str) = ("session-id: s1\r\n", "session-id: s1\r\nx-codex-parent-thread-id: t1\r\n");
const OPENCODE: (&str, &str) = ("x-session-id: s1\r\n", "x-session-id: child\r\nx-parent-session-id: s1\r\n");
const DYNAMO: (&str, &str) =
    ("x-dynamo-session-id: s1\r\n", "x-dynamo-session-id: child\r\nx-dynamo-parent-session-id: s1\r\n");

async fn done(mut exchange: Exchange, client: &mut Client) {
    let usage = r#"{"usage":{"prompt_tokens":5,"completion_tokens":5}}"#;
    exchange.answer("200 OK", usage).await;
    assert_eq!(client.answer().await.status, 200);
}

async fn answers_tell_what_is_left_in_flight(stage: &mut Stage) {
    let mut client = stage.client().await;
    for (headers, left) in [("x-session-id: s1\r\n", r#""tenant";r=8, "session";r=1"#), ("", r#""tenant";r=8"#)] {
        client.chat(headers, &chat(false)).await;
        let mut exchange = stage.upstream.next().await;
        exchange.answer("200 OK", r#"{"usage":{"prompt_tokens":5,"completion_tokens":5}}"#).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("ratelimit")), (200, left));
    }
    let hopeless = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello ".repeat(200)}]});
    client.chat("x-session-id: s1\r\n", &hopeless).await;
    let answer = client.answer().await;
    answer.refusal(413, "too_large");
    assert_eq!(answer.header("ratelimit"), r#""tenant";r=9, "session";r=2"#);
    let policy = r#""tenant";q=9;qu="concurrent-requests", "session";q=2;qu="concurrent-requests""#;
    assert_eq!(answer.header("ratelimit-policy"), policy);
}

async fn one_slot_of_a_session_stays_for_its_lead_whatever_its_agents_are_called(stage: &mut Stage) {
    for (lead, sub) in [CLAUDE, CODEX, OPENCODE, DYNAMO] {
        let (mut first, mut second, mut root) = (stage.client().await, stage.client().await, stage.client().await);
        first.chat(sub, &chat(false)).await;
        let of_first = stage.upstream.next().await;
        second.chat(sub, &chat(false)).await;
        stage.gateway.until_queued(1).await;
        root.chat(lead, &chat(false)).await;
        let of_root = stage.upstream.next().await;
        assert!(stage.upstream.is_untouched(), "{lead}the second sub-agent waits");
        done(of_root, &mut root).await;
        assert!(stage.upstream.is_untouched(), "{lead}a free slot of the lead's is not a sub-agent's");
        done(of_first, &mut first).await;
        let of_second = stage.upstream.next().await;
        done(of_second, &mut second).await;
        let (_, outcomes) = stage.ended().await;
        assert_eq!(outcomes, [("completed".to_owned(), 3)].into(), "nobody was refused");
    }
}

async fn a_session_says_nothing_about_another_tenants_session_of_the_same_name(stage: &mut Stage) {
    let (mut ours, mut theirs) = (stage.client().await, stage.client().await);
    ours.chat("x-tenant-id: a\r\nx-session-id: s\r\n", &chat(false)).await;
    let first = stage.upstream.next().await;
    theirs.chat("x-tenant-id: b\r\nx-session-id: s\r\n", &chat(false)).await;
    let second = stage.upstream.next().await;
    done(second, &mut theirs).await;
    done(first, &mut ours).await;
    assert_eq!(stage.ended().await.1, [("completed".to_owned(), 2)].into());
}
