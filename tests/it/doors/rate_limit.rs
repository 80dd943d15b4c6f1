//! The rate limit service: a real Envoy's rate limit filter asks, and the limits of the policy answer.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code as Told;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::json;
use tallygate::admission::Owner;
use tallygate::admission::{Hit, HitKind};
use tallygate::units::Amount;
use tonic::Code;
use tonic::transport::Channel;

use crate::door::{Config, Front, Gateway, Setup, Upstream, within};

/// What docs/rate_limit_service.md prints beside the configuration.
fn setup() -> Setup {
    let page = include_str!("../../../docs/rate_limit_service.md");
    let policy = page.split("```yaml\n# policy.yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    let policy = policy.expect("the page has a policy").replace("version: 1\n", "");
    Setup::policy(&policy)
}

async fn client(gateway: &Gateway) -> RateLimitServiceClient<Channel> {
    RateLimitServiceClient::connect(format!("http://{}", gateway.app.grpc())).await.expect("it listens")
}

fn descriptor(entries: &[(&str, &str)], hits: Option<u64>) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..RateLimitDescriptor::default()
    }
}

fn call(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "llm".into(), descriptors, hits_addend: 0 }
}

fn header<'a>(answer: &'a RateLimitResponse, name: &str) -> &'a str {
    let found = answer.response_headers_to_add.iter().find(|header| header.key == name);
    found.map_or("", |header| header.value.as_str())
}

#[tokio::test]
async fn descriptors_count_against_the_policys_limits_and_are_told_how_they_stand() {
    let gateway = setup().start("http://127.0.0.1:9").await;
    let mut client = client(&gateway).await;
    let request = || descriptor(&[("tenant", "acme")], None);
    let tokens = |hits| descriptor(&[("tenant", "acme"), ("cost", "tokens")], Some(hits));

    let answer = client.should_rate_limit(call(vec![request(), tokens(0)])).await.expect("understood").into_inner();
    assert_eq!((answer.overall_code(), answer.statuses.len()), (Told::Ok, 2));
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!((&*limit.name, limit.requests_per_unit, limit.unit()), ("requests", 3, Unit::Minute));
    assert_eq!((status.code(), status.limit_remaining), (Told::Ok, 2));
    let whole_in = status.duration_until_reset.expect("a time").seconds;
    assert!((19..=20).contains(&whole_in), "the burst is whole in a third of a minute: {whole_in} s");
    assert_eq!(answer.statuses[1].limit_remaining, 1_000, "only asked");
    assert_eq!(header(&answer, "x-ratelimit-remaining-requests"), "2");
    assert!(header(&answer, "ratelimit").contains("\"tokens\";r=1000"), "{answer:?}");
    assert!(answer.raw_body.is_empty());

    // What was used is taken, whatever is left; then there is nothing.
    let answer = client.should_rate_limit(call(vec![tokens(1_500)])).await.expect("understood").into_inner();
    assert_eq!(answer.overall_code(), Told::Ok, "something was left before");
    let refused = client.should_rate_limit(call(vec![request(), tokens(0)])).await.expect("understood").into_inner();
    assert_eq!(refused.overall_code(), Told::OverLimit);
    let codes: Vec<Told> = refused.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Told::Ok, Told::OverLimit]);
    assert_eq!(refused.statuses[0].limit_remaining, 2, "a call that is refused takes nothing");
    assert_eq!(header(&refused, "x-tallygate-reason"), "rate_limited");
    let wait: u64 = header(&refused, "retry-after").parse().expect("seconds");
    assert!((29..=32).contains(&wait), "500 owed at 1,000 a minute: {wait} s");
    let body: serde_json::Value = serde_json::from_slice(&refused.raw_body).expect("JSON");
    assert_eq!(body["error"]["code"], "tallygate_rate_limited");
    let message = body["error"]["message"].as_str().expect("words");
    assert!(message.contains("nothing is left of the 1000 tokens that this tenant may use at once"), "{message}");

    // It comes back.
    let back = RateLimitDescriptor { is_negative_hits: true, ..tokens(1_500) };
    let answer = client.should_rate_limit(call(vec![back])).await.expect("understood").into_inner();
    assert_eq!((answer.overall_code(), answer.statuses[0].limit_remaining), (Told::Ok, 1_000));

    let unknown = client.should_rate_limit(call(vec![descriptor(&[("user", "x")], None)])).await.expect_err("an error");
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert!(unknown.message().contains("no rule of the domain has exactly the entries \"user\""), "{unknown}");
    let scraped = gateway.admin().await.get("/metrics", "").await.body;
    let line = r#"tallygate_hits_total{kind="used",outcome="allowed",rule="tokens"} 1"#;
    assert!(scraped.contains(line), "{scraped}");
}

