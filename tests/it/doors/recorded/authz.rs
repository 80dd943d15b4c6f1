//! Plays calls at the gRPC services as Envoy does over ext_authz: one question before each request, and one record in the
//! access log after it. What the service says is applied as Envoy applies it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpResponseProperties, ResponseFlags,
};
use envoy_types::pb::envoy::data::ai::v3::TokenUsage;
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsMessage;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_client::AccessLogServiceClient;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::{HttpAccessLogEntries, LogEntries};
use envoy_types::pb::envoy::service::auth::v3 as pb;
use envoy_types::pb::google::protobuf::{Any, Duration, Struct, UInt32Value, UInt64Value};
use pb::attribute_context::{HttpRequest, Request};
use pb::authorization_client::AuthorizationClient;
use pb::check_response::HttpResponse;
use prost::{Message as _, Name as _};
use tallygate::wire::dialect::Dialect;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::Channel;

use super::tape::{Call, Reply};
use super::{Door, MOST_SEEN, Seen, headers_of_answer, headers_upstream};

/// The services, asked and told as Envoy does.
pub(super) struct Authz {
    service: AuthorizationClient<Channel>,
    log: mpsc::Sender<StreamAccessLogsMessage>,
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

impl Authz {
    pub(super) fn new(address: SocketAddr) -> Self {
        let (told, seen) = mpsc::channel(MOST_SEEN);
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        let (log, entries) = mpsc::channel(MOST_SEEN);
        let mut logging = AccessLogServiceClient::new(channel.clone());
        // It ends with the tape.
        tokio::spawn(async move { logging.stream_access_logs(Entries(entries)).await });
        Self { service: AuthorizationClient::new(channel), log, open: BTreeMap::new(), told, seen }
    }
}

impl Door for Authz {
    async fn send(&mut self, number: usize, call: &Call) {
        let (reply, replied) = oneshot::channel();
        let left = CancellationToken::new();
        let life = Life { number, log: self.log.clone(), told: self.told.clone(), replied, left: left.clone() };
        let (service, call) = (self.service.clone(), call.clone());
        let playing = tokio::spawn(life.play(call, service));
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
            // Envoy cancels its question.
            open.playing.abort();
        }
    }
}

/// One request's life, from Envoy's side.
struct Life {
    number: usize,
    log: mpsc::Sender<StreamAccessLogsMessage>,
    told: mpsc::Sender<Seen>,
    replied: oneshot::Receiver<Reply>,
    left: CancellationToken,
}

impl Life {
    async fn play(self, call: Call, mut service: AuthorizationClient<Channel>) {
        let Self { number, log, told, replied, left } = self;
        let mut headers: Vec<(String, String)> = vec![("x-call".into(), number.to_string())];
        headers.extend(call.headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
        let body = call.body();
        if call.method != "GET" {
            headers.push(("content-length".into(), body.len().to_string()));
        }
        let answer = service.check(question(&call, &headers, &body)).await.expect("the service answers").into_inner();
        let ok = match answer.http_response.expect("it is about HTTP") {
            HttpResponse::DeniedResponse(denied) => return drop(told.send(refused(number, denied)).await),
            HttpResponse::OkResponse(ok) => ok,
            HttpResponse::ErrorResponse(error) => panic!("no error, but {error:?}"),
        };
        headers.retain(|(name, _)| !ok.headers_to_remove.contains(name));
        set(&mut headers, ok.headers);
        let to = format!("{} {}", call.method, call.path);
        let plain = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let body = String::from_utf8_lossy(&body).into_owned();
        drop(told.send(Seen::Upstream { number, to, headers: headers_upstream(plain), body }).await);
        let metadata = answer.dynamic_metadata.unwrap_or_default();
        let reply = tokio::select! {
            reply = replied => reply.expect("it is answered, or left"),
            () = left.cancelled() => return drop(log.send(abandoned(metadata)).await),
        };
        let (status, kind, pieces) = call.answer(reply);
        let mut headers = vec![("content-type".to_owned(), kind.to_owned())];
        set(&mut headers, ok.response_headers_to_add);
        drop(log.send(ended(metadata, status, usage(&call, reply))).await);
        let headers = headers_of_answer(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        drop(told.send(Seen::Answer { number, status, headers, body: pieces.concat() }).await);
    }
}

fn question(call: &Call, headers: &[(String, String)], body: &[u8]) -> pb::CheckRequest {
    let header = |(key, value): &(String, String)| core::HeaderValue {
        key: key.clone(),
        value: String::new(),
        raw_value: value.clone().into_bytes(),
    };
    let http = HttpRequest {
        method: call.method.clone(),
        path: call.path.clone(),
        header_map: Some(core::HeaderMap { headers: headers.iter().map(header).collect() }),
        raw_body: body.to_vec(),
        ..HttpRequest::default()
    };
    let request = Some(Request { http: Some(http), ..Request::default() });
    pb::CheckRequest { attributes: Some(pb::AttributeContext { request, ..Default::default() }) }
}

fn refused(number: usize, denied: pb::DeniedHttpResponse) -> Seen {
    let mut headers = Vec::new();
    set(&mut headers, denied.headers);
    let status = denied.status.expect("a status").code;
    Seen::Answer {
        number,
        status: u16::try_from(status).expect("a status"),
        headers: headers_of_answer(headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))),
        body: denied.body,
    }
}

