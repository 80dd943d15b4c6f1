use bytes::Bytes;
use serde_json::{Value, json};

use super::{Parsed, parse};
use crate::costing::{Api, Attachment, Detail, Effort, Image, PixelSize};
use crate::units::{self, Limit, Tokens};
use crate::wire::dialect::Unreadable;

fn read(body: &Value) -> Parsed {
    parse(&Bytes::from(body.to_string())).expect("well formed")
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hello world"}]})
}

fn with(name: &str, value: Value) -> Value {
    let mut body = chat();
    body[name] = value;
    body
}

#[test]
fn the_cap_is_the_larger_of_the_two() {
    assert_eq!(read(&chat()).call.cap, Limit::Unlimited);
    let mut both = with("max_tokens", json!(100));
    assert_eq!(read(&both).call.cap, Limit::AtMost(Tokens::new(100)));
    both["max_completion_tokens"] = json!(4_000);
    assert_eq!(read(&both).call.cap, Limit::AtMost(Tokens::new(4_000)));
    both["max_tokens"] = json!(-1);
    assert_eq!(read(&both).call.cap, Limit::Unlimited, "llama.cpp's word for no cap");
    assert_eq!(read(&with("max_tokens", json!(null))).call.cap, Limit::Unlimited);
    assert_eq!(read(&with("max_tokens", json!(0))).call.cap, Limit::AtMost(Tokens::ZERO), "zero is a cap");
}

#[test]
fn what_bears_on_cost_is_read() {
    let body = json!({
        "model": "gpt-4o", "n": 3, "reasoning_effort": "high", "stream": true,
        "tools": [{"type": "function"}],
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "hello"}], "name": "bob"},
            {"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "u"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA"}},
                {"type": "novelty", "x": 1},
            ]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "c"}]},
        ],
    });
    let call = read(&body).call;
    assert_eq!((call.choices.get(), call.effort, call.streamed), (3, Effort::High, true));
    assert_eq!((call.prompt.messages, call.prompt.names), (3, 1));
    assert_eq!(call.prompt.text.pieces().collect::<Vec<_>>(), ["bob", "hello"]);
    let length = |text: &str| units::Bytes::new(text.len() as u64);
    let audio = Attachment::Audio(length("{\"data\":\"AAAA\"}"));
    let image = |detail| Attachment::Image(Image { size: None, detail, api: Api::OpenAi });
    assert_eq!(call.prompt.attachments, [image(Detail::Low), image(Detail::Full), audio]);
    let structured = "[{\"type\":\"function\"}]{\"type\":\"novelty\",\"x\":1}[{\"id\":\"c\"}]";
    assert_eq!(call.prompt.structured, length(structured));
    assert_eq!(call.bytes, length(&body.to_string()));
    assert_eq!(read(&with("reasoning_effort", json!("ultra"))).call.effort, Effort::Unstated);
}

