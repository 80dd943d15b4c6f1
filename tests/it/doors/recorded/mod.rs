//! The same recorded calls on a clock that stands still get equal quotes, verdicts and charges at every door.
//!
//! A tape of calls is drawn once, written down, and played from what was written: through the proxy, through the layer in
//! an axum server, through the gRPC service as Envoy asks it, and a part of it through a real Envoy. After each call everything is compared: what the
//! core knows of every request (its quote, its place, its ticket), every counter, queue and account, what the upstream
//! was sent, and what the client was answered. The first difference is printed from both sides.

mod acquire;
mod authz;
mod bare;
mod grpc;
mod http;
mod known;
mod tape;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use sha2::Digest as _;
use tallygate::observe::{Decisions, Keep, Metrics};
use tallygate::policy;
use tallygate::settings;
use tallygate::settings::Settings;
use tallygate::shell::{Gate, Leases};
use tallygate::units::Bytes;
use tallygate::wire::access_log::AccessLog;
use tallygate::wire::acquire::Acquire;
use tallygate::wire::ext_authz::ExtAuthz;
use tallygate::wire::ext_proc::ExtProc;
use tallygate::wire::grpc::{self as grpc_server, GoingDown, Services};
use tallygate::wire::proxy::{Proxy, Upstream as ProxyUpstream};
use tallygate::wire::server;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::door::{Config, Front, Upstream, layered};
use grpc::Grpc;
use http::Http;
use tape::{Call, Reply, Turn};

const POLICY: &str = "
identity:
  tenant: [{api_key: keys.yaml}, {header: x-tenant-id}, {fallback: anonymous}]
  trust: [proxy, grpc]
  class: [{header: x-priority}]
  class_not_granted: RULE
classes: [{name: fast, rank: 0}, {name: standard, rank: 1, min_share: 20%}, {name: batch, rank: 2}]
default_class: standard
tenants:
  - {match: acme, weight: 4, classes: [fast, standard, batch]}
  - {match: 'b*', weight: 2, classes: [batch]}
  - {match: '*', classes: [standard, batch]}
pools:
  - name: big
    models: ['big*']
    aliases: [{from: 'gpt-*', to: big-1}]
    window: {requests: 3, tokens: 20000}
    queue: {requests: 6, per_tenant_requests: 3, per_session_requests: 2}
    max_request_tokens: 8000
  - {name: small, models: ['m*'], window: {requests: 2}, queue: {requests: 4}}
fanout: {per_session: 2}
";

/// In what two tapes differ beside their calls.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// What becomes of a path that is not metered.
    unmetered: &'static str,
    /// What becomes of a wish for a class that is not granted.
    class_not_granted: &'static str,
}

impl Rules {
    fn policy(self) -> String {
        let Self { unmetered, class_not_granted } = self;
        format!("version: 1\nunmetered: {unmetered}\n{}", POLICY.replace("RULE", class_not_granted))
    }
}

/// How long all of a tape may take, in real time.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is seen between two looks, at most; whoever shows more waits.
const MOST_SEEN: usize = 64;

/// Something that can be seen from outside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// The upstream was sent this.
    Upstream { number: usize, to: String, headers: BTreeMap<String, String>, body: String },
    /// The client was answered this.
    Answer { number: usize, status: u16, headers: BTreeMap<String, String>, body: String },
}

/// A door on which calls can be played.
trait Door {
    /// Sends a call, and does not wait for its answer.
    async fn send(&mut self, number: usize, call: &Call);
    /// What was seen since the last time.
    fn look(&mut self) -> Vec<Seen>;
    /// Has the upstream answer a call that it was sent.
    async fn reply(&mut self, number: usize, call: &Call, reply: Reply);
    /// Has the client of a call leave.
    async fn leave(&mut self, number: usize);
}

/// What an upstream is sent, but for what each hop writes anew.
fn headers_upstream<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    const HOPS: [&str; 7] =
        ["host", "content-length", "connection", "transfer-encoding", "x-forwarded-proto", "x-request-id", "expect"];
    collect(headers.filter(|(name, _)| !HOPS.contains(name)))
}

/// What a client is answered, but for what each hop writes anew.
fn headers_of_answer<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    const HOPS: [&str; 5] = ["date", "server", "connection", "content-length", "transfer-encoding"];
    collect(headers.filter(|(name, _)| !HOPS.contains(name)))
}

fn collect<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    let plain = headers.filter(|(name, _)| !name.starts_with(':') && !name.starts_with("x-envoy-"));
    let mut collected = BTreeMap::new();
    for (name, value) in plain {
        collected
            .entry(name.to_owned())
            .and_modify(|known: &mut String| *known += &format!(", {value}"))
            .or_insert(value.to_owned());
    }
    collected
}

/// How what is seen is compared.
type Lens = fn(&[Call], Seen) -> Seen;

/// As it is.
fn plain(_tape: &[Call], seen: Seen) -> Seen {
    seen
}

