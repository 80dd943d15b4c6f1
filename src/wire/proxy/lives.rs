//! Random lives at the proxy, in memory: clients that send slowly, partly, nonsense, and leave at any moment; handlers
//! that are dropped; upstreams that answer well, badly, late, never, and break at any byte. Time is virtual, so every
//! bound is met. Whatever happens, every ticket is settled once.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Proxy, Upstream, UpstreamError};
use crate::wire::lives::{BATCH, OUTCOMES, at_rest, body, door, events, gate, seeds, wild};
use crate::wire::server::Body;

/// Connections to an upstream that lives in memory, each with its own luck.
#[derive(Clone, Debug)]
pub(super) struct Dial(Arc<Mutex<StdRng>>);

impl Dial {
    /// Sends a request on a connection of its own.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, UpstreamError> {
        let mut rng = StdRng::seed_from_u64(self.0.lock().expect("nobody panics with it").random());
        let broken = |error: hyper::Error| UpstreamError::Unreachable(error.to_string());
        if rng.random_bool(0.05) {
            return Err(UpstreamError::Unreachable("refused".into()));
        }
        let (ours, theirs) = duplex(rng.random_range(16..4_096));
        tokio::spawn(upstream(theirs, rng));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.map_err(broken)?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }
}

/// Sleeps for a while, often not at all.
async fn pause(rng: &mut StdRng, most: u64) {
    if rng.random_bool(0.3) {
        sleep(Duration::from_millis(rng.random_range(0..most))).await;
    } else {
        tokio::task::yield_now().await;
    }
}

/// One connection of the upstream's. Returning breaks it.
async fn upstream(mut connection: DuplexStream, mut rng: StdRng) {
    let mut held = Vec::new();
    while !held.ends_with(b"}") && !held.ends_with(b"\r\n\r\n") {
        if rng.random_bool(0.01) || connection.read_buf(&mut held).await.unwrap_or(0) == 0 {
            return;
        }
    }
    // More than the proxy waits, now and then.
    pause(&mut rng, 30_000).await;
    let streams = rng.random_bool(0.6);
    let status = ["200 OK", "200 OK", "200 OK", "200 OK", "500 x", "429 x"][rng.random_range(0..6)];
    let (kind, framing) = if streams {
        ("text/event-stream", ["transfer-encoding: chunked\r\n", ""][usize::from(rng.random_bool(0.2))])
    } else {
        ("application/json", "content-length: 60\r\n")
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{framing}\r\n");
    if connection.write_all(head.as_bytes()).await.is_err() {
        return;
    }
    let chunked = framing.starts_with("transfer");
    for _ in 0..rng.random_range(0..12) {
        pause(&mut rng, 15_000).await;
        let part = if streams { events(&mut rng) } else { "{\"usage\":{\"x\":1}}   ".to_owned() };
        let part = if chunked { format!("{:x}\r\n{part}\r\n", part.len()) } else { part };
        if rng.random_bool(0.05) || connection.write_all(part.as_bytes()).await.is_err() {
            return;
        }
    }
    if chunked {
        // The client may be gone.
        drop(connection.write_all(b"0\r\n\r\n").await);
    }
    pause(&mut rng, 30_000).await;
}

/// One client's life on one connection.
async fn client(proxy: Arc<Proxy>, mut rng: StdRng) {
    let (mut ours, theirs) = duplex(rng.random_range(16..8_192));
    let service = service_fn(move |request| {
        let answer = proxy.handle(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(theirs), service);
    let serving = tokio::spawn(async move { drop(connection.await) });
    for _ in 0..rng.random_range(1..4) {
        pause(&mut rng, 3_000).await;
        if talk(&mut ours, &mut rng).await.is_none() {
            break;
        }
    }
    // The server's side is dropped wherever it happens to be, or finds out by itself.
    if rng.random_bool(0.3) {
        for _ in 0..rng.random_range(0..30) {
            tokio::task::yield_now().await;
        }
        serving.abort();
    }
    drop(ours);
    // Aborted is over too.
    drop(serving.await);
}

/// Sends a request, or a part of it, and reads the answer, or a part of it. Nothing where it leaves.
async fn talk(stream: &mut DuplexStream, rng: &mut StdRng) -> Option<()> {
    let path =
        ["/v1/chat/completions", "/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/files", "/v1/realtime"];
    let path = path[rng.random_range(0..path.len())];
    let body = body(rng);
    let tenant = ["a", "b", "c"][rng.random_range(0..3)];
    let session = if rng.random_bool(0.3) { "session-id: s\r\n" } else { "" };
    let deadline = if rng.random_bool(0.2) { "x-tallygate-deadline-ms: 50\r\n" } else { "" };
    let head = format!("POST {path} HTTP/1.1\r\nhost: g\r\nx-tenant-id: {tenant}\r\n{session}{deadline}");
    let mut bytes = if rng.random_bool(0.2) {
        format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    } else {
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    };
    let cut = rng.random_bool(0.1);
    if cut {
        bytes.truncate(rng.random_range(0..bytes.len()));
    }
    let size = rng.random_range(1..2_000);
    for piece in bytes.as_bytes().chunks(size) {
        tokio::time::timeout(Duration::from_secs(60), stream.write_all(piece)).await.ok()?.ok()?;
        pause(rng, 500).await;
    }
    if cut && rng.random_bool(0.5) {
        return None;
    }
    // Reads for some turns, and leaves then.
    let turns = if rng.random_bool(0.3) { rng.random_range(0..6) } else { 40 };
    let mut read = Vec::new();
    for _ in 0..turns {
        let reading = tokio::time::timeout(Duration::from_secs(60), stream.read_buf(&mut read)).await;
        if reading.ok()?.ok()? == 0 || read.ends_with(b"0\r\n\r\n") || read.ends_with(b"}}") {
            return Some(());
        }
        pause(rng, 2_000).await;
    }
    None
}

async fn batch(seed: u64) -> BTreeSet<String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let gate = gate();
    let dial = Dial(Arc::new(Mutex::new(StdRng::seed_from_u64(rng.random()))));
    let upstream = Upstream::in_memory(gate.policy(), dial);
    let proxy = Proxy::new(gate.clone(), upstream, door(), Ipv4Addr::LOCALHOST.into());
    let all = proxy.memory.free();
    let mut clients = JoinSet::new();
    for _ in 0..BATCH {
        clients.spawn(client(proxy.clone(), StdRng::seed_from_u64(rng.random())));
        pause(&mut rng, 1_000).await;
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap_or_else(|error| panic!("TALLYGATE_SEED={seed}: {error}"));
    }
    at_rest(&gate, &proxy.memory, all, seed).await
}

#[tokio::test(start_paused = true)]
async fn whatever_clients_and_upstreams_do_every_life_is_settled_once() {
    let mut seen = BTreeSet::new();
    for seed in seeds() {
        seen.append(&mut batch(seed).await);
    }
    wild(&seen, &OUTCOMES);
}
