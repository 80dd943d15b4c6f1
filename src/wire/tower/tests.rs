use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_service::Service;

use super::{AdmissionLayer, Appraise, Body, ByHead, Granted, Verified, Work};
use crate::observe::Gauges;
use crate::shell::Gate;
use crate::units::{Limit, Tokens, Usage};

const POLICY: &str = "
version: 1
pools: [{name: chat, models: ['*'], window: {requests: 1}, queue: {requests: 1}}]
";

const CHAT: &str = r#"{"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}"#;
const ANSWER: &str =
    r#"{"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 10, "completion_tokens": 4}}"#;

fn gate() -> Gate {
    Gate::from_text(POLICY).expect("a policy").start().expect("a gate")
}

fn chat() -> Request<Full<Bytes>> {
    Request::post("/v1/chat/completions").body(Full::from(CHAT)).expect("a request")
}

/// What was settled, and the one outcome it was settled as.
async fn ended(gate: &Gate) -> (String, String) {
    gate.idle().await.expect("not broken");
    let settled = gate.look(|seen| seen.ledger.total().settled).expect("not broken");
    let text = gate.metrics().render(&Gauges::default()).expect("metrics render");
    let ends: Vec<&str> = text.lines().filter(|line| line.starts_with("tallygate_settled_total{")).collect();
    let [end] = ends[..] else { panic!("one end: {ends:?}") };
    let outcome = end.split("outcome=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an outcome");
    (settled.to_string(), outcome.to_owned())
}

/// A service that is ready only once it was asked often.
#[derive(Clone)]
struct Slow(u32);

impl Service<Request<Body>> for Slow {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0 = self.0.saturating_sub(1);
        if self.0 > 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: Request<Body>) -> Self::Future {
        assert_eq!(self.0, 0, "it was waited for");
        std::future::ready(Ok(Response::new(Full::from(ANSWER))))
    }
}

#[tokio::test]
async fn it_is_always_ready_and_waits_for_its_service_when_the_turn_has_come() {
    let gate = gate();
    let mut service = AdmissionLayer::new(gate.clone()).layer(Slow(5));
    let ready =
        poll_fn(|context| Poll::Ready(Service::<Request<Full<Bytes>>>::poll_ready(&mut service, context).is_ready()));
    assert!(ready.await, "though its service is not");
    let answer = service.call(chat()).await.expect("infallible");
    assert_eq!(answer.into_body().collect().await.expect("whole").to_bytes(), ANSWER);
    assert_eq!(ended(&gate).await, ("18.0".into(), "completed".into()));
}

#[tokio::test]
async fn what_a_service_fails_with_is_handed_on_or_answered_and_settles_either_way() {
    let broken = || service_fn(|_: Request<Body>| async { Err::<Response<Full<Bytes>>, _>("it is down") });
    let gate_one = gate();
    let handed_on = AdmissionLayer::new(gate_one.clone()).layer(broken()).oneshot(chat()).await;
    assert_eq!(handed_on.err(), Some("it is down"));
    assert_eq!(ended(&gate_one).await, ("0.0".into(), "upstream_failed".into()));

    let gate_two = gate();
    let layer = AdmissionLayer::new(gate_two.clone()).answering_errors();
    let answer = layer.layer(broken()).oneshot(chat()).await.expect("infallible");
    assert_eq!(answer.status().as_u16(), 502);
    assert_eq!(answer.headers()["x-tallygate-reason"], "upstream_unreachable");
    let words = answer.into_body().collect().await.expect("whole").to_bytes();
    assert!(String::from_utf8_lossy(&words).contains("it is down"), "{words:?}");
    assert_eq!(ended(&gate_two).await, ("0.0".into(), "upstream_failed".into()));
}

