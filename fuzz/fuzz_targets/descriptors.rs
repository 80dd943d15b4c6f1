//! Hostile calls of the rate limit service: an error or hits that the core takes, and never more left than there can be.

#![no_main]

use std::sync::LazyLock;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use libfuzzer_sys::fuzz_target;
use prost::Message;
use tallygate::policy::{self, Policy};
use tallygate::wire::rate_limit::asked;

const POLICY: &str = "
version: 1
limits:
  - {name: a, per: tenant, requests: 10, every: 1m}
  - {name: b, per: session, tokens: 1000, every: 1m, models: ['m*']}
  - {name: c, per: global, service: 1000, every: 1m}
rate_limit:
  - domain: d
    unmatched: pass
    rules:
      - {limit: a, entries: [{key: t, is: tenant}]}
      - {limit: b, entries: [{key: t, is: tenant}, {key: s, is: session}, {key: m, is: model}]}
      - {limit: c, hits: asked, entries: [{key: g}]}
      - {limit: a, entries: [{key: t, is: tenant}, {key: k, is: class}, {key: p, is: pool}]}
";

static PARSED: LazyLock<Policy> = LazyLock::new(|| policy::parse_alone("p", POLICY).expect("a policy"));

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut request) = RateLimitRequest::decode(bytes) else { return };
    request.domain = "d".into();
    if let Ok(asked) = asked(&PARSED, &request) {
        assert_eq!(asked.descriptors.len(), request.descriptors.len(), "each is answered");
        for hit in asked.hits() {
            assert!(usize::from(hit.limit) < PARSED.limits.len() && hit.amount.parts() >= 0, "{hit:?}");
        }
    }
});
