//! The admin API: what the gateway is doing, as JSON, for operators and their tools.
//!
//! It decides and changes nothing; a request is explained here as the core would decide it, and not let in. Every answer is a copy taken behind the gate's lock in one go, so the
//! numbers of one answer belong together. On a loopback address it is open; anywhere else it needs a bearer token,
//! and refuses to start without one. Probes (`/healthz`, `/readyz`) are open everywhere: they say nothing of anybody.
//!
//! Whoever looks holds decisions up for as long as the copy takes, so beyond [`PER_SECOND`] requests a second the next
//! wait their turn; nobody is refused for looking.
//!
//! Ready means able to decide. An engine that is down, or a queue that does not drain, is an alert and a field in
//! `/v1/queues`, never unreadiness, or one engine would take every replica of the gateway down with it.

mod accuracy;
mod budgets;
mod decisions;
mod explain;
mod policy;
mod rows;
mod sessions;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::admission::Rule;
use crate::observe::{BreakerGauge, Gauges, PoolGauge, QueueGauge};
use crate::shell::{Broken, Gate, Seen};
use crate::units::{Amount, Span, TenantId};

use super::explain::Doors;
use super::guard;
use super::server::Answering;

pub use policy::InForce;

/// How many requests are answered in a second, and as many at once after a pause; probes aside.
pub const PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");
/// What an envelope may hold beside its body.
const ENVELOPE: u64 = 1024 * 1024;

/// A secret, kept as its digest.
#[derive(Clone, Copy)]
pub struct Token([u8; 32]);

impl Token {
    /// Of a secret.
    #[must_use]
    pub fn new(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    fn is(self, presented: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        self.0.ct_eq(&digest).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why the admin API does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the admin API on {0} can be reached from elsewhere and needs a token: set TALLYGATE_ADMIN_TOKEN, or listen on a \
     loopback address"
)]
pub struct Unprotected(pub IpAddr);

/// The admin API of a gate.
#[derive(Clone, Debug)]
pub struct Admin {
    service: TowerToHyperService<Router>,
}

/// What the API tells beside what the gate knows.
#[derive(Clone, Debug)]
pub struct About {
    /// The policy in force, as it was read.
    pub policy: InForce,
    /// Where requests come in.
    pub doors: Doors,
}

#[derive(Debug)]
struct Desk {
    gate: Gate,
    about: About,
    token: Option<Token>,
    explaining: Semaphore,
    looking: DefaultDirectRateLimiter,
}

impl Admin {
    /// The API for a listener at an address.
    ///
    /// # Errors
    /// When the address can be reached from elsewhere and there is no token.
    pub fn new(gate: Gate, about: About, token: Option<Token>, listener: IpAddr) -> Result<Self, Unprotected> {
        if token.is_none() && !listener.is_loopback() {
            return Err(Unprotected(listener));
        }
        // An envelope is larger than the body in it: quoted, every character may take two, and there are the headers.
        let envelope_most = about.doors.body_most.get().saturating_mul(2).saturating_add(ENVELOPE);
        let envelope_most = usize::try_from(envelope_most).unwrap_or(usize::MAX);
        let looking = RateLimiter::direct(Quota::per_second(PER_SECOND));
        let desk = Arc::new(Desk { gate, about, token, explaining: Semaphore::new(explain::AT_ONCE), looking });
        let open = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
        let guarded = Router::new()
            .route("/v1/tenants", get(tenants))
            .route("/v1/tenants/{id}", get(tenant))
            .route("/v1/pools", get(pools))
            .route("/v1/queues", get(queues))
            .route("/v1/requests", get(requests))
            .route("/v1/sessions", get(sessions::of))
            .route("/v1/policy", get(policy::shown))
            .route("/v1/explain", post(explain::explain).layer(DefaultBodyLimit::max(envelope_most)))
            .route("/v1/decisions", get(decisions::list))
            .route("/v1/decisions/{id}", get(decisions::one))
            .route("/v1/accuracy", get(accuracy))
            .route("/v1/budgets", get(budgets))
            .route("/metrics", get(metrics))
            .layer(middleware::from_fn_with_state(desk.clone(), in_turn))
            .layer(middleware::from_fn_with_state(desk.clone(), check_token));
        let router =
            open.merge(guarded).fallback(unknown_path).method_not_allowed_fallback(wrong_method).with_state(desk);
        Ok(Self { service: TowerToHyperService::new(router) })
    }

