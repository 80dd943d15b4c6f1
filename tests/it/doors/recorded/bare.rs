//! The recorded calls through a real Envoy that sends no bodies, held against the proxy: one after the other, each
//! answered before the next, so that what one door knows less of one call does not change what the next one meets.
//!
//! Where both know the usage the charge is the same, to the last part of a token. What is known less is named, and printed
//! with its size; anything else in which two fates differ fails.

use std::collections::BTreeMap;
use std::time::Instant;

use tallygate::shell::Gate;
use tallygate::wire::dialect::Dialect;

use super::tape::{Call, Reply, Turn};
use super::{Door, Http, PATIENCE, Rules, Seen, gate, grpc, listen, on_a_frozen_clock, recorded, server, settings};
use crate::door::{Config, Front, Upstream};
use tallygate::wire::proxy::{Proxy, Upstream as ProxyUpstream};
use tokio_util::sync::CancellationToken;

/// What became of one call.
#[derive(Clone, Debug, PartialEq)]
struct Fate {
    status: u16,
    /// The reason of a refusal of ours.
    reason: String,
    /// What was held for it when it went upstream, in virtual tokens.
    quoted: f64,
    /// What it came to.
    charged: f64,
}

/// What the upstream answers a call: as it was recorded, for one call in four, and else with a usage.
fn reply(number: usize, call: &Call) -> Reply {
    let recorded = call.first.iter().find_map(|turn| match turn {
        Turn::Answer(_, reply) => Some(*reply),
        Turn::Leave(_) => None,
    });
    let told = Reply::Usage { input: 10 + number as u64 % 700, output: 3 + number as u64 % 90 };
    recorded.filter(|_| number.is_multiple_of(4)).unwrap_or(told)
}

/// Plays calls one after the other.
async fn play<D: Door>(gate: &Gate, door: &mut D, tape: &[Call]) -> Vec<Fate> {
    let began = Instant::now();
    let mut fates = Vec::new();
    for (number, call) in tape.iter().enumerate() {
        let books = |gate: &Gate| gate.look(|seen| seen.ledger.total()).expect("not broken");
        let before = books(gate);
        let mut quoted = 0.0;
        door.send(number, call).await;
        let (status, headers) = 'answered: loop {
            for seen in door.look() {
                match seen {
                    Seen::Upstream { .. } => {
                        quoted = (books(gate).reserved - before.reserved).as_f64();
                        door.reply(number, call, reply(number, call)).await;
                    }
                    Seen::Answer { status, headers, .. } => break 'answered (status, headers),
                }
            }
            assert!(began.elapsed() < PATIENCE, "call {number} is not answered: {call:?}");
            tokio::task::yield_now().await;
        };
        gate.idle().await.expect("not broken");
        let after = books(gate);
        assert_eq!(after.reserved, after.settled + after.refunded, "conservation, with nothing live");
        let reason = headers.get("x-tallygate-reason").cloned().unwrap_or_default();
        fates.push(Fate { status, reason, quoted, charged: (after.settled - before.settled).as_f64() });
    }
    fates
}

async fn by_proxy(tape: &[Call], rules: Rules) -> Vec<Fate> {
    let gate = gate(rules);
    let upstream = Upstream::start().await;
    let uri: ::http::Uri = upstream.url().parse().expect("an address");
    let to = ProxyUpstream::new(gate.policy(), Some(&uri)).expect("upstreams");
    let (listener, address) = listen().await;
    let proxy = Proxy::new(gate.clone(), to, settings(), address.ip());
    tokio::spawn(server::serve(listener, CancellationToken::new(), move |request| proxy.handle(request)));
    play(&gate, &mut Http::new(address, upstream), tape).await
}

/// Through Envoy with a configuration that is changed so, and what was counted by source.
async fn by_envoy(
    tape: &[Call],
    rules: Rules,
    edit: impl FnOnce(String) -> String,
) -> Option<(Vec<Fate>, BTreeMap<String, u64>)> {
    let gate = gate(rules);
    let upstream = Upstream::start().await;
    let front = Front::asking(Config::BodyFree, grpc(&gate).await, upstream.address(), edit).await?;
    let fates = play(&gate, &mut Http::new(front.address(), upstream), tape).await;
    let metrics = gate.metrics().render(&tallygate::observe::Gauges::default()).expect("metrics render");
    let sources = metrics.lines().filter_map(|line| line.split_once("_source_total{source=\""));
    let sources = sources.filter_map(|(of, rest)| {
        let (source, count) = rest.split_once("\"} ")?;
        Some((format!("{} {source}", of.trim_start_matches("tallygate_")), count.parse().ok()?))
    });
    Some((fates, sources.collect()))
}

