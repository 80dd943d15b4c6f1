//! What the tests of the door share: a gateway on real sockets, a scripted upstream, a client that can be cut off.

mod chain;
mod client;
mod front;
mod layered;
mod picker;
mod stage;
#[path = "../../../loadtest/src/token.rs"]
mod token;
mod upstream;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use tallygate::app::App;
use tallygate::ledger::Balance;
use tallygate::settings::{Door, LedgerKind, ProxyAt, Remember, Secret, Settings};
use tallygate::shell::{Gate, Seen};
use tallygate::units::{Span, VirtualTokens};

pub(crate) use chain::{Chain, IDENTITY, bearer, caller, with_picker};
pub(crate) use client::{Answer, Client};
pub(crate) use front::{Config, Front};
pub(crate) use layered::layered;
pub(crate) use picker::Picker;
pub(crate) use stage::{Case, Stage, Way, both_doors, cases, every_door, play};
pub(crate) use upstream::{Exchange, Shut, Upstream};

/// A gateway under test, with a folder for its files.
pub(crate) struct Gateway {
    pub(crate) app: App,
    _folder: tempfile::TempDir,
}

/// How a gateway under test differs from the usual one: a window of one request in front of the scripted upstream.
pub(crate) struct Setup {
    pub(crate) policy: String,
    pub(crate) door: Door,
    pub(crate) files: Vec<(&'static str, String)>,
    pub(crate) demo: bool,
    pub(crate) notice: Span,
    pub(crate) remember: Remember,
    pub(crate) admin_token: Option<Secret>,
    pub(crate) ledger: LedgerKind,
    /// Where Envoy asks.
    pub(crate) grpc: SocketAddr,
    pub(crate) lease_life: Span,
}

impl Default for Setup {
    fn default() -> Self {
        Self::policy("pools: [{name: chat, models: ['*'], window: {requests: 1}}]")
    }
}

impl Setup {
    /// With this policy.
    pub(crate) fn policy(text: &str) -> Self {
        let policy = format!("version: 1\n{text}\n");
        Self {
            policy,
            door: Door::default(),
            files: Vec::new(),
            demo: false,
            notice: Span::ZERO,
            remember: Remember::default(),
            admin_token: None,
            ledger: LedgerKind::Memory,
            grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
            lease_life: Settings::LEASE_LIFE,
        }
    }

    /// Starts it in front of an upstream.
    pub(crate) async fn start(self, upstream: &str) -> Gateway {
        let folder = tempfile::tempdir().expect("a folder for a test");
        let write = |name: &str, text: &str| -> PathBuf {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file for a test");
            path
        };
        for (name, text) in &self.files {
            write(name, text);
        }
        let anywhere = "127.0.0.1:0".parse().expect("an address");
        let settings = Settings {
            policy: Some(write("policy.yaml", &self.policy)),
            upstream: (!self.demo).then(|| upstream.parse().expect("an upstream")),
            ledger: self.ledger,
            proxy: ProxyAt::Address(anywhere),
            grpc: self.grpc,
            admin: anywhere,
            demo: self.demo,
            grace: Span::from_secs(20),
            notice: self.notice,
            door: self.door,
            admin_token: self.admin_token,
            decisions: self.remember,
            lease_life: self.lease_life,
        };
        Gateway { app: App::start(settings).await.expect("a gateway"), _folder: folder }
    }
}

/// A gateway with the usual setup, and its upstream.
pub(crate) async fn usual() -> (Gateway, Upstream) {
    let upstream = Upstream::start().await;
    let gateway = Setup::default().start(&upstream.url()).await;
    (gateway, upstream)
}

impl Gateway {
    pub(crate) fn gate(&self) -> &Gate {
        self.app.gate()
    }

    pub(crate) fn proxy(&self) -> std::net::SocketAddr {
        self.app.proxy().expect("the proxy is on")
    }

    /// Connects a client to the proxy.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.proxy()).await
    }

    /// Connects a client to the admin API.
    pub(crate) async fn admin(&self) -> Client {
        Client::connect(self.app.admin()).await
    }

    /// Waits until something holds of the core; fails instead of hanging.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Seen<'_>) -> bool) {
        let waiting = async {
            while !self.gate().look(|seen| holds(&seen)).expect("not broken") {
                tokio::task::yield_now().await;
            }
        };
        within(what, waiting).await;
    }

    pub(crate) async fn until_queued(&self, requests: u32) {
        let queued = |seen: &Seen<'_>| seen.engine.queues().iter().map(|queue| queue.requests).sum::<u32>();
        self.until(&format!("{requests} queued"), |seen| queued(seen) == requests).await;
    }

    /// Waits until nothing runs, checks that the books balance exactly, and returns what was settled and how each
    /// request ended.
    pub(crate) async fn ended(&self) -> (VirtualTokens, BTreeMap<String, u64>) {
        within("everything to end", self.gate().idle()).await.expect("not broken");
        let Balance { reserved, settled, refunded } = self.gate().look(|seen| seen.ledger.total()).expect("not broken");
        assert_eq!(reserved, settled + refunded, "conservation, exact, with nothing live");
        (settled, self.outcomes())
    }

    /// What a metric says, by its name and labels as they are written; zero where it says nothing.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.gate().metrics().render(&tallygate::observe::Gauges::default()).expect("metrics render");
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    /// Waits until a metric has come to a number.
    pub(crate) async fn until_metric(&self, name: &str, least: f64) {
        let waiting = async {
            while self.metric(name) < least {
                tokio::task::yield_now().await;
            }
        };
        within(&format!("{name} to come to {least}"), waiting).await;
    }

    /// How many requests ended how.
    pub(crate) fn outcomes(&self) -> BTreeMap<String, u64> {
        let text = self.gate().metrics().render(&tallygate::observe::Gauges::default()).expect("metrics render");
        let mut outcomes = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("tallygate_settled_total{")) {
            let (_, rest) = line.split_once("outcome=\"").expect("it has an outcome");
            let (outcome, _) = rest.split_once('"').expect("a quoted label");
            let count: u64 = line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
            *outcomes.entry(outcome.to_owned()).or_default() += count;
        }
        outcomes
    }
}

/// How long to wait before a wait counts as a hang. It is not a measure of speed: a machine with other work to do may
/// take many seconds over what an idle one does at once.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Fails instead of hanging.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_elapsed) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// One outcome, once.
pub(crate) fn once(outcome: &str) -> BTreeMap<String, u64> {
    BTreeMap::from([(outcome.to_owned(), 1)])
}
