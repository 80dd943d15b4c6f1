//! Doors that know less than the proxy: what is equal all the same, and what each thing they do not know comes to.
//!
//! Over ext_authz nothing can be changed and no answer is seen. So a tape is played on which nothing would have to be
//! renamed, and every answer is an error or reports its usage: there everything decided and charged is equal, call by
//! call. What is then left out is compared one by one, in [`differences`].
//!
//! Over our own gRPC API it is the caller that sees the answer, and tells of it. What it tells it is charged for: there the
//! same holds, and a model is renamed as everywhere.

use serde_json::Value;
use tallygate::wire::answer::rpc_code;

use super::acquire::Acquire;
use super::authz::Authz;
use super::tape::{Call, Packing, Reply, Turn};
use super::{Lens, Rules, Seen, by_proxy, compare, gate, grpc, on_a_frozen_clock, play, recorded};

/// The same calls, by the names their upstreams know.
fn by_their_names(mut tape: Vec<Call>) -> Vec<Call> {
    for call in &mut tape {
        for alias in ["\"gpt-9-mini\"", "\"gpt-9\""] {
            call.text = call.text.replace(alias, "\"big-1\"");
        }
    }
    tape
}

/// The same calls, with answers that tell their usage or are errors.
fn told(mut tape: Vec<Call>) -> Vec<Call> {
    for call in &mut tape {
        for turn in &mut call.first {
            let Turn::Answer(_, reply) = turn else { continue };
            if !matches!(reply, Reply::Status(_) | Reply::Usage { output: 0..10_000_000, .. }) {
                *reply = Reply::Usage { input: 70, output: 30 };
            }
        }
    }
    tape
}

/// Without what this door cannot change: the body that goes on, how it is encoded, and the answer that passes.
fn unchanged(_tape: &[Call], seen: Seen) -> Seen {
    match seen {
        Seen::Upstream { number, to, mut headers, .. } => {
            headers.remove("content-encoding");
            Seen::Upstream { number, to, headers, body: String::new() }
        }
        Seen::Answer { number, status, headers, body } => {
            let refused = headers.contains_key("x-tallygate-reason");
            Seen::Answer { number, status, headers, body: if refused { body } else { String::new() } }
        }
    }
}

async fn by_authz(tape: &[Call], rules: Rules, lens: Lens) -> Vec<String> {
    let gate = gate(rules);
    let address = grpc(&gate).await;
    play(gate, Authz::new(address), tape, lens).await
}

async fn equal(seed: u64, rules: Rules) {
    let tape = by_their_names(told(recorded(seed, super::CALLS / 2)));
    compare(&by_proxy(&tape, rules, unchanged).await, &by_authz(&tape, rules, unchanged).await, "by ext_authz");
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_equal_over_ext_authz_but_for_what_it_cannot_know() {
    on_a_frozen_clock(equal(1, Rules { unmetered: "refuse", class_not_granted: "use_default" })).await;
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_equal_over_ext_authz_where_other_paths_pass() {
    on_a_frozen_clock(equal(2, Rules { unmetered: "pass", class_not_granted: "refuse" })).await;
}

/// As our gRPC API tells it: a code in place of a status, the message alone, and nothing of answers that pass elsewhere.
fn over_grpc(_tape: &[Call], seen: Seen) -> Seen {
    match seen {
        Seen::Upstream { number, to, body, .. } => Seen::Upstream { number, to, headers: Default::default(), body },
        Seen::Answer { number, status, mut headers, body } => {
            if !headers.contains_key("x-tallygate-reason") {
                return Seen::Answer { number, status, headers: Default::default(), body: String::new() };
            }
            headers.remove("content-type");
            let code = i32::from(rpc_code(http::StatusCode::from_u16(status).expect("a status")));
            let body: Value = serde_json::from_str(&body).expect("JSON");
            let body = body["error"]["message"].as_str().expect("a message").to_owned();
            Seen::Answer { number, status: u16::try_from(code).expect("a code"), headers, body }
        }
    }
}

async fn equal_over_grpc(seed: u64, rules: Rules) {
    let tape = told(recorded(seed, super::CALLS / 2));
    let gate = gate(rules);
    let address = grpc(&gate).await;
    let acquired = play(gate, Acquire::new(address), &tape, super::plain).await;
    compare(&by_proxy(&tape, rules, over_grpc).await, &acquired, "over the gRPC API");
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_equal_over_the_grpc_api() {
    on_a_frozen_clock(equal_over_grpc(1, Rules { unmetered: "refuse", class_not_granted: "use_default" })).await;
}

#[tokio::test(start_paused = true)]
async fn recorded_calls_are_equal_over_the_grpc_api_where_other_paths_pass() {
    on_a_frozen_clock(equal_over_grpc(2, Rules { unmetered: "pass", class_not_granted: "refuse" })).await;
}

/// What one call is charged by the proxy and over ext_authz, for each answer.
async fn differences() {
    let body = |stream: bool| {
        let messages = serde_json::json!([{"role": "user", "content": "hello"}]);
        serde_json::json!({"model": "m-1", "stream": stream, "max_tokens": 40, "messages": messages}).to_string()
    };
    let rules = Rules { unmetered: "refuse", class_not_granted: "use_default" };
    let mut table = Vec::new();
    for (reply, stream) in [
        (Reply::Usage { input: 10, output: 10 }, true),
        (Reply::Silent, true),
        (Reply::Silent, false),
        (Reply::Cut, true),
        (Reply::Error, true),
        (Reply::Compressed, true),
        (Reply::Usage { input: 5, output: 50_000_000 }, true),
        (Reply::Status(500), true),
    ] {
        let (method, path) = ("POST".to_owned(), "/v1/chat/completions".to_owned());
        let call = |first| Call {
            first,
            method: method.clone(),
            path: path.clone(),
            headers: Vec::new(),
            text: body(stream),
            packing: Packing::Plain,
        };
        // The second is refused, so that the tape ends once the first is answered.
        let mut refused = call(vec![Turn::Answer(0, reply)]);
        refused.text = "{}".into();
        let tape = [call(Vec::new()), refused];
        let charge = |took_down: Vec<String>| {
            let books = took_down.last().expect("the books").clone();
            let (_, rest) = books.split_once("settled: ").expect("what was settled");
            rest.split([',', '\n']).next().expect("a number").trim().to_owned()
        };
        let (proxy, authz) =
            (charge(by_proxy(&tape, rules, unchanged).await), charge(by_authz(&tape, rules, unchanged).await));
        table.push(format!("{reply:?} stream={stream}: {proxy} {authz}"));
    }
    let expected = include_str!("differences.txt");
    let found = table.join("\n") + "\n";
    assert!(found == expected, "differences.txt must say:\n{found}");
}

#[tokio::test(start_paused = true)]
async fn what_ext_authz_cannot_know_comes_to_so_much() {
    on_a_frozen_clock(differences()).await;
}