#[tokio::test]
async fn a_core_that_is_broken_is_an_error_of_the_call() {
    let gateway = setup().start("http://127.0.0.1:9").await;
    let mut client = client(&gateway).await;
    let gate = gateway.gate().clone();
    let fault = tokio::task::spawn_blocking(move || gate.look(|_| panic!("on purpose")).unwrap_or(()));
    assert!(fault.await.is_err());
    let error = client.should_rate_limit(call(vec![descriptor(&[("tenant", "acme")], None)])).await;
    assert_eq!(error.expect_err("nothing is let through").code(), Code::Unavailable);
}

/// How many tokens are left of the tenant's.
fn left(gateway: &Gateway) -> i128 {
    let (limit, owner) = (1, Owner::Tenant("acme".into()));
    let hit = Hit { limit, owner, amount: Amount::ZERO, kind: HitKind::Checked };
    gateway.gate().count(vec![hit]).expect("not broken")[0].left.parts()
}

#[tokio::test]
async fn envoy_asks_before_a_request_and_tells_what_it_used_when_its_answer_has_ended() {
    let mut upstream = Upstream::start().await;
    let gateway = setup().start(&upstream.url()).await;
    let Some(front) = Front::of(Config::RateLimit, &gateway, upstream.address()).await else { return };
    let mut client = front.client().await;
    let ask = "x-tenant-id: acme\r\ncontent-type: application/json\r\n";

    client.chat(ask, &json!({"model": "m"})).await;
    let body = r#"{"choices": [], "usage": {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400}}"#;
    upstream.next().await.answer("200 OK", body).await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining-requests")), (200, "2"), "{:?}", answer.headers);
    within("the tokens of a whole answer", async {
        while left(&gateway) > 640 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    client.chat(ask, &json!({"model": "m", "stream": true})).await;
    let mut exchange = upstream.next().await;
    exchange.begin().await;
    exchange.chunk("data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n").await;
    exchange.chunk("data: {\"choices\":[],\"usage\":{\"total_tokens\":900}}\n\ndata: [DONE]\n\n").await;
    exchange.end().await;
    assert_eq!(client.answer().await.status, 200);
    within("the tokens of a stream", async {
        while left(&gateway) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;

    // Nothing is left, and a debt is owed.
    client.chat(ask, &json!({"model": "m"})).await;
    let refused = client.answer().await;
    let message = refused.refusal_without_decision(429, "rate_limited");
    assert_eq!(
        (refused.header("x-tallygate-decision"), refused.header("x-request-id")),
        ("", ""),
        "none is remembered"
    );
    assert!(message.contains("nothing is left of the 1000 tokens"), "{message}");
    assert!(refused.header("retry-after").parse::<u64>().expect("seconds") >= 1);
    // Of a tenant that is not told, the descriptors have no entries, and Envoy asks nothing.
    client.chat("", &json!({"model": "m"})).await;
    upstream.next().await.answer("200 OK", "{}").await;
    assert_eq!(client.answer().await.status, 200);
}
