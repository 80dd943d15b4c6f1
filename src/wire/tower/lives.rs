//! Random lives at the layer: callers whose bodies come slowly, partly, broken, and who drop the future or the answer at
//! any point; services that are not ready, fail, panic, never answer, and whose bodies break, panic, end early or carry
//! trailers. Whatever happens, every ticket is settled once, and all memory comes back.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep};
use tower_layer::Layer;
use tower_service::Service;

use super::{AdmissionLayer, Appraise, Body, BodyError, ByHead, Granted, Work};
use crate::units::{Limit, Tokens, Usage};
use crate::wire::lives::{BATCH, OUTCOMES, at_rest, body, door, events, gate, seeds, wild};

/// Pieces that come when they come, and what ends them.
struct Pieces {
    left: Vec<Bytes>,
    end: End,
    rng: StdRng,
    waiting: Option<Pin<Box<Sleep>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    Trailers,
    FailedTrailers,
    Broken,
    Panic,
    Never,
}

impl Pieces {
    fn new(text: &str, end: End, mut rng: StdRng) -> Self {
        let size = rng.random_range(1..600);
        let mut left: Vec<Bytes> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        left.reverse();
        Self { left, end, rng, waiting: None }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.waiting.is_none() && self.rng.random_bool(0.3) {
            let pause = Duration::from_millis(self.rng.random_range(0..6_000));
            self.waiting = Some(Box::pin(sleep(pause)));
        }
        if let Some(waiting) = &mut self.waiting {
            std::task::ready!(waiting.as_mut().poll(context));
            self.waiting = None;
        }
        if let Some(piece) = self.left.pop() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        match std::mem::replace(&mut self.end, End::Good) {
            End::Good => Poll::Ready(None),
            End::Trailers => Poll::Ready(Some(Ok(trailers("0")))),
            End::FailedTrailers => Poll::Ready(Some(Ok(trailers("14")))),
            End::Broken => Poll::Ready(Some(Err("it broke".into()))),
            End::Panic => panic!("on purpose: a body"),
            End::Never => {
                self.end = End::Never;
                Poll::Pending
            }
        }
    }
}

fn trailers(status: &'static str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    Frame::trailers(trailers)
}

/// A service with a fate for each request.
#[derive(Clone)]
struct Moody(std::sync::Arc<std::sync::Mutex<StdRng>>);

type Answering = Pin<Box<dyn Future<Output = Result<Response<Pieces>, BodyError>> + Send>>;

impl Service<Request<Body>> for Moody {
    type Response = Response<Pieces>;
    type Error = BodyError;
    type Future = Answering;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        match self.0.lock().expect("nobody panics with it").random_range(0..40) {
            0 => Poll::Ready(Err("never ready".into())),
            1..5 => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: Request<Body>) -> Answering {
        let mut rng = StdRng::seed_from_u64(self.0.lock().expect("nobody panics with it").random());
        let granted = request.extensions().get::<Granted>().cloned();
        Box::pin(async move {
            if rng.random_bool(0.3) {
                // More than the layer waits, now and then.
                sleep(Duration::from_millis(rng.random_range(0..30_000))).await;
            }
            match rng.random_range(0..20) {
                0 => return Err("it failed".into()),
                1 => panic!("on purpose: a service"),
                2 => std::future::pending().await,
                // Reads none of it, or all.
                3..8 => drop(request.into_body().collect().await),
                _ => drop(request),
            }
            if let Some(granted) = granted.filter(|_| rng.random_bool(0.7)) {
                granted.produced(Tokens::new(rng.random_range(0..50)));
                if rng.random_bool(0.5) {
                    granted.used(Usage::plain(Tokens::new(7), Tokens::new(rng.random_range(0..50))));
                }
            }
            let streams = rng.random_bool(0.6);
            let text: String = if streams {
                (0..rng.random_range(0..12)).map(|_| events(&mut rng)).collect()
            } else {
                "{\"usage\":{\"x\":1}}".into()
            };
            let ends = [End::Good, End::Good, End::Trailers, End::FailedTrailers, End::Broken, End::Panic, End::Never];
            let end = ends[rng.random_range(0..ends.len())];
            let kind = if streams { "text/event-stream" } else { "application/json" };
            let answer = Response::builder()
                .status([200, 200, 200, 200, 500, 429][rng.random_range(0..6)])
                .header("content-type", kind);
            Ok(answer.body(Pieces::new(&text, end, rng)).expect("a response"))
        })
    }
}