fn set(headers: &mut Vec<(String, String)>, options: Vec<core::HeaderValueOption>) {
    for core::HeaderValue { key, value, .. } in options.into_iter().filter_map(|option| option.header) {
        headers.retain(|(name, _)| *name != key);
        headers.push((key, value));
    }
}

/// What Envoy reads of an answer's usage.
fn usage(call: &Call, reply: Reply) -> Option<TokenUsage> {
    let (Reply::Usage { input, output }, Some(dialect)) = (reply, call.dialect()) else { return None };
    let output = if dialect == Dialect::OpenAiEmbeddings { 0 } else { output };
    let count = |value| Some(UInt64Value { value });
    let usage = TokenUsage { input_tokens: count(input), output_tokens: count(output), ..Default::default() };
    Some(TokenUsage { extraction_status: 1, ..usage })
}

fn moment() -> Option<Duration> {
    Some(Duration { seconds: 0, nanos: 0 })
}

fn common(ours: Struct) -> AccessLogCommon {
    let filter_metadata = [("envoy.filters.http.ext_authz".to_owned(), ours)].into();
    AccessLogCommon {
        metadata: Some(core::Metadata { filter_metadata, ..Default::default() }),
        time_to_first_upstream_tx_byte: moment(),
        duration: moment(),
        access_log_type: AccessLogType::DownstreamEnd.into(),
        ..AccessLogCommon::default()
    }
}

/// The record of a request whose client left before there was an answer.
fn abandoned(ours: Struct) -> StreamAccessLogsMessage {
    let flags = ResponseFlags { downstream_connection_termination: true, ..Default::default() };
    record(AccessLogCommon { response_flags: Some(flags), ..common(ours) }, None)
}

/// The record of a request that was answered.
fn ended(ours: Struct, status: u16, usage: Option<TokenUsage>) -> StreamAccessLogsMessage {
    let mut common = AccessLogCommon { time_to_first_upstream_rx_byte: moment(), ..common(ours) };
    if let (Some(usage), Some(metadata)) = (usage, &mut common.metadata) {
        let any = Any { type_url: TokenUsage::type_url(), value: usage.encode_to_vec() };
        metadata.typed_filter_metadata.insert("envoy.ai.token_usage".into(), any);
    }
    let response_code = Some(UInt32Value { value: status.into() });
    record(common, Some(HttpResponseProperties { response_code, ..Default::default() }))
}

fn record(common: AccessLogCommon, response: Option<HttpResponseProperties>) -> StreamAccessLogsMessage {
    let entry = HttpAccessLogEntry { common_properties: Some(common), response, ..Default::default() };
    let entries = LogEntries::HttpLogs(HttpAccessLogEntries { log_entry: vec![entry] });
    StreamAccessLogsMessage { identifier: None, log_entries: Some(entries) }
}

/// What is logged, as a stream.
struct Entries(mpsc::Receiver<StreamAccessLogsMessage>);

impl Stream for Entries {
    type Item = StreamAccessLogsMessage;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
