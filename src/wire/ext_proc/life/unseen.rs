//! Lives without bodies: held at their headers, settled by records, and read where there is none.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpTrailers, ProtocolConfiguration};

use super::super::message::{Asked, ProcessingRequest, ProcessingResponse, Said};
use super::super::record::tests::requested;
use super::super::trust::Trust;
use super::tests::{answer, ask, body, gate_of, headers};
use super::{Arc, Door, Gate, Life, Step};
use crate::observe::Gauges;
use crate::units::VirtualTokens;
use crate::wire::spent::Figures;
use crate::wire::spent::tests::{record, used};

const WINDOW: &str =
    "version: 1\npools: [{name: chat, models: ['m*'], window: {requests: 1}, max_request_tokens: 900}]\n";

/// What the request of these lives is predicted to come to: its input, and twice its cap.
const PREDICTED: u64 = 50 + 80;

struct Scene {
    gate: Gate,
    trust: Arc<Trust>,
}

impl Scene {
    fn new() -> Self {
        Self { gate: gate_of(WINDOW), trust: Arc::default() }
    }

    fn life(&self) -> Life {
        Life::new(self.gate.clone(), Arc::new(Door::default()), self.trust.clone(), false)
    }

    /// A request whose bodies do not come, and the first step of its life.
    fn asks(&self, path: &str, metadata: Metadata) -> (Life, Step) {
        let mut life = self.life();
        let head = headers(&[(":method", "POST"), (":path", path), ("content-length", "200")]);
        let nothing = ProtocolConfiguration::default();
        let asked = ProcessingRequest {
            metadata_context: Some(metadata),
            protocol_config: Some(nothing),
            ..ask(Asked::RequestHeaders(head))
        };
        let step = life.on(asked);
        (life, step)
    }

    /// The same for one that is let through by its record.
    async fn goes(&self, path: &str, metadata: Metadata) -> Life {
        let (mut life, step) = self.asks(path, metadata);
        let Step::Decide(undecided) = step else { panic!("decided by the record, not {step:?}") };
        let memory = super::super::super::exchange::Memory::new(Door::default().bodies_most, Door::default().body_most);
        let verdict = undecided.decide(self.gate.clone(), memory).await;
        let said = answer(life.decided(verdict));
        assert!(matches!(said.response, Some(Said::RequestHeaders(_))), "the headers were held: {said:?}");
        assert!(said.mode_override.is_none() && said.dynamic_metadata.is_some());
        life
    }

    fn settled(&self) -> VirtualTokens {
        self.gate.look(|seen| seen.ledger.total().settled).expect("not broken")
    }
}

/// Envoy's head of an answer.
fn begins(life: &mut Life, status: &str, kind: &str) -> ProcessingResponse {
    answer(life.on(ask(Asked::ResponseHeaders(headers(&[(":status", status), ("content-type", kind)])))))
}

fn shows_bodies(said: &ProcessingResponse) -> bool {
    said.mode_override.as_ref().is_some_and(|modes| {
        modes.request_body_mode() == BodySendMode::Buffered && modes.response_body_mode() == BodySendMode::Streamed
    })
}

fn trailers(metadata: Metadata) -> ProcessingRequest {
    let trailers = Asked::ResponseTrailers(HttpTrailers::default());
    ProcessingRequest { metadata_context: Some(metadata), ..ask(trailers) }
}

