//! One request through the layer: from its head to the head of its answer, in the order in which that happens.
//!
//! This is the whole of what a door adds to `wire::exchange`: how a body is held, how the service is asked, and how its
//! answer is handed back. The layer and the proxy differ in the service alone. The permit stands beside the service's
//! future, never inside it, so a service that fails, panics or is given up settles like any other that gave no answer;
//! and whoever drops this future drops both.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response, Uri};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, Full};
use tower_service::Service;

use crate::admission::Outcome;
use crate::policy::model::Listener;
use crate::shell::Gate;
use crate::units::{self, DecisionId, PoolIndex, Span};

use super::super::answer::{self, Refused};
use super::super::dialect::{Voice, grpc};
use super::super::exchange::{
    Admitted, Appraised, Arrival, Entered, Passing, Prepared, REPORT, RequestHead, Told, Toll, appraise, came, enter,
    enter_appraised, enter_as, identified, mark, passed, prepare, refuse, rename,
};
use super::super::guard::{Panicked, guarded};
use super::super::identity::{Identified, NoClaims};
use super::super::server::{Body, BodyError};
use super::appraise::{Appraise, ByHead, Granted, Verified, Work};
use super::headers;
use super::intake::{Bodies, given};
use super::observed::{Framing, Observed};

/// What every request through one layer is passed by.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) gate: Gate,
    pub(super) settings: crate::settings::Door,
    pub(super) bodies: Bodies,
    pub(super) trusted: bool,
    pub(super) listener: Listener,
    pub(super) appraiser: Arc<dyn Appraise>,
}

/// The service, as it is asked here. One seam for all services keeps their types out of what is long.
pub(super) type Inner<E> = Box<dyn Ask<E>>;

/// A service that can be asked.
pub(super) trait Ask<E>: Send {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), E>>;
    fn call(&mut self, request: Request<Body>) -> Asked<E>;
}

/// Its answer on its way.
type Asked<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S, RB> Ask<S::Error> for S
where
    S: Service<Request<Body>, Response = Response<RB>, Future: Send + 'static> + Send,
    RB: HttpBody<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Service::poll_ready(self, context)
    }

    fn call(&mut self, request: Request<Body>) -> Asked<S::Error> {
        boxed(Service::call(self, request))
    }
}

/// The compiler loses sight of a service's own future being `Send`, but not of one named like this.
fn boxed<F, RB, E>(asked: F) -> Asked<E>
where
    F: Future<Output = Result<Response<RB>, E>> + Send + 'static,
    RB: HttpBody<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    Box::pin(async move { Ok(asked.await?.map(given)) })
}

/// A service failed, for a request that can still be answered in its place.
pub(super) struct Failed<E> {
    pub(super) decision: DecisionId,
    pub(super) voice: Voice,
    pub(super) error: E,
}

/// Why a service gave no answer of its own.
enum Unanswered<E> {
    /// It is answered in its place.
    Refused(Refused),
    /// It failed.
    Failed(E),
}

impl<E> From<Refused> for Unanswered<E> {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// One call: its decision, and what is known of it before its body.
struct Call {
    decision: DecisionId,
    voice: Voice,
    head: Parts,
}

/// What goes on to the service once a request is let through.
struct Onward {
    prepared: Prepared,
    told: Option<Told>,
    caller: Arc<crate::policy::model::Caller>,
    by_key: bool,
    body: Sent,
}

/// A body on its way to the service.
enum Sent {
    /// Held, and sent whole.
    Held(Bytes),
    /// As it comes.
    Stream(Body),
}

impl Door {
    /// Passes a request through.
    ///
    /// # Errors
    /// With what the service fails with.
    pub(super) async fn handle<E>(
        &self,
        request: Request<Body>,
        service: Inner<E>,
    ) -> Result<Response<Body>, Failed<E>> {
        let decision = self.gate.decision();
        let (head, body) = request.into_parts();
        let speaks_grpc = grpc::is_call(&head.headers);
        let voice = if speaks_grpc { Voice::Grpc } else { Voice::of(head.uri.path(), &head.headers) };
        let by_head = self.appraiser.by_head(&head);
        if by_head == ByHead::Pass {
            let untouched = untouched(head, body, service).await;
            return untouched.map_err(|error| Failed { decision, voice, error });
        }
        came(&self.gate, decision, self.listener, &head.method, head.uri.path());
        let passing = Passing::new(&self.gate, decision);
        let call = Call { decision, voice, head };
        let answered = guarded(self.route(by_head, call, body, service)).await;
        let response = match answered.unwrap_or_else(|Panicked| Err(Unanswered::Refused(Refused::Internal))) {
            Ok(response) => Ok(response),
            Err(Unanswered::Refused(refused)) => Ok(self.refuse(decision, voice, &refused)),
            Err(Unanswered::Failed(error)) => Err(Failed { decision, voice, error }),
        };
        passing.done();
        response
    }

