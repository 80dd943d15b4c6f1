//! An upstream that does what the test says, byte by byte.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

use super::within;

/// A scripted upstream. Requests come out of it in the order they arrive.
pub(crate) struct Upstream {
    address: SocketAddr,
    requests: mpsc::Receiver<Exchange>,
}

/// One request, and its connection to answer on.
pub(crate) struct Exchange {
    /// The request line and headers, names in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    stream: TcpStream,
}

/// An address where connections are refused for as long as this is held: bound, so that nobody else is given it, and
/// never listened on.
pub(crate) struct Shut(TcpSocket);

impl Shut {
    pub(crate) fn start() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("an address");
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("it is bound")
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("an upstream's address");
        let address = listener.local_addr().expect("it is bound");
        let (sender, requests) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Some(exchange) = Exchange::read(stream).await {
                        // The test may have ended.
                        drop(sender.send(exchange).await);
                    }
                });
            }
        });
        Self { address, requests }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request.
    pub(crate) async fn next(&mut self) -> Exchange {
        within("a request at the upstream", self.requests.recv()).await.expect("the upstream runs")
    }

    /// The next request, if it is there.
    pub(crate) fn try_next(&mut self) -> Option<Exchange> {
        self.requests.try_recv().ok()
    }

    /// Whether no request is there.
    pub(crate) fn is_untouched(&mut self) -> bool {
        self.try_next().is_none()
    }
}

impl Exchange {
    async fn read(mut stream: TcpStream) -> Option<Self> {
        let mut held = Vec::new();
        let end = loop {
            if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut held).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8(held[..end].to_vec()).expect("a readable head");
        let length: usize = header(&head, "content-length").map_or(0, |length| length.parse().expect("a length"));
        while held.len() < end + length {
            if stream.read_buf(&mut held).await.ok()? == 0 {
                return None;
            }
        }
        let mut body = held.split_off(end);
        if header(&head, "transfer-encoding") == Some("chunked") {
            while !body.ends_with(b"0\r\n\r\n") {
                if stream.read_buf(&mut body).await.ok()? == 0 {
                    return None;
                }
            }
            body = dechunked(&body);
        }
        Some(Self { head, body, stream })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Sends bytes.
    pub(crate) async fn send(&mut self, bytes: &str) {
        self.stream.write_all(bytes.as_bytes()).await.expect("the gateway is there");
        self.stream.flush().await.expect("the gateway is there");
    }

    /// Sends bytes to somebody who may not want them all.
    pub(crate) async fn try_send(&mut self, bytes: &str) {
        // Then the connection breaks, which is an answer too.
        let _refused = self.stream.write_all(bytes.as_bytes()).await;
    }

    /// Sends a whole answer.
    pub(crate) async fn answer(&mut self, status: &str, body: &str) {
        let length = body.len();
        self.send(&format!(
            "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    }

    /// Begins a stream of events.
    pub(crate) async fn begin(&mut self) {
        let head = "connection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked";
        self.send(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n")).await;
    }

    /// Sends bytes of the stream.
    pub(crate) async fn chunk(&mut self, text: &str) {
        self.send(&format!("{:x}\r\n{text}\r\n", text.len())).await;
    }

    /// Ends the stream in good order.
    pub(crate) async fn end(&mut self) {
        self.send("0\r\n\r\n").await;
    }

    /// Waits until the gateway closes the connection.
    pub(crate) async fn closed(mut self) {
        let mut rest = [0; 64];
        // A reset is as good as a close.
        let read = within("the gateway to cancel the request", self.stream.read(&mut rest)).await.unwrap_or(0);
        assert_eq!(read, 0, "nothing more is sent");
    }
}

/// What chunks hold.
fn dechunked(mut chunks: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line) = chunks.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&chunks[..line]).expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        whole.extend_from_slice(&chunks[line + 2..line + 2 + size]);
        chunks = &chunks[line + 4 + size..];
    }
    whole
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().filter_map(|line| line.split_once(": ")).find(|(found, _)| *found == name).map(|(_, value)| value)
}
