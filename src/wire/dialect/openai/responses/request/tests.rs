use bytes::Bytes;
use serde_json::{Value, json};

use super::parse;
use crate::costing::{Api, Attachment, Call, Detail, Effort, History, Image, PixelSize};
use crate::units::{Limit, Tokens};
use crate::wire::dialect::Unreadable;

fn read(body: &Value) -> Call {
    parse(&Bytes::from(body.to_string())).expect("well formed").call
}

#[test]
fn what_bears_on_cost_is_read() {
    let plain = read(&json!({"model": "m", "input": "hello", "max_output_tokens": 9, "stream": true}));
    assert_eq!((plain.cap, plain.streamed, plain.prompt.messages), (Limit::AtMost(Tokens::new(9)), true, 1));
    let call = read(&json!({
        "model": "m", "instructions": "be brief", "reasoning": {"effort": "high"}, "tools": [{"type": "function"}],
        "input": [
            {"role": "user", "content": "hello"},
            {"type": "message", "role": "user", "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "u", "detail": "low"},
                {"type": "input_image", "image_url":
                    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAMAAAAFCAIAAAAPE8H1"},
            ]},
            {"type": "reasoning", "summary": [], "encrypted_content": "x".repeat(9_000)},
            {"type": "function_call_output", "call_id": "c", "output": "found"},
        ],
    }));
    assert_eq!((call.cap, call.effort, call.prompt.messages), (Limit::Unlimited, Effort::High, 4));
    assert_eq!(call.prompt.text.pieces().collect::<Vec<_>>(), ["be brief", "hello", "look", "found"]);
    let image = |size, detail| Attachment::Image(Image { size, detail, api: Api::OpenAi });
    let known = PixelSize::new(3, 5);
    assert_eq!(call.prompt.attachments, [image(None, Detail::Low), image(known, Detail::Full)]);
    assert!(call.prompt.structured.get() < 200, "sealed reasoning is not counted by its cipher");
    let chained = read(&json!({"model": "m", "previous_response_id": "resp_1"}));
    assert_eq!(chained.prompt.messages, 0, "the history is not in the body");
    assert_eq!((chained.prompt.history, call.prompt.history), (History::Upstream, History::Stated));
    let search = read(&json!({"model": "m", "input": "x", "tools": [{"type": "web_search"}]}));
    assert_eq!(search.prompt.history, History::Upstream, "what it finds is read too");
}

#[test]
fn what_cannot_be_served_is_told_what_and_where() {
    let background = json!({"model": "m", "input": "x", "background": true});
    let error = parse(&Bytes::from(background.to_string())).expect_err("unsupported");
    assert!(matches!(error, Unreadable::Unsupported(what) if what.starts_with("background: true")));
    for (name, value, expected) in [
        ("model", json!(null), "model is missing"),
        ("input", json!(7), "input must be a string or an array, not a number"),
        ("input", json!([]), "input must have 1 to 65536 items, not 0"),
        ("input", json!([7]), "input[0] must be an object, not a number"),
        ("input", json!([{"content": "x"}]), "input[0].role is missing"),
        ("input", json!([{"role": "user", "content": [{}]}]), "input[0].content[0].type is missing"),
        (
            "input",
            json!([{"role": "user", "content": [{"type": "input_text"}]}]),
            "input[0].content[0].text is missing",
        ),
        ("max_output_tokens", json!("9"), "max_output_tokens must be a whole number, not \"9\""),
        ("reasoning", json!({"effort": 5}), "reasoning.effort must be a string, not a number"),
    ] {
        let mut body = json!({"model": "m", "input": "x"});
        body[name] = value;
        let error = parse(&Bytes::from(body.to_string())).expect_err(expected);
        assert_eq!(error, Unreadable::Malformed(expected.into()));
    }
}