/// Work by path: one whose head tells it, one whose body does, one that is nobody's business.
struct ByPath;

impl Appraise for ByPath {
    fn by_head(&self, head: &http::request::Parts) -> ByHead {
        match head.uri.path() {
            "/head" => ByHead::Work(work(20)),
            "/body" => ByHead::Read,
            "/pass" => ByHead::Pass,
            _ => ByHead::Known,
        }
    }

    fn by_body(&self, _head: &http::request::Parts, body: &Bytes) -> Result<Work, String> {
        if body.len() < 20 { Err("too short".into()) } else { Ok(work(body.len() as u64 / 4)) }
    }
}

fn work(input: u64) -> Work {
    Work { model: "m".into(), input: Tokens::new(input), output_most: Limit::AtMost(Tokens::new(100)) }
}

/// One caller's life.
async fn caller(layer: AdmissionLayer, service: Moody, mut rng: StdRng) {
    let paths =
        ["/v1/chat/completions", "/v1/chat/completions", "/v1/messages", "/v1/models", "/head", "/body", "/pass"];
    let path = paths[rng.random_range(0..paths.len())];
    let ends = [End::Good, End::Good, End::Good, End::Good, End::Trailers, End::Broken, End::Panic, End::Never];
    let end = ends[rng.random_range(0..ends.len())];
    let tenant = ["a", "b", "c"][rng.random_range(0..3)];
    let mut request = Request::post(path).header("x-tenant-id", tenant);
    if rng.random_bool(0.3) {
        request = request.header("session-id", "s");
    }
    if rng.random_bool(0.2) {
        request = request.header("x-tallygate-deadline-ms", "50");
    }
    let text = body(&mut rng);
    let request = request.body(Pieces::new(&text, end, StdRng::seed_from_u64(rng.random()))).expect("a request");
    let mut service = layer.layer(service);
    let patience = |rng: &mut StdRng, sometimes: f64| {
        let most = if rng.random_bool(sometimes) { 5_000 } else { 200_000 };
        Duration::from_millis(rng.random_range(0..most))
    };
    let answering = service.call(request);
    // Dropping the future wherever it is.
    let Ok(Ok(answer)) = tokio::time::timeout(patience(&mut rng, 0.3), answering).await else { return };
    let mut answer = answer.into_body();
    let reading = async { while let Some(Ok(_)) = answer.frame().await {} };
    // Or the body.
    drop(tokio::time::timeout(patience(&mut rng, 0.3), reading).await);
}

async fn batch(seed: u64) -> BTreeSet<String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let gate = gate();
    let layer = AdmissionLayer::new(gate.clone()).with_settings(door()).trusting_headers().appraised_by(ByPath);
    let all = layer.memory().free();
    let service = Moody(std::sync::Arc::new(std::sync::Mutex::new(StdRng::seed_from_u64(rng.random()))));
    let mut callers = JoinSet::new();
    for _ in 0..BATCH {
        callers.spawn(caller(layer.clone(), service.clone(), StdRng::seed_from_u64(rng.random())));
        sleep(Duration::from_millis(rng.random_range(0..1_000))).await;
    }
    while let Some(ended) = callers.join_next().await {
        // A body of the service's or the caller's own that panics does so where it is read.
        if let Err(error) = ended {
            assert!(error.is_panic(), "TALLYGATE_SEED={seed}: {error}");
        }
    }
    at_rest(&gate, layer.memory(), all, seed).await
}

#[tokio::test(start_paused = true)]
async fn whatever_callers_and_services_do_every_life_is_settled_once() {
    let mut seen = BTreeSet::new();
    for seed in seeds() {
        seen.append(&mut batch(seed).await);
    }
    wild(&seen, &OUTCOMES);
}
