//! Streams of every dialect, their events split over two messages at every position: the same is shown, nothing of what
//! is hidden, no length is promised, and the charge is the same.
//!
//! The streams are those of `tests/golden/streams`, on which the dialects themselves are tested.

use std::path::Path;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::value::Kind;
use serde::Deserialize;

use super::super::message::{Asked, ProcessingRequest, ProcessingResponse, Said};
use super::Step;
use super::tests::{answer, ask, body, gate_of, headers, life, replaced, sends};
use crate::shell::Gate;
use crate::units::VirtualTokens;

#[derive(Deserialize)]
struct Case {
    path: String,
    request: serde_json::Value,
    stream: Vec<String>,
    shown: Option<Vec<String>>,
    usage: Option<[f64; 5]>,
    end: String,
}

fn cases() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/streams");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let case = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_stem().expect("a name").to_string_lossy().into_owned(), case)
    };
    std::fs::read_dir(folder).expect("the folder is there").map(read).collect()
}

fn joined(events: &[String]) -> String {
    events.iter().map(|event| format!("{event}\n\n")).collect()
}

/// What a message says the request came to.
fn charge(told: &ProcessingResponse) -> Option<f64> {
    let ours = told.dynamic_metadata.as_ref()?.fields.get("tallygate")?.kind.as_ref()?;
    let Kind::StructValue(ours) = ours else { return None };
    match ours.fields.get("charge")?.kind.as_ref()? {
        Kind::NumberValue(number) => Some(*number),
        _ => None,
    }
}

/// What is shown of a stream that comes in these parts, and what it was charged.
async fn pass(gate: &Gate, case: &Case, parts: &[&[u8]]) -> (String, f64) {
    let before = gate.look(|seen| seen.ledger.total().settled).expect("not broken");
    let mut life = life(gate);
    let head = ask(Asked::RequestHeaders(headers(&[(":method", "POST"), (":path", &case.path)])));
    let whole = ask(Asked::RequestBody(body(&case.request.to_string(), true)));
    sends(gate, &mut life, head, whole).await;
    let stream = [(":status", "200"), ("content-type", "text/event-stream"), ("content-length", "7")];
    let said = answer(life.on(ask(Asked::ResponseHeaders(headers(&stream)))));
    let Some(Said::ResponseHeaders(said)) = said.response else { panic!("an answer to the headers") };
    let removed = said.response.and_then(|said| said.header_mutation).map(|edit| edit.remove_headers);
    assert_eq!(removed, Some(vec!["content-length".to_owned()]), "no length is promised");

    let (mut shown, mut charged) = (Vec::new(), None);
    for (at, part) in parts.iter().enumerate() {
        let mut message = body("", at + 1 == parts.len());
        message.body = part.to_vec();
        let said =
            answer(life.on(ProcessingRequest { request: Some(Asked::ResponseBody(message)), ..Default::default() }));
        charged = charge(&said).or(charged);
        shown.extend(replaced(said).unwrap_or_else(|| Bytes::copy_from_slice(part)));
    }
    assert!(matches!(life.closed(), Step::Over));
    drop(life);
    let books = gate.look(|seen| seen.ledger.total()).expect("not broken");
    assert_eq!(books.live(), VirtualTokens::ZERO);
    let charged = charged.expect("the charge is told once it is known");
    assert_eq!((books.settled - before).as_f64(), charged, "what is told is what is in the books");
    (String::from_utf8(shown).expect("text"), charged)
}

#[tokio::test(start_paused = true)]
async fn wherever_an_event_is_split_over_messages_the_same_is_shown_and_charged() {
    let cases = cases();
    assert!(cases.len() >= 15, "the streams are there");
    for (name, case) in &cases {
        let stream = joined(&case.stream);
        let expected = case.shown.as_ref().map_or_else(|| stream.clone(), |shown| joined(shown));
        let bytes = stream.as_bytes();
        let gate = gate_of("version: 1\npools: [{name: chat, models: ['*']}]\n");
        let whole = pass(&gate, case, &[bytes]).await;
        assert_eq!(whole.0, expected, "{name}");
        if let (Some([uncached, cached, written, visible, reasoning]), "final") = (case.usage, case.end.as_str()) {
            let cost = uncached + 0.1 * cached + 1.25 * written + 2.0 * (visible + reasoning);
            assert!((whole.1 - cost).abs() < 1e-6, "{name}: charged {} and not {cost}", whole.1);
        }
        for at in 0..=bytes.len() {
            assert_eq!(pass(&gate, case, &[&bytes[..at], &bytes[at..]]).await, whole, "{name}, split at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(pass(&gate, case, &single).await, whole, "{name}, byte by byte");
    }
}
