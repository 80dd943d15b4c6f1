//! An axum server with the admission layer in front of a client of its own: what a user of the library would write.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, TRANSFER_ENCODING};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tallygate::policy::model::Listener;
use tallygate::settings::Door;
use tallygate::shell::Gate;
use tallygate::wire::identity::trusts;
use tallygate::{AdmissionLayer, Body};
use tokio::net::TcpListener;
use tower::Layer as _;

/// Serves it, behind this gate and in front of this upstream, and tells where.
pub(crate) async fn layered(gate: &Gate, door: Door, upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = listener.local_addr().expect("bound");
    let layer = AdmissionLayer::new(gate.clone()).with_settings(door);
    // As the proxy on the same address would.
    let trusted = trusts(&gate.policy().identity.trust, Listener::Proxy, address.ip());
    let layer = if trusted { layer.trusting_headers() } else { layer };
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(HttpConnector::new());
    let app = Router::new().fallback_service(layer.answering_errors().layer(Forward { client, upstream }));
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

/// Sends requests on.
#[derive(Clone)]
struct Forward {
    client: Client<HttpConnector, Body>,
    upstream: SocketAddr,
}

impl tower::Service<Request<Body>> for Forward {
    type Response = Response<Incoming>;
    type Error = hyper_util::client::legacy::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = format!("http://{}{path}", self.upstream).parse::<Uri>().expect("a URI");
        for name in [HOST, CONTENT_LENGTH] {
            request.headers_mut().remove(name);
        }
        clean(request.headers_mut());
        let asked = self.client.request(request);
        Box::pin(async move {
            let mut response = asked.await?;
            clean(response.headers_mut());
            Ok(response)
        })
    }
}

/// Takes out what concerns one connection.
fn clean(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_owned()))
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION.as_str(), TRANSFER_ENCODING.as_str(), "keep-alive", "te", "trailer", "upgrade"] {
        headers.remove(name);
    }
}
