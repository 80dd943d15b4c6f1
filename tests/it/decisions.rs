//! Every refused answer's decision id leads to why: through the real proxy, from the header to the admin API, with the
//! numbers of what happened.

use serde_json::{Value, json};
use tallygate::settings::{Door, Remember};
use tallygate::units::{Bytes, Span};

use crate::door::{Answer, Client, Front, Gateway, Setup, Shut, Upstream, usual, within};
use crate::doors::{DONE, INPUT, USAGE, chat, delta};

/// Asks for a decision by the id in an answer's header.
async fn decision(gateway: &Gateway, answer: &Answer) -> Value {
    let id = answer.header("x-tallygate-decision");
    let found = gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await;
    assert_eq!(found.status, 200, "{}", found.body);
    let found = found.json();
    assert_eq!(found["decision"], id);
    found
}

/// The one gate's finding.
fn gate<'a>(decision: &'a Value, name: &str) -> &'a Value {
    let gates = decision["on_arrival"]["gates"].as_array().expect("gates");
    gates.iter().find(|gate| gate["gate"] == name).expect("every gate is told")
}

fn words<'a>(decision: &'a Value, key: &str) -> &'a str {
    decision[key].as_str().unwrap_or_else(|| panic!("{key} in {decision:#}"))
}

/// Sends a chat and leaves it waiting.
async fn waiting(gateway: &Gateway, headers: &str, queued: u32) -> Client {
    let mut client = gateway.client().await;
    client.chat(headers, &chat(true)).await;
    gateway.until_queued(queued).await;
    client
}

/// What the client was told is what is remembered.
fn agrees(decision: &Value, answer: &Answer, reason: &str) {
    assert_eq!((&decision["outcome"], &decision["reason"]), (&json!("refused"), &json!(reason)), "{decision:#}");
    assert_eq!(decision["answer"]["status"], answer.status);
    assert_eq!(decision["answer"]["code"], answer.header("x-tallygate-reason"));
    let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains(words(decision, "why")), "{message} has {}", words(decision, "why"));
    match decision["answer"]["retry_after_s"].as_f64() {
        Some(secs) => assert_eq!(format!("{}", (secs * 1e3).ceil()), answer.header("retry-after-ms")),
        None => assert_eq!(answer.header("retry-after"), ""),
    }
    assert!(!words(decision, "what_would_have_let_it_in").is_empty());
}

#[tokio::test]
async fn a_full_queue_names_the_cap_and_what_filled_it() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {per_tenant_requests: 1}}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let who = "x-tenant-id: acme\r\nx-session-id: s1\r\n";
    let mut running = gateway.client().await;
    running.chat(who, &chat(true)).await;
    let _exchange = upstream.next().await;
    let _waiting = waiting(&gateway, who, 1).await;
    let mut client = gateway.client().await;
    client.chat(who, &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(429, "queue_full");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "queue_full");
    assert_eq!(found["key"], "pools[0].queue.per_tenant_requests");
    let advice = words(&found, "what_would_have_let_it_in");
    assert!(
        advice.contains("1 were taken by who waits or was told to come back, and this request would have added 1"),
        "{advice}"
    );
    assert!(advice.contains("a pools[0].queue.per_tenant_requests of 2 or more (now 1)"), "{advice}");
    assert_eq!(
        found["door"],
        json!({"listener": "proxy", "method": "POST", "path": "/v1/chat/completions", "dialect": "openai_chat"})
    );
    assert_eq!((&found["caller"]["tenant"], &found["caller"]["session"]), (&json!("acme"), &json!("s1")));
    assert_eq!(found["caller"]["by"], "the header x-tenant-id");
    assert_eq!((&found["request"]["model"], &found["request"]["pool"]), (&json!("gpt-4o"), &json!("chat")));
    // Eight in and forty out at two each.
    assert_eq!(
        found["quote"],
        json!({
            "input_tokens": INPUT, "cached_input": 0, "counted_input": INPUT, "counted": "exact", "predicted_output": 40,
            "output_cap": 40, "cost": 88,
        })
    );
    let numbers = json!({"level": "tenant", "unit": "requests", "cap": 1, "queued": 1, "asked": 1, "displaced": false});
    assert_eq!(found["refusal"]["numbers"], numbers);
    let caps = gate(&found, "queue")["numbers"]["caps"].as_array().expect("caps");
    let cap = caps.iter().find(|cap| cap["level"] == "tenant" && cap["unit"] == "requests").expect("it is set");
    assert_eq!(
        (&cap["cap"], &cap["queued"], &cap["asked"], &cap["exceeded"]),
        (&json!(1), &json!(1), &json!(1), &json!(true))
    );
    // The gates behind the first that refuses are told too, and what is in flight.
    assert_eq!(
        (&gate(&found, "size")["verdict"], &gate(&found, "wait")["verdict"]),
        (&json!("passes"), &json!("passes"))
    );
    let window = &found["on_arrival"]["window"];
    assert_eq!((&window["requests"], &window["most_requests"], &window["fits"]), (&json!(1), &json!(1), &json!(false)));
}