/// Plays a tape, and takes down what is to be seen after each call.
struct Player<D> {
    gate: Gate,
    door: D,
    tape: Vec<Call>,
    lens: Lens,
    /// The calls that are not answered, and whether the upstream has them.
    open: BTreeMap<usize, bool>,
    began: Instant,
}

impl<D: Door> Player<D> {
    async fn play(mut self) -> Vec<String> {
        let mut took_down = Vec::new();
        for number in 0..self.tape.len() {
            let call = self.tape[number].clone();
            for turn in &call.first {
                let seen = self.turn(turn).await;
                took_down.push(format!("before call {number}, {turn:?}:\n{seen}"));
            }
            self.door.send(number, &call).await;
            self.open.insert(number, false);
            let seen = self.settle(None).await;
            let known = self.gate.look(|seen| {
                let engine = seen.engine;
                let (requests, tenants, queues) = (engine.requests(), engine.tenants(), engine.queues());
                format!("{requests:#?}\n{tenants:#?}\n{queues:#?}\n{:#?}", seen.ledger)
            });
            took_down.push(format!("call {number}, {call:?}:\n{seen}\n{}", known.expect("not broken")));
        }
        while let Some(number) = self.open.iter().find_map(|(number, sent)| sent.then_some(*number)) {
            let call = self.tape[number].clone();
            self.door.reply(number, &call, Reply::Usage { input: 10, output: 10 }).await;
            took_down.push(self.settle(Some(number)).await);
        }
        assert!(self.open.is_empty(), "nobody is left over");
        let books = self.gate.look(|seen| (format!("{:#?}", seen.ledger), seen.ledger.total())).expect("not broken");
        assert_eq!(books.1.reserved, books.1.settled + books.1.refunded, "conservation, with nothing live");
        took_down.push(books.0);
        took_down
    }

    /// Lets something happen to one of the open calls.
    async fn turn(&mut self, turn: &Turn) -> String {
        let mut answered = None;
        match turn {
            Turn::Answer(which, reply) => {
                let sent: Vec<usize> = self.open.iter().filter(|(_, sent)| **sent).map(|(number, _)| *number).collect();
                if let Some(number) = sent.get(which % sent.len().max(1)) {
                    let call = self.tape[*number].clone();
                    self.door.reply(*number, &call, *reply).await;
                    answered = Some(*number);
                }
            }
            Turn::Leave(which) => {
                if let Some(number) = self.open.keys().nth(which % self.open.len().max(1)).copied() {
                    self.open.remove(&number);
                    self.door.leave(number).await;
                }
            }
        }
        self.settle(answered).await
    }

    /// Waits until this call has its answer and every open one is queued or with the upstream, and tells what was seen
    /// until then.
    async fn settle(&mut self, answered: Option<usize>) -> String {
        let mut all = Vec::new();
        loop {
            for seen in self.door.look() {
                match &seen {
                    Seen::Upstream { number, .. } => drop(self.open.insert(*number, true)),
                    Seen::Answer { number, .. } => drop(self.open.remove(number)),
                }
                all.push(seen);
            }
            let metered = |number: &usize| self.tape[*number].dialect().is_some();
            let sent = self.open.values().filter(|sent| **sent).count();
            let flying = self.open.iter().filter(|(number, sent)| **sent && metered(number)).count();
            let (queued, known) = self
                .gate
                .look(|seen| {
                    let queued: u32 = seen.engine.queues().iter().map(|queue| queue.requests).sum();
                    (queued as usize, seen.engine.requests().len())
                })
                .expect("not broken");
            let has_its_answer = answered.is_none_or(|number| !self.open.contains_key(&number));
            if has_its_answer && queued + sent == self.open.len() && known == queued + flying {
                break;
            }
            assert!(self.began.elapsed() < PATIENCE, "{queued} queued, {known} known, open {:?}: {all:#?}", self.open);
            tokio::task::yield_now().await;
        }
        let mut all: Vec<Seen> = all.into_iter().map(|seen| (self.lens)(&self.tape, seen)).collect();
        all.sort();
        format!("{all:#?}")
    }
}

/// What each gateway of a comparison begins with, the numbers of its decisions too.
fn gate(rules: Rules) -> Gate {
    let folder = tempfile::tempdir().expect("a folder for a test");
    let key: String = sha2::Sha256::digest(b"sk-acme").iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.path().join("policy.yaml");
    std::fs::write(folder.path().join("keys.yaml"), format!("keys: [{{sha256: {key}, tenant: acme}}]\n"))
        .expect("a file");
    std::fs::write(&path, rules.policy()).expect("a file");
    let policy = Arc::new(policy::load(&path).unwrap_or_else(|mistakes| panic!("{mistakes}")));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: Bytes::new(1_000_000) });
    Gate::start(policy, metrics, decisions, 1, 7)
}

