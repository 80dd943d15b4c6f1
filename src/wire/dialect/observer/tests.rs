use bytes::Bytes;

use super::{AnswerForm, Dialect, Observer, StreamEnd};
use crate::costing::Encoding;
use crate::units::Tokens;

/// What OpenAI sends when asked for usage.
const STREAM: &str = concat!(
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n",
    "data: {\"id\":\"c\",\"usage\":null,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello \"}}]}\n\n",
    ": keep-alive\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"world é\"}}] , \"usage\" : null }\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
    "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"total_tokens\":13}}\n\n",
    "data: [DONE]\n\n",
);

/// What a client that did not ask is to see.
const SHOWN: &str = concat!(
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello \"}}]}\n\n",
    ": keep-alive\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"world é\"}}] }\n\n",
    "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
    "data: [DONE]\n\n",
);

fn pass(parts: &[&str], hide: bool) -> (String, Observer) {
    let form = AnswerForm::new(Dialect::OpenAiChat, hide);
    let mut observer = form.observer(Encoding::O200k);
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(&observer.push(&Bytes::from(part.as_bytes().to_vec())));
    }
    out.extend_from_slice(&observer.finish());
    (String::from_utf8(out).expect("utf-8 in, utf-8 out"), observer)
}

#[test]
fn usage_we_asked_for_is_noted_and_hidden() {
    let (shown, mut observer) = pass(&[STREAM], true);
    assert_eq!(shown, SHOWN);
    let usage = observer.usage().expect("reported");
    assert_eq!((usage.input(), usage.output()), (Tokens::new(9), Tokens::new(4)));
    assert_eq!(observer.end(), StreamEnd::Final);
    assert_eq!(observer.counted(), (Tokens::new(3), Tokens::ZERO), "hello, world, é");
}

#[test]
fn a_client_that_asked_sees_every_byte() {
    let (shown, observer) = pass(&[STREAM], false);
    assert_eq!(shown, STREAM);
    assert!(observer.usage().is_some());
}

#[test]
fn cuts_make_no_difference() {
    for at in (0..=STREAM.len()).filter(|at| STREAM.is_char_boundary(*at)) {
        let (shown, observer) = pass(&[&STREAM[..at], &STREAM[at..]], true);
        assert_eq!(shown, SHOWN, "cut at {at}");
        assert_eq!(observer.usage().map(|usage| usage.total()), Some(Tokens::new(13)), "cut at {at}");
    }
    let crlf = STREAM.replace('\n', "\r\n");
    let expected = SHOWN.replace('\n', "\r\n");
    for at in (0..=crlf.len()).filter(|at| crlf.is_char_boundary(*at)) {
        assert_eq!(pass(&[&crlf[..at], &crlf[at..]], true).0, expected, "cut at {at}");
    }
}

#[test]
fn a_stream_cut_short_keeps_what_was_counted() {
    let cut = STREAM.find("\"finish_reason\"").expect("there");
    let (_, mut observer) = pass(&[&STREAM[..cut]], true);
    assert_eq!(observer.end(), StreamEnd::Open);
    assert_eq!(observer.usage(), None);
    assert_eq!(observer.counted().0, Tokens::new(3));
}

#[test]
fn an_error_in_the_stream_is_a_failure_and_passes() {
    let error = "data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n";
    let (shown, observer) = pass(&[error], true);
    assert_eq!(shown, error);
    assert_eq!(observer.end(), StreamEnd::Failed);
}

#[test]
fn every_kind_of_output_counts_in_its_bucket() {
    let chunk = |delta: &str| format!("data: {{\"choices\":[{{\"index\":1,\"delta\":{delta}}}]}}\n\n");
    let stream = [
        chunk("{\"reasoning_content\":\"hello\"}"),
        chunk("{\"reasoning\":\" world\"}"),
        chunk("{\"content\":\"hello\"}"),
        chunk("{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\" world\",\"arguments\":\"\"}}]}"),
        chunk("{\"refusal\":\" hello\"}"),
    ]
    .concat();
    let (_, mut observer) = pass(&[&stream], true);
    assert_eq!(observer.output_so_far(), Tokens::new(2), "some of each kind");
    assert_eq!(observer.counted(), (Tokens::new(3), Tokens::new(2)));
}

#[test]
fn what_is_not_a_chunk_passes_and_breaks_nothing() {
    for odd in ["data: not json\n\n", "data: 7\n\n", "data:\n\n", "data: {\"choices\":7}\n\n", "event: ping\n\n"] {
        let (shown, observer) = pass(&[odd, STREAM], true);
        assert_eq!(shown, format!("{odd}{SHOWN}"));
        assert!(observer.usage().is_some());
    }
    let absurd = "data: {\"choices\":[{\"index\":18446744073709551615,\"delta\":{\"content\":\"hello\"}}]}\n\n";
    assert_eq!(pass(&[absurd], true).1.counted().0, Tokens::new(1));
}
