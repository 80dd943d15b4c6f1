//! What is expected of requests, against recorded ones.

use std::io::Read;

use bytes::Bytes;
use flate2::read::GzDecoder;
use serde_json::Value;
use tallygate::costing::{Experience, InputCounter, Quote, SessionKey, Sessions};
use tallygate::policy::model::Caller;
use tallygate::units::{Agent, Limit, Model, SessionId, TenantId, Tokens, Usage};
use tallygate::wire::dialect::{Dialect, Unreadable};

use crate::support::{policy, shared};

/// The columns of a trace by these names, row by row.
fn columns<const N: usize>(name: &str, wanted: [&str; N]) -> Option<Vec<[String; N]>> {
    let mut text = String::new();
    let file = std::fs::File::open(shared("traces")?.join(name)).expect("the trace is there");
    GzDecoder::new(file).read_to_string(&mut text).expect("the trace is gzipped text");
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let header = rows.headers().expect("a header").clone();
    let at = wanted.map(|wanted| header.iter().position(|column| column == wanted).expect("a column"));
    let row = |row: csv::Result<csv::StringRecord>| {
        let row = row.expect("a row");
        at.map(|at| row[at].to_owned())
    };
    Some(rows.records().map(row).collect())
}

/// The column that tells how deep below its session's lead an agent was started.
const DEPTH: &str = concat!("sub", "agent_depth");

/// Agents find nearly all of their input cached. Without an expectation all of that is charged in full until usage
/// comes; with it, less than a twentieth is misjudged, and less than a fiftieth in the caller's favour.
#[test]
fn cached_input_of_real_agents_is_expected_nearly_as_it_comes() {
    let Some(rows) = columns("cc_agentic.dev.csv.gz", ["session", "model", "input_tokens"]) else {
        println!("SKIPPED: cached input of real agents, since there is no ../shared/traces");
        return;
    };
    let truths = columns("cc_agentic.dev.aux.csv.gz", ["shared_prefix_tokens", DEPTH]).expect("beside it");
    let mut sessions = Sessions::default();
    let [mut input_sum, mut cached_sum, mut too_much, mut too_little] = [0; 4];
    for ([session, model, input], [cached, depth]) in rows.into_iter().zip(truths) {
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let (input, cached) = (number(&input), number(&cached).min(number(&input)));
        let agent = if number(&depth) > 0 { Agent::Sub } else { Agent::Lead };
        let (session, model) = (SessionId::from(session.as_str()), Model::from(model.as_str()));
        let key: SessionKey = (TenantId::from("t"), session, agent, model);
        let expected = sessions.split(&key, Tokens::new(input)).cached_input.get();
        input_sum += input;
        cached_sum += cached;
        too_much += expected.saturating_sub(cached);
        too_little += cached.saturating_sub(expected);
        let usage = Usage { cached_input: Tokens::new(cached), ..Usage::default() };
        sessions.learn(key, &Usage { uncached_input: Tokens::new(input - cached), ..usage });
    }
    let thousandths = |part: u64| part * 1_000 / input_sum;
    println!(
        "of {input_sum} input tokens {} ‰ were cached; expected so and not: {} ‰; so and not expected: {} ‰",
        thousandths(cached_sum),
        thousandths(too_much),
        thousandths(too_little),
    );
    assert!(thousandths(cached_sum) > 900, "agents repeat themselves");
    assert!(thousandths(too_much) < 20 && thousandths(too_little) < 50);
}

/// A request of each dialect, and the members of it that are numbers.
const NUMBERS: [(Dialect, &str, &[&str]); 4] = [
    (
        Dialect::OpenAiChat,
        r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#,
        &["/max_tokens", "/max_completion_tokens", "/min_tokens", "/n", "/best_of"],
    ),
    (
        Dialect::OpenAiCompletions,
        r#"{"model":"m","prompt":["a","b"]}"#,
        &["/max_tokens", "/min_tokens", "/n", "/best_of"],
    ),
    (Dialect::OpenAiResponses, r#"{"model":"m","input":"x"}"#, &["/max_output_tokens"]),
    (
        Dialect::AnthropicMessages,
        r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],
            "thinking":{"type":"enabled","budget_tokens":5}}"#,
        &["/max_tokens", "/thinking/budget_tokens"],
    ),
];

const ABSURD: [&str; 12] = [
    "-1",
    "-170141183460469231731687303715884105728",
    "0",
    "1",
    "128",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "170141183460469231731687303715884105728",
    "1e308",
    "1e400",
    "0.5",
];

/// A body with a number in the place of a member, written as it is.
fn with(body: &str, pointer: &str, number: &str) -> Bytes {
    let mut body: Value = serde_json::from_str(body).expect("JSON");
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    body.pointer_mut(parent).expect("a parent")[name] = "here".into();
    Bytes::from(body.to_string().replace("\"here\"", number))
}

#[test]
fn an_absurd_number_is_named_or_quoted_within_its_cap() {
    let policy = policy("estimates", "version: 1").expect("a policy");
    let caller = Caller {
        tenant: TenantId::from("t"),
        session: None,
        agent: Agent::Lead,
        user: None,
        task: None,
        wished_class: None,
    };
    let selection = policy.select(&caller.tenant, None, "m").expect("a pool");
    let [mut quoted, mut named] = [0, 0];
    for (dialect, body, pointers) in NUMBERS {
        for (pointer, number) in pointers.iter().flat_map(|pointer| ABSURD.map(|number| (*pointer, number))) {
            let call = match dialect.parse(dialect.path(), &with(body, pointer, number)) {
                Ok(parsed) => parsed.call,
                Err(Unreadable::Malformed(what)) => {
                    let member = pointer.rsplit('/').next().expect("a name");
                    assert!(what.contains(member), "{pointer} = {number}: {what}");
                    named += 1;
                    continue;
                }
                Err(other) => panic!("{pointer} = {number}: {other}"),
            };
            let counted = InputCounter::of("m").count(&call.prompt);
            let experience = Experience::new(policy.cost.effort);
            let quote = Quote::new(&call, counted, &caller, &selection, &experience, Limit::Unlimited);
            assert_eq!(quote.expected.input(), counted.total(), "nothing was learnt yet");
            if let Limit::AtMost(cap) = quote.output_cap {
                assert!(quote.expected.output() <= cap, "{pointer} = {number}: {:?}", quote.expected);
            }
            assert!(quote.price.cost(&quote.expected).as_micros() >= 0, "{pointer} = {number}");
            quoted += 1;
        }
    }
    assert!(quoted > 40 && named > 40, "{quoted} quoted and {named} named");
}