#[tokio::test]
async fn whoever_expires_or_is_displaced_is_told_what_it_waited_for() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 1}}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut running = gateway.client().await;
    running.chat("", &chat(true)).await;
    let _exchange = upstream.next().await;
    let mut hasty = waiting(&gateway, "x-tallygate-deadline-ms: 40\r\n", 1).await;
    let answer = hasty.answer().await;
    answer.refusal(429, "expired");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "expired");
    let advice = words(&found, "what_would_have_let_it_in");
    assert!(advice.contains("the client's header x-tallygate-deadline-ms"), "{advice}");
    assert_eq!(found["key"], Value::Null, "the client's limit, not the policy's");
    assert!(found["refusal"]["waited_s"].as_f64().expect("it waited") >= 0.039, "{found:#}");
    assert_eq!(found["on_arrival"]["verdict"], "queued");

    let mut hasty = waiting(&gateway, "x-stainless-read-timeout: 0.04\r\n", 1).await;
    let answer = hasty.answer().await;
    answer.refusal(429, "expired");
    let found = decision(&gateway, &answer).await;
    let advice = words(&found, "what_would_have_let_it_in");
    assert!(advice.contains("the client's own time limit (x-stainless-read-timeout"), "{advice}");
    assert_eq!(found["request"]["waits_for_answer_s"], 0.04);

    // The latest of whoever holds most for its weight leaves: here the one of the two that has no deadline.
    let heavy = "x-tenant-id: heavy\r\n";
    let mut displaced = waiting(&gateway, heavy, 1).await;
    let mut urgent = gateway.client().await;
    urgent.chat(&format!("{heavy}x-tallygate-deadline-ms: 5000\r\n"), &chat(true)).await;
    let answer = displaced.answer().await;
    answer.refusal(429, "queue_full");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "queue_full");
    assert_eq!(found["key"], "pools[0].queue.requests");
    let advice = words(&found, "what_would_have_let_it_in");
    assert!(advice.contains("a rule of tenants that gives it a greater weight than 1"), "{advice}");
    assert_eq!(found["refusal"]["numbers"]["displaced"], true);
    assert!(found["life"]["queued_s"].is_number() && found["life"]["dispatched_s"].is_null());
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_told_with_its_prediction() {
    let mut upstream = Upstream::start().await;
    let gateway = Setup::default().start(&upstream.url()).await;
    let mut clients = Vec::new();
    for queued in 0..16_u32 {
        let mut client = gateway.client().await;
        client.chat("", &chat(false)).await;
        clients.push(client);
        if queued > 0 {
            gateway.until_queued(queued).await;
        }
    }
    // Ten are served, and the class has had a backlog for longer than the two seconds that the measure takes.
    for _ in 0..11 {
        let mut exchange = upstream.next().await;
        exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":40}}").await;
    }
    let _running = upstream.next().await;
    tokio::time::pause();
    tokio::time::advance(Span::from_secs(3).to_std()).await;
    tokio::time::resume();
    let mut client = gateway.client().await;
    client.chat("x-tallygate-deadline-ms: 100\r\n", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(429, "wait_too_long");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "wait_too_long");
    let numbers = &gate(&found, "wait")["numbers"];
    assert_eq!(numbers["ahead"], 4 * 88 + 44, "four of its tenant wait, and half of itself: {found:#}");
    let (ahead, rate) = (numbers["ahead"].as_f64().expect("work"), numbers["rate_per_s"].as_f64().expect("measured"));
    let predicted = numbers["predicted_s"].as_f64().expect("known");
    assert!((predicted - ahead / rate * 9.0 / 8.0).abs() < 0.01, "with an eighth to be sure: {numbers}");
    let allowed = numbers["allowed_s"].as_f64().expect("it has a limit");
    assert!(allowed > 0.05 && allowed <= 0.1, "a tenth of a second from its arrival: {allowed}");
    let advice = words(&found, "what_would_have_let_it_in");
    assert!(advice.contains("x-tallygate-deadline-ms"), "{advice}");
    let refused = found["refusal"]["retry_after_s"].as_f64().expect("known");
    assert!(refused >= predicted - 0.1, "a client that comes back then waits no longer than it may: {found:#}");
}

