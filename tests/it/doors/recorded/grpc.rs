//! Plays calls at the gRPC service as Envoy does: one stream for each, headers, then the body in one message, then the
//! answer in pieces. What the service says is applied as Envoy applies it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use pb::body_mutation::Mutation;
use pb::processing_request::Request as Asked;
use pb::processing_response::Response as Said;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::Channel;

use super::tape::{Call, Reply};
use super::{Door, MOST_SEEN, Seen, headers_of_answer, headers_upstream};

/// The service, asked as Envoy asks it.
pub(super) struct Grpc {
    service: ExternalProcessorClient<Channel>,
    open: BTreeMap<usize, Open>,
    told: mpsc::Sender<Seen>,
    seen: mpsc::Receiver<Seen>,
}

/// What an upstream answers.
struct Answered {
    status: u16,
    headers: Vec<(String, String)>,
    pieces: Vec<String>,
}

/// One open call.
struct Open {
    playing: JoinHandle<()>,
    /// Its client leaves in the middle.
    left: CancellationToken,
    answer: Option<oneshot::Sender<Answered>>,
    sent: bool,
}

impl Grpc {
    pub(super) fn new(address: SocketAddr) -> Self {
        let (told, seen) = mpsc::channel(MOST_SEEN);
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        let service = ExternalProcessorClient::new(channel);
        Self { service, open: BTreeMap::new(), told, seen }
    }
}

