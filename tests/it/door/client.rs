//! A client on a bare socket, so that a test can say exactly when it sends, reads and leaves.

use std::collections::HashMap;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::within;

/// A connection to the gateway. Dropping it is leaving.
pub(crate) struct Client {
    stream: TcpStream,
    held: Vec<u8>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
    /// Whether the body ended as it should, and not because the connection broke.
    pub(crate) whole: bool,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Checks that this is a refusal of ours, and returns its message.
    pub(crate) fn refusal(&self, status: u16, reason: &str) -> String {
        assert!(self.header("x-tallygate-decision").contains('-'), "a decision id");
        self.refusal_without_decision(status, reason)
    }

    /// The same of what is no decision about a request.
    pub(crate) fn refusal_without_decision(&self, status: u16, reason: &str) -> String {
        assert_eq!((self.status, self.header("x-tallygate-reason")), (status, reason), "{}", self.body);
        let error = &self.json()["error"];
        assert_eq!(error["code"], format!("tallygate_{reason}"));
        error["message"].as_str().expect("a message").to_owned()
    }
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.expect("the gateway listens"), held: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the gateway reads");
    }

    /// Sends a request with a body.
    pub(crate) async fn post(&mut self, path: &str, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: gateway\r\n{headers}content-length: {length}\r\n\r\n");
        self.send(format!("{head}{body}").as_bytes()).await;
    }

    /// Sends a chat completion.
    pub(crate) async fn chat(&mut self, headers: &str, body: &Value) {
        self.post("/v1/chat/completions", headers, &body.to_string()).await;
    }

    /// Sends a request without a body and reads its answer.
    pub(crate) async fn get(&mut self, path: &str, headers: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: gateway\r\n{headers}\r\n").as_bytes()).await;
        self.answer().await
    }

    /// Reads until some text has arrived.
    pub(crate) async fn read_until(&mut self, text: &str) {
        let reading = async {
            while !self.held.windows(text.len()).any(|window| window == text.as_bytes()) {
                let read = self.stream.read_buf(&mut self.held).await.expect("the connection holds");
                assert_ne!(read, 0, "the gateway closed before {text:?}: {}", String::from_utf8_lossy(&self.held));
            }
        };
        within(text, reading).await;
    }

    /// Reads a whole answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        within("an answer", self.read_answer()).await
    }

    async fn read_answer(&mut self) -> Answer {
        self.read_until("\r\n\r\n").await;
        let end = self.held.windows(4).position(|window| window == b"\r\n\r\n").expect("just read") + 4;
        let head = String::from_utf8(self.held.drain(..end).collect()).expect("a readable head");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
        let headers: HashMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let (body, whole) = match headers.get("content-length") {
            Some(length) => self.read_exactly(length.parse().expect("a length")).await,
            None => self.read_chunks().await,
        };
        Answer { status, headers, body: String::from_utf8(body).expect("a readable body"), whole }
    }

    /// Whether so many bytes are held, reading what is missing.
    async fn fill(&mut self, length: usize) -> bool {
        while self.held.len() < length {
            if self.stream.read_buf(&mut self.held).await.unwrap_or(0) == 0 {
                return false;
            }
        }
        true
    }

    async fn read_exactly(&mut self, length: usize) -> (Vec<u8>, bool) {
        let whole = self.fill(length).await;
        let length = length.min(self.held.len());
        (self.held.drain(..length).collect(), whole)
    }

    async fn read_chunks(&mut self) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        loop {
            let line = loop {
                if let Some(end) = self.held.windows(2).position(|window| window == b"\r\n") {
                    break end;
                }
                let known = self.held.len();
                if !self.fill(known + 1).await {
                    return (body, false);
                }
            };
            let size: Vec<u8> = self.held.drain(..line + 2).collect();
            let size = std::str::from_utf8(&size[..line]).expect("a chunk's size");
            let size = usize::from_str_radix(size, 16).expect("a chunk's size");
            if !self.fill(size + 2).await {
                return (body, false);
            }
            body.extend(self.held.drain(..size));
            self.held.drain(..2);
            if size == 0 {
                return (body, true);
            }
        }
    }
}
