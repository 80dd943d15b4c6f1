//! The service of the example, its messages, what a call costs, and the admission layer in front.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::request::Parts;
use http::{Request, Response};
use prost::Message;
use tallygate::units::{Limit, Tokens, Usage};
use tallygate::{AdmissionLayer, Appraise, ByHead, Gate, Granted, Work};
use tonic::Status;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic_prost::ProstCodec;
use tower::Service;

const POLICY: &str = "
version: 1
identity: {tenant: [{header: x-tenant-id}, {fallback: anonymous}]}
pools: [{name: embeddings, models: ['mini*'], window: {requests: 2, tokens: 4000}}]
limits: [{name: per-minute, per: tenant, input_tokens: 100, every: 1m, when_exceeded: refuse}]
";

/// The method's path, for server and clients alike.
pub(crate) const EMBED: &str = "/embed.v1.Embedder/Embed";

/// `message EmbedRequest { string model = 1; repeated string texts = 2; }`
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EmbedRequest {
    /// The model.
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    /// What is to be embedded.
    #[prost(string, repeated, tag = "2")]
    pub(crate) texts: Vec<String>,
}

/// `message EmbedReply { repeated uint32 sizes = 1; }`, which stand for the vectors a real one returns.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EmbedReply {
    /// One for each text.
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) sizes: Vec<u32>,
}

impl EmbedRequest {
    /// A token for four bytes, as this service counts.
    fn tokens(&self) -> Tokens {
        Tokens::new(self.texts.iter().map(|text| text.len() as u64).sum::<u64>().div_ceil(4))
    }
}

/// What a call costs: its body says, and nothing is produced but vectors.
struct Embeddings;

impl Appraise for Embeddings {
    fn by_head(&self, head: &Parts) -> ByHead {
        if head.uri.path() == EMBED { ByHead::Read } else { ByHead::Pass }
    }

    fn by_body(&self, _head: &Parts, body: &Bytes) -> Result<Work, String> {
        // gRPC's frame: whether it is compressed, how long it is, and the message.
        let mut frame = body.clone();
        if frame.len() < 5 || frame.get_u8() != 0 {
            return Err("one message that is not compressed is wanted".into());
        }
        let length = usize::try_from(frame.get_u32()).unwrap_or(usize::MAX);
        if length != frame.len() {
            return Err("the message is not as long as its frame says".into());
        }
        let asked = EmbedRequest::decode(frame).map_err(|error| error.to_string())?;
        Ok(Work { input: asked.tokens(), model: asked.model, output_most: Limit::AtMost(Tokens::ZERO) })
    }
}

/// The service.
#[derive(Clone)]
struct Embedder;

impl NamedService for Embedder {
    const NAME: &'static str = "embed.v1.Embedder";
}

type Answering<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl UnaryService<EmbedRequest> for Embedder {
    type Response = EmbedReply;
    type Future = Answering<Result<tonic::Response<EmbedReply>, Status>>;

    fn call(&mut self, request: tonic::Request<EmbedRequest>) -> Self::Future {
        Box::pin(async move {
            let granted = request.extensions().get::<Granted>().cloned();
            let asked = request.into_inner();
            let sizes = asked.texts.iter().map(|text| u32::try_from(text.len()).unwrap_or(u32::MAX)).collect();
            if let Some(granted) = granted {
                granted.used(Usage::plain(asked.tokens(), Tokens::ZERO));
            }
            Ok(tonic::Response::new(EmbedReply { sizes }))
        })
    }
}

impl Service<Request<tonic::body::Body>> for Embedder {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Answering<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != EMBED {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let codec = ProstCodec::<EmbedReply, EmbedRequest>::default();
            Ok(Grpc::new(codec).unary(service, request).await)
        })
    }
}

/// Serves the service behind a gate until this is dropped.
///
/// # Errors
/// When the connections break in a way that ends the server.
pub(crate) async fn serve(listener: tokio::net::TcpListener, gate: Gate) -> Result<(), tonic::transport::Error> {
    let layer = AdmissionLayer::new(gate).trusting_headers().appraised_by(Embeddings);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let routes = Routes::new(Embedder);
    tonic::transport::Server::builder().layer(layer).add_routes(routes).serve_with_incoming(incoming).await
}

/// The gate of this server's policy.
///
/// # Errors
/// When the policy is not valid.
pub(crate) fn gate() -> Result<Gate, Box<dyn std::error::Error>> {
    Ok(Gate::from_text(POLICY)?.start()?)
}
