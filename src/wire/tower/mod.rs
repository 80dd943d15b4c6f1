//! A tower layer: the door inside a Rust server, around any service of `http` requests (axum, tonic, hyper).
//!
//! Its [`poll_ready`](Service::poll_ready) is always ready; the decision is made in [`call`](Service::call), where the
//! request is known, and the service's own readiness is waited for once the request is let through: a readiness that is
//! reserved while a request queues would be taken from whoever could use it. The permit lives to the end of the
//! answer's body. Dropping the future, or the body, is leaving. The reverse proxy is this layer around a client, so
//! what is true of one is true of both.
//!
//! A service gets every request with a [`Body`] of one type and [`Granted`] among its extensions. A refusal is an answer
//! in the caller's dialect, never an error; what the service fails with is handed on as it is, or answered too
//! ([`AdmissionLayer::answering_errors`]). A service that panics
//! before it answers is answered for (502), and one that does not begin within
//! [`begin_within`](crate::settings::Door::begin_within) too (504).
//!
//! Bounded as the proxy is: bodies by [`Door`](crate::settings::Door), one memory for all clones of a layer.

mod appraise;
mod headers;
mod intake;
#[cfg(test)]
mod lives;
mod observed;
mod pass;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower_layer::Layer;
use tower_service::Service;

use crate::policy::model::Listener;
use crate::settings;
use crate::shell::Gate;

use super::answer::Refused;
use super::server::BodyError;
use intake::Bodies;
use pass::{Door, Failed};

pub use super::server::Body;
pub use appraise::{Appraise, ByHead, Dialects, Granted, Verified, Work};
pub(in crate::wire) use observed::Framing;

/// Lets requests through to a service as the policy says: whether, and when.
///
/// Clones, and all services that one wraps, share one gate and one bound of memory. See the crate's front page for a
/// whole example.
#[derive(Clone)]
pub struct AdmissionLayer(Door);

impl AdmissionLayer {
    /// A layer in front of a service that speaks the dialects. Headers do not name the tenant unless
    /// [`trusting_headers`](Self::trusting_headers) says so: the layer does not know who can reach it.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self::for_listener(gate, settings::Door::default(), Listener::Layer)
    }

    /// A layer whose requests come in by this listener.
    pub(in crate::wire) fn for_listener(gate: Gate, settings: settings::Door, listener: Listener) -> Self {
        let bodies = Bodies::new(&settings);
        Self(Door { gate, settings, bodies, trusted: false, listener, appraiser: Arc::new(Dialects) })
    }

    /// Lets the policy's headers name the tenant (`identity.tenant: [{header: …}]`). For a service that only trusted
    /// callers reach; a service that identifies callers itself puts [`Verified`] into the request's extensions instead.
    #[must_use]
    pub fn trusting_headers(mut self) -> Self {
        self.0.trusted = true;
        self
    }

    /// Other bounds of bodies and times. The key for upstreams is the proxy's alone.
    #[must_use]
    pub fn with_settings(mut self, settings: settings::Door) -> Self {
        self.0.bodies = Bodies::new(&settings);
        self.0.settings = settings;
        self
    }

    /// Has this say what requests cost that are in no dialect.
    #[must_use]
    pub fn appraised_by(mut self, appraiser: impl Appraise) -> Self {
        self.0.appraiser = Arc::new(appraiser);
        self
    }

    /// Has what services fail with answered in the caller's dialect.
    #[must_use]
    pub fn answering_errors(self) -> UnfailingLayer {
        UnfailingLayer(self)
    }

    /// The memory that bodies share.
    #[cfg(test)]
    pub(in crate::wire) fn memory(&self) -> &super::exchange::Memory {
        self.0.bodies.memory()
    }
}

impl fmt::Debug for AdmissionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionLayer").field("settings", &self.0.settings).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, service: S) -> Admission<S> {
        Admission { door: Arc::new(self.0.clone()), service }
    }
}

/// A service that requests get to as the policy says. Made by an [`AdmissionLayer`].
#[derive(Clone)]
pub struct Admission<S> {
    door: Arc<Door>,
    service: S,
}

impl<S> fmt::Debug for Admission<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").field("settings", &self.door.settings).finish_non_exhaustive()
    }
}

impl<S, B, RB> Service<Request<B>> for Admission<S>
where
    B: HttpBody<Error: Into<BodyError>> + Send + 'static,
    S: Service<Request<Body>, Response = Response<RB>, Future: Send + 'static, Error: Send + 'static>
        + Clone
        + Send
        + 'static,
    RB: HttpBody<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    /// Always ready: whether a request may run is decided when it is known.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let door = self.door.clone();
        let (service, request) = (Box::new(self.service.clone()), request.map(intake::given));
        Box::pin(async move { door.handle(request, service).await.map_err(|failed| failed.error) })
    }
}

/// An [`AdmissionLayer`] for services that fail: what they fail with is answered in the caller's dialect (502), so that
/// the service it makes never fails. axum asks for that.
#[derive(Clone, Debug)]
pub struct UnfailingLayer(AdmissionLayer);

impl<S> Layer<S> for UnfailingLayer {
    type Service = Unfailing<S>;

    fn layer(&self, service: S) -> Unfailing<S> {
        Unfailing(self.0.layer(service))
    }
}

/// A service that requests get to as the policy says, and that never fails. Made by an [`UnfailingLayer`].
#[derive(Clone, Debug)]
pub struct Unfailing<S>(Admission<S>);

impl<S, B, RB> Service<Request<B>> for Unfailing<S>
where
    B: HttpBody<Error: Into<BodyError>> + Send + 'static,
    S: Service<Request<Body>, Response = Response<RB>, Future: Send + 'static> + Clone + Send + 'static,
    S::Error: fmt::Display + Send + 'static,
    RB: HttpBody<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    /// Always ready: whether a request may run is decided when it is known.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Admission { door, service } = self.0.clone();
        let request = request.map(intake::given);
        Box::pin(async move {
            Ok(match door.handle(request, Box::new(service)).await {
                Ok(answered) => answered,
                Err(Failed { decision, voice, error }) => {
                    door.refuse(decision, voice, &Refused::UpstreamUnreachable(error.to_string()))
                }
            })
        })
    }
}