/// Path, headers and body of a request; status and reason of its refusal; the policy's key and some of the advice.
type DoorCase<'a> = (&'a str, &'a str, String, u16, &'a str, Option<&'a str>, &'a str);

#[tokio::test]
async fn what_the_door_refuses_is_a_decision_too() {
    let upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['served'], window: {requests: 1}, max_request_tokens: 100}]\n\
                  identity: {tenant: [{header: x-tenant-id}]}";
    let door = Door { body_most: Bytes::new(5_000), ..Door::default() };
    let gateway = Setup { door, ..Setup::policy(policy) }.start(&upstream.url()).await;
    let with = |name: &str, value: Value| {
        let mut body = json!({"model": "served", "messages": [{"role": "user", "content": "hello"}]});
        body[name] = value;
        body.to_string()
    };
    let (acme, chat) = ("x-tenant-id: acme\r\n", "/v1/chat/completions");
    let long = json!([{"role": "user", "content": "hello ".repeat(200)}]);
    let cases: &[DoorCase<'_>] = &[
        (chat, "", with("x", json!(1)), 401, "unidentified", Some("identity.tenant"), "send the header x-tenant-id"),
        (chat, acme, "{".into(), 400, "malformed", None, "put right"),
        (
            chat,
            acme,
            with("messages", long),
            413,
            "too_large",
            Some("pools[0].max_request_tokens"),
            "108 tokens shorter",
        ),
        (chat, acme, with("x", json!("x".repeat(6_000))), 413, "too_large", None, "A smaller body"),
        (chat, acme, with("model", json!("other")), 404, "model_not_found", Some("pools"), "served in pool chat"),
        (chat, acme, with("background", json!(true)), 400, "unsupported", None, "no setting allows this one"),
        ("/v1/files", acme, "{}".into(), 400, "unsupported", Some("unmetered"), "unmetered: pass"),
    ];
    for (path, headers, body, status, reason, key, advice) in cases {
        let mut client = gateway.client().await;
        client.post(path, headers, body).await;
        let answer = client.answer().await;
        answer.refusal(*status, reason);
        let found = decision(&gateway, &answer).await;
        agrees(&found, &answer, reason);
        assert_eq!((&found["key"], &found["door"]["path"]), (&json!(key), &json!(path)), "{found:#}");
        let told = words(&found, "what_would_have_let_it_in");
        assert!(told.contains(advice), "{told}");
        // What is not metered is refused before anybody asks who sends it.
        let known = !headers.is_empty() && *path == chat;
        assert_eq!(found["caller"]["tenant"], if known { json!("acme") } else { Value::Null });
    }
    let listed = gateway.admin().await.get("/v1/decisions?outcome=refused&tenant=acme", "").await.json();
    let reasons: Vec<&Value> = listed.as_array().expect("rows").iter().map(|row| &row["reason"]).collect();
    let newest_first: Vec<&str> = cases[1..6].iter().rev().map(|case| case.4).collect();
    assert_eq!(json!(reasons), json!(newest_first));
}

#[tokio::test]
async fn an_unknown_key_says_where_keys_are_added() {
    let upstream = Upstream::start().await;
    let files = vec![("keys.yaml", format!("keys: [{{sha256: '{}', tenant: acme}}]\n", "0".repeat(64)))];
    let policy = "identity: {tenant: [{api_key: keys.yaml}]}";
    let gateway = Setup { files, ..Setup::policy(policy) }.start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.chat("authorization: Bearer sk-wrong\r\n", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(401, "unidentified");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "unidentified");
    assert!(words(&found, "what_would_have_let_it_in").contains("by its SHA-256"), "{found:#}");
    assert!(!found.to_string().contains("sk-wrong"), "no key is ever remembered");
}

#[tokio::test]
async fn a_wish_that_is_not_granted_names_the_key_that_refuses_it() {
    let upstream = Upstream::start().await;
    let gateway = Setup::policy("identity: {class_not_granted: refuse}").start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.chat("x-priority: vip\r\n", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(403, "class_not_granted");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "class_not_granted");
    assert_eq!(
        (&found["key"], &found["caller"]["wished_class"]),
        (&json!("identity.class_not_granted"), &json!("vip"))
    );
}