#[tokio::test]
async fn a_service_that_panics_is_answered_for() {
    let gate = gate();
    let service = service_fn(|_: Request<Body>| async {
        assert!(std::hint::black_box(false), "on purpose");
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let answer = AdmissionLayer::new(gate.clone()).layer(service).oneshot(chat()).await.expect("infallible");
    assert_eq!(answer.status().as_u16(), 502);
    assert_eq!(ended(&gate).await, ("0.0".into(), "upstream_failed".into()));
}

#[tokio::test]
async fn dropping_the_future_leaves_the_queue_and_what_runs() {
    let gate = gate();
    let service = service_fn(|_: Request<Body>| pending::<Result<Response<Full<Bytes>>, Infallible>>());
    let layer = AdmissionLayer::new(gate.clone());
    let running = tokio::spawn(layer.layer(service).oneshot(chat()));
    let queued = tokio::spawn(layer.layer(service).oneshot(chat()));
    let count = || gate.look(|seen| seen.engine.requests().len()).expect("not broken");
    while count() < 2 {
        tokio::task::yield_now().await;
    }
    let refused = layer.layer(service).oneshot(chat()).await.expect("infallible");
    assert_eq!(refused.headers()["x-tallygate-reason"], "queue_full");
    queued.abort();
    while count() > 1 {
        tokio::task::yield_now().await;
    }
    running.abort();
    let (_, outcome) = ended(&gate).await;
    assert_eq!(outcome, "client_aborted");
}

/// Everything is work told by its head.
struct AllWork;

impl Appraise for AllWork {
    fn by_head(&self, _head: &http::request::Parts) -> ByHead {
        ByHead::Work(Work { model: "m".into(), input: Tokens::new(10), output_most: Limit::AtMost(Tokens::new(100)) })
    }

    fn by_body(&self, _head: &http::request::Parts, _body: &Bytes) -> Result<Work, String> {
        Err("no body is wanted".into())
    }
}

/// A body of one frame and these trailers.
fn with_trailers(status: &'static str) -> Response<impl http_body::Body<Data = Bytes, Error = Infallible>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    let frames = [Frame::data(Bytes::from_static(b"x")), Frame::trailers(trailers)];
    Response::new(StreamBody::new(Frames(frames.into_iter())))
}

struct Frames(std::array::IntoIter<Frame<Bytes>, 2>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

#[tokio::test]
async fn a_service_tells_its_cost_itself_and_its_trailers_how_it_went() {
    for (status, outcome) in [("0", "completed"), ("13", "upstream_failed")] {
        let gate = gate();
        let service = service_fn(move |request: Request<Body>| async move {
            let granted = request.extensions().get::<Granted>().expect("it was let through");
            assert_eq!(granted.caller().tenant.as_str(), "acme");
            granted.used(Usage::plain(Tokens::new(12), Tokens::new(3)));
            Ok::<_, Infallible>(with_trailers(status))
        });
        let layer = AdmissionLayer::new(gate.clone()).appraised_by(AllWork);
        let mut request = Request::post("/any").body(Full::<Bytes>::default()).expect("a request");
        request.extensions_mut().insert(Verified("acme".into()));
        let answer = layer.layer(service).oneshot(request).await.expect("infallible");
        let collected = answer.into_body().collect().await.expect("whole");
        assert_eq!(collected.trailers().expect("they pass")["grpc-status"], status);
        assert_eq!(ended(&gate).await, ("18.0".into(), outcome.into()));
    }
}

#[tokio::test]
async fn an_answer_that_is_left_costs_what_was_produced_of_it() {
    let gate = gate();
    let service = service_fn(|request: Request<Body>| async move {
        request.extensions().get::<Granted>().expect("it was let through").produced(Tokens::new(30));
        Ok::<_, Infallible>(with_trailers("0"))
    });
    let layer = AdmissionLayer::new(gate.clone()).appraised_by(AllWork);
    let request = Request::post("/any").body(Full::<Bytes>::default()).expect("a request");
    let answer = layer.layer(service).oneshot(request).await.expect("infallible");
    let mut body = answer.into_body();
    assert!(body.frame().await.is_some(), "one frame");
    drop(body);
    assert_eq!(ended(&gate).await, ("70.0".into(), "client_aborted".into()));
}

/// The parts of a stream, each so long after it was asked for.
struct Slowly {
    parts: std::vec::IntoIter<(u64, &'static str)>,
    next: Option<(std::pin::Pin<Box<tokio::time::Sleep>>, &'static str)>,
}

impl futures_core::Stream for Slowly {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        if self.next.is_none() {
            let Some((secs, part)) = self.parts.next() else { return Poll::Ready(None) };
            self.next = Some((Box::pin(tokio::time::sleep(Duration::from_secs(secs))), part));
        }
        let Some((sleep, part)) = &mut self.next else { unreachable!("it was just set") };
        std::task::ready!(sleep.as_mut().poll(context));
        let part = *part;
        self.next = None;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(part.as_bytes())))))
    }
}

const STREAMED: &str =
    r#"{"model": "m", "stream": true, "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}"#;
const WORDS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// The body of a stream whose parts come so slowly.
async fn slowly(gate: &Gate, parts: Vec<(u64, &'static str)>) -> Body {
    let service = service_fn(move |_request: Request<Body>| {
        let body = StreamBody::new(Slowly { parts: parts.clone().into_iter(), next: None });
        std::future::ready(Ok::<_, Infallible>(
            Response::builder().header("content-type", "text/event-stream").body(body).expect("an answer"),
        ))
    });
    let request = Request::post("/v1/chat/completions").body(Full::<Bytes>::from(STREAMED)).expect("a request");
    AdmissionLayer::new(gate.clone()).layer(service).oneshot(request).await.expect("infallible").into_body()
}

async fn rest(body: Body) -> String {
    let whole = body.collect().await.expect("it does not break").to_bytes();
    String::from_utf8(whole.to_vec()).expect("text")
}

/// However long an upstream takes between what it used and its last event: a minute is no sign of its having stopped.
#[tokio::test(start_paused = true)]
async fn the_final_event_arrives_however_long_after_the_usage() {
    for pause in [0, 2, 60] {
        let gate = gate();
        let body = slowly(&gate, vec![(0, WORDS), (0, USAGE), (pause, DONE)]).await;
        assert_eq!(rest(body).await, format!("{WORDS}{DONE}"), "after {pause} s");
        assert_eq!(ended(&gate).await, ("18.0".into(), "completed".into()));
    }
}

/// A client that does not read asks nothing of the upstream, whose silence then is none.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_late_does_not_make_the_upstream_late() {
    let gate = gate();
    let mut body = slowly(&gate, vec![(0, WORDS), (1, WORDS), (1, USAGE), (0, DONE)]).await;
    let first = body.frame().await.expect("a frame").expect("it does not break").into_data().expect("data");
    assert_eq!(first, WORDS);
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    assert_eq!(rest(body).await, format!("{WORDS}{DONE}"));
    assert_eq!(ended(&gate).await, ("18.0".into(), "completed".into()));
}
