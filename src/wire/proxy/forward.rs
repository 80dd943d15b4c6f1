//! The service behind the proxy's layer: sends a request on to its pool's upstream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use tower_service::Service;

use super::super::server::Body;
use super::super::tower::{Framing, Granted};
use super::{Upstream, UpstreamError, headers};

/// Sends requests on.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    upstream: Upstream,
    /// What the upstream is shown in place of the client's key.
    key: Option<HeaderValue>,
}

impl Forward {
    pub(super) fn new(upstream: Upstream, key: Option<HeaderValue>) -> Self {
        Self { upstream, key }
    }

    /// The request as the upstream is to see it.
    fn onward(&self, request: Request<Body>) -> Result<Request<Body>, UpstreamError> {
        let (head, body) = request.into_parts();
        let granted = head.extensions.get::<Granted>();
        let pool = granted.ok_or_else(|| UpstreamError::Unreachable("nobody said to which pool".into()))?.pool();
        let mut headers = headers::for_upstream(&head.headers);
        if let Some(key) = &self.key {
            headers::show_key(&mut headers, key);
        }
        let mut onward = Request::new(body);
        *onward.method_mut() = head.method;
        *onward.uri_mut() = self.upstream.uri(pool, &head.uri);
        *onward.headers_mut() = headers;
        Ok(onward)
    }
}

impl Service<Request<Body>> for Forward {
    type Response = Response<Incoming>;
    type Error = UpstreamError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, UpstreamError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), UpstreamError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let onward = self.onward(request);
        let upstream = self.upstream.clone();
        Box::pin(async move {
            let mut response = upstream.send(onward?).await?;
            let framing = framing(&response);
            response.extensions_mut().insert(framing);
            headers::clean_answer(response.headers_mut());
            Ok(response)
        })
    }
}

/// What ends an answer's body, by its head as it came (RFC 9112, section 6.3).
fn framing<B>(response: &Response<B>) -> Framing {
    let says = |name| response.headers().contains_key(name);
    if response.version() <= Version::HTTP_11 && !says(CONTENT_LENGTH) && !says(TRANSFER_ENCODING) {
        Framing::UntilClose
    } else {
        Framing::Framed
    }
}
