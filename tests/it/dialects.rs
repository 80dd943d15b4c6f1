//! Streams of every dialect, cut at every byte: usage right, no panic, nothing shown that is to be hidden.
//!
//! A case in `tests/golden/streams` is a request, the events of its answer, what the client is to see of them (where
//! that is not all), and what is to be read: the five disjoint buckets of usage, or what is counted where none came.

use std::path::Path;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use tallygate::costing::Encoding;
use tallygate::units::{Tokens, Usage};
use tallygate::wire::dialect::{AnswerForm, Dialect, Observer, StreamEnd};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    path: String,
    request: serde_json::Value,
    stream: Vec<String>,
    shown: Option<Vec<String>>,
    usage: Option<[u64; 5]>,
    counted: Option<[u64; 2]>,
    input: Option<[u64; 3]>,
    end: String,
}

impl Case {
    fn form(&self) -> AnswerForm {
        let dialect = Dialect::of(&Method::POST, &self.path).expect("a dialect");
        dialect.parse(&self.path, &Bytes::from(self.request.to_string())).expect("well formed").answer
    }

    /// The stream and what is to be seen of it, with lines that end like this.
    fn texts(&self, line_end: &str) -> (String, String) {
        let join = |events: &[String]| -> String { events.iter().map(|event| format!("{event}\n\n")).collect() };
        let stream = join(&self.stream);
        let shown = self.shown.as_ref().map_or_else(|| stream.clone(), |shown| join(shown));
        (stream.replace('\n', line_end), shown.replace('\n', line_end))
    }

    fn check(&self, observer: &mut Observer, context: &str) {
        let usage = self.usage.map(|buckets| {
            let [uncached_input, cached_input, cache_write, visible_output, reasoning_output] =
                buckets.map(Tokens::new);
            Usage { uncached_input, cached_input, cache_write, visible_output, reasoning_output }
        });
        assert_eq!(observer.usage(), usage, "{context}");
        let end = match observer.end() {
            StreamEnd::Open => "open",
            StreamEnd::Whole => "whole",
            StreamEnd::Final => "final",
            StreamEnd::Failed => "failed",
        };
        assert_eq!(end, self.end, "{context}");
        if let Some([visible, reasoning]) = self.counted {
            assert_eq!(observer.counted(), (Tokens::new(visible), Tokens::new(reasoning)), "{context}");
        }
        if let Some(input) = self.input {
            let read = observer.input().expect("the stream told its input");
            assert_eq!([read.uncached_input, read.cached_input, read.cache_write].map(Tokens::get), input, "{context}");
        }
    }
}

fn cases() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/streams");
    let mut cases: Vec<(String, Case)> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| {
            let path = entry.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("readable");
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let case = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            (name, case)
        })
        .collect();
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    cases
}

/// What is shown of a stream that arrives in these parts.
fn pass(form: &AnswerForm, parts: &[&[u8]]) -> (String, Observer) {
    let mut observer = form.observer(Encoding::O200k);
    let mut shown = Vec::new();
    for part in parts {
        shown.extend_from_slice(&observer.push(&Bytes::copy_from_slice(part)));
    }
    shown.extend_from_slice(&observer.finish());
    (String::from_utf8(shown).expect("utf-8 in, utf-8 out"), observer)
}

#[test]
fn wherever_a_stream_is_cut_the_same_is_read_and_shown() {
    let cases = cases();
    for dialect in Dialect::ALL.into_iter().filter(|dialect| *dialect != Dialect::OpenAiEmbeddings) {
        assert!(cases.iter().any(|(_, case)| case.path == dialect.path()), "no stream of {dialect:?}");
    }
    for (name, case) in &cases {
        let form = case.form();
        for line_end in ["\n", "\r\n"] {
            let (stream, expected) = case.texts(line_end);
            let bytes = stream.as_bytes();
            for at in 0..=bytes.len() {
                let (shown, mut observer) = pass(&form, &[&bytes[..at], &bytes[at..]]);
                assert_eq!(shown, expected, "{name}, cut at {at}");
                case.check(&mut observer, &format!("{name}, cut at {at}"));
            }
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            let (shown, mut observer) = pass(&form, &single);
            assert_eq!(shown, expected, "{name}, byte by byte");
            case.check(&mut observer, &format!("{name}, byte by byte"));
        }
    }
}

#[test]
fn a_stream_that_breaks_anywhere_shows_a_part_and_never_more() {
    for (name, case) in &cases() {
        let form = case.form();
        let (stream, expected) = case.texts("\n");
        let whole = pass(&form, &[stream.as_bytes()]).1.counted();
        for at in 0..stream.len() {
            let mut observer = form.observer(Encoding::O200k);
            let shown = observer.push(&Bytes::copy_from_slice(&stream.as_bytes()[..at]));
            assert!(expected.as_bytes().starts_with(&shown), "{name}, broken at {at}");
            let counted = observer.counted();
            assert!(counted.0 <= whole.0 && counted.1 <= whole.1, "{name}, broken at {at}");
        }
    }
}
