//! Random lives under Envoy: messages in and out of turn, twice, wrong; streams that end, break, panic or are dropped
//! at any point; time that passes. Whatever happens, every ticket is settled once, and nothing is let through that was
//! not decided.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpTrailers, ProtocolConfiguration};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

use super::message::{Asked, HttpBody, HttpHeaders, ProcessingRequest, Said};
use super::record::tests::requested;
use super::{Answers, ExtProc};
use crate::units::Bytes;
use crate::wire::lives::{BATCH, OUTCOMES, at_rest, body, door, events, gate, seeds, wild};
use crate::wire::spent::tests::used;

/// What comes of Envoy.
enum Item {
    Message(Box<ProcessingRequest>),
    Error,
    Panic,
}

/// Envoy's side, as it is asked.
struct Script {
    items: mpsc::Receiver<Item>,
    /// How many messages were taken that hold the request until they are answered.
    holding: Arc<AtomicUsize>,
}

impl Stream for Script {
    type Item = Result<ProcessingRequest, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.items.poll_recv(context).map(|item| match item? {
            Item::Message(message) => {
                let holds = matches!(message.request, Some(Asked::RequestHeaders(_) | Asked::RequestBody(_)))
                    && !message.observability_mode;
                self.holding.fetch_add(usize::from(holds), Ordering::Relaxed);
                Some(Ok(*message))
            }
            Item::Error => Some(Err(Status::cancelled("the connection broke"))),
            // Without the hook, which would write thousands of times to the test's output.
            Item::Panic => std::panic::resume_unwind(Box::new("on purpose")),
        })
    }
}

/// One request's life.
struct One {
    answers: Option<Answers>,
    items: Option<mpsc::Sender<Item>>,
    holding: Arc<AtomicUsize>,
    answered: usize,
    /// How many of the usual messages were sent.
    told: u32,
    mode: Mode,
}

/// How its Envoy is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Bodies come.
    Shown,
    /// Records come, and bodies where they are asked for.
    Recorded,
    /// Everything comes, and nothing waits.
    Trial,
}

impl One {
    fn begin(service: &ExtProc, mode: Mode) -> Self {
        let (items, from) = mpsc::channel(64);
        let holding = Arc::new(AtomicUsize::new(0));
        let script = Script { items: from, holding: holding.clone() };
        let answers = Some(service.talk(Box::pin(script)));
        Self { answers, items: Some(items), holding, answered: 0, told: 0, mode }
    }

    fn say(&self, item: Item) {
        if let Some(items) = &self.items {
            // Nobody listens to a life that is over, or whose box is full.
            drop(items.try_send(item));
        }
    }

    /// Polls once, and checks how a life ends.
    async fn poll(&mut self, seed: u64) {
        let Some(answers) = &mut self.answers else { return };
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut *answers).poll_next(context))).await;
        match polled {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(said))) => match said.response {
                Some(Said::RequestHeaders(_)) if self.mode == Mode::Recorded && said.mode_override.is_none() => {
                    // No body comes, so none is waited for.
                    self.answered += 1;
                    self.told = 2;
                }
                Some(Said::RequestHeaders(_) | Said::RequestBody(_)) => self.answered += 1,
                // It takes the place of whatever is owed.
                Some(Said::ImmediateResponse(_)) => self.answered = usize::MAX,
                _ => {}
            },
            Poll::Ready(Some(Err(_broken))) => self.answers = None,
            Poll::Ready(None) => {
                let holding = self.holding.load(Ordering::Relaxed);
                assert!(self.answered >= holding, "TALLYGATE_SEED={seed}: ended well, and lets through what it held");
                self.answers = None;
            }
        }
    }

    /// Whether Envoy says nothing before it is answered.
    fn waits(&self) -> bool {
        match self.mode {
            Mode::Shown => self.answered < self.told as usize,
            Mode::Recorded => self.answered == 0 && self.told > 0,
            Mode::Trial => false,
        }
    }

    /// One thing happens.
    async fn step(&mut self, rng: &mut StdRng, seed: u64) {
        match rng.random_range(0..200) {
            0..90 => self.poll(seed).await,
            // What comes next usually waits for the answer to what came before.
            90..185 if self.told <= 2 && self.waits() => self.poll(seed).await,
            90..185 => {
                let mut message = usual(rng, self.told);
                match self.mode {
                    Mode::Shown => {}
                    Mode::Recorded => record(rng, self.told, &mut message),
                    Mode::Trial => message.observability_mode = true,
                }
                self.say(Item::Message(Box::new(message)));
                self.told += 1;
            }
            185..189 => {
                let told = rng.random_range(0..8);
                self.say(Item::Message(Box::new(odd(rng, told))));
            }
            189..191 => self.items = None,
            191 => self.say(Item::Error),
            192 => self.say(Item::Panic),
            193..195 => self.answers = None,
            _ => tokio::time::advance(std::time::Duration::from_millis(rng.random_range(0..2_000))).await,
        }
    }
}

fn ask(request: Asked) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..Default::default() }
}