    async fn route<E>(
        &self,
        by_head: ByHead,
        call: Call,
        body: Body,
        service: Inner<E>,
    ) -> Result<Response<Body>, Unanswered<E>> {
        match by_head {
            ByHead::Known | ByHead::Pass => self.known(call, body, service).await,
            ByHead::Work(work) => self.appraised(call, Some(work), body, service).await,
            ByHead::Read => self.appraised(call, None, body, service).await,
        }
    }

    /// A request in one of the dialects, or one of which the policy says what becomes of it.
    async fn known<E>(&self, call: Call, body: Body, service: Inner<E>) -> Result<Response<Body>, Unanswered<E>> {
        let arrived = self.gate.clock().now();
        let policy = self.gate.policy();
        let seen = seen(&call.head, body.is_end_stream());
        let entered = match call.head.extensions.get::<Verified>() {
            Some(Verified(tenant)) => enter_as(policy, seen, tenant.clone()),
            None => enter(policy, self.trusted, seen, &NoClaims),
        };
        let Entered { identified: caller, coding, toll } = entered?;
        identified(&self.gate, call.decision, &caller);
        let Identified { caller, by_key, .. } = caller;
        let held = self.bodies.read(body, coding, &call.head.headers).await?;
        match toll {
            Toll::Free => {
                let (pool, body) = rename(policy, &caller, &held.bytes)?;
                self.unmetered(call, Free { pool, caller: Arc::new(caller), by_key, body }, service).await
            }
            Toll::Metered { dialect, patience } => {
                let shared = Arc::new(caller.clone());
                let path = call.head.uri.path().into();
                let arrival = Arrival { decision: call.decision, arrived, dialect, path, patience, caller };
                let (prepared, body) = prepare(policy, arrival, held.bytes.clone()).await?;
                let body = Sent::Held(body);
                self.metered(call, Onward { prepared, told: None, caller: shared, by_key, body }, service).await
            }
        }
    }

    /// A request whose cost is told: at once, or once its body is here.
    async fn appraised<E>(
        &self,
        call: Call,
        work: Option<Work>,
        body: Body,
        service: Inner<E>,
    ) -> Result<Response<Body>, Unanswered<E>> {
        let arrived = self.gate.clock().now();
        let policy = self.gate.policy();
        let tenant = call.head.extensions.get::<Verified>().map(|Verified(tenant)| tenant.clone());
        let seen = seen(&call.head, body.is_end_stream());
        let (caller, patience, coding) = enter_appraised(policy, self.trusted, seen, tenant)?;
        identified(&self.gate, call.decision, &caller);
        let Identified { caller, by_key, .. } = caller;
        let (work, body, _held) = match work {
            Some(work) => (work, Sent::Stream(body), None),
            None => {
                let held = self.bodies.read(body, coding, &call.head.headers).await?;
                let work = self.appraiser.by_body(&call.head, &held.bytes).map_err(Refused::Malformed)?;
                (work, Sent::Held(held.bytes.clone()), Some(held))
            }
        };
        let Work { model, input, output_most: cap } = work;
        let bytes = match &body {
            Sent::Held(bytes) => units::Bytes::new(bytes.len() as u64),
            Sent::Stream(_) => units::Bytes::ZERO,
        };
        let (decision, shared) = (call.decision, Arc::new(caller.clone()));
        let told = Appraised { decision, arrived, patience, caller, model, input, cap, bytes };
        let (prepared, told) = appraise(policy, told)?;
        self.metered(call, Onward { prepared, told: Some(told), caller: shared, by_key, body }, service).await
    }

    /// Passes a request on that costs nothing and waits for nobody: to the pool that serves the model it names, else
    /// to the first.
    async fn unmetered<E>(&self, call: Call, free: Free, service: Inner<E>) -> Result<Response<Body>, Unanswered<E>> {
        let Call { decision, mut head, .. } = call;
        let Free { pool, caller, by_key, body } = free;
        head.headers = headers::with_body(head.headers, body.len(), by_key);
        head.extensions.insert(Granted { decision, caller, pool, waited: Span::ZERO, told: None });
        passed(&self.gate, decision);
        let asked = self.ask(service, Request::from_parts(head, whole(body)), || ()).await;
        let (mut head, body) = asked.map_err(|(_, unanswered)| unanswered)?.into_parts();
        headers::without_ours(&mut head.headers);
        answer::mark_admitted(&mut head.headers, decision, Span::ZERO);
        Ok(Response::from_parts(head, Observed::unmetered(body, self.settings.idle_most).boxed_unsync()))
    }

