//! A small endpoint picker that speaks the contract of the Gateway API Inference Extension: it takes bodies in
//! FULL_DUPLEX_STREAMED mode, names one endpoint in the header and in the metadata `envoy.lb`, sends everything on as it
//! came, and reports at the end what it read of the answer's usage.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use pb::processing_request::Request as Asked;
use pb::processing_response::Response as Said;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::codegen::tokio_stream::Stream;

/// A running picker. Dropping it stops it.
pub(crate) struct Picker {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<HashMap<String, String>>>>,
    serving: JoinHandle<()>,
}

impl Picker {
    /// Starts one that picks this endpoint for everything.
    pub(crate) async fn start(endpoint: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let service = ExternalProcessorServer::new(Picking { endpoint: endpoint.to_string(), seen: seen.clone() })
            .max_decoding_message_size(64 * 1024 * 1024);
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let serving = tokio::spawn(async move {
            let served = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await;
            served.expect("the picker serves");
        });
        Self { address, seen, serving }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The headers of the last request it was asked about.
    pub(crate) fn last(&self) -> HashMap<String, String> {
        self.seen.lock().expect("nobody panics with it").last().cloned().expect("it was asked")
    }

    /// How many requests it was asked about.
    pub(crate) fn asked(&self) -> usize {
        self.seen.lock().expect("nobody panics with it").len()
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Picking {
    endpoint: String,
    seen: Arc<Mutex<Vec<HashMap<String, String>>>>,
}

#[tonic::async_trait]
impl ExternalProcessor for Picking {
    type ProcessStream = Answers;

    async fn process(
        &self,
        request: tonic::Request<tonic::Streaming<pb::ProcessingRequest>>,
    ) -> Result<tonic::Response<Answers>, tonic::Status> {
        let mut questions = request.into_inner();
        let (say, answers) = mpsc::channel(16);
        let (endpoint, seen) = (self.endpoint.clone(), self.seen.clone());
        tokio::spawn(async move {
            let mut talk = Talk { endpoint, seen, body: Vec::new(), answer: String::new() };
            while let Ok(Some(question)) = questions.message().await {
                for answer in talk.on(question.request.expect("a question")) {
                    if say.send(Ok(answer)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(tonic::Response::new(Answers(answers)))
    }
}

/// One request's conversation. The body is sent on once all of it is there, as pickers do that read it.
struct Talk {
    endpoint: String,
    seen: Arc<Mutex<Vec<HashMap<String, String>>>>,
    body: Vec<u8>,
    answer: String,
}

impl Talk {
    fn on(&mut self, question: Asked) -> Vec<pb::ProcessingResponse> {
        match question {
            Asked::RequestHeaders(headers) => {
                let bodiless = headers.end_of_stream;
                let plain = headers.headers.unwrap_or_default().headers.into_iter();
                let plain = plain.map(|header| (header.key, String::from_utf8_lossy(&header.raw_value).into_owned()));
                self.seen.lock().expect("nobody panics with it").push(plain.collect());
                if bodiless { vec![self.pick()] } else { Vec::new() }
            }
            Asked::RequestBody(body) => {
                self.body.extend(body.body);
                if !body.end_of_stream {
                    return Vec::new();
                }
                let parts = parts(&std::mem::take(&mut self.body));
                let count = parts.len();
                let streamed = parts.into_iter().enumerate();
                let body = streamed.map(|(at, part)| said(Said::RequestBody(streams(part, at + 1 == count))));
                std::iter::once(self.pick()).chain(body).collect()
            }
            Asked::RequestTrailers(_) => vec![said(Said::RequestTrailers(pb::TrailersResponse::default()))],
            Asked::ResponseHeaders(_) => vec![said(Said::ResponseHeaders(pb::HeadersResponse::default()))],
            Asked::ResponseBody(body) => {
                self.answer.push_str(&String::from_utf8_lossy(&body.body));
                let mut passed = said(Said::ResponseBody(streams(body.body, body.end_of_stream)));
                if body.end_of_stream {
                    passed.dynamic_metadata = self.report();
                }
                vec![passed]
            }
            Asked::ResponseTrailers(_) => {
                let mut passed = said(Said::ResponseTrailers(pb::TrailersResponse::default()));
                passed.dynamic_metadata = self.report();
                vec![passed]
            }
        }
    }

    fn pick(&self) -> pb::ProcessingResponse {
        let header = core::HeaderValue {
            key: "x-gateway-destination-endpoint".into(),
            raw_value: self.endpoint.clone().into_bytes(),
            ..core::HeaderValue::default()
        };
        let option = core::HeaderValueOption {
            header: Some(header),
            append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
            ..core::HeaderValueOption::default()
        };
        let mutation = pb::HeaderMutation { set_headers: vec![option], remove_headers: Vec::new() };
        let common = pb::CommonResponse { header_mutation: Some(mutation), ..pb::CommonResponse::default() };
        let mut picked = said(Said::RequestHeaders(pb::HeadersResponse { response: Some(common) }));
        let endpoint = Kind::StringValue(self.endpoint.clone());
        picked.dynamic_metadata = Some(metadata("x-gateway-destination-endpoint", endpoint));
        picked
    }

    /// The total of the usage that the answer reports.
    fn report(&self) -> Option<Struct> {
        let (_, rest) = self.answer.rsplit_once("\"total_tokens\":")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some(metadata("x-gateway-inference-request-cost", Kind::NumberValue(digits.parse().ok()?)))
    }
}

fn metadata(key: &str, kind: Kind) -> Struct {
    let one = |key: &str, kind| Struct { fields: HashMap::from([(key.to_owned(), Value { kind: Some(kind) })]) };
    one("envoy.lb", Kind::StructValue(one(key, kind)))
}

/// What Envoy takes at once.
fn parts(body: &[u8]) -> Vec<Vec<u8>> {
    const MOST: usize = 62_000;
    if body.is_empty() { vec![Vec::new()] } else { body.chunks(MOST).map(<[u8]>::to_vec).collect() }
}

fn streams(body: Vec<u8>, end_of_stream: bool) -> pb::BodyResponse {
    let streamed = pb::StreamedBodyResponse { body, end_of_stream, ..pb::StreamedBodyResponse::default() };
    let mutation = pb::body_mutation::Mutation::StreamedResponse(streamed);
    let common = pb::CommonResponse {
        body_mutation: Some(pb::BodyMutation { mutation: Some(mutation) }),
        ..pb::CommonResponse::default()
    };
    pb::BodyResponse { response: Some(common) }
}

fn said(response: Said) -> pb::ProcessingResponse {
    pb::ProcessingResponse { response: Some(response), ..pb::ProcessingResponse::default() }
}

/// What is answered, as a stream.
pub(crate) struct Answers(mpsc::Receiver<Result<pb::ProcessingResponse, tonic::Status>>);

impl Stream for Answers {
    type Item = Result<pb::ProcessingResponse, tonic::Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