fn headers(pairs: &[(&str, &str)], end_of_stream: bool) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| core::HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: value.as_bytes().to_owned(),
    };
    let headers = Some(core::HeaderMap { headers: pairs.iter().map(header).collect() });
    HttpHeaders { headers, end_of_stream, ..Default::default() }
}

/// The message that comes next in a usual life.
fn usual(rng: &mut StdRng, told: u32) -> ProcessingRequest {
    match told {
        0 => {
            let path = ["/v1/chat/completions", "/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/files"];
            let mut pairs = vec![(":method", "POST"), (":path", path[rng.random_range(0..path.len())])];
            pairs.push(("x-tenant-id", ["a", "b", "c"][rng.random_range(0..3)]));
            if rng.random_bool(0.3) {
                pairs.push(("session-id", "s"));
            }
            if rng.random_bool(0.2) {
                pairs.push(("x-tallygate-deadline-ms", ["0", "50", "soon"][rng.random_range(0..3)]));
            }
            if rng.random_bool(0.1) {
                pairs.push(("content-encoding", "gzip"));
            }
            ask(Asked::RequestHeaders(headers(&pairs, rng.random_bool(0.1))))
        }
        1 => ask(Asked::RequestBody(HttpBody { body: body(rng).into(), end_of_stream: true, ..Default::default() })),
        2 => {
            let status = ["200", "200", "200", "500", "429"][rng.random_range(0..5)];
            let kind = ["text/event-stream", "text/event-stream", "application/json"][rng.random_range(0..3)];
            let head = headers(&[(":status", status), ("content-type", kind)], rng.random_bool(0.1));
            let mut message = ask(Asked::ResponseHeaders(head));
            if rng.random_bool(0.2) {
                let details = ["response_timeout", "upstream_reset_before_response_started{x}", "via_upstream"];
                let details = details[rng.random_range(0..3)].to_owned();
                let value = Value { kind: Some(Kind::StringValue(details)) };
                let fields = [("response.code_details".to_owned(), value)].into();
                message.attributes.insert("envoy.filters.http.ext_proc".to_owned(), Struct { fields });
            }
            message
        }
        _ => {
            let end_of_stream = rng.random_bool(0.15);
            ask(Asked::ResponseBody(HttpBody { body: events(rng).into(), end_of_stream, ..Default::default() }))
        }
    }
}

/// What an Envoy that sends records puts into a message.
fn record(rng: &mut StdRng, told: u32, message: &mut ProcessingRequest) {
    match told {
        0 => {
            message.protocol_config = Some(ProtocolConfiguration::default());
            let cap = rng.random_bool(0.5).then_some(40);
            let stream = rng.random_bool(0.3).then_some(true);
            message.metadata_context = Some(requested("m", stream, cap, rng.random_range(1..60)));
        }
        3.. if rng.random_bool(0.3) => {
            message.request = Some(Asked::ResponseTrailers(HttpTrailers::default()));
            message.metadata_context = Some(used(rng.random_range(0..40), rng.random_range(0..40)));
        }
        _ => {}
    }
}

/// A message out of turn, or one that makes no sense.
fn odd(rng: &mut StdRng, told: u32) -> ProcessingRequest {
    match rng.random_range(0..8) {
        0 => ProcessingRequest { observability_mode: true, ..usual(rng, told) },
        1 => ProcessingRequest { protocol_config: Some(ProtocolConfiguration::default()), ..usual(rng, told) },
        2 => ProcessingRequest::default(),
        3 => ask(Asked::ResponseTrailers(HttpTrailers::default())),
        4 => ask(Asked::RequestTrailers(HttpTrailers::default())),
        5 => ask(Asked::RequestHeaders(headers(&[(":method", "P ST"), (":path", "\u{7f}")], false))),
        _ => usual(rng, told),
    }
}

async fn batch(seed: u64) -> BTreeSet<String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let gate = gate();
    let service = ExtProc::new(gate.clone(), door(), std::net::Ipv4Addr::LOCALHOST.into());
    let all = service.memory.free();
    assert_eq!(all, Bytes::new(8_192));
    let mut lives: Vec<One> = Vec::new();
    let (mut begun, mut steps) = (0, 0);
    while begun < BATCH || !lives.is_empty() {
        if begun < BATCH && lives.len() < 16 && rng.random_bool(0.2) {
            let mode = [Mode::Shown, Mode::Shown, Mode::Recorded, Mode::Trial][rng.random_range(0..4)];
            lives.push(One::begin(&service, mode));
            begun += 1;
        }
        if lives.is_empty() {
            continue;
        }
        let which = rng.random_range(0..lives.len());
        lives[which].step(&mut rng, seed).await;
        steps += 1;
        lives.retain(|life| life.answers.is_some());
        // A life may wait for what no longer comes; sooner or later its Envoy is gone.
        if steps % 4_000 == 0 {
            lives.clear();
        }
    }
    at_rest(&gate, &service.memory, all, seed).await
}

#[tokio::test(start_paused = true)]
async fn whatever_envoy_says_every_life_is_settled_once() {
    let mut seen = BTreeSet::new();
    for seed in seeds() {
        seen.append(&mut batch(seed).await);
    }
    wild(&seen, &OUTCOMES);
}
