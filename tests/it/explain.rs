//! What is explained is what happens: offline from a policy file, and at a running gateway through the admin API.
//!
//! Every request in `tests/golden/explain` is explained by the policy beside it, and `NAME.txt` is what
//! `tallygate explain` says of it. To record what it says now, run this with `UPDATE_GENERATED=1` and read the difference.

use std::process::Output;
use std::{env, fs};

use serde_json::{Value, json};
use tallygate::settings::{Door, Secret};
use tallygate::units::Bytes;
use tokio::process::Command;

use crate::door::{Client, Gateway, Setup, Upstream, usual};
use crate::doors::chat;
use crate::generated::{expect_file, root};

async fn tallygate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallygate"));
    command.args(arguments).current_dir(root().join("tests/golden/explain"));
    command.output().await.expect("the binary was built")
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("UTF-8")
}

#[tokio::test]
async fn every_request_gets_its_explanation() {
    let folder = root().join("tests/golden/explain");
    let entries = fs::read_dir(&folder).expect("the folder is there");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    let is_request = |name: &String| [".http", ".json"].iter().any(|end| name.ends_with(end));
    let mut names: Vec<String> = names.filter(is_request).collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    for name in names {
        let output = tallygate(&["explain", "--policy", "policy.yaml", "--request", &name]).await;
        let told = text(&output.stdout);
        assert_eq!(text(&output.stderr), "", "{name}");
        assert_eq!(output.status.code(), Some(i32::from(told.starts_with("refused"))), "{name}");
        expect_file(&folder.join(&name).with_extension("txt"), told);
    }
}

/// The names of the gates, in the order in which an explanation tells of them.
fn gates(explained: &str) -> Vec<&str> {
    let told = explained.lines().skip_while(|line| !line.starts_with("drain "));
    let told = told.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with(' '));
    told.filter_map(|line| line.split_whitespace().next()).collect()
}

#[tokio::test]
async fn the_manual_shows_what_is_said() {
    let manual = fs::read_to_string(root().join("docs/explain.md")).expect("it is there");
    let between = |from: &str, to: &str| {
        let (_, rest) = manual.split_once(from).unwrap_or_else(|| panic!("{from}"));
        rest.split_once(to).unwrap_or_else(|| panic!("{to}")).0.to_owned()
    };
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("policy.yaml"), between("```yaml\n", "```")).expect("written");
    fs::write(folder.path().join("request.http"), between("$ cat request.http\n", "$ tallygate")).expect("written");
    let line = "tallygate explain --policy policy.yaml --request request.http";
    let mut command = Command::new(env!("CARGO_BIN_EXE_tallygate"));
    let output = command.args(line.split(' ').skip(1)).current_dir(&folder).output().await.expect("it was built");
    let said = text(&output.stdout);
    assert_eq!(between(&format!("$ {line}\n"), "```"), said, "docs/explain.md is stale");

    let all = gates(said);
    assert!(all.len() > 8, "{all:?}");
    let shown: Vec<_> = manual.split("```").map(gates).filter(|gates| !gates.is_empty()).collect();
    assert!(shown.len() >= 4 && shown.iter().all(|gates| *gates == all), "{shown:?}");
    let meant = between("## What each line means", "\n`about");
    let meant: Vec<&str> = meant.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(meant, all, "what each line means");
}

#[tokio::test]
async fn a_listener_beyond_loopback_believes_no_headers() {
    let explain = ["explain", "--policy", "policy.yaml", "--request", "chat.http", "--json"];
    let local: Value = serde_json::from_slice(&tallygate(&explain).await.stdout).expect("JSON");
    let bound = [&explain[..], &["--bound-to", "0.0.0.0"]].concat();
    let beyond: Value = serde_json::from_slice(&tallygate(&bound).await.stdout).expect("JSON");
    let believed = |told: &Value| told["identity"]["headers_are_believed"].as_bool();
    assert_eq!((believed(&local), believed(&beyond)), (Some(true), Some(false)), "{beyond}");
}

