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

mod body;
mod headers;
#[cfg(test)]
mod lives;
mod metered;
mod observed;
mod upstream;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::policy::model::Listener;
use crate::settings::Door;
use crate::shell::Gate;
use crate::units::{DecisionId, PoolIndex, Span};

use super::answer::Refused;
use super::dialect::Voice;
use super::exchange::{Arrival, Entered, Passing, RequestHead, Toll, came, enter, identified, passed, refuse, rename};
use super::guard;
use super::identity::{NoClaims, trusts};
use super::server::{Answering, Body};
use metered::Knock;

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
            came(&proxy.gate, decision, Listener::Proxy, request.method(), request.uri().path());
            let passing = Passing::new(&proxy.gate, decision);
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
        let arrived = self.gate.clock().now();
        let (head, body) = request.into_parts();
        let seen = RequestHead {
            method: &head.method,
            path: head.uri.path(),
            headers: &head.headers,
            bodiless: body.is_end_stream(),
        };
        let entered = enter(self.gate.policy(), self.trusted, seen, &NoClaims)?;
        identified(&self.gate, decision, &entered.identified);
        match entered.toll {
            Toll::Free => self.unmetered(decision, entered, &head, body).await,
            Toll::Metered { dialect, patience } => {
                let Entered { identified, coding, .. } = entered;
                let (caller, by_key) = (identified.caller, identified.by_key);
                let arrival = Arrival { decision, arrived, dialect, patience, caller };
                self.metered(Knock { arrival, head, body, coding, by_key }).await
            }
        }
    }

    /// Passes a request on that costs nothing and waits for nobody: to the pool that serves the model it names, else
    /// to the first.
    async fn unmetered(
        &self,
        decision: DecisionId,
        entered: Entered,
        head: &http::request::Parts,
        body: Incoming,
    ) -> Result<Response<Body>, Refused> {
        let held = self.bodies.read(body, entered.coding, &head.headers).await?;
        let (pool, body) = rename(self.gate.policy(), &entered.identified.caller, &held.bytes)?;
        let onward = self.onward(pool, head, entered.identified.by_key, body);
        passed(&self.gate, decision);
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
        refuse(&self.gate, decision, voice, refused)
            .map(|body| Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync())
    }
}
