//! Plays calls at our own gRPC API, as a gateway that sends requests itself: it asks, sends, and tells how that ended.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use tallygate::wire::acquire::v1;
use tallygate::wire::acquire::v1::admission_client::AdmissionClient;
use tallygate::wire::dialect::Dialect;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Extensions, Request, Status};

use super::tape::{Call, Reply};
use super::{Door, MOST_SEEN, Seen};

/// The service, asked and told.
pub(super) struct Acquire {
    service: AdmissionClient<Channel>,
    open: BTreeMap<usize, Open>,
    told: mpsc::Sender<Seen>,
    seen: mpsc::Receiver<Seen>,
}

/// One open call.
struct Open {
    playing: JoinHandle<()>,
    /// Its client leaves in the middle.
    left: CancellationToken,
    reply: Option<oneshot::Sender<Reply>>,
    sent: bool,
}

impl Acquire {
    pub(super) fn new(address: SocketAddr) -> Self {
        let (told, seen) = mpsc::channel(MOST_SEEN);
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        Self { service: AdmissionClient::new(channel), open: BTreeMap::new(), told, seen }
    }
}

impl Door for Acquire {
    async fn send(&mut self, number: usize, call: &Call) {
        let (reply, replied) = oneshot::channel();
        let left = CancellationToken::new();
        let life = Life { number, told: self.told.clone(), replied, left: left.clone() };
        let playing = tokio::spawn(life.play(call.clone(), self.service.clone()));
        self.open.insert(number, Open { playing, left, reply: Some(reply), sent: false });
    }

    fn look(&mut self) -> Vec<Seen> {
        let seen: Vec<Seen> = std::iter::from_fn(|| self.seen.try_recv().ok()).collect();
        for seen in &seen {
            if let Seen::Upstream { number, .. } = seen {
                self.open.get_mut(number).expect("it is open").sent = true;
            }
        }
        seen
    }

    async fn reply(&mut self, number: usize, _call: &Call, reply: Reply) {
        let to = self.open.get_mut(&number).and_then(|open| open.reply.take()).expect("it waits");
        to.send(reply).unwrap_or_else(|_| panic!("it listens"));
    }

    async fn leave(&mut self, number: usize) {
        let open = self.open.remove(&number).expect("it is open");
        if open.sent {
            open.left.cancel();
            open.playing.await.expect("it ends well");
        } else {
            // Its question is cancelled.
            open.playing.abort();
        }
    }
}

/// One request's life, from the gateway's side.
struct Life {
    number: usize,
    told: mpsc::Sender<Seen>,
    replied: oneshot::Receiver<Reply>,
    left: CancellationToken,
}

impl Life {
    async fn play(self, call: Call, mut service: AdmissionClient<Channel>) {
        let Self { number, told, replied, left } = self;
        let body = call.body();
        let http = v1::HttpRequest { method: call.method.clone(), path: call.path.clone(), body: body.clone() };
        let asked = v1::AcquireRequest { what: Some(v1::acquire_request::What::Http(http)) };
        let metadata = MetadataMap::from_headers(headers(&call));
        let admitted = match service.acquire(Request::from_parts(metadata, Extensions::default(), asked)).await {
            Ok(admitted) => admitted.into_inner(),
            Err(status) => return drop(told.send(refused(number, &status)).await),
        };
        let v1::AcquireResponse { lease, body: changed, .. } = admitted;
        let body = if changed.is_empty() { body } else { changed };
        let (to, body) = (format!("{} {}", call.method, call.path), String::from_utf8_lossy(&body).into_owned());
        drop(told.send(Seen::Upstream { number, to, headers: BTreeMap::new(), body }).await);
        let reply = tokio::select! {
            reply = replied => Some(reply.expect("it is answered, or left")),
            () = left.cancelled() => None,
        };
        if !lease.is_empty() {
            let settled = service.settle(end(&call, &lease, reply)).await.expect("the service listens").into_inner();
            assert_eq!(settled.state(), v1::LeaseState::Running, "it ran until now");
        }
        if let Some(reply) = reply {
            let (status, ..) = call.answer(reply);
            drop(told.send(Seen::Answer { number, status, headers: BTreeMap::new(), body: String::new() }).await);
        }
    }
}

fn headers(call: &Call) -> HeaderMap {
    let header = |(name, value): &(String, String)| {
        (HeaderName::try_from(name).expect("a name"), HeaderValue::try_from(value).expect("a value"))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in call.headers.iter().map(header) {
        headers.append(name, value);
    }
    headers
}

/// A refusal, as its status tells it.
fn refused(number: usize, status: &Status) -> Seen {
    let code = i32::from(status.code());
    let headers = status.metadata().clone().into_headers();
    let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()));
    let headers = headers.filter(|(name, _)| name != "date" && name != "content-type").collect();
    Seen::Answer { number, status: u16::try_from(code).expect("a code"), headers, body: status.message().to_owned() }
}

fn end(call: &Call, lease: &str, reply: Option<Reply>) -> v1::SettleRequest {
    let told = |outcome: v1::Outcome, status: u16, usage| v1::SettleRequest {
        lease: lease.to_owned(),
        outcome: outcome.into(),
        usage,
        upstream_status: status.into(),
        upstream_retry_after_ms: 0,
    };
    match reply {
        None => told(v1::Outcome::Aborted, 0, None),
        Some(Reply::Status(status)) => told(v1::Outcome::UpstreamFailed, status, None),
        Some(Reply::Usage { input, output }) => {
            let output = if call.dialect() == Some(Dialect::OpenAiEmbeddings) { 0 } else { output };
            let usage = v1::Usage { input_tokens: input, output_tokens: output, ..Default::default() };
            told(v1::Outcome::Completed, 200, Some(usage))
        }
        Some(_) => told(v1::Outcome::Completed, 200, None),
    }
}
