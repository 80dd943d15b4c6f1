//! Any bytes as a configuration of Envoy: no panic, no hang, and every finding and mistake at a place inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tallygate::envoy_check::{Expected, check};
use tallygate::units::{Bytes, Limit, Span};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let expected = Expected {
        clusters: Vec::new(),
        port: 9001,
        longest_wait: Limit::AtMost(Span::from_secs(600)),
        most_held: Limit::AtMost(5064),
        most_running: Limit::Unlimited,
        body_most: Bytes::new(32 << 20),
        begin_within: Span::from_secs(600),
        identity_headers: vec!["x-tenant-id".into()],
        identity_namespaces: vec!["envoy.filters.http.jwt_authn".into()],
    };
    let lines = text.split(['\n', '\r']).count();
    match check("envoy.yaml", &text, &expected) {
        Ok(report) => {
            for finding in &report {
                assert!((1..=lines).contains(&finding.position.line), "{finding}: there are {lines} lines");
            }
        }
        Err(mistakes) => assert!(!mistakes.is_empty(), "refused for nothing"),
    }
});