#[tokio::test]
async fn draining_and_failing_upstreams_are_told_apart_from_limits() {
    let shut = Shut::start();
    let gateway = Setup::default().start(&shut.url()).await;
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(502, "upstream_unreachable");
    let found = decision(&gateway, &answer).await;
    assert_eq!((&found["outcome"], &found["reason"]), (&json!("upstream_failed"), &json!("upstream_unreachable")));
    assert!(words(&found, "what_would_have_let_it_in").starts_with("Nothing of this gateway's"), "{found:#}");
    assert_eq!((&found["settled"]["charged"], &found["life"]["waited_s"]), (&json!(0), &json!(0.0)));

    gateway.gate().start_draining().expect("not broken");
    let mut client = gateway.client().await;
    client.chat("", &chat(true)).await;
    let answer = client.answer().await;
    answer.refusal(503, "draining");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "draining");
    assert_eq!(found["refusal"]["retry"], "unknown");
}

#[tokio::test]
async fn a_request_that_is_served_is_told_from_arrival_to_its_bill() {
    let (gateway, mut upstream) = usual().await;
    let mut first = gateway.client().await;
    first.chat("x-tenant-id: acme\r\n", &chat(true)).await;
    let mut exchange = upstream.next().await;
    let mut second = waiting(&gateway, "x-tenant-id: acme\r\n", 1).await;
    let gone = waiting(&gateway, "x-tenant-id: gone\r\n", 2).await;
    drop(gone);
    gateway.until_queued(1).await;
    let head = "connection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked";
    exchange.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n")).await;
    exchange.chunk(&delta("one two three")).await;
    exchange.chunk(USAGE).await;
    exchange.chunk(DONE).await;
    exchange.end().await;
    let answer = first.answer().await;
    let found = decision(&gateway, &answer).await;
    assert_eq!(
        (&found["outcome"], &found["reason"], &found["refusal"]),
        (&json!("completed"), &Value::Null, &Value::Null)
    );
    assert_eq!(found["what_would_have_let_it_in"], Value::Null);
    let wanted = json!({"input": 11, "cached_input": 0, "cache_write": 0, "output": 6, "reasoning": 0});
    assert_eq!((&found["settled"]["usage"], &found["settled"]["estimated"]), (&wanted, &json!(false)));
    assert_eq!(found["settled"]["charged"], 23, "eleven in and six out at two each");
    let life = &found["life"];
    let moments = ["dispatched_s", "first_byte_s", "first_token_s", "ended_s"];
    let moments: Vec<f64> = moments.iter().map(|name| life[name].as_f64().expect(name)).collect();
    assert!(moments.is_sorted() && life["queued_s"].is_null(), "{life}");
    assert_eq!(found["on_arrival"]["verdict"], "dispatched");

    let mut exchange = upstream.next().await;
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}").await;
    let answer = second.answer().await;
    let found = decision(&gateway, &answer).await;
    assert_eq!((&found["outcome"], &found["on_arrival"]["verdict"]), (&json!("completed"), &json!("queued")));
    let waited = found["life"]["waited_s"].as_f64().expect("it waited");
    let told: f64 = answer.header("x-tallygate-queue-ms").parse().expect("milliseconds");
    assert!(waited > 0.0 && ((waited * 1e3).ceil() - told).abs() < 0.5, "{waited} s, {told} ms");

    let listed = gateway.admin().await.get("/v1/decisions", "").await.json();
    let outcomes: Vec<&Value> = listed.as_array().expect("rows").iter().map(|row| &row["outcome"]).collect();
    assert_eq!(json!(outcomes), json!(["left", "completed", "completed"]));
}