#[tokio::test]
async fn what_cannot_be_explained_says_why() {
    let folder = env::temp_dir();
    let file = folder.join(format!("tallygate-explain-{}", std::process::id()));
    let file = file.to_str().expect("UTF-8");
    fs::write(file, "hello").expect("a file for a test");
    let explain = |arguments: &'static [&'static str], file: &str| {
        let file = file.to_owned();
        async move {
            let mut all = vec!["explain", "--policy", "policy.yaml", "--request", &file];
            all.extend(arguments);
            let output = tallygate(&all).await;
            (output.status.code(), text(&output.stderr).to_owned())
        }
    };
    let (code, error) = explain(&[], file).await;
    assert!(code == Some(1) && error.contains("it begins with \"hello\"") && error.contains(file), "{error}");
    let (code, error) = explain(&[], "absent.http").await;
    assert!(code == Some(1) && error.contains("cannot read the request in absent.http"), "{error}");
    for (arguments, why) in [
        (&["--header", "x-tenant-id"][..], "write it as \"Name: value\""),
        (&["--header", "a b: c"][..], "cannot be the name of a header"),
        (&["--listener", "udp"][..], "--listener is \"proxy\" or \"grpc\", not \"udp\""),
        (&["--path", "v1"][..], "a path begins with a slash"),
    ] {
        let (code, error) = explain(arguments, "bare-body.json").await;
        assert!(code == Some(1) && error.contains(why), "{error}");
    }
    fs::remove_file(file).expect("it was written");
    let broken = ["explain", "--policy", "../policies/no-version.yaml", "--request", "bare-body.json"];
    let output = tallygate(&broken).await;
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("no-version.yaml:1:1: "));
}

#[tokio::test]
async fn headers_and_the_tenant_may_be_given_beside_a_file() {
    let output = tallygate(&[
        "explain",
        "--policy",
        "policy.yaml",
        "--request",
        "bare-body.json",
        "--json",
        "--as-tenant",
        "acme",
        "-H",
        "x-priority: interactive",
        "--path",
        "/v1/completions",
    ])
    .await;
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&answer["verdict"], &answer["routing"]["class"]), (&json!("dispatched"), &json!("interactive")));
    assert_eq!(answer["identity"]["tenant"], "acme");
    assert_eq!(answer["request"]["dialect"], "openai_completions");
}

/// Asks what would become of a chat.
async fn explain(gateway: &Gateway, headers: &Value, body: &Value) -> Value {
    let mut admin = gateway.admin().await;
    admin.post("/v1/explain", "", &json!({"headers": headers, "body": body}).to_string()).await;
    let answer = admin.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[tokio::test]
async fn a_running_gateway_explains_what_it_then_does() {
    let mut upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['gpt-4o'], window: {requests: 1}, max_request_tokens: 100, queue: {per_tenant_requests: 1}}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let long = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "hello ".repeat(200)}]});
    let other = json!({"model": "other", "messages": [{"role": "user", "content": "hello"}]});
    let mut clients: Vec<Client> = Vec::new();
    let cases: [(Value, &str, Option<&str>); 6] = [
        (chat(true), "dispatched", None),
        (chat(true), "queued", None),
        (chat(true), "refused", Some("queue_full")),
        (long, "refused", Some("too_large")),
        (other, "refused", Some("model_not_found")),
        (json!({"model": "gpt-4o"}), "refused", Some("malformed")),
    ];
    let mut exchanges = Vec::new();
    for (body, verdict, reason) in cases {
        let look = || async {
            let mut admin = gateway.admin().await;
            let (queues, tenants) =
                (admin.get("/v1/queues", "").await.json(), admin.get("/v1/tenants", "").await.json());
            let decisions = admin.get("/v1/decisions", "").await.json().as_array().expect("rows").len();
            (queues[0]["queued_requests"].clone(), tenants, decisions)
        };
        let before = look().await;
        let told = explain(&gateway, &json!({"x-tenant-id": "acme"}), &body).await;
        assert_eq!((&told["verdict"], &told["reason"]), (&json!(verdict), &json!(reason)), "{told:#}");
        let after = look().await;
        assert_eq!(
            (&before.0, before.1.as_array().map(Vec::len), before.2),
            (&after.0, after.1.as_array().map(Vec::len), after.2)
        );

        let mut client = gateway.client().await;
        client.chat("x-tenant-id: acme\r\n", &body).await;
        match verdict {
            "dispatched" => exchanges.push(upstream.next().await),
            "queued" => gateway.until_queued(1).await,
            _ => {
                let answer = client.answer().await;
                let message = answer.refusal(answer.status, reason.expect("a reason"));
                let said = told["says"].as_str().expect("words").trim_end_matches('.');
                assert!(message.contains(said), "{message} has {said}");
                let id = answer.header("x-tallygate-decision");
                let decision = gateway.admin().await.get(&format!("/v1/decisions/{id}"), "").await.json();
                assert_eq!(decision["what_would_have_let_it_in"], told["what_would_let_it_in"]);
                assert_eq!(decision["key"], told["key"]);
            }
        }
        clients.push(client);
    }
}

