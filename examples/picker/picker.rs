//! Picking: the conversation with Envoy about one request, as the contract of endpoint pickers has it. Apart from `main`, so
//! that the tests run the very same.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3 as pb;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use pb::processing_request::Request as Question;
use pb::processing_response::Response as Said;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::server::TcpIncoming;

/// The largest message taken from Envoy, in bytes.
const MESSAGE_MOST: usize = 64 * 1024 * 1024;

/// Is told the headers of each request that is asked about.
pub(crate) type Asked = Arc<dyn Fn(HashMap<String, String>) + Send + Sync>;

/// Answers whoever connects, and picks this endpoint for everything.
///
/// # Errors
/// When the listener fails.
pub(crate) async fn serve(
    listener: TcpListener,
    endpoint: SocketAddr,
    asked: Asked,
) -> Result<(), tonic::transport::Error> {
    let picking = Picking { endpoint: endpoint.to_string(), asked };
    let service = ExternalProcessorServer::new(picking).max_decoding_message_size(MESSAGE_MOST);
    tonic::transport::Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)).await
}

struct Picking {
    endpoint: String,
    asked: Asked,
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
        let mut talk = Talk {
            endpoint: self.endpoint.clone(),
            asked: self.asked.clone(),
            body: Vec::new(),
            answer: String::new(),
        };
        tokio::spawn(async move {
            while let Ok(Some(question)) = questions.message().await {
                let Some(question) = question.request else { continue };
                for answer in talk.on(question) {
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
    asked: Asked,
    body: Vec<u8>,
    answer: String,
}

impl Talk {
    fn on(&mut self, question: Question) -> Vec<pb::ProcessingResponse> {
        match question {
            Question::RequestHeaders(headers) => {
                let bodiless = headers.end_of_stream;
                let plain = headers.headers.unwrap_or_default().headers.into_iter();
                let plain = plain.map(|header| (header.key, String::from_utf8_lossy(&header.raw_value).into_owned()));
                (self.asked)(plain.collect());
                if bodiless { vec![self.pick()] } else { Vec::new() }
            }
            Question::RequestBody(body) => {
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
            Question::RequestTrailers(_) => vec![said(Said::RequestTrailers(pb::TrailersResponse::default()))],
            Question::ResponseHeaders(_) => vec![said(Said::ResponseHeaders(pb::HeadersResponse::default()))],
            Question::ResponseBody(body) => {
                self.answer.push_str(&String::from_utf8_lossy(&body.body));
                let mut passed = said(Said::ResponseBody(streams(body.body, body.end_of_stream)));
                if body.end_of_stream {
                    passed.dynamic_metadata = self.report();
                }
                vec![passed]
            }
            Question::ResponseTrailers(_) => {
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