    /// Answers a request.
    #[must_use]
    pub fn handle(&self, request: http::Request<Incoming>) -> Answering {
        let answering = self.service.call(request);
        Box::pin(async move {
            let response = match guard::guarded(answering).await {
                Ok(Ok(response)) => response,
                Err(guard::Panicked) => fault(StatusCode::INTERNAL_SERVER_ERROR, "the handler panicked; see the log"),
            };
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    }
}

/// An error in words.
fn fault(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": {"message": message}}))).into_response()
}

async fn check_token(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let Some(token) = desk.token else { return next.run(request).await };
    let presented =
        request.headers().get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if presented.is_some_and(|secret| token.is(secret.trim_ascii())) {
        return next.run(request).await;
    }
    let mut response = fault(StatusCode::UNAUTHORIZED, "the admin API needs Authorization: Bearer and its token");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    response
}

/// Lets so many look in a second; the next wait.
async fn in_turn(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    let clock = DefaultClock::default();
    while let Err(not_yet) = desk.looking.check() {
        desk.gate.clock().sleep(Span::from(not_yet.wait_time_from(clock.now()))).await;
    }
    next.run(request).await
}

/// Answers with rows, or says that the core is broken.
fn shown<T: Serialize>(rows: Result<T, Broken>) -> Response {
    match rows {
        Ok(rows) => Json(rows).into_response(),
        Err(broken) => fault(StatusCode::SERVICE_UNAVAILABLE, &broken.to_string()),
    }
}

async fn tenants(State(desk): State<Arc<Desk>>) -> Response {
    shown(rows::tenants(&desk.gate, None))
}

async fn tenant(State(desk): State<Arc<Desk>>, path: Result<Path<String>, PathRejection>) -> Response {
    let id = match path {
        Ok(Path(id)) => id,
        Err(rejection) => return fault(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    let id = TenantId::from(id.as_str());
    match rows::tenants(&desk.gate, Some(&id)) {
        Ok(rows) if rows.is_empty() => {
            fault(StatusCode::NOT_FOUND, &format!("tenant {id:?} has not been seen, or was idle and is forgotten"))
        }
        Ok(rows) => Json(rows).into_response(),
        Err(broken) => fault(StatusCode::SERVICE_UNAVAILABLE, &broken.to_string()),
    }
}

async fn pools(State(desk): State<Arc<Desk>>) -> Response {
    shown(rows::pools(&desk.gate))
}

async fn queues(State(desk): State<Arc<Desk>>) -> Response {
    shown(rows::queues(&desk.gate))
}

async fn requests(State(desk): State<Arc<Desk>>) -> Response {
    shown(rows::requests(&desk.gate))
}

async fn accuracy(State(desk): State<Arc<Desk>>) -> Response {
    shown(accuracy::rows(&desk.gate))
}

async fn budgets(State(desk): State<Arc<Desk>>) -> Response {
    shown(budgets::rows(&desk.gate))
}

async fn metrics(State(desk): State<Arc<Desk>>) -> Response {
    // Counters are still worth having when the core is broken.
    let gauges = desk.gate.look(|seen| gauges(&seen)).unwrap_or_default();
    match desk.gate.metrics().render(&gauges) {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => fault(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn gauges(seen: &Seen<'_>) -> Gauges {
    let queues = seen.engine.queues().into_iter().map(|queue| QueueGauge {
        pool: queue.pool,
        class: queue.class,
        requests: queue.requests,
        tokens: queue.tokens,
        oldest: queue.oldest_arrival.map_or(Span::ZERO, |since| seen.now.since(since)),
    });
    let views = seen.engine.pools();
    let breakers: Vec<_> = views
        .iter()
        .filter_map(|pool| {
            Some(BreakerGauge { pool: pool.pool, stage: pool.breaker?, held_back: pool.held_back.len() })
        })
        .collect();
    let pools = views.into_iter().map(|pool| PoolGauge {
        pool: pool.pool,
        requests: pool.in_flight_requests,
        tokens: pool.in_flight_tokens,
        most_requests: pool.caps.requests.cap(),
        most_tokens: pool.caps.tokens.cap(),
        blind: pool.adapted.is_some_and(|adapted| adapted.blind),
    });
    let signals = seen.engine.signals(seen.now).into_iter();
    let signals = signals.map(|signals| (signals, seen.engine.sight(signals.pool, seen.now)));
    let output = seen.experience.predictor.overall();
    let input = seen.experience.calibration.overall();
    Gauges {
        budgets: most_used(seen),
        queues: queues.collect(),
        pools: pools.collect(),
        breakers,
        signals: signals.collect(),
        prediction_error: vec![("mean_absolute", output.mean_absolute_error), ("bias", output.bias)],
        input_error: vec![
            ("mean_absolute", input.expected.mean_absolute_error),
            ("bias", input.expected.bias),
            ("counted_mean_absolute", input.counted.mean_absolute_error),
            ("counted_bias", input.counted.bias),
        ],
    }
}

/// Every budget, and the part of it used by whoever has used most.
fn most_used(seen: &Seen<'_>) -> Vec<(Rule, f64)> {
    let part = |(index, used): (u16, Amount)| {
        let budget = &seen.policy.budgets[usize::from(index)];
        (Rule::Budget(index), used.as_f64(budget.measure) / budget.amount.as_f64(budget.measure))
    };
    seen.engine.most_used().into_iter().map(part).collect()
}

async fn healthz(State(desk): State<Arc<Desk>>) -> Response {
    match desk.gate.look(|_| ()) {
        Ok(()) => Json(json!({"status": "alive"})).into_response(),
        Err(broken) => fault(StatusCode::INTERNAL_SERVER_ERROR, &broken.to_string()),
    }
}

async fn readyz(State(desk): State<Arc<Desk>>) -> Response {
    match desk.gate.look(|seen| seen.draining) {
        Ok(false) => match desk.gate.ledger_fault() {
            None => Json(json!({"status": "ready"})).into_response(),
            Some(what) => fault(StatusCode::SERVICE_UNAVAILABLE, &what),
        },
        Ok(true) => fault(StatusCode::SERVICE_UNAVAILABLE, "the gateway is shutting down"),
        Err(broken) => fault(StatusCode::SERVICE_UNAVAILABLE, &broken.to_string()),
    }
}

async fn unknown_path() -> Response {
    let paths = "/v1/tenants, /v1/tenants/{id}, /v1/sessions?tenant=, /v1/pools, /v1/queues, /v1/requests, \
                 /v1/decisions, /v1/decisions/{id}, /v1/policy, /v1/explain (POST), /v1/accuracy, /v1/budgets, /metrics, \
                 /healthz, /readyz";
    fault(StatusCode::NOT_FOUND, &format!("there is nothing here; there is {paths}"))
}

async fn wrong_method() -> Response {
    let what = "everything here is read with GET, but for /v1/explain, which is asked with POST";
    fault(StatusCode::METHOD_NOT_ALLOWED, what)
}
