//! The question as Envoy asks it, over the real core.

use std::net::Ipv4Addr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::service::auth::v3 as pb;
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::google::protobuf::value::Kind;
use pb::check_response::HttpResponse;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::ExtAuthz;
use crate::observe::{Decisions, Keep, Metrics};
use crate::policy;
use crate::settings::Door;
use crate::shell::{Gate, Leases};
use crate::units::{Bytes, Span};

const CHAT: &str = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hello"}]}"#;

fn door(policy: &str) -> ExtAuthz {
    let policy = Arc::new(policy::parse("test", policy, |file| panic!("no {file}")).expect("a valid policy"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: Bytes::new(1_000_000) });
    let gate = Gate::start(policy, metrics, decisions, 1, 7);
    let leases = Leases::start(&gate, Span::from_secs(60), StdRng::seed_from_u64(1));
    ExtAuthz::new(gate, leases, Door::default(), Ipv4Addr::LOCALHOST.into())
}

const ONE: &str = "version: 1\npools: [{name: chat, models: ['*'], window: {requests: 1}}]";

fn question(headers: &[(&str, &str)], body: &str) -> pb::CheckRequest {
    let header = |(name, value): &(&str, &str)| core::HeaderValue {
        key: (*name).to_owned(),
        value: String::new(),
        raw_value: value.as_bytes().to_vec(),
    };
    let http = HttpRequest {
        method: "POST".into(),
        path: "/v1/chat/completions?x=1".into(),
        header_map: Some(core::HeaderMap { headers: headers.iter().map(header).collect() }),
        raw_body: body.as_bytes().to_vec(),
        ..HttpRequest::default()
    };
    ask(http)
}

fn ask(http: HttpRequest) -> pb::CheckRequest {
    let request = Some(Request { http: Some(http), ..Request::default() });
    pb::CheckRequest { attributes: Some(pb::AttributeContext { request, ..Default::default() }) }
}

fn told(answer: &pb::CheckResponse, key: &str) -> Option<String> {
    match answer.dynamic_metadata.as_ref()?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn denied(answer: pb::CheckResponse) -> (i32, String) {
    assert_ne!(answer.status.expect("a status").code, 0);
    match answer.http_response {
        Some(HttpResponse::DeniedResponse(denied)) => (denied.status.expect("a status").code, denied.body),
        other => panic!("a denial, not {other:?}"),
    }
}

fn live(gate: &Gate) -> usize {
    gate.look(|seen| seen.engine.requests().len()).expect("not broken")
}

#[tokio::test(start_paused = true)]
async fn a_yes_tells_the_lease_to_envoy_alone() {
    let door = door(ONE);
    let headers = [("x-tenant-id", "acme"), ("x-tallygate-lease", "forged"), ("content-type", "application/json")];
    let answer = door.answer(question(&headers, CHAT)).await.expect("an answer");
    assert_eq!(answer.status.as_ref().expect("a status").code, 0);
    assert_eq!((told(&answer, "lease").expect("one").len(), told(&answer, "tenant")), (32, Some("acme".into())));
    let lease = told(&answer, "lease").expect("one");
    let Some(HttpResponse::OkResponse(ok)) = &answer.http_response else { panic!("a yes") };
    assert_eq!(ok.headers_to_remove, ["x-tallygate-lease"]);
    assert!(!format!("{ok:?}").contains(&lease), "no header carries it");
    assert_eq!((door.leases.count(), live(&door.gate)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_cancelled_leaves_the_queue() {
    let door = door(ONE);
    door.answer(question(&[], CHAT)).await.expect("an answer");
    {
        let waiting = door.answer(question(&[], CHAT));
        tokio::pin!(waiting);
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(waiting.as_mut().poll(context))).await.is_pending()
        );
        assert_eq!(live(&door.gate), 2);
    }
    assert_eq!((live(&door.gate), door.leases.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_come_whole_is_not_let_through() {
    let door = door(ONE);
    for headers in [
        &[("x-envoy-auth-partial-body", "true")][..],
        &[("x-envoy-auth-partial-body", "false"), ("x-envoy-auth-partial-body", "true")],
        &[("content-length", "9999")],
    ] {
        let (status, body) = denied(door.answer(question(headers, CHAT)).await.expect("an answer"));
        assert!(status == 413 && body.contains("tallygate_too_large"), "{status} {body}");
    }
    let missing = door.answer(question(&[("content-length", "70")], "")).await.expect_err("set up wrongly");
    assert_eq!(missing.code(), tonic::Code::FailedPrecondition);
    let (status, body) = denied(door.answer(question(&[("content-length", "0")], "")).await.expect("an answer"));
    assert!(status == 400 && body.contains("the body is missing"), "{status} {body}");
    assert_eq!(live(&door.gate), 0);
}

#[tokio::test(start_paused = true)]
async fn headers_that_are_not_raw_are_read_all_the_same() {
    let door = door(ONE);
    let headers = [("x-tenant-id".to_owned(), "acme".to_owned())].into();
    let (method, path, body) = ("POST".to_owned(), "/v1/chat/completions".to_owned(), CHAT.to_owned());
    let http = HttpRequest { method, path, body, headers, ..HttpRequest::default() };
    let answer = door.answer(ask(http)).await.expect("an answer");
    assert_eq!(told(&answer, "tenant"), Some("acme".into()));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_makes_no_sense_is_refused() {
    let door = door(ONE);
    let method = HttpRequest { method: "P ST".into(), ..HttpRequest::default() };
    let header = core::HeaderValue { key: "a b".into(), value: "x".into(), raw_value: Vec::new() };
    let header_map = Some(core::HeaderMap { headers: vec![header] });
    let header = HttpRequest { method: "POST".into(), header_map, ..HttpRequest::default() };
    for question in [pb::CheckRequest::default(), ask(method), ask(header)] {
        let (status, body) = denied(door.answer(question).await.expect("an answer"));
        assert!(status == 400 && body.contains("tallygate_malformed"), "{status} {body}");
    }
}