#[tokio::test]
async fn the_listener_decides_whose_headers_are_believed() {
    let upstream = Upstream::start().await;
    let policy = "identity: {tenant: [{header: x-tenant-id}, {fallback: anonymous}], trust: [grpc]}";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    for (listener, tenant) in [("proxy", "anonymous"), ("grpc", "acme")] {
        let envelope = json!({"listener": listener, "headers": {"x-tenant-id": "acme"}, "body": chat(true)});
        let mut admin = gateway.admin().await;
        admin.post("/v1/explain", "", &envelope.to_string()).await;
        let told = admin.answer().await.json();
        assert_eq!(told["identity"]["tenant"], tenant, "{told:#}");
        let says = told["identity"]["rules"][0]["says"].as_str().expect("words");
        assert!(says.contains(if listener == "proxy" { "not believed" } else { "acme" }), "{says}");
    }
}

#[tokio::test]
async fn a_request_that_is_no_envelope_is_refused_with_why() {
    let upstream = Upstream::start().await;
    let door = Door { body_most: Bytes::new(1_000), ..Door::default() };
    let gateway = Setup { door, ..Setup::default() }.start(&upstream.url()).await;
    let too_long = json!({"body": "x".repeat(1_100_000)}).to_string();
    for (body, status, why) in [
        ("{}", 200, "the body is missing"),
        ("nonsense", 400, "not a request in an envelope"),
        (r#"{"verb": 1}"#, 400, "unknown field `verb`"),
        (&too_long, 413, "length limit exceeded"),
    ] {
        let mut admin = gateway.admin().await;
        admin.post("/v1/explain", "", body).await;
        let answer = admin.answer().await;
        assert!(answer.status == status && answer.body.contains(why), "{} {}", answer.status, answer.body);
    }
    let large = json!({"body": "x".repeat(2_000)}).to_string();
    let mut admin = gateway.admin().await;
    admin.post("/v1/explain", "", &large).await;
    assert_eq!(admin.answer().await.json()["says"], "the body is larger than the 1000 bytes that are read.");
    assert_eq!(gateway.admin().await.get("/v1/explain", "").await.status, 405);
}

#[tokio::test]
async fn sessions_divide_their_tenant() {
    let (gateway, mut upstream) = usual().await;
    let mut clients = Vec::new();
    for session in ["s1", "s1", "s2"] {
        let mut client = gateway.client().await;
        client.chat(&format!("x-tenant-id: acme\r\nx-session-id: {session}\r\n"), &chat(true)).await;
        clients.push(client);
        if clients.len() > 1 {
            gateway.until_queued(u32::try_from(clients.len()).expect("few") - 1).await;
        }
    }
    let _exchange = upstream.next().await;
    let mut admin = gateway.admin().await;
    let rows = admin.get("/v1/sessions?tenant=acme", "").await.json();
    let row = |at: usize| rows[at].clone();
    // Both counters are level: the second session banked nothing by coming later.
    let wanted = |session: &str, charged: u64, queued: u32, running: u32| {
        json!({
            "pool": "chat", "class": "standard", "tenant": "acme", "session": session, "virtual_tokens": 88,
            "charged": charged, "queued_requests": queued, "queued_tokens": queued * 48, "in_flight_requests": running,
        })
    };
    // Eight in and forty out at two each, charged when it was let through.
    assert_eq!((row(0), row(1)), (wanted("s1", 88, 1, 1), wanted("s2", 0, 1, 0)), "{rows:#}");
    assert_eq!(admin.get("/v1/sessions?tenant=nobody", "").await.json(), json!([]));
    for (query, why) in
        [("", "ask with ?tenant=NAME"), ("?tenant=", "ask with ?tenant=NAME"), ("?who=a", "unknown field")]
    {
        let answer = admin.get(&format!("/v1/sessions{query}"), "").await;
        assert!(answer.status == 400 && answer.body.contains(why), "{}", answer.body);
    }
}

#[tokio::test]
async fn the_policy_in_force_is_shown_and_no_file_of_keys() {
    let upstream = Upstream::start().await;
    let hash = "ab".repeat(32);
    let start = |owner: &str| {
        let files = vec![("keys.yaml", format!("keys: [{{sha256: {hash}, tenant: {owner}}}]\n"))];
        let setup = Setup { files, ..Setup::policy("identity: {tenant: [{api_key: keys.yaml}]}") };
        let upstream = upstream.url();
        async move { setup.start(&upstream).await }
    };
    let (gateway, changed) = (start("acme").await, start("globex").await);
    let answer = gateway.admin().await.get("/v1/policy", "").await;
    let shown = answer.json();
    assert_eq!(shown["text"], "version: 1\nidentity: {tenant: [{api_key: keys.yaml}]}\n");
    assert!(shown["path"].as_str().is_some_and(|path| path.ends_with("policy.yaml")), "{shown:#}");
    assert!(!answer.body.contains(&hash) && !answer.body.contains("acme"), "{shown:#}");
    assert!(
        shown["sha256"]
            .as_str()
            .is_some_and(|hash| hash.len() == 64 && hash.starts_with(shown["version"].as_str().expect("text")))
    );
    let other = changed.admin().await.get("/v1/policy", "").await.json();
    assert!(other["text"] == shown["text"] && other["version"] != shown["version"], "keys count too");
    let since = shown["loaded_unix_s"].as_f64().expect("a moment");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    assert!(since <= now && since > now - 600.0, "{since} {now}");
}

#[tokio::test]
async fn the_token_guards_all_of_it() {
    let (gateway, _upstream) = guarded().await;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], gateway.app.admin().port()));
    for path in ["/v1/decisions", "/v1/decisions/00000000-1", "/v1/sessions?tenant=a", "/v1/policy"] {
        assert_eq!(Client::connect(address).await.get(path, "").await.status, 401, "{path}");
        assert_ne!(Client::connect(address).await.get(path, "authorization: Bearer s3cret\r\n").await.status, 401);
    }
    let mut client = Client::connect(address).await;
    client.post("/v1/explain", "", "{}").await;
    assert_eq!(client.answer().await.status, 401);
}