#[tokio::test]
async fn what_passes_unmetered_and_who_leaves_while_sending_are_told_too() {
    let (gateway, mut upstream) = usual().await;
    let mut reader = gateway.client().await;
    reader.send(b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n").await;
    upstream.next().await.answer("200 OK", "{}").await;
    let found = decision(&gateway, &reader.answer().await).await;
    assert_eq!((&found["outcome"], &found["request"]), (&json!("passed"), &Value::Null));
    let mut leaver = gateway.client().await;
    leaver.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 500\r\n\r\n{").await;
    let newest = || async {
        let listed = gateway.admin().await.get("/v1/decisions?limit=1", "").await.json();
        listed[0]["outcome"].as_str().expect("an outcome").to_owned()
    };
    within("the request to come", async { while newest().await != "arriving" {} }).await;
    drop(leaver);
    // The body broke off, which is a refusal nobody reads, or the handler is dropped, whichever comes first.
    within("the client's leaving", async { while newest().await == "arriving" {} }).await;
    assert!(["left", "refused"].contains(&newest().await.as_str()));
}

#[tokio::test]
async fn an_id_without_a_decision_says_why_there_is_none() {
    let upstream = Upstream::start().await;
    let remember = Remember { most: 3, ..Remember::default() };
    let gateway = Setup { remember, ..Setup::default() }.start(&upstream.url()).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let mut client = gateway.client().await;
        client.chat("", &json!({})).await;
        ids.push(client.answer().await.header("x-tallygate-decision").to_owned());
    }
    let epoch = ids[0].split_once('-').expect("two parts").0.to_owned();
    let other = if epoch == "00000001" { "00000002" } else { "00000001" };
    let asked = |id: String| {
        let gateway = &gateway;
        async move { gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await }
    };
    for (id, why) in [
        ("nonsense".to_owned(), "is not a decision id"),
        (format!("{other}-1"), "made by another start of a gateway"),
        (format!("{epoch}-ffffff"), "has not been made yet"),
        (format!("{epoch}-0"), "has not been made yet"),
        (ids[1].clone(), "is forgotten"),
    ] {
        let answer = asked(id).await;
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(answer.status == 404 && message.contains(why), "{message}");
    }
    assert_eq!(asked(ids[2].clone()).await.status, 200);
    let unheard = gateway.gate().decision();
    let answer = asked(unheard.to_string()).await;
    assert!(answer.body.contains("nothing was heard"), "{}", answer.body);
}

#[tokio::test]
async fn a_list_says_what_it_can_be_asked_for() {
    let (gateway, _upstream) = usual().await;
    let mut admin = gateway.admin().await;
    for (query, why) in [
        ("outcome=lucky", "outcome is one of arriving, queued,"),
        ("limit=0", "limit is between 1 and 1000"),
        ("limit=many", "invalid digit"),
        ("tenat=a", "unknown field `tenat`"),
    ] {
        let answer = admin.get(&format!("/v1/decisions?{query}"), "").await;
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(answer.status == 400 && message.contains(why), "{message}");
    }
    assert_eq!(admin.get("/v1/decisions", "").await.json(), json!([]));
}

#[tokio::test]
async fn what_comes_through_envoy_is_remembered_alike() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['gpt-4o'], window: {requests: 1}}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let Some(front) = Front::start(&gateway, upstream.address()).await else { return };
    let mut running = front.client().await;
    running.chat("", &chat(false)).await;
    let mut exchange = upstream.next().await;
    let mut hasty = front.client().await;
    hasty.chat("x-tallygate-deadline-ms: 40\r\n", &chat(true)).await;
    let answer = hasty.answer().await;
    answer.refusal(429, "expired");
    let found = decision(&gateway, &answer).await;
    agrees(&found, &answer, "expired");
    let door = json!({"listener": "grpc", "method": "POST", "path": "/v1/chat/completions", "dialect": "openai_chat"});
    assert_eq!(found["door"], door);
    let mut unserved = front.client().await;
    unserved.chat("", &json!({"model": "other", "messages": [{"role": "user", "content": "hello"}]})).await;
    let answer = unserved.answer().await;
    answer.refusal(404, "model_not_found");
    agrees(&decision(&gateway, &answer).await, &answer, "model_not_found");
    let mut leaver = front.client().await;
    leaver.chat("", &chat(true)).await;
    gateway.until_queued(1).await;
    drop(leaver);
    gateway.until_queued(0).await;
    exchange.answer("200 OK", "{\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":4}}").await;
    let answer = running.answer().await;
    let found = decision(&gateway, &answer).await;
    assert_eq!((&found["outcome"], &found["settled"]["charged"]), (&json!("completed"), &json!(16)));
    assert!(found["life"]["first_byte_s"].is_number(), "{found:#}");
    let listed = gateway.admin().await.get("/v1/decisions", "").await.json();
    let outcomes: Vec<&Value> = listed.as_array().expect("rows").iter().map(|row| &row["outcome"]).collect();
    assert_eq!(json!(outcomes), json!(["left", "refused", "refused", "completed"]));
}
