//! Hostile questions and records: whatever Envoy, or somebody in its place, sends to the ext_authz service, the access log
//! service and the gRPC API, each is answered or counted, nothing panics, and once all leases are closed the books balance.

#![no_main]

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};

use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsMessage;
use envoy_types::pb::envoy::service::auth::v3::CheckRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_server::Authorization as _;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use rand::SeedableRng as _;
use tallygate::observe::{Decisions, Keep, Metrics};
use tallygate::policy;
use tallygate::settings::Door;
use tallygate::shell::{Gate, Leases};
use tallygate::units::{Bytes, Span};
use tallygate::wire::access_log::AccessLog;
use tallygate::wire::acquire::v1::admission_server::Admission as _;
use tallygate::wire::acquire::{Acquire, v1};
use tallygate::wire::ext_authz::ExtAuthz;
use tokio::runtime::Runtime;
use tonic::Request;

/// Nobody waits: what is not let in is refused at once.
const POLICY: &str = "version: 1\npools: [{name: p, models: ['*'], window: {requests: 4}, queue: {requests: 0}}]\n";

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
});

/// Parts of the input, each with its length in two bytes before it.
fn parts(mut data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let [low, high, rest @ ..] = data {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (part, after) = rest.split_at(length);
        parts.push(part);
        data = after;
    }
    parts
}

fuzz_target!(|data: &[u8]| {
    RUNTIME.block_on(async {
        let policy = Arc::new(policy::parse("fuzz", POLICY, |_| unreachable!("it names no file")).expect("valid"));
        let metrics = Metrics::new(policy.clone()).expect("valid metrics");
        let decisions = Decisions::new(Keep { most: 10, bytes: Bytes::new(100_000) });
        let gate = Gate::start(policy, metrics, decisions, 1, 7);
        let leases = Leases::start(&gate, Span::from_secs(60), rand::rngs::StdRng::seed_from_u64(1));
        let here = Ipv4Addr::LOCALHOST.into();
        let authz = ExtAuthz::new(gate.clone(), leases.clone(), Door::default(), here);
        let log = AccessLog::new(gate.clone(), leases.clone());
        let acquire = Acquire::new(gate.clone(), leases.clone(), Door::default(), here);
        for (at, part) in parts(data).into_iter().enumerate() {
            // Answers of either kind will do.
            match at % 4 {
                0 => {
                    if let Ok(question) = CheckRequest::decode(part) {
                        let _answer = authz.check(Request::new(question)).await;
                    }
                }
                1 => {
                    if let Ok(message) = StreamAccessLogsMessage::decode(part) {
                        log.told(message);
                    }
                }
                2 => {
                    if let Ok(asked) = v1::AcquireRequest::decode(part) {
                        let _answer = acquire.acquire(Request::new(asked)).await;
                    }
                }
                _ => {
                    if let Ok(told) = v1::SettleRequest::decode(part) {
                        let _answer = acquire.settle(Request::new(told)).await;
                    }
                }
            }
        }
        leases.close();
        let books = gate.look(|seen| seen.ledger.total()).expect("the core is whole");
        assert_eq!(books.reserved, books.settled + books.refunded);
    });
});