#[tokio::test(start_paused = true)]
async fn a_request_is_held_at_its_headers_and_settled_by_the_record() {
    let scene = Scene::new();
    let mut life = scene.goes("/v1/messages", requested("m", Some(true), Some(40), 50)).await;
    assert!(!shows_bodies(&begins(&mut life, "200", "text/event-stream")));
    assert_eq!(life.silence(), None, "nothing comes before the end");
    answer(life.on(trailers(used(11, 6))));
    assert_eq!(scene.settled(), VirtualTokens::whole(11 + 12));
    assert!(matches!(life.closed(), Step::Over));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_contradicts_itself_is_disbelieved_and_one_that_tells_less_is_made_use_of() {
    let figures = Figures { input: Some(11), output: Some(6), ..Figures::default() };
    for (figures, status, came_to, disbelieved) in [
        (Figures { reasoning: 6, ..figures }, 1, 11 + 12, 0),
        (Figures { reasoning: 7, ..figures }, 1, PREDICTED, 1),
        (Figures { cached: 8, written: 4, ..figures }, 1, PREDICTED, 1),
        (Figures { output: Some(u64::MAX), ..figures }, 1, PREDICTED, 1),
        (figures, 2, 11 + 12, 0),
        (Figures { input: None, ..figures }, 1, 50 + 12, 0),
        (figures, 3, PREDICTED, 0),
    ] {
        let scene = Scene::new();
        let mut life = scene.goes("/v1/messages", requested("m", Some(true), Some(40), 50)).await;
        begins(&mut life, "200", "text/event-stream");
        answer(life.on(trailers(record(figures, status))));
        assert_eq!(scene.settled(), VirtualTokens::whole(came_to), "{figures:?}, {status}");
        let text = scene.gate.metrics().render(&Gauges::default()).expect("metrics render");
        let counted = usize::from(text.contains("tallygate_disbelieved_usage_total{pool=\"chat\"} 1"));
        assert_eq!(counted, disbelieved, "{figures:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_more_than_one_choice_is_charged_beyond_the_cap_of_each() {
    let scene = Scene::new();
    let mut life = scene.goes("/v1/chat/completions", requested("m", None, Some(40), 50)).await;
    begins(&mut life, "200", "application/json");
    answer(life.on(trailers(used(11, 100))));
    assert_eq!(scene.settled(), VirtualTokens::whole(11 + 200));
}

#[tokio::test(start_paused = true)]
async fn what_leaves_no_record_is_read_the_next_time_until_it_leaves_one() {
    let scene = Scene::new();
    let record = || requested("m", Some(true), None, 50);
    let mut life = scene.goes("/v1/messages", record()).await;
    begins(&mut life, "200", "text/event-stream");
    assert!(matches!(life.closed(), Step::Over));
    drop(life);
    assert_eq!(scene.settled(), VirtualTokens::whole(50), "its input, as estimated");

    let (mut life, step) = scene.asks("/v1/messages", record());
    assert!(shows_bodies(&answer(step)), "it is read");
    let text = r#"{"model": "m", "stream": true, "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}"#;
    let Step::Decide(undecided) = life.on(ask(Asked::RequestBody(body(text, true)))) else { panic!("decided") };
    let memory = super::super::super::exchange::Memory::new(Door::default().bodies_most, Door::default().body_most);
    let verdict = undecided.decide(scene.gate.clone(), memory).await;
    answer(life.decided(verdict));
    begins(&mut life, "200", "text/event-stream");
    answer(life.on(trailers(used(11, 6))));
    drop(life);
    scene.goes("/v1/messages", record()).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_record_will_not_do_for_is_read() {
    let scene = Scene::new();
    let good = || requested("m", None, None, 50);
    for (path, metadata, why) in [
        ("/v1/chat/completions", Metadata::default(), "there is no record"),
        ("/v1/chat/completions", requested("", None, None, 50), "it names no model"),
        ("/v1/chat/completions", requested("m", Some(true), None, 50), "a stream may not report usage"),
        ("/v1/chat/completions", requested("m", None, None, 901), "it could be refused for good by a guess"),
        ("/v1/completions", good(), "Envoy does not read its cap"),
        ("/v1/responses", good(), "it may ask for an answer in the background"),
        ("/v1/messages/count_tokens", good(), "it is not metered"),
    ] {
        let (_life, step) = scene.asks(path, metadata);
        assert!(shows_bodies(&answer(step)), "{why}");
    }
    let (_life, step) = scene.asks("/v1/chat/completions", good());
    assert!(matches!(step, Step::Decide(_)));
}

#[tokio::test(start_paused = true)]
async fn what_envoy_will_not_account_for_is_read_as_it_passes() {
    let scene = Scene::new();
    for (status, kind) in [("500", "application/json"), ("200", "text/plain")] {
        let mut life = scene.goes("/v1/chat/completions", requested("m", None, None, 50)).await;
        assert!(shows_bodies(&begins(&mut life, status, kind)), "{status} {kind}");
        answer(life.on(ask(Asked::ResponseBody(body("{}", true)))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_goes_on_without_the_body_that_was_asked_for_fails_aloud() {
    let scene = Scene::new();
    let (mut life, step) = scene.asks("/v1/chat/completions", Metadata::default());
    answer(step);
    let step = life.on(ask(Asked::ResponseHeaders(headers(&[(":status", "200")]))));
    let Step::Fail(status) = step else { panic!("it fails, and not {step:?}") };
    assert!(status.message().contains("allow_mode_override"), "{status}");
}