#[test]
fn only_the_usage_and_the_model_are_edited() {
    let edited = |body: &str, model: &str| {
        let body = Bytes::from(body.to_owned());
        String::from_utf8(parse(&body).expect("well formed").forward(&body, model).to_vec()).expect("utf-8")
    };
    let plain = r#" {"n": 1.0e0, "model" : "m", "messages":[{"role":"user","content":"\u00e9"}], "x": 1e400}"#;
    let plain = plain.replace("1.0e0", "1");
    assert_eq!(edited(&plain, "m"), plain, "nothing to edit");
    assert_eq!(edited(&plain, "a\"b"), plain.replace("\"m\"", r#""a\"b""#));
    let stream = r#"{"messages":[{"role":"user"}],"model":"m","stream":true,"temperature":0.70}"#;
    assert_eq!(
        edited(stream, "m"),
        format!("{{\"stream_options\":{{\"include_usage\":true}},{}", stream.trim_start_matches('{'))
    );
    for (options, expected) in [
        ("null", r#"{"include_usage":true}"#),
        ("{}", r#"{"include_usage":true}"#),
        (r#"{"include_usage": false}"#, r#"{"include_usage":true}"#),
        (r#"{"a": [1, 2.50], "include_usage": null}"#, r#"{"include_usage":true,"a":[1, 2.50]}"#),
    ] {
        let body = |options: &str| {
            format!(r#"{{"stream":true,"stream_options":{options},"messages":[{{"role":"user"}}],"model":"m"}}"#)
        };
        assert_eq!(edited(&body(options), "m"), body(expected));
        let renamed = body(expected).replace("\"m\"", "\"big\"");
        assert_eq!(edited(&body(options), "big"), renamed);
    }
    let asked = r#"{"stream":true,"stream_options":{"include_usage": true},"messages":[{"role":"u"}],"model":"m"}"#;
    assert_eq!(edited(asked, "m"), asked);
    assert!(!parse(&Bytes::from(asked)).expect("well formed").answer.hides());
    assert!(parse(&Bytes::from(stream)).expect("well formed").answer.hides());
}

#[test]
fn a_malformed_body_is_told_what_and_where() {
    let message = |content: Value| with("messages", json!([{"role": "user", "content": content}])).to_string();
    let cases: &[(String, &str)] = &[
        (String::new(), "the body must be a JSON object"),
        ("[]".into(), "the body must be a JSON object"),
        ("{\"model\":".into(), "the body: EOF while parsing a value at line 1 column 9"),
        ("{\"model\":\"m\"} x".into(), "the body: trailing characters at line 1 column 15"),
        ("{}".into(), "model is missing"),
        (with("model", json!(null)).to_string(), "model is missing"),
        (with("model", json!(7)).to_string(), "model must be a string, not a number"),
        (with("model", json!("")).to_string(), "model must have 1 to 256 bytes, not 0"),
        (with("model", json!("m".repeat(300))).to_string(), "model must have 1 to 256 bytes, not 300"),
        (r#"{"model":"a","model":"b","messages":[]}"#.into(), "the body: duplicate field `model` at line 1 column 20"),
        (with("messages", json!(null)).to_string(), "messages is missing"),
        (with("messages", json!([])).to_string(), "messages must have 1 to 65536 messages, not 0"),
        (with("messages", json!({"a": 1})).to_string(), "messages must be an array, not an object"),
        (with("messages", json!([7])).to_string(), "messages[0] must be an object, not a number"),
        (with("messages", json!([{"content": "x"}])).to_string(), "messages[0].role is missing"),
        (with("messages", json!([{"role": 1}])).to_string(), "messages[0].role must be a string, not a number"),
        (message(json!(true)), "messages[0].content must be a string or an array, not a boolean"),
        (message(json!(["x"])), "messages[0].content[0] must be an object, not a string"),
        (message(json!([{"text": "x"}])), "messages[0].content[0].type is missing"),
        (message(json!([{"type": "text"}])), "messages[0].content[0].text is missing"),
        (message(json!([{"type": "image_url"}])), "messages[0].content[0].image_url is missing"),
        (with("max_tokens", json!(-5)).to_string(), "max_tokens must not be negative: -5"),
        (with("max_tokens", json!(1.5)).to_string(), "max_tokens must be a whole number, not 1.5"),
        (
            with("max_completion_tokens", json!("9")).to_string(),
            "max_completion_tokens must be a whole number, not \"9\"",
        ),
        (with("n", json!(0)).to_string(), "n must be between 1 and 128, not 0"),
        (with("n", json!(129)).to_string(), "n must be between 1 and 128, not 129"),
        (with("stream", json!("yes")).to_string(), "stream must be a boolean, not a string"),
        (with("stream_options", json!(1)).to_string(), "stream_options must be an object, not a number"),
        (
            with("stream_options", json!({"include_usage": 1})).to_string(),
            "stream_options.include_usage must be a boolean, not a number",
        ),
        (with("reasoning_effort", json!(5)).to_string(), "reasoning_effort must be a string, not a number"),
    ];
    for (body, expected) in cases {
        let error = parse(&Bytes::from(body.clone())).expect_err(body);
        assert_eq!(error, Unreadable::Malformed((*expected).to_owned()), "{body}");
    }
    let error = parse(&Bytes::from_static(b"{\"model\": \"\xff\"}")).expect_err("not UTF-8");
    assert_eq!(error, Unreadable::Malformed("the body is not UTF-8 from byte 11".into()));
}

#[test]
fn background_is_not_supported() {
    let error = parse(&Bytes::from(with("background", json!(true)).to_string())).expect_err("unsupported");
    assert!(matches!(error, Unreadable::Unsupported(what) if what.starts_with("background: true")));
    assert!(parse(&Bytes::from(with("background", json!(false)).to_string())).is_ok());
}

#[test]
fn hostile_nesting_and_escapes_end_in_an_answer() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],"extra":{deep}}}"#);
    drop(parse(&Bytes::from(body)));
    let surrogate = r#"{"model":"m","messages":[{"role":"user","content":"\ud800"}]}"#;
    let error = parse(&Bytes::from(surrogate)).expect_err("a lone surrogate is not text");
    assert!(error.to_string().starts_with("messages[0].content: "), "{error}");
    let escaped = r#"{"mod\u0065l":"m","messages":[{"role":"user"}]}"#;
    assert_eq!(parse(&Bytes::from(escaped)).expect("an escaped name is a name").call.model, "m");
}

const PNG_3_BY_5: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAMAAAAFCAIAAAAPE8H1";

#[test]
fn an_image_in_the_body_is_as_large_as_it_says_and_nonsense_is_no_error() {
    let size = |image: Value| {
        let parts = json!([{"type": "image_url", "image_url": image}]);
        match read(&with("messages", json!([{"role": "user", "content": parts}]))).call.prompt.attachments[..] {
            [Attachment::Image(image)] => image.size,
            ref other => panic!("one image, not {other:?}"),
        }
    };
    let known = PixelSize::new(3, 5);
    assert_eq!((size(json!({"url": PNG_3_BY_5})), size(json!(PNG_3_BY_5))), (known, known));
    for nonsense in [json!({"url": "data:image/png;base64,%%%"}), json!({"url": 7}), json!({}), json!("")] {
        assert_eq!(size(nonsense.clone()), None, "{nonsense}");
    }
}

#[test]
fn a_template_that_forbids_thinking_is_no_effort_unless_one_is_named() {
    let effort = |kwargs: Value| read(&with("chat_template_kwargs", kwargs)).call.effort;
    assert_eq!(effort(json!({"enable_thinking": false})), Effort::None);
    assert_eq!(effort(json!({"thinking": false, "other": 1})), Effort::None);
    for says_nothing in [json!({"enable_thinking": true}), json!({}), json!(null), json!({"enable_thinking": null})] {
        assert_eq!(effort(says_nothing), Effort::Unstated);
    }
    let mut named = with("chat_template_kwargs", json!({"enable_thinking": false}));
    named["reasoning_effort"] = json!("low");
    assert_eq!(read(&named).call.effort, Effort::Low);
    let error = parse(&Bytes::from(with("chat_template_kwargs", json!(7)).to_string())).expect_err("not an object");
    assert_eq!(error, Unreadable::Malformed("chat_template_kwargs must be an object, not a number".into()));
}

/// A client's wishes to its engine change nothing here and reach it as they were written.
#[test]
fn wishes_to_the_engine_pass_unchanged() {
    let wishes = json!({
        "priority": -7, "request_id": "r", "cache_salt": "s", "session_params": {"id": "x"},
        "vllm_xargs": {"agentic_context": {"step": 3}}, "kv_transfer_params": {"do_remote_decode": true},
    });
    let mut body = chat();
    body.as_object_mut().expect("an object").extend(wishes.as_object().expect("an object").clone());
    let body = Bytes::from(body.to_string());
    let parsed = parse(&body).expect("well formed");
    assert_eq!(parsed.forward(&body, "m"), body);
    let plain = read(&chat()).call;
    assert_eq!(parsed.call, crate::costing::Call { bytes: parsed.call.bytes, ..plain });
}
