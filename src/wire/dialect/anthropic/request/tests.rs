use bytes::Bytes;
use serde_json::{Value, json};

use super::parse;
use crate::costing::{Api, Attachment, Detail, Effort, History, Image, PixelSize};
use crate::units::{self, Limit, Tokens};
use crate::wire::dialect::{Parsed, Unreadable};

fn read(body: &Value) -> Parsed {
    parse(&Bytes::from(body.to_string())).expect("well formed")
}

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]});
    body[name] = value;
    body
}

#[test]
fn what_bears_on_cost_is_read() {
    let body = json!({
        "model": "claude", "max_tokens": 500, "stream": true, "tools": [{"name": "t"}],
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "hello"},
                {"type": "image", "source": {"type": "url", "url": "u"}},
                {"type": "document", "source": {"type": "text", "data": "a page"}},
                {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "xxxx"},
                {"type": "tool_use", "id": "1", "name": "t", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "found"}]},
            ]},
        ],
    });
    let call = read(&body).call;
    assert_eq!((call.cap, call.streamed), (Limit::AtMost(Tokens::new(500)), true));
    assert_eq!(call.prompt.messages, 4, "the system prompt is one");
    assert_eq!(call.prompt.text.pieces().collect::<Vec<_>>(), ["be brief", "hello", "a page", "hm", "found"]);
    let image = Attachment::Image(Image { size: None, detail: Detail::Full, api: Api::Anthropic });
    assert_eq!(call.prompt.attachments, [image, Attachment::File(units::Bytes::new(6))]);
    let structured = "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"t\",\"input\":{}}[{\"name\":\"t\"}]";
    assert_eq!(call.prompt.structured.get(), structured.len() as u64);
}

#[test]
fn effort_is_named_or_follows_from_the_budget() {
    let effort = |name: &str, value: Value| read(&with(name, value)).call.effort;
    assert_eq!(effort("output_config", json!({"effort": "xhigh"})), Effort::XHigh);
    assert_eq!(effort("thinking", json!({"type": "disabled"})), Effort::None);
    assert_eq!(effort("thinking", json!({"type": "adaptive"})), Effort::Unstated);
    for (budget, expected) in [(1_024, Effort::Low), (5_000, Effort::Medium), (32_000, Effort::High)] {
        assert_eq!(effort("thinking", json!({"type": "enabled", "budget_tokens": budget})), expected);
    }
    assert_eq!(read(&with("max_tokens", json!(0))).call.cap, Limit::AtMost(Tokens::ZERO), "a cache is warmed");
}

#[test]
fn a_malformed_body_is_told_what_and_where() {
    let message = |content: Value| with("messages", json!([{"role": "user", "content": content}]));
    for (body, expected) in [
        (with("max_tokens", json!(null)), "max_tokens is missing"),
        (with("max_tokens", json!(-1)), "max_tokens must not be negative: -1"),
        (with("model", json!(null)), "model is missing"),
        (with("messages", json!(null)), "messages is missing"),
        (with("messages", json!([])), "messages must have 1 to 65536 messages, not 0"),
        (with("messages", json!([{"content": "x"}])), "messages[0].role is missing"),
        (with("messages", json!([{"role": "user"}])), "messages[0].content is missing"),
        (message(json!(7)), "messages[0].content must be a string or an array, not a number"),
        (message(json!([{"type": "text"}])), "messages[0].content[0].text is missing"),
        (message(json!([{"type": "document"}])), "messages[0].content[0].source is missing"),
        (message(json!([{"text": "x"}])), "messages[0].content[0].type is missing"),
        (with("system", json!({})), "system must be a string or an array, not an object"),
        (with("thinking", json!({})), "thinking.type is missing"),
        (with("thinking", json!({"type": "enabled"})), "thinking.budget_tokens is missing"),
        (with("output_config", json!(1)), "output_config must be an object, not a number"),
        (with("stream", json!("yes")), "stream must be a boolean, not a string"),
    ] {
        let error = parse(&Bytes::from(body.to_string())).expect_err(expected);
        assert_eq!(error, Unreadable::Malformed(expected.into()), "{body}");
    }
}

#[test]
fn only_the_models_name_is_edited() {
    let body = Bytes::from(with("temperature", json!(0.5)).to_string());
    let parsed = parse(&body).expect("well formed");
    assert_eq!(parsed.forward(&body, "m"), body);
    let renamed = parsed.forward(&body, "other");
    assert_eq!(String::from_utf8(renamed.to_vec()).expect("utf-8"), {
        String::from_utf8(body.to_vec()).expect("utf-8").replace("\"m\"", "\"other\"")
    });
}

#[test]
fn an_image_in_the_body_is_as_large_as_it_says_and_nonsense_is_no_error() {
    let size = |source: Value| {
        let parts = json!([{"type": "image", "source": source}]);
        match read(&with("messages", json!([{"role": "user", "content": parts}]))).call.prompt.attachments[..] {
            [Attachment::Image(image)] => image.size,
            ref other => panic!("one image, not {other:?}"),
        }
    };
    let data = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAAFCAIAAAAPE8H1";
    assert_eq!(size(json!({"type": "base64", "media_type": "image/png", "data": data})), PixelSize::new(3, 5));
    for nonsense in [json!({"type": "base64", "data": 7}), json!({"data": ""}), json!(null), json!([1])] {
        assert_eq!(size(nonsense.clone()), None, "{nonsense}");
    }
}

#[test]
fn tools_that_run_at_the_upstream_add_to_what_is_read() {
    let history = |tools: Value| read(&with("tools", tools)).call.prompt.history;
    for here in [json!([{"name": "t"}]), json!([{"type": "custom", "name": "t"}]), json!([]), json!("odd"), json!([7])]
    {
        assert_eq!(history(here.clone()), History::Stated, "{here}");
    }
    assert_eq!(history(json!([{"name": "t"}, {"type": "web_search_20250305"}])), History::Upstream);
}