fn settings() -> settings::Door {
    settings::Door { body_most: Bytes::new(200_000), ..settings::Door::default() }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

async fn grpc(gate: &Gate) -> SocketAddr {
    let (listener, address) = listen().await;
    let leases = Leases::start(gate, Settings::LEASE_LIFE, StdRng::seed_from_u64(1));
    let services = Services::default()
        .with(ExtProc::new(gate.clone(), settings(), address.ip()).into_service())
        .with(ExtAuthz::new(gate.clone(), leases.clone(), settings(), address.ip()).into_service())
        .with(AccessLog::new(gate.clone(), leases.clone()).into_service())
        .with(Acquire::new(gate.clone(), leases, settings(), address.ip()).into_service());
    tokio::spawn(grpc_server::serve(listener, GoingDown::default(), services));
    address
}

async fn by_proxy(tape: &[Call], rules: Rules, lens: Lens) -> Vec<String> {
    let gate = gate(rules);
    let upstream = Upstream::start().await;
    let uri: ::http::Uri = upstream.url().parse().expect("an address");
    let to = ProxyUpstream::new(gate.policy(), Some(&uri)).expect("upstreams");
    let (listener, address) = listen().await;
    let proxy = Proxy::new(gate.clone(), to, settings(), address.ip());
    tokio::spawn(server::serve(listener, CancellationToken::new(), move |request| proxy.handle(request)));
    play(gate, Http::new(address, upstream), tape, lens).await
}

async fn by_layer(tape: &[Call], rules: Rules) -> Vec<String> {
    let gate = gate(rules);
    let upstream = Upstream::start().await;
    let address = layered(&gate, settings(), upstream.address()).await;
    play(gate, Http::new(address, upstream), tape, plain).await
}

async fn by_grpc(tape: &[Call], rules: Rules) -> Vec<String> {
    let gate = gate(rules);
    let address = grpc(&gate).await;
    play(gate, Grpc::new(address), tape, plain).await
}

async fn by_envoy(tape: &[Call], rules: Rules) -> Option<Vec<String>> {
    let gate = gate(rules);
    let upstream = Upstream::start().await;
    let front = Front::asking(Config::ExtProc, grpc(&gate).await, upstream.address(), |config| config).await?;
    Some(play(gate, Http::new(front.address(), upstream), tape, plain).await)
}

async fn play<D: Door>(gate: Gate, door: D, tape: &[Call], lens: Lens) -> Vec<String> {
    Player { gate, door, tape: tape.to_vec(), lens, open: BTreeMap::new(), began: Instant::now() }.play().await
}

fn compare(one: &[String], other: &[String], name: &str) {
    for (one, other) in one.iter().zip(other) {
        assert!(one == other, "by the proxy:\n{one}\n\n{name}:\n{other}\n\n{}", first_difference(one, other));
    }
    assert_eq!(one.len(), other.len());
}

fn first_difference(one: &str, other: &str) -> String {
    let lines = one.lines().zip(other.lines()).find(|(one, other)| one != other);
    lines.map_or_else(|| "one is longer".into(), |(one, other)| format!("first difference:\n{one}\n{other}"))
}

/// Writes a tape down once, and returns what was written.
fn recorded(seed: u64, count: usize) -> Vec<Call> {
    let written: Vec<String> =
        tape::draw(seed, count).iter().map(|call| serde_json::to_string(call).expect("JSON")).collect();
    written.iter().map(|line| serde_json::from_str(line).expect("as it was written")).collect()
}

/// A paused clock moves on when there is nothing to do. While this runs there always is.
async fn on_a_frozen_clock(test: impl Future<Output = ()>) {
    let busy = async {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = test => {}
        () = busy => panic!("{PATIENCE:?} were not enough"),
    }
}

/// Calls in all, half under each rule for what is not metered.
const CALLS: usize = 2_000;
/// So many of each half go through a real Envoy too.
const FRONTED: usize = 100;

async fn equal_at_every_door(seed: u64, rules: Rules) {
    let tape = recorded(seed, CALLS / 2);
    let proxied = by_proxy(&tape, rules, plain).await;
    compare(&proxied, &by_layer(&tape, rules).await, "by the layer");
    compare(&proxied, &by_grpc(&tape, rules).await, "by the gRPC service");
    let told = proxied.concat();
    for reason in ["queue_full", "too_large", "unidentified", "malformed", "model_not_found", "unsupported", "expired"]
    {
        assert!(told.contains(&format!("tallygate_{reason}")), "the tape is too tame: no {reason}");
    }
    assert_eq!(told.contains("tallygate_class_not_granted"), rules.class_not_granted == "refuse");
    for state in ["InFlight", "Queued", "text/event-stream", "session: Some"] {
        assert!(told.contains(state), "the tape is too tame: no {state}");
    }
    let part = &tape[..FRONTED];
    if let Some(fronted) = by_envoy(part, rules).await {
        compare(&by_proxy(part, rules, plain).await, &fronted, "by Envoy");
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_equal_at_every_door() {
    let rules = Rules { unmetered: "refuse", class_not_granted: "use_default" };
    on_a_frozen_clock(equal_at_every_door(1, rules)).await;
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_equal_at_every_door_where_other_paths_pass_and_wishes_are_refused() {
    let rules = Rules { unmetered: "pass", class_not_granted: "refuse" };
    on_a_frozen_clock(equal_at_every_door(2, rules)).await;
}
