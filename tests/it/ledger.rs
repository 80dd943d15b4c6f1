//! Budgets that outlive the process: exact after a clean end, and never less than what was used after `kill -9`.
//!
//! `TALLYGATE_KILLS` says how often the gateway is killed (default 20; 200 with `TALLYGATE_FULL`).

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tallygate::settings::LedgerKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::door::{Client, Gateway, Setup, Upstream, within};
use crate::doors::{ANSWER, chat};

const BUDGET: &str = "budgets: [{name: monthly, per: tenant, requests: 100000, period: month}]";
/// A hundredth of it is granted ahead.
const SLICE: u64 = 1_000;
/// After so many kills it is another tenant's turn, since every kill may cost a slice.
const KILLS_A_TENANT: u64 = 50;
/// How many clients ask at once.
const CLIENTS: u64 = 8;

fn used(rows: &Value, tenant: &str) -> u64 {
    let account = rows.as_array().expect("rows").iter().find(|row| row["tenant"] == tenant);
    account.map_or(0, |row| {
        let used = row["used"].as_f64().expect("a number");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let used = used.round() as u64;
        used
    })
}

async fn kept_in(path: &Path, upstream: &Upstream) -> Gateway {
    let ledger = LedgerKind::File(path.to_owned());
    Setup { ledger, ..Setup::policy(BUDGET) }.start(&upstream.url()).await
}

#[tokio::test]
async fn what_was_used_is_there_after_a_clean_restart_exactly() {
    let folder = tempfile::tempdir().expect("a folder for a test");
    let path = folder.path().join("ledger");
    let mut upstream = Upstream::start().await;
    for round in 0..3 {
        let gateway = kept_in(&path, &upstream).await;
        let shown = gateway.admin().await.get("/v1/budgets", "").await.json();
        assert_eq!(used(&shown, "acme"), round * 2, "{shown}");
        for _ in 0..2 {
            let mut client = gateway.client().await;
            client.chat("x-tenant-id: acme\r\n", &chat(false)).await;
            upstream.next().await.answer("200 OK", ANSWER).await;
            assert_eq!(client.answer().await.status, 200);
        }
        gateway.ended().await;
        gateway.app.stop().await;
    }
}

