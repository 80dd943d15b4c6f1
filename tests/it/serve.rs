//! The commands a reader types: `tallygate serve`, `tallygate admin`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use tallygate::units::Span;
use tokio::net::TcpStream;

use crate::door::{Client, Gateway, Setup, Upstream, usual, within};

const TALLYGATE: &str = env!("CARGO_BIN_EXE_tallygate");

fn tallygate(arguments: &[&str]) -> Output {
    Command::new(TALLYGATE).args(arguments).env_remove("TALLYGATE_ADMIN_TOKEN").output().expect("it starts")
}

/// A running `tallygate serve`, ended with the test.
struct Served {
    process: Child,
    /// What it says when it listens.
    announcement: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Command::new(TALLYGATE)
            .arg("serve")
            .args(arguments)
            .args(["--admin", "127.0.0.1:0"])
            .env_remove("TALLYGATE_ADMIN_TOKEN")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let lines = lines.map(|line| line.expect("text")).take_while(|line| line != "Try:");
        let announcement = lines.collect::<Vec<_>>().join("\n");
        Self { process, announcement }
    }

    fn address(&self, name: &str) -> String {
        let line = self.announcement.lines().find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("it says where its {name} listens: {}", self.announcement));
        let (_, url) = line.split_once("http://").expect("an address");
        url.split('/').next().expect("a host").to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[tokio::test]
async fn with_the_proxy_off_it_needs_no_upstream_and_says_whose_headers_it_does_not_believe() {
    let served = Served::start(&["--proxy", "off", "--grpc", "0.0.0.0:0"]);
    let told: Vec<&str> = served.announcement.lines().map(str::trim_start).collect();
    assert!(told.contains(&"proxy      off") && !told.iter().any(|line| line.starts_with("pool")), "{told:?}");
    assert!(told.contains(&"x-tenant-id is not believed here; identity.trust changes that"), "{told:?}");

    let mut admin = Client::connect(served.address("admin").parse().expect("an address")).await;
    let chat = chat();
    let mut explained = async |listener: &str| {
        admin.post("/v1/explain", "", &format!("{{{listener}\"body\": {chat}}}")).await;
        admin.answer().await
    };
    assert_eq!(explained("").await.json()["request"]["listener"], "grpc", "there is no other");
    let proxied = explained("\"listener\": \"proxy\", ").await;
    assert!(proxied.status == 400 && proxied.body.contains("there is no proxy here"), "{}", proxied.body);
}

