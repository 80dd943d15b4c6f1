//! The reverse proxy: the [layer](super::tower) around a client that sends on to each pool's upstream.
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

mod forward;
mod headers;
#[cfg(test)]
mod lives;
mod upstream;

use std::net::IpAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use tower_layer::Layer as _;
use tower_service::Service as _;

use crate::policy::model::Listener;
use crate::settings::Door;
use crate::shell::Gate;

use super::identity::trusts;
use super::server::Answering;
use super::tower::{AdmissionLayer, Unfailing};
use forward::Forward;

pub use upstream::{Upstream, UpstreamError};

/// The reverse proxy.
#[derive(Debug)]
pub struct Proxy {
    admission: Unfailing<Forward>,
    #[cfg(test)]
    memory: super::exchange::Memory,
}

impl Proxy {
    /// A proxy that listens at an address. The address decides whether its headers may name the tenant.
    #[must_use]
    pub fn new(gate: Gate, upstream: Upstream, settings: Door, listener: IpAddr) -> Arc<Self> {
        let trusted = trusts(&gate.policy().identity.trust, Listener::Proxy, listener);
        let forward = Forward::new(upstream, settings.upstream_key.clone());
        let layer = AdmissionLayer::for_listener(gate, settings, Listener::Proxy);
        let layer = if trusted { layer.trusting_headers() } else { layer };
        Arc::new(Self {
            #[cfg(test)]
            memory: layer.memory().clone(),
            admission: layer.answering_errors().layer(forward),
        })
    }

    /// Answers a request. Never fails: a fault of ours is an answer too.
    #[must_use]
    pub fn handle(self: &Arc<Self>, request: Request<Incoming>) -> Answering {
        let answered = self.admission.clone().call(request);
        Box::pin(async move {
            let Ok(answer) = answered.await;
            answer
        })
    }
}