/// So many calls, or in a full run all of them.
fn calls() -> usize {
    if std::env::var_os("TALLYGATE_FULL").is_some() { super::CALLS } else { super::CALLS / 10 }
}

/// Where a body is read although there is a record, or one is not told all of it: what may differ, and in what way.
fn may_differ(call: &Call, one: &Fate, other: &Fate) -> Option<&'static str> {
    let body: serde_json::Value = serde_json::from_str(&call.text).unwrap_or_default();
    let record = matches!(call.dialect(), Some(Dialect::OpenAiChat | Dialect::AnthropicMessages));
    let path = call.path.split('?').next().unwrap_or_default();
    let declared = [Dialect::OpenAiChat, Dialect::AnthropicMessages].iter().any(|dialect| dialect.path() == path);
    match (one.reason.as_str(), other.reason.as_str()) {
        (one, other) if one == other => None,
        (_, "malformed") if declared => Some("Envoy refuses what is not JSON before anybody is asked who calls"),
        ("malformed" | "unsupported", _) if record && body.is_object() => {
            Some("what the record does not tell (n, background, the form of members) is not refused here")
        }
        _ => None,
    }
}

/// Whether a report is beyond what a chat says that it takes.
fn beyond_cap(call: &Call, output: u64) -> bool {
    let body: serde_json::Value = serde_json::from_str(&call.text).unwrap_or_default();
    let caps = ["max_tokens", "max_completion_tokens"].map(|name| body[name].as_u64());
    let most = caps.into_iter().flatten().max().map(|cap| cap * body["n"].as_u64().unwrap_or(1));
    call.dialect() == Some(Dialect::OpenAiChat) && most.is_some_and(|most| output > most)
}

/// Holds the fates of calls against each other, and prints in what they differ.
fn compare(tape: &[Call], proxied: &[Fate], fronted: &[Fate]) -> BTreeMap<&'static str, (u32, f64, f64)> {
    let mut differences: BTreeMap<&'static str, (u32, f64, f64)> = BTreeMap::new();
    for (number, ((call, one), other)) in tape.iter().zip(proxied).zip(fronted).enumerate() {
        let mut differs = |why, by: f64, of: f64| {
            let entry = differences.entry(why).or_default();
            (entry.0, entry.1, entry.2) = (entry.0 + 1, entry.1 + by.abs(), entry.2 + of);
        };
        if let Some(why) = may_differ(call, one, other) {
            differs(why, other.charged - one.charged, one.charged);
            continue;
        }
        assert_eq!((one.status, &one.reason), (other.status, &other.reason), "call {number}: {call:?}");
        if one.quoted != other.quoted {
            differs("quotes by an estimate of the body, or learnt from them", other.quoted - one.quoted, one.quoted);
        }
        match reply(number, call) {
            // Beyond its own cap a report is a fault, and is cut down where it is known how many answers were asked for.
            Reply::Usage { output, .. } if beyond_cap(call, output) => {
                differs("reports beyond the request's own cap", other.charged - one.charged, one.charged);
            }
            Reply::Usage { output, .. } if output < 10_000_000 => {
                assert_eq!(one.charged, other.charged, "call {number}: {call:?}");
            }
            _ if one.charged != other.charged => {
                differs("charges of answers that report no usage", other.charged - one.charged, one.charged);
            }
            _ => {}
        }
    }
    differences
}

async fn equal_charges(edit: fn(String) -> String, expected: &'static str) {
    let rules = Rules { unmetered: "refuse", class_not_granted: "refuse" };
    let tape = recorded(4, calls());
    let Some((fronted, sources)) = by_envoy(&tape, rules, edit).await else { return };
    let proxied = by_proxy(&tape, rules).await;
    let differences = compare(&tape, &proxied, &fronted);
    println!("{} calls; {sources:?}", tape.len());
    for (why, (count, by, of)) in &differences {
        println!("{count:5}  {why}: {by:.0} of {of:.0} virtual tokens");
    }
    assert!(sources[expected] * 20 >= tape.len() as u64, "too few by {expected}: {sources:?}");
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_charged_the_same_by_records() {
    on_a_frozen_clock(equal_charges(|config| config, "usage record")).await;
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_charged_the_same_where_answers_are_read() {
    let shown = |config: String| {
        let without = "                        response_body_mode: NONE";
        assert!(config.contains(without));
        config.replace(without, "                        response_body_mode: STREAMED")
    };
    on_a_frozen_clock(equal_charges(shown, "usage parsed")).await;
}
