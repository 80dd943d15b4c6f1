//! The commands a reader types: `tallygate serve`, `tallygate admin`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

const TALLYGATE: &str = env!("CARGO_BIN_EXE_tallygate");

fn tallygate(arguments: &[&str]) -> Output {
    Command::new(TALLYGATE).args(arguments).env_remove("TALLYGATE_ADMIN_TOKEN").output().expect("it starts")
}

/// A served demo, ended with the test.
struct Served {
    process: Child,
    proxy: String,
    admin: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn serve() -> Served {
    let mut process = Command::new(TALLYGATE)
        .args(["serve", "--demo", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .env_remove("TALLYGATE_ADMIN_TOKEN")
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
    let mut address = |name: &str| {
        let line = lines.by_ref().map(|line| line.expect("text")).find(|line| line.trim_start().starts_with(name));
        let line = line.unwrap_or_else(|| panic!("it says where its {name} listens"));
        let (_, url) = line.split_once("http://").expect("an address");
        url.split('/').next().expect("a host").to_owned()
    };
    let (proxy, admin) = (address("proxy"), address("admin"));
    Served { process, proxy, admin }
}

#[tokio::test]
async fn serve_says_where_it_listens_and_admin_shows_the_tally() {
    let mut served = serve();
    let mut client = crate::door::Client::connect(served.proxy.parse().expect("an address")).await;
    let body = serde_json::json!({
        "model": "demo", "stream": true, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}],
    });
    client.chat("x-tenant-id: me\r\n", &body).await;
    let answer = client.answer().await;
    assert!(answer.status == 200 && answer.body.ends_with("data: [DONE]\n\n"), "{}", answer.body);

    let url = format!("http://{}", served.admin);
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

    let terminate = Command::new("kill").arg(served.process.id().to_string()).status().expect("kill runs");
    assert!(terminate.success());
    let status = tokio::task::spawn_blocking(move || served.process.wait()).await.expect("it is waited for");
    assert!(status.expect("it ends").success(), "asked to stop, it ends well");
}

#[test]
fn what_cannot_be_done_is_told_and_fails() {
    let cases: &[(&[&str], &str)] = &[
        (&["serve", "--ledger", "redis://somewhere"], "not available in this build"),
        (&["serve", "--ledger", "file:/tmp/x"], "not available in this build"),
        (&["serve", "--demo", "--upstream", "http://127.0.0.1:9"], "cannot be used with"),
        (&["serve", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"], "has no upstream"),
        (
            &["serve", "--demo", "--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "0.0.0.0:0"],
            "TALLYGATE_ADMIN_TOKEN",
        ),
        (&["serve", "--idle-timeout", "soon"], "invalid value 'soon'"),
        (&["serve", "--grpc", "127.0.0.1:0"], "unexpected argument '--grpc'"),
        (&["admin", "tenants", "--url", "http://127.0.0.1:9"], "is `tallygate serve` running?"),
        (&["admin", "tenants", "--url", "https://127.0.0.1:9"], "must look like http://"),
        (&["admin", "everything"], "invalid value 'everything'"),
    ];
    for (arguments, words) in cases {
        let output = tallygate(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}