#[tokio::test]
async fn a_ledger_that_is_in_use_is_refused_before_anything_listens() {
    let folder = tempfile::tempdir().expect("a folder for a test");
    let path = folder.path().join("ledger");
    let upstream = Upstream::start().await;
    let _gateway = kept_in(&path, &upstream).await;
    let ledger = format!("file:{}", path.display());
    let second = Command::new(env!("CARGO_BIN_EXE_tallygate"))
        .args(["serve", "--demo", "--ledger", &ledger])
        .args(["--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .output()
        .expect("it starts");
    let told = String::from_utf8(second.stderr).expect("text");
    assert!(!second.status.success() && second.stdout.is_empty(), "{told}");
    assert!(told.contains("in use by another process") && told.contains("ledger"), "{told}");
}

/// An upstream that answers at once and counts what reached it.
struct Counting {
    address: SocketAddr,
    reached: Arc<AtomicU64>,
    news: Arc<Notify>,
}

impl Counting {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("an upstream's address");
        let address = listener.local_addr().expect("it is bound");
        let (reached, news) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let (count, tell) = (reached.clone(), news.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (count, tell) = (count.clone(), tell.clone());
                tokio::spawn(async move {
                    let mut held = Vec::new();
                    // The last bytes of the body that every client sends.
                    while !held.ends_with(b"}") {
                        if stream.read_buf(&mut held).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    count.fetch_add(1, Ordering::SeqCst);
                    tell.notify_waiters();
                    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n";
                    let answer = format!("{head}content-length: {}\r\n\r\n{ANSWER}", ANSWER.len());
                    // The gateway may have been killed.
                    let _gone = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        Self { address, reached, news }
    }

    fn reached(&self) -> u64 {
        self.reached.load(Ordering::SeqCst)
    }

    async fn until(&self, requests: u64) {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if self.reached() >= requests {
                return;
            }
            news.await;
        }
    }
}

/// A gateway in a process of its own.
struct Process {
    child: Child,
    proxy: SocketAddr,
    admin: SocketAddr,
}

impl Process {
    fn start(folder: &Path, upstream: SocketAddr) -> Self {
        let ledger = format!("file:{}", folder.join("ledger").display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_tallygate"))
            .args(["serve", "--ledger", &ledger, "--policy"])
            .arg(folder.join("policy.yaml"))
            .args(["--upstream", &format!("http://{upstream}")])
            .args(["--proxy", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .env("RUST_LOG", "error")
            .env_remove("TALLYGATE_ADMIN_TOKEN")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut address = |name: &str| {
            let line = lines.by_ref().map(|line| line.expect("text")).find(|line| line.trim_start().starts_with(name));
            let line = line.unwrap_or_else(|| panic!("it says where its {name} listens"));
            let (_, url) = line.split_once("http://").expect("an address");
            url.split('/').next().expect("a host").parse().expect("an address")
        };
        let (proxy, admin) = (address("proxy"), address("admin"));
        Self { child, proxy, admin }
    }

    /// `kill -9`.
    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

/// Asks again and again until the gateway is gone.
async fn asking(proxy: SocketAddr, tenant: String) {
    let body = chat(false).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\nx-tenant-id: {tenant}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    loop {
        let Ok(mut stream) = TcpStream::connect(proxy).await else { return };
        let mut answer = Vec::new();
        if stream.write_all(request.as_bytes()).await.is_err()
            || stream.read_to_end(&mut answer).await.is_err()
            || answer.is_empty()
        {
            return;
        }
    }
}

fn kills() -> u64 {
    let told = std::env::var("TALLYGATE_KILLS").ok().and_then(|told| told.parse().ok());
    told.unwrap_or(if std::env::var_os("TALLYGATE_FULL").is_some() { 200 } else { 20 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_kill_loses_what_was_used_or_grants_it_twice() {
    let folder = tempfile::tempdir().expect("a folder for a test");
    std::fs::write(folder.path().join("policy.yaml"), format!("version: 1\n{BUDGET}\n")).expect("written");
    let upstream = Counting::start().await;
    let mut chance = StdRng::seed_from_u64(9);
    let (kills, mut most_unused) = (kills(), 0);
    let mut done: Vec<(String, u64)> = Vec::new();
    // What had reached the upstream when the tenant's turn began, and what it had been granted and not used.
    let (mut before, mut unused) = (0, 0);
    for kill in 0..=kills {
        let (tenant, fresh) = (format!("tenant-{}", kill / KILLS_A_TENANT), kill % KILLS_A_TENANT == 0);
        let process = Process::start(folder.path(), upstream.address);
        let shown = Client::connect(process.admin).await.get("/v1/budgets", "").await.json();
        for (earlier, kept) in &done {
            assert_eq!(used(&shown, earlier), *kept, "nothing moves an account that nobody asks for");
        }
        if fresh {
            (before, unused) = (upstream.reached(), 0);
        }
        let (kept, reached) = (used(&shown, &tenant), upstream.reached() - before);
        assert!(kept >= reached, "after {kill} kills {kept} is used, and {reached} reached the upstream");
        // What was sent a moment before a kill may be counted a moment after it.
        let cost = (kept - reached).saturating_sub(unused);
        assert!(cost <= SLICE + CLIENTS, "kill {kill} cost {cost}, more than a slice of {SLICE}");
        (unused, most_unused) = (kept - reached, most_unused.max(cost));
        let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(asking(process.proxy, tenant.clone()))).collect();
        let more = chance.random_range(0..SLICE / 8);
        within("requests to reach the upstream", upstream.until(before + reached + more)).await;
        process.kill();
        for client in clients {
            within("the clients to notice", client).await.expect("no client panics");
        }
        if (kill + 1) % KILLS_A_TENANT == 0 {
            // What it comes to is seen once more, and then stands.
            let process = Process::start(folder.path(), upstream.address);
            let shown = Client::connect(process.admin).await.get("/v1/budgets", "").await.json();
            let kept = used(&shown, &tenant);
            assert!(kept >= upstream.reached() - before, "{tenant}: {kept}");
            done.push((tenant, kept));
            process.kill();
        }
    }
    let reached = upstream.reached();
    println!("{kills} kills, {reached} requests, at most {most_unused} unused by one, of a slice of {SLICE}");
}
