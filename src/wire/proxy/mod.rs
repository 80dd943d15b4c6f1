//! The reverse proxy: a door that stands between clients and an upstream.
//!
//! A request in one of the dialects is metered: identified, read, quoted, admitted, sent on, watched to the last byte
//! and settled. A request without a body (`GET /v1/models`) and one that only counts tokens pass unmetered, but not
//! unidentified. Everything else does as the policy's `unmetered` says, and is refused by name unless it says
//! otherwise, since what is not read cannot be charged.
//!
//! Whatever becomes of a request, it is settled once. A client that leaves is noticed while it waits, before the
//! first token and in the middle of the stream, because hyper drops the handler or the body; dropping them drops the
//! permit, which settles, and the upstream's connection, which cancels. A handler that panics answers 500, and what
//! it had not sent on stays unsent.

pub(super) mod body;
pub(super) mod coding;
pub(super) mod headers;
pub(super) mod metered;
pub(super) mod observed;
pub(super) mod patience;
mod upstream;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::policy::Policy;
use crate::policy::model::{Caller, Listener, Unmetered};
use crate::settings::Door;
use crate::shell::Gate;
use crate::units::{DecisionId, PoolIndex, Span};

use super::answer::Refused;
use super::dialect::{Dialect, Named, Voice};
use super::guard;
use super::identity::{IdentityError, identify, trusts};
use super::paths::{self, Route};
use super::record;
use super::server::{Answering, Body};

pub use upstream::{Upstream, UpstreamError};

/// The reverse proxy.
#[derive(Debug)]
pub struct Proxy {
    gate: Gate,
    upstream: Upstream,
    settings: Door,
    bodies: body::Bodies,
    trusted: bool,
}

impl Proxy {
    /// A proxy that listens at an address. The address decides whether its headers may name the tenant.
    #[must_use]
    pub fn new(gate: Gate, upstream: Upstream, settings: Door, listener: IpAddr) -> Arc<Self> {
        let trusted = trusts(&gate.policy().identity.trust, Listener::Proxy, listener);
        let bodies = body::Bodies::new(&settings);
        Arc::new(Self { gate, upstream, settings, bodies, trusted })
    }

    /// Answers a request. Never fails: a fault of ours is an answer too.
    #[must_use]
    pub fn handle(self: &Arc<Self>, request: Request<Incoming>) -> Answering {
        let proxy = self.clone();
        Box::pin(async move {
            let decision = proxy.gate.decision();
            let voice = Voice::of(request.uri().path(), request.headers());
            record::came(&proxy.gate, decision, Listener::Proxy, request.method(), request.uri().path());
            let passing = record::Passing::new(&proxy.gate, decision);
            let response = match guard::guarded(proxy.route(decision, request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(refused)) => proxy.refuse(decision, voice, &refused),
                Err(guard::Panicked) => proxy.refuse(decision, voice, &Refused::Internal),
            };
            passing.done();
            response
        })
    }

    async fn route(&self, decision: DecisionId, request: Request<Incoming>) -> Result<Response<Body>, Refused> {
        let (method, path) = (request.method(), request.uri().path());
        let empty = request.body().is_end_stream();
        match metered_in(self.gate.policy(), method, path, request.headers(), empty)? {
            Some(dialect) => self.metered(decision, dialect, request).await,
            None => self.unmetered(decision, request).await,
        }
    }

    /// Passes a request on that costs nothing and waits for nobody: to the pool that serves the model it names, else
    /// to the first.
    async fn unmetered(&self, decision: DecisionId, request: Request<Incoming>) -> Result<Response<Body>, Refused> {
        let identified = identify(&self.gate.policy().identity, self.trusted, request.headers()).map_err(refused)?;
        record::identified(&self.gate, decision, &identified);
        let (head, incoming) = request.into_parts();
        let held = self.bodies.read(incoming, &head.headers).await?;
        let (pool, body) = renamed(self.gate.policy(), &identified.caller, &held.bytes)?;
        let onward = self.onward(pool, &head, identified.by_key, body);
        self.gate.decisions().passed(decision.request);
        let response = self.upstream.send(onward, self.settings.begin_within).await.map_err(UpstreamError::refused)?;
        let (mut head, body) = response.into_parts();
        headers::clean_answer(&mut head.headers);
        super::answer::mark_admitted(&mut head.headers, decision, Span::ZERO);
        Ok(Response::from_parts(head, observed::unmetered(body, self.settings.idle_most).boxed_unsync()))
    }

    /// The request as the upstream is to see it.
    fn onward(&self, pool: PoolIndex, head: &http::request::Parts, by_key: bool, body: Bytes) -> Request<Full<Bytes>> {
        let mut headers: HeaderMap = headers::for_upstream(&head.headers, by_key);
        if let Some(key) = &self.settings.upstream_key {
            headers::show_key(&mut headers, key);
        }
        let mut onward = Request::new(Full::new(body));
        *onward.method_mut() = head.method.clone();
        *onward.uri_mut() = self.upstream.uri(pool, &head.uri);
        *onward.headers_mut() = headers;
        onward
    }

    fn refuse(&self, decision: DecisionId, voice: Voice, refused: &Refused) -> Response<Body> {
        record::refused(&self.gate, decision, voice, refused)
            .map(|body| Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync())
    }
}

/// The dialect a request is metered in; nothing where it passes unmetered.
///
/// # Errors
/// When it does neither, or what it wants does not exist here.
pub(super) fn metered_in(
    policy: &Policy,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body_is_empty: bool,
) -> Result<Option<Dialect>, Refused> {
    if method == Method::CONNECT || headers.contains_key(http::header::UPGRADE) {
        let what = "WebSocket and other upgraded connections are not supported; use POST with \"stream\": true";
        return Err(Refused::Unsupported(what.into()));
    }
    match paths::route(method, path, body_is_empty) {
        Route::Metered(dialect) => Ok(Some(dialect)),
        Route::Free => Ok(None),
        Route::Unsupported(what) => Err(Refused::Unsupported(format!("{method} {}: {what}", shorten(path)))),
        Route::Unknown => match policy.unmetered {
            Unmetered::Pass => Ok(None),
            Unmetered::Refuse => Err(Refused::Unsupported(format!(
                "{method} {} is not metered and the policy lets nothing unmetered pass (unmetered: refuse)",
                shorten(path)
            ))),
        },
    }
}

/// An unmetered body as the upstream is to see it, and the pool that serves the model it names, else the first.
///
/// # Errors
/// When it names a model that no pool serves.
pub(super) fn renamed(policy: &Policy, caller: &Caller, body: &Bytes) -> Result<(PoolIndex, Bytes), Refused> {
    let Some(named) = Named::read(body) else { return Ok((PoolIndex::new(0), body.clone())) };
    let selection = policy
        .select(&caller.tenant, caller.wished_class.as_deref(), &named.model)
        .ok_or_else(|| Refused::ModelNotFound(named.model.clone()))?;
    Ok((selection.pool, named.forward(body, selection.model.as_str())))
}

/// What a failed identification is answered with.
pub(super) fn refused(error: IdentityError) -> Refused {
    match error {
        IdentityError::Malformed(what) => Refused::Malformed(what),
        other @ (IdentityError::UnknownKey | IdentityError::Unidentified(_)) => {
            Refused::Unidentified(other.to_string())
        }
    }
}

/// At most a line of what the client wrote, for a message.
fn shorten(text: &str) -> &str {
    const SHOWN: usize = 100;
    &text[..text.floor_char_boundary(SHOWN)]
}
