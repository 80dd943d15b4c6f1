//! What the tests of random lives share: the gate they live behind, and what must hold once all are over.

use std::collections::BTreeSet;
use std::sync::Arc;

use rand::RngExt;
use rand::rngs::StdRng;

use super::exchange::Memory;
use crate::ledger::Balance;
use crate::observe::{Decisions, Gauges, Keep, Metrics};
use crate::policy;
use crate::settings::Door;
use crate::shell::Gate;
use crate::units::{Bytes, Span, VirtualTokens};

/// Narrow in every way, so that lives meet every bound.
const POLICY: &str = "
version: 1
unmetered: pass
identity: {tenant: [{header: x-tenant-id}, {fallback: anonymous}], session: [{header: session-id}]}
classes: [{name: standard, rank: 0, max_wait: 5s}]
pools:
  - {name: chat, models: ['m*'], window: {requests: 2, tokens: 400},
     queue: {requests: 3, bytes: 3000, per_tenant_requests: 2}, max_request_tokens: 3000,
     breaker: {failures: 3, within: 60s, trip_for: 5s}}
fanout: {per_session: 1}
";

/// How lives end, and what is refused of them, when there are enough.
pub(super) const OUTCOMES: [&str; 12] = [
    "completed",
    "client_aborted",
    "upstream_failed",
    "timed_out",
    "queue_full",
    "expired",
    "breaker_tripped",
    "too_large",
    "malformed",
    "model_not_found",
    "upstream_timed_out",
    "upstream_unreachable",
];

/// How many lives one gate sees before it must be at rest.
pub(super) const BATCH: u64 = 20;

/// The seeds of the batches: 3,000 lives, or as many as `TALLYGATE_CASES` says, from `TALLYGATE_SEED` on.
pub(super) fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("TALLYGATE_SEED").unwrap_or(0);
    first..first + number("TALLYGATE_CASES").unwrap_or(3_000).div_ceil(BATCH)
}

/// Checks that lives were not too tame: each of these outcomes and reasons was seen.
pub(super) fn wild(seen: &BTreeSet<String>, wanted: &[&str]) {
    for wanted in wanted {
        assert!(seen.contains(*wanted), "these lives are too tame: no {wanted} among {seen:?}");
    }
}

pub(super) fn gate() -> Gate {
    let policy = Arc::new(policy::parse("lives", POLICY, |file| panic!("no {file}")).expect("a valid policy"));
    let metrics = Metrics::new(policy.clone()).expect("valid metrics");
    let decisions = Decisions::new(Keep { most: 100, bytes: Bytes::new(1_000_000) });
    Gate::start(policy, metrics, decisions, 1, 7)
}

/// Bodies of up to 4 KiB, and memory for two of the largest.
pub(super) fn door() -> Door {
    let (body_most, bodies_most) = (Bytes::new(4_096), Bytes::new(8_192));
    let (begin_within, idle_most) = (Span::from_secs(20), Span::from_secs(10));
    Door { body_most, bodies_most, begin_within, idle_most, body_within: Span::from_secs(5), ..Door::default() }
}

/// A body that asks for something, or for nothing that makes sense.
pub(super) fn body(rng: &mut StdRng) -> String {
    let text = "hello ".repeat(rng.random_range(1..60));
    match rng.random_range(0..12) {
        0 => "{".into(),
        1 => format!(r#"{{"model": "other", "messages": [{{"role": "user", "content": "{text}"}}]}}"#),
        2 => format!(r#"{{"model": "m", "padding": "{}"}}"#, "x".repeat(5_000)),
        kind => {
            let stream = kind % 2 == 0;
            let most = rng.random_range(1..200);
            format!(
                r#"{{"model": "m", "stream": {stream}, "max_tokens": {most}, "messages": [{{"role": "user", "content": "{text}"}}]}}"#
            )
        }
    }
}

/// A part of a stream of events, whole or not.
pub(super) fn events(rng: &mut StdRng) -> String {
    let event = match rng.random_range(0..8) {
        0 => "data: [DONE]\n\n".to_owned(),
        1 => "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n".to_owned(),
        2 => "data: {\"error\":{\"message\":\"theirs\"}}\n\n".to_owned(),
        3 => ": still there\n\n".to_owned(),
        _ => "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one two\"}}]}\n\n".to_owned(),
    };
    let length = if rng.random_bool(0.3) { rng.random_range(1..event.len()) } else { event.len() };
    event[..length].to_owned()
}

/// Waits until nothing is queued or in flight, and checks that nothing was lost, settled twice or kept. Returns the
/// outcomes and reasons that were counted.
pub(super) async fn at_rest(gate: &Gate, memory: &Memory, all: Bytes, seed: u64) -> BTreeSet<String> {
    let resting = tokio::time::timeout(std::time::Duration::from_secs(3_600), gate.idle());
    resting
        .await
        .unwrap_or_else(|_| panic!("TALLYGATE_SEED={seed}: an hour later something is left over"))
        .expect("not broken");
    gate.look(|seen| {
        assert!(seen.engine.requests().is_empty(), "TALLYGATE_SEED={seed}: {:?}", seen.engine.requests());
        for queue in seen.engine.queues() {
            assert_eq!((queue.requests, queue.bytes), (0, Bytes::ZERO), "TALLYGATE_SEED={seed}");
        }
        for (account, balance) in seen.ledger.accounts() {
            let Balance { reserved, settled, refunded } = balance;
            assert_eq!(reserved, settled + refunded, "TALLYGATE_SEED={seed}: {account:?}");
            assert_eq!(balance.live(), VirtualTokens::ZERO, "TALLYGATE_SEED={seed}: {account:?}");
        }
    })
    .expect("not broken");
    let text = gate.metrics().render(&Gauges::default()).expect("metrics render");
    let count = |name: &str| -> u64 {
        let lines = text.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
        lines.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
    };
    let (admitted, settled) = (count("tallygate_admitted_total"), count("tallygate_settled_total"));
    assert_eq!(admitted, settled, "TALLYGATE_SEED={seed}: every ticket is settled");
    assert_eq!(count("tallygate_unknown_tickets_total"), 0, "TALLYGATE_SEED={seed}: and none twice");
    // A trial goes on in a task of its own, and what is compressed is decoded on a thread: they are given time to end.
    let began = std::time::Instant::now();
    while memory.free() != all && began.elapsed() < std::time::Duration::from_secs(10) {
        tokio::task::yield_now().await;
    }
    assert_eq!(memory.free(), all, "TALLYGATE_SEED={seed}: all memory is given back");
    let label = |line: &str| {
        let (_, label) = line.split_once("outcome=\"").or_else(|| line.split_once("reason=\""))?;
        label.split('"').next().map(str::to_owned)
    };
    text.lines().filter_map(label).collect()
}