impl Door for Grpc {
    async fn send(&mut self, number: usize, call: &Call) {
        let (questions, asked) = mpsc::channel(1);
        let (answer, replied) = oneshot::channel();
        let left = CancellationToken::new();
        let talk = Talk { number, questions, told: self.told.clone(), replied, left: left.clone() };
        let (mut service, call) = (self.service.clone(), call.clone());
        let playing = tokio::spawn(async move {
            let answers = service.process(Questions(asked)).await.expect("the service is there").into_inner();
            talk.play(&call, answers).await;
        });
        self.open.insert(number, Open { playing, left, answer: Some(answer), sent: false });
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

    async fn reply(&mut self, number: usize, call: &Call, reply: Reply) {
        let (status, kind, pieces) = call.answer(reply);
        let mut headers = vec![("content-type".to_owned(), kind.to_owned())];
        if reply == Reply::Compressed {
            headers.push(("content-encoding".to_owned(), "gzip".to_owned()));
        }
        let answer = self.open.get_mut(&number).and_then(|open| open.answer.take()).expect("it waits");
        answer.send(Answered { status, headers, pieces }).unwrap_or_else(|_| panic!("it listens"));
    }

    async fn leave(&mut self, number: usize) {
        let open = self.open.remove(&number).expect("it is open");
        if open.sent {
            // In the middle Envoy says no more, and waits for the end.
            open.left.cancel();
            open.playing.await.expect("it ends well");
        } else {
            // While a message is unanswered it cancels.
            open.playing.abort();
        }
    }
}

/// One request's conversation, from Envoy's side.
struct Talk {
    number: usize,
    questions: mpsc::Sender<pb::ProcessingRequest>,
    told: mpsc::Sender<Seen>,
    replied: oneshot::Receiver<Answered>,
    left: CancellationToken,
}

impl Talk {
    async fn play(self, call: &Call, mut answers: Streaming<pb::ProcessingResponse>) {
        let Self { number, questions, told, replied, left } = self;
        let mut headers: Vec<(String, String)> = vec![
            (":method".into(), call.method.clone()),
            (":path".into(), call.path.clone()),
            ("x-call".into(), number.to_string()),
        ];
        headers.extend(call.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
        let mut body = call.body();
        // An empty body is none.
        let bodiless = body.is_empty();
        ask(&questions, Asked::RequestHeaders(http_headers(&headers, bodiless))).await;
        let refused = |said: pb::ImmediateResponse| {
            let mut headers = Vec::new();
            apply(&mut headers, said.headers);
            let status = said.status.expect("a status").code;
            Seen::Answer {
                number,
                status: u16::try_from(status).expect("a status"),
                headers: headers_of_answer(headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
                body: String::from_utf8(said.body).expect("text"),
            }
        };
        match said(&mut answers).await {
            Said::RequestHeaders(said) => apply(&mut headers, said.response.and_then(|said| said.header_mutation)),
            Said::ImmediateResponse(said) => return drop(told.send(refused(said)).await),
            other => panic!("an answer to the headers, not {other:?}"),
        }
        let mut path = call.path.clone();
        if !bodiless {
            let whole = pb::HttpBody { body: body.clone(), end_of_stream: true, ..Default::default() };
            ask(&questions, Asked::RequestBody(whole)).await;
            match said(&mut answers).await {
                Said::RequestBody(said) => {
                    let said = said.response.unwrap_or_default();
                    let replaced = said.body_mutation.is_some();
                    replace(&mut body, said.body_mutation);
                    let mut lengths = Vec::new();
                    apply(&mut lengths, said.header_mutation);
                    if let Some(at) = lengths.iter().position(|(name, _)| name == ":path") {
                        path = lengths.remove(at).1;
                    }
                    let expected = replaced.then(|| ("content-length".to_owned(), body.len().to_string()));
                    assert_eq!(lengths, Vec::from_iter(expected), "Envoy refuses a body of another length");
                }
                Said::ImmediateResponse(said) => return drop(told.send(refused(said)).await),
                other => panic!("an answer to the body, not {other:?}"),
            }
        }
        let to = format!("{} {path}", call.method);
        let plain = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let body = String::from_utf8_lossy(&body).into_owned();
        drop(told.send(Seen::Upstream { number, to, headers: headers_upstream(plain), body }).await);
        let reply = tokio::select! {
            reply = replied => reply.expect("it is answered, or left"),
            () = left.cancelled() => {
                drop(questions);
                assert_eq!(answers.message().await.expect("it ends well"), None);
                return;
            }
        };
        let seen = answer(number, reply, &questions, &mut answers).await;
        drop(questions);
        assert_eq!(answers.message().await.expect("it ends well"), None);
        drop(told.send(seen).await);
    }
}

/// Shows the upstream's answer, and takes down what the client is to see of it.
async fn answer(
    number: usize,
    answered: Answered,
    questions: &mpsc::Sender<pb::ProcessingRequest>,
    answers: &mut Streaming<pb::ProcessingResponse>,
) -> Seen {
    let Answered { status, mut headers, pieces } = answered;
    let mut shown = headers.clone();
    shown.push((":status".into(), status.to_string()));
    ask(questions, Asked::ResponseHeaders(http_headers(&shown, false))).await;
    let Said::ResponseHeaders(about) = said(answers).await else { panic!("an answer to the headers") };
    apply(&mut headers, about.response.and_then(|about| about.header_mutation));
    let mut seen = Vec::new();
    for (at, piece) in pieces.iter().enumerate() {
        let mut piece = piece.clone().into_bytes();
        let end_of_stream = at + 1 == pieces.len();
        let part = pb::HttpBody { body: piece.clone(), end_of_stream, ..Default::default() };
        ask(questions, Asked::ResponseBody(part)).await;
        let Said::ResponseBody(about) = said(answers).await else { panic!("an answer to the body") };
        replace(&mut piece, about.response.and_then(|about| about.body_mutation));
        seen.extend(piece);
    }
    let headers = headers_of_answer(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    Seen::Answer { number, status, headers, body: String::from_utf8(seen).expect("text") }
}

async fn ask(questions: &mpsc::Sender<pb::ProcessingRequest>, request: Asked) {
    let asked = pb::ProcessingRequest { request: Some(request), ..Default::default() };
    questions.send(asked).await.expect("the stream is open");
}

async fn said(answers: &mut Streaming<pb::ProcessingResponse>) -> Said {
    answers.message().await.expect("no error").and_then(|said| said.response).expect("an answer")
}

fn http_headers(headers: &[(String, String)], end_of_stream: bool) -> pb::HttpHeaders {
    let header = |(key, value): &(String, String)| core::HeaderValue {
        key: key.clone(),
        value: String::new(),
        raw_value: value.clone().into_bytes(),
    };
    let headers = Some(core::HeaderMap { headers: headers.iter().map(header).collect() });
    pb::HttpHeaders { headers, end_of_stream, ..Default::default() }
}

/// What is removed goes first, and what is set replaces what was there.
fn apply(headers: &mut Vec<(String, String)>, mutation: Option<pb::HeaderMutation>) {
    let Some(mutation) = mutation else { return };
    headers.retain(|(name, _)| !mutation.remove_headers.contains(name));
    for set in mutation.set_headers.into_iter().filter_map(|option| option.header) {
        headers.retain(|(name, _)| *name != set.key);
        headers.push((set.key, String::from_utf8(set.raw_value).expect("readable")));
    }
}

fn replace(body: &mut Vec<u8>, mutation: Option<pb::BodyMutation>) {
    match mutation.and_then(|mutation| mutation.mutation) {
        Some(Mutation::Body(other)) => *body = other,
        Some(Mutation::ClearBody(_)) => body.clear(),
        Some(Mutation::StreamedResponse(_)) => panic!("not in this mode"),
        None => {}
    }
}

/// What is asked, as a stream.
struct Questions(mpsc::Receiver<pb::ProcessingRequest>);

impl Stream for Questions {
    type Item = pb::ProcessingRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
