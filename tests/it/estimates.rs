//! What is expected of requests, against recorded ones.

use std::io::Read;

use flate2::read::GzDecoder;
use tallygate::costing::{SessionKey, Sessions};
use tallygate::units::{Agent, Model, SessionId, TenantId, Tokens, Usage};

use crate::support::shared;

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

/// Agents find nearly all of their input cached. Without an expectation all of that is charged in full until usage
/// comes; with it, less than a twentieth is misjudged, and less than a fiftieth in the caller's favour.
#[test]
fn cached_input_of_real_agents_is_expected_nearly_as_it_comes() {
    let Some(rows) = columns("cc_agentic.dev.csv.gz", ["session", "model", "input_tokens"]) else {
        println!("SKIPPED: cached input of real agents, since there is no ../shared/traces");
        return;
    };
    let truths = columns("cc_agentic.dev.aux.csv.gz", ["shared_prefix_tokens", "subagent_depth"]).expect("beside it");
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
