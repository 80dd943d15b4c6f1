//! The admin API on real sockets: its rows by name, its probes, its token.

use serde_json::{Value, json};
use tallygate::app::App;
use tallygate::settings::{Door, LedgerKind, ProxyAt, Remember, Secret, Settings};
use tallygate::units::Span;

use crate::door::{Client, Setup, Upstream, usual};

fn chat() -> Value {
    json!({"model": "m", "stream": true, "max_tokens": 40, "messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test]
async fn rows_have_the_fields_the_design_fixes() {
    let (gateway, mut upstream) = usual().await;
    let mut running = gateway.client().await;
    running.chat("x-tenant-id: acme\r\nx-session-id: s1\r\n", &chat()).await;
    let _exchange = upstream.next().await;
    let mut waiting = gateway.client().await;
    waiting.chat("x-tenant-id: acme\r\n", &chat()).await;
    gateway.until_queued(1).await;

    let mut admin = gateway.admin().await;
    let tenants = admin.get("/v1/tenants", "").await;
    assert_eq!(tenants.header("content-type"), "application/json");
    let row = &tenants.json()[0];
    for field in ["pool", "tenant", "class"] {
        assert!(row[field].is_string(), "{field} in {row}");
    }
    let numbers = [
        "weight",
        "virtual_tokens",
        "charged",
        "reserved",
        "settled",
        "refunded",
        "queued_requests",
        "queued_tokens",
        "in_flight_requests",
        "in_flight_tokens",
        "admitted_total",
        "refused_total",
        "share_60s",
    ];
    for field in numbers {
        assert!(row[field].is_number(), "{field} in {row}");
    }
    assert_eq!((&row["tenant"], &row["admitted_total"]), (&json!("acme"), &json!(1)));
    assert_eq!((&row["queued_requests"], &row["in_flight_requests"]), (&json!(1), &json!(1)));
    // Eight in and forty out at two each, held for both requests, charged for the one that runs.
    assert_eq!((&row["reserved"], &row["charged"], &row["live"]), (&json!(176), &json!(88), &json!(176)));
    assert_eq!(row["share_60s"], json!(1.0));
    assert_eq!(admin.get("/v1/tenants/acme", "").await.json()[0]["tenant"], "acme");

    let queues = admin.get("/v1/queues", "").await.json();
    let queue = queues.as_array().and_then(|rows| rows.iter().find(|row| row["queued_requests"] == 1));
    assert!(queue.is_some_and(|row| row["oldest_wait_s"].is_number() && row["pool"] == "chat"), "{queues}");
    let pools = admin.get("/v1/pools", "").await.json();
    assert_eq!((&pools[0]["in_flight_requests"], &pools[0]["window_requests"]), (&json!(1), &json!(1)));
    let requests = admin.get("/v1/requests", "").await.json();
    let states: Vec<&Value> = requests.as_array().expect("rows").iter().map(|row| &row["state"]).collect();
    assert_eq!(states, [&json!("in_flight"), &json!("queued")]);
    assert_eq!(requests[0]["session"], "s1");

    let metrics = admin.get("/metrics", "").await;
    assert!(metrics.header("content-type").starts_with("text/plain"));
    assert!(metrics.body.contains("tallygate_in_flight_requests{pool=\"chat\"} 1"), "{}", metrics.body);
    assert!(metrics.body.contains("tenant=\"acme\"} 1"));
}

#[tokio::test]
async fn a_tenant_the_core_does_not_know_has_no_counter() {
    let upstream = Upstream::start().await;
    let policy = "pools: [{name: chat, models: ['*'], max_request_tokens: 5}]";
    let gateway = Setup::policy(policy).start(&upstream.url()).await;
    let mut client = gateway.client().await;
    client.chat("x-tenant-id: acme\r\n", &chat()).await;
    client.answer().await.refusal(413, "too_large");
    let rows = gateway.admin().await.get("/v1/tenants/acme", "").await.json();
    assert_eq!((&rows[0]["virtual_tokens"], &rows[0]["refused_total"]), (&Value::Null, &json!(1)));
}

#[tokio::test]
async fn probes_errors_and_unknown_paths() {
    let (gateway, _upstream) = usual().await;
    let mut admin = gateway.admin().await;
    assert_eq!(admin.get("/healthz", "").await.status, 200);
    assert_eq!(admin.get("/readyz", "").await.status, 200);
    let unknown = admin.get("/v1/nothing", "").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.json()["error"]["message"].as_str().is_some_and(|message| message.contains("/v1/tenants")));
    assert_eq!(admin.get("/v1/tenants/nobody", "").await.status, 404);
    let broken = admin.get("/v1/tenants/%ff", "").await;
    assert_eq!((broken.status, broken.header("content-type")), (400, "application/json"));
    assert!(broken.json()["error"]["message"].as_str().is_some_and(|message| message.contains("UTF-8")));
    admin.post("/v1/tenants", "", "{}").await;
    assert_eq!(admin.answer().await.status, 405);
    gateway.gate().start_draining().expect("not broken");
    let mut admin = gateway.admin().await;
    assert_eq!(admin.get("/readyz", "").await.status, 503, "draining");
    assert_eq!(admin.get("/healthz", "").await.status, 200);
}

fn settings(admin: &str, token: Option<&str>) -> Settings {
    Settings {
        policy: None,
        upstream: Some("http://127.0.0.1:9".parse().expect("an address")),
        ledger: LedgerKind::Memory,
        grpc: "127.0.0.1:0".parse().expect("an address"),
        proxy: "127.0.0.1:0".parse().expect("an address or off"),
        admin: admin.parse().expect("an address"),
        demo: false,
        grace: Span::from_secs(1),
        notice: Span::ZERO,
        door: Door::default(),
        admin_token: token.map(|text| Secret::new(text.into()).expect("not empty")),
        decisions: Remember::default(),
        lease_life: Settings::LEASE_LIFE,
    }
}

#[tokio::test]
async fn whoever_looks_too_often_waits_and_is_not_refused() {
    let (gateway, _upstream) = usual().await;
    let mut admin = gateway.admin().await;
    let begun = std::time::Instant::now();
    for _ in 0..130 {
        assert_eq!(admin.get("/v1/pools", "").await.status, 200);
    }
    // A hundred at once, and one every ten milliseconds from then on.
    assert!(begun.elapsed().as_millis() >= 250, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn away_from_loopback_nothing_starts_without_a_token() {
    let error = App::start(settings("0.0.0.0:0", None)).await.expect_err("unprotected");
    assert!(error.to_string().contains("TALLYGATE_ADMIN_TOKEN"), "{error}");

    let app = App::start(settings("0.0.0.0:0", Some("s3cret"))).await.expect("protected");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], app.admin().port()));
    let mut admin = Client::connect(address).await;
    for headers in ["", "authorization: Bearer wrong\r\n", "authorization: s3cret\r\n"] {
        let answer = admin.get("/v1/tenants", headers).await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"));
        assert_eq!(admin.get("/metrics", headers).await.status, 401);
    }
    assert_eq!(admin.get("/v1/tenants", "authorization: Bearer s3cret\r\n").await.status, 200);
    assert_eq!(admin.get("/healthz", "").await.status, 200, "probes are open");
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let no_upstream = Settings { upstream: None, ..settings("127.0.0.1:0", None) };
    let error = App::start(no_upstream).await.expect_err("nowhere to go");
    assert!(error.to_string().contains("--upstream"), "{error}");
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = taken.local_addr().expect("bound");
    let error = App::start(Settings { proxy: ProxyAt::Address(address), ..settings("127.0.0.1:0", None) })
        .await
        .expect_err("taken");
    assert!(error.to_string().contains(&format!("cannot listen on {address}")), "{error}");
    let missing = Settings { policy: Some("/nowhere/policy.yaml".into()), ..settings("127.0.0.1:0", None) };
    let error = App::start(missing).await.expect_err("no such file");
    assert!(error.to_string().contains("/nowhere/policy.yaml"), "{error}");
}
