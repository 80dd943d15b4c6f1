//! The machine over the real core, without a socket.

use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;

use super::super::super::exchange::Memory;
use super::super::message::{Asked, HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, Said};
use super::{Life, Step};
use crate::observe::{Decisions, Keep, Metrics};
use crate::policy;
use crate::settings::Door;
use crate::shell::Gate;
use crate::units::{self, VirtualTokens};

const BODY: &str = r#"{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hello"}]}"#;
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":6}}\n\n";

fn gate() -> Gate {
    gate_of("version: 1\npools: [{name: chat, models: ['*'], window: {requests: 1}}]\n")
}

pub(super) fn gate_of(text: &str) -> Gate {
    let policy = Arc::new(policy::parse("test", text, |file| panic!("no {file}")).expect("a valid policy"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: units::Bytes::new(1_000_000) });
    Gate::start(policy, metrics, decisions, 1, 7)
}

pub(super) fn life(gate: &Gate) -> Life {
    Life::new(gate.clone(), Arc::new(Door::default()), Arc::default(), false)
}

pub(super) fn ask(request: Asked) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..Default::default() }
}

pub(super) fn headers(pairs: &[(&str, &str)]) -> HttpHeaders {
    let header = |(key, value): &(&str, &str)| core::HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: value.as_bytes().to_owned(),
    };
    let headers = Some(core::HeaderMap { headers: pairs.iter().map(header).collect() });
    HttpHeaders { headers, ..Default::default() }
}

fn request_headers() -> ProcessingRequest {
    ask(Asked::RequestHeaders(headers(&[(":method", "POST"), (":path", "/v1/chat/completions?x=1")])))
}

pub(super) fn body(text: &str, end_of_stream: bool) -> HttpBody {
    HttpBody { body: text.as_bytes().to_owned(), end_of_stream, ..Default::default() }
}

fn request_body() -> ProcessingRequest {
    ask(Asked::RequestBody(body(BODY, true)))
}

pub(super) fn answer(step: Step) -> ProcessingResponse {
    match step {
        Step::Answer(answer) => *answer,
        other => panic!("an answer, not {other:?}"),
    }
}

/// Takes a request up to where it goes on.
async fn sent(gate: &Gate, life: &mut Life) -> ProcessingResponse {
    sends(gate, life, request_headers(), request_body()).await
}

/// Takes a request of this head and body up to where it goes on.
pub(super) async fn sends(
    gate: &Gate,
    life: &mut Life,
    head: ProcessingRequest,
    body: ProcessingRequest,
) -> ProcessingResponse {
    answer(life.on(head));
    let Step::Decide(undecided) = life.on(body) else { panic!("it is to be decided") };
    let bytes = units::Bytes::new(1024 * 1024);
    let verdict = undecided.decide(gate.clone(), Memory::new(bytes, bytes)).await;
    answer(life.decided(verdict))
}

/// The body an answer puts in place of what came.
pub(super) fn replaced(response: ProcessingResponse) -> Option<Bytes> {
    let common = match response.response? {
        Said::RequestBody(said) | Said::ResponseBody(said) => said.response?,
        other => panic!("an answer to a body, not {other:?}"),
    };
    match common.body_mutation?.mutation? {
        Mutation::Body(bytes) => Some(bytes.into()),
        Mutation::ClearBody(_) => Some(Bytes::new()),
        Mutation::StreamedResponse(_) => panic!("never used"),
    }
}

fn settled(gate: &Gate) -> VirtualTokens {
    let books = gate.look(|seen| seen.ledger.total()).expect("not broken");
    assert_eq!(books.live(), VirtualTokens::ZERO, "nothing is live");
    books.settled
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_asked_for_its_usage_which_stays_here() {
    let gate = gate();
    let mut life = life(&gate);
    let onward = replaced(sent(&gate, &mut life).await).expect("usage is asked for");
    assert!(onward.len() > BODY.len() && String::from_utf8_lossy(&onward).contains("include_usage"));
    answer(life.on(ask(Asked::ResponseHeaders(headers(&[(":status", "200"), ("content-type", "text/event-stream")])))));
    let hidden = answer(life.on(ask(Asked::ResponseBody(body(USAGE, false)))));
    // The usage chunk is the last that is produced: the slot is free and the charge told before the stream closes.
    let told = hidden.dynamic_metadata.clone().expect("the charge is told");
    assert_eq!(replaced(hidden), Some(Bytes::new()));
    let done = answer(life.on(ask(Asked::ResponseBody(body("data: [DONE]\n\n", true)))));
    assert!(told.fields.contains_key("tallygate"));
    assert_eq!(replaced(done), None, "as it came");
    assert!(matches!(life.closed(), Step::Over));
    drop(life);
    assert_eq!(settled(&gate), VirtualTokens::whole(11 + 2 * 6));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_decided_never_ends_well() {
    let gate = gate();
    let mut life = life(&gate);
    answer(life.on(request_headers()));
    assert!(matches!(life.on(request_body()), Step::Decide(_)));
    assert!(matches!(life.closed(), Step::Fail(_)), "ending well would let it through");
    assert!(matches!(life.on(request_body()), Step::Fail(_)), "out of turn");
}

#[tokio::test(start_paused = true)]
async fn dropped_anywhere_it_is_settled_once() {
    let gate = gate();
    let mut unanswered = life(&gate);
    sent(&gate, &mut unanswered).await;
    drop(unanswered);
    let input = settled(&gate);
    assert!(input.is_positive(), "its input was sent");
    let mut answering = life(&gate);
    sent(&gate, &mut answering).await;
    let head = headers(&[(":status", "200"), ("content-type", "text/event-stream")]);
    answer(answering.on(ask(Asked::ResponseHeaders(head))));
    let chunk = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two three\"}}]}\n\n";
    answer(answering.on(ask(Asked::ResponseBody(body(chunk, false)))));
    drop(answering);
    assert_eq!(settled(&gate), input + input + VirtualTokens::whole(2 * 3));
}

#[tokio::test(start_paused = true)]
async fn a_silent_upstream_is_given_up_and_settled() {
    let gate = gate();
    let mut life = life(&gate);
    sent(&gate, &mut life).await;
    assert_eq!(life.silence(), Some(Door::default().begin_within));
    let Step::LastAnswer(answer) = life.timed_out() else { panic!("Envoy is told what to answer") };
    let Some(Said::ImmediateResponse(said)) = answer.response else { panic!("in place of the upstream") };
    assert_eq!(
        (said.status.map(|status| status.code), said.details.as_str()),
        (Some(504), "tallygate_upstream_timed_out")
    );
    assert!(settled(&gate).is_positive());
}