#[tokio::test]
async fn serve_says_where_it_listens_and_admin_shows_the_tally() {
    let mut served = Served::start(&["--demo", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
    assert!(!served.announcement.contains("not believed"), "on loopback they are");
    let mut client = Client::connect(served.address("proxy").parse().expect("an address")).await;
    let body = serde_json::json!({
        "model": "demo", "stream": true, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}],
    });
    client.chat("x-tenant-id: me\r\n", &body).await;
    let answer = client.answer().await;
    assert!(answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);

    let url = format!("http://{}", served.address("admin"));
    for what in ["tenants", "queues", "pools", "requests"] {
        let shown = tallygate(&["admin", what, "--url", &url]);
        assert!(shown.status.success(), "{shown:?}");
        let text = String::from_utf8(shown.stdout).expect("text");
        let first = text.lines().next().unwrap_or_default();
        assert!(first.contains("POOL"), "{text}");
        if what == "tenants" {
            let row: Vec<&str> = text.lines().nth(1).expect("a tenant").split_whitespace().collect();
            assert_eq!(row[..3], ["demo", "standard", "me"]);
        }
        let json = tallygate(&["admin", what, "--url", &url, "--json"]);
        assert!(serde_json::from_slice::<Vec<serde_json::Value>>(&json.stdout).is_ok(), "{json:?}");
    }

    // By a hangup others read their configuration anew; it ends nothing here.
    for signal in ["-HUP", "-TERM"] {
        assert_eq!(client.get("/v1/models", "").await.status, 200);
        let sent = Command::new("kill").args([signal, &served.process.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }
    let status = tokio::task::spawn_blocking(move || served.process.wait()).await.expect("it is waited for");
    assert!(status.expect("it ends").success(), "asked to stop, it ends well");
}

/// Stops a gateway in the background, and returns when it has begun to.
async fn stopping(gateway: Gateway) -> tokio::task::JoinHandle<()> {
    let gate = gateway.gate().clone();
    let task = tokio::spawn(gateway.app.stop());
    let draining = async {
        while !gate.look(|seen| seen.draining).expect("not broken") {
            tokio::task::yield_now().await;
        }
    };
    within("draining to begin", draining).await;
    task
}

#[tokio::test]
async fn stopping_refuses_in_words_until_what_runs_is_done_and_then_listens_no_more() {
    let (gateway, mut upstream) = usual().await;
    let (proxy, admin) = (gateway.proxy(), gateway.app.admin());
    let mut running = gateway.client().await;
    running.chat("", &chat()).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    let stopped = stopping(gateway).await;
    let mut newcomer = Client::connect(proxy).await;
    newcomer.chat("", &chat()).await;
    let answer = newcomer.answer().await;
    answer.refusal(503, "draining");
    assert_ne!(answer.header("retry-after"), "", "they are told when to come back");
    assert_eq!(Client::connect(admin).await.get("/readyz", "").await.status, 503);
    exchange.chunk("data: [DONE]\n\n").await;
    exchange.end().await;
    assert!(running.answer().await.whole, "what ran was served");
    within("the end", stopped).await.expect("it ends well");
    assert!(TcpStream::connect(proxy).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn with_nothing_to_wait_for_the_doors_listen_on_for_the_notice() {
    let upstream = Upstream::start().await;
    let setup = Setup { notice: Span::from_secs(600), ..Setup::default() };
    let gateway = setup.start(&upstream.url()).await;
    let proxy = gateway.proxy();
    let stopping = stopping(gateway).await;
    for _ in 0..3 {
        let mut newcomer = Client::connect(proxy).await;
        newcomer.chat("", &chat()).await;
        newcomer.answer().await.refusal(503, "draining");
    }
    assert!(!stopping.is_finished());
    stopping.abort();
}

fn chat() -> serde_json::Value {
    serde_json::json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hello"}]})
}

#[test]
fn a_wish_for_logs_that_cannot_be_read_is_told_and_fails() {
    let serve = ["serve", "--demo", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let output = Command::new(TALLYGATE).args(serve).env("RUST_LOG", "tallygate=loud").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("RUST_LOG=tallygate=loud says not what to log"), "{said}");
}

#[test]
fn what_cannot_be_done_is_told_and_fails() {
    let cases: &[(&[&str], &str)] = &[
        (&["serve", "--ledger", "redis://somewhere"], "not available in this build"),
        (&["serve", "--demo", "--ledger", "file:/missing/ledger"], "make its directory first"),
        (&["serve", "--demo", "--upstream", "http://127.0.0.1:9"], "cannot be used with"),
        (
            &["serve", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            "turn the proxy off with --proxy off",
        ),
        (
            &["serve", "--demo", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "0.0.0.0:0"],
            "TALLYGATE_ADMIN_TOKEN",
        ),
        (&["serve", "--demo", "--proxy", "off"], "leave --demo out"),
        (&["serve", "--upstream", "http://127.0.0.1:9", "--proxy", "off"], "leave --upstream out"),
        (&["serve", "--proxy", "localhost:8080"], "or is \"off\""),
        (&["serve", "--idle-timeout", "soon"], "invalid value 'soon'"),
        (&["admin", "tenants", "--url", "http://127.0.0.1:9"], "is `tallygate serve` running?"),
        (&["admin", "tenants", "--url", "https://127.0.0.1:9"], "must look like http://"),
        (&["admin", "everything"], "unrecognized subcommand 'everything'"),
    ];
    for (arguments, words) in cases {
        let output = tallygate(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}
