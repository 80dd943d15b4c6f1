//! Plays calls at an address that speaks HTTP: the proxy's, or a real Envoy's.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::tape::{Call, Reply};
use super::{Door, MOST_SEEN, Seen, headers_of_answer, headers_upstream};
use crate::door::{Client, Exchange, Upstream};

/// A door at an address, with the upstream behind it.
pub(super) struct Http {
    address: SocketAddr,
    upstream: Upstream,
    arrived: BTreeMap<usize, Exchange>,
    clients: BTreeMap<usize, JoinHandle<()>>,
    told: mpsc::Sender<Seen>,
    seen: mpsc::Receiver<Seen>,
}

impl Http {
    pub(super) fn new(address: SocketAddr, upstream: Upstream) -> Self {
        let (told, seen) = mpsc::channel(MOST_SEEN);
        Self { address, upstream, arrived: BTreeMap::new(), clients: BTreeMap::new(), told, seen }
    }
}

impl Door for Http {
    async fn send(&mut self, number: usize, call: &Call) {
        let mut bytes = format!("{} {} HTTP/1.1\r\nhost: gateway\r\nx-call: {number}\r\n", call.method, call.path);
        for (name, value) in &call.headers {
            bytes += &format!("{name}: {value}\r\n");
        }
        let body = call.body();
        if call.method != "GET" {
            bytes += &format!("content-length: {}\r\n", body.len());
        }
        let bytes = [(bytes + "\r\n").as_bytes(), &body].concat();
        let (address, told) = (self.address, self.told.clone());
        let playing = tokio::spawn(async move {
            let mut client = Client::connect(address).await;
            client.send(&bytes).await;
            let answer = client.answer().await;
            let headers = headers_of_answer(answer.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            let (status, body) = (answer.status, answer.body);
            // Whoever plays the tape may have failed already.
            drop(told.send(Seen::Answer { number, status, headers, body }).await);
        });
        self.clients.insert(number, playing);
    }

    fn look(&mut self) -> Vec<Seen> {
        let mut seen: Vec<Seen> = std::iter::from_fn(|| self.seen.try_recv().ok()).collect();
        while let Some(exchange) = self.upstream.try_next() {
            let number = exchange.header("x-call").and_then(|number| number.parse().ok()).expect("it travels on");
            let mut lines = exchange.head.lines();
            let first = lines.next().expect("a request line");
            let headers = headers_upstream(lines.filter_map(|line| line.split_once(": ")));
            let to = first.strip_suffix(" HTTP/1.1").expect("HTTP/1.1").to_owned();
            let body = String::from_utf8_lossy(&exchange.body).into_owned();
            seen.push(Seen::Upstream { number, to, headers, body });
            self.arrived.insert(number, exchange);
        }
        seen
    }

    async fn reply(&mut self, number: usize, call: &Call, reply: Reply) {
        let mut exchange = self.arrived.remove(&number).expect("it is there");
        let (status, kind, pieces) = call.answer(reply);
        let coding = if reply == Reply::Compressed { "content-encoding: gzip\r\n" } else { "" };
        let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-type: {kind}\r\n{coding}");
        if kind == "text/event-stream" {
            exchange.send(&format!("{head}transfer-encoding: chunked\r\n\r\n")).await;
            for piece in &pieces {
                exchange.chunk(piece).await;
            }
            exchange.end().await;
        } else {
            let body = pieces.concat();
            exchange.send(&format!("{head}content-length: {}\r\n\r\n{body}", body.len())).await;
        }
    }

    async fn leave(&mut self, number: usize) {
        self.clients.remove(&number).expect("it is open").abort();
        if let Some(exchange) = self.arrived.remove(&number) {
            exchange.closed().await;
        }
    }
}