async fn guarded() -> (Gateway, Upstream) {
    let upstream = Upstream::start().await;
    let admin_token = Some(Secret::new("s3cret".into()).expect("not empty"));
    (Setup { admin_token, ..Setup::default() }.start(&upstream.url()).await, upstream)
}

#[tokio::test]
async fn the_command_line_shows_it_all() {
    let upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['*'], window: {requests: 1}, max_request_tokens: 5}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.chat("x-tenant-id: acme\r\n", &chat(true)).await;
    let refused = client.answer().await;
    refused.refusal(413, "too_large");
    let id = refused.header("x-tallygate-decision");
    let url = format!("http://{}", gateway.app.admin());
    let admin = |arguments: Vec<String>| {
        let url = url.clone();
        async move {
            let mut all: Vec<&str> = vec!["admin"];
            all.extend(arguments.iter().map(String::as_str));
            all.extend(["--url", &url]);
            let output = tallygate(&all).await;
            (output.status.code(), text(&output.stdout).to_owned() + text(&output.stderr))
        }
    };
    let asked = |arguments: &str| admin(arguments.split(' ').map(str::to_owned).collect());
    let (code, page) = asked(&format!("decision {id}")).await;
    assert_eq!(code, Some(0), "{page}");
    for told in [
        "refused: too_large\n  its input is 8 tokens and the largest request admitted is 5\n",
        "pools[0].max_request_tokens of 8 or more (now 5)",
        &format!("decision   {id}\n"),
        "tenant     acme, by the header x-tenant-id (identity.tenant[0])",
        "size       refuses  its input is 8 tokens",
        "answered   413\n",
    ] {
        assert!(page.contains(told), "{told:?} in\n{page}");
    }
    let (_, table) = asked("decisions --outcome refused --tenant acme").await;
    assert!(table.starts_with("DECISION ") && table.contains(id) && table.contains("too_large"), "{table}");
    let (_, none) = asked("decisions --outcome completed").await;
    assert_eq!(none.lines().count(), 1, "{none}");
    let (_, shown) = asked("policy").await;
    assert!(shown.contains("max_request_tokens: 5") && shown.contains("version  "), "{shown}");
    let (_, sessions) = asked("sessions --tenant acme").await;
    assert!(sessions.starts_with("POOL  CLASS  SESSION"), "{sessions}");
    let (_, explained) = asked("explain bare-body.json -H x-tenant-id:acme").await;
    assert!(explained.starts_with("refused: too_large\n") && explained.contains("tenant     acme\n"), "{explained}");
    let (code, error) = asked("decision 00000001-1").await;
    assert!(code == Some(1) && error.contains("404") && error.contains("another start of a gateway"), "{error}");
    let (_, json) = asked(&format!("decision {id} --json")).await;
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON")["decision"], id);
}