    /// Has a request decided, hands it on, and hands its answer back.
    async fn metered<E>(&self, call: Call, onward: Onward, service: Inner<E>) -> Result<Response<Body>, Unanswered<E>> {
        let Call { decision, voice, mut head } = call;
        let Onward { prepared, told, caller, by_key, body } = onward;
        let pool = prepared.pool();
        if let Some(path) = prepared.path() {
            head.uri = moved(&head.uri, path);
        }
        let mut admitted = prepared.admit(&self.gate).await?;
        let body = match body {
            Sent::Held(bytes) => {
                head.headers = headers::with_body(head.headers, bytes.len(), by_key);
                whole(bytes)
            }
            Sent::Stream(body) => {
                head.headers = headers::as_it_came(head.headers, by_key);
                body
            }
        };
        admitted.ask_for_load(&mut head.headers);
        head.extensions.insert(Granted { decision, caller, pool, waited: admitted.waited(), told });
        match self.ask(service, Request::from_parts(head, body), || admitted.sent()).await {
            Ok(response) => Ok(self.answer(decision, voice, admitted, response)),
            Err((outcome, unanswered)) => {
                admitted.unanswered(outcome);
                Err(unanswered)
            }
        }
    }

    /// Waits for the service to be ready, hands it a request, and waits for the head of its answer.
    async fn ask<E>(
        &self,
        mut service: Inner<E>,
        request: Request<Body>,
        sent: impl FnOnce(),
    ) -> Result<Response<Body>, (Outcome, Unanswered<E>)> {
        let within = self.settings.begin_within;
        let asking = guarded(async move {
            poll_fn(|context| service.poll_ready(context)).await?;
            sent();
            service.call(request).await
        });
        match tokio::time::timeout(within.to_std(), asking).await {
            Ok(Ok(Ok(response))) => Ok(response),
            Ok(Ok(Err(error))) => Err((Outcome::UpstreamFailed, Unanswered::Failed(error))),
            Ok(Err(Panicked)) => {
                let refused = Refused::UpstreamUnreachable("the service failed before it answered".into());
                Err((Outcome::UpstreamFailed, refused.into()))
            }
            Err(_elapsed) => Err((Outcome::TimedOut, Refused::UpstreamSilent { within }.into())),
        }
    }

    /// Hands an answer back, watched to its end by the permit's side.
    fn answer(
        &self,
        decision: DecisionId,
        voice: Voice,
        admitted: Admitted,
        response: Response<Body>,
    ) -> Response<Body> {
        let (mut head, body) = response.into_parts();
        let framing = head.extensions.remove::<Framing>().unwrap_or_default();
        headers::without_ours(&mut head.headers);
        mark(&mut head.headers, &self.gate, decision, voice, &admitted);
        let keeps_load = admitted.keeps_load();
        let meter = admitted.meter(head.status, &head.headers);
        if keeps_load {
            head.headers.remove(REPORT);
        }
        if meter.shortens() {
            // What is hidden makes it shorter than the upstream said.
            head.headers.remove(CONTENT_LENGTH);
        }
        Response::from_parts(head, Observed::metered(body, framing, meter, self.settings.idle_most).boxed_unsync())
    }

    pub(super) fn refuse(&self, decision: DecisionId, voice: Voice, refused: &Refused) -> Response<Body> {
        refuse(&self.gate, decision, voice, refused).map(|body| whole(body.into()))
    }
}

/// A request that costs nothing.
struct Free {
    pool: PoolIndex,
    caller: Arc<crate::policy::model::Caller>,
    by_key: bool,
    body: Bytes,
}

fn seen(head: &Parts, bodiless: bool) -> RequestHead<'_> {
    RequestHead { method: &head.method, path: head.uri.path(), headers: &head.headers, bodiless }
}

/// The same with another path; the query stays.
fn moved(uri: &Uri, path: &str) -> Uri {
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = format!("{path}{query}").parse().ok();
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}

/// A body that is here.
fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Hands a request on that is none of the layer's business.
async fn untouched<E>(head: Parts, body: Body, mut service: Inner<E>) -> Result<Response<Body>, E> {
    poll_fn(|context| service.poll_ready(context)).await?;
    service.call(Request::from_parts(head, body)).await
}
