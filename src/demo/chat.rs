//! A chat completion request as the simulated engine reads it, and what it answers when it cannot.
//!
//! Parameters that steer sampling (`temperature`, `seed`, penalties, `stop`, `tools` and the like) are taken as
//! vLLM takes them and have nothing to steer: nothing is sampled. What would change the *shape* of an answer and is
//! not simulated (several choices, log probabilities, structured output) is refused by name.

use axum::body::Body;
use axum::response::Response;
use http::{StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::costing::{COUNTED_TEXT, Encoding, InputCounter, Prompt};
use crate::units::{Limit, Tokens};

use super::length::Wish;

/// The simulated model's tokenizer.
pub(super) const ENCODING: Encoding = Encoding::O200k;

/// The largest number of tokens a request may name; beyond it is nonsense, and no sum overflows below it.
const MOST_TOKENS: u64 = 1_000_000_000;

/// A request that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chat {
    pub(super) model: String,
    pub(super) input: Tokens,
    pub(super) wish: Wish,
    pub(super) delivery: Delivery,
}

/// How the answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// In one piece.
    Whole,
    /// As it is produced.
    Streamed(UsageIn),
}

/// Where a stream tells usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageIn {
    /// Nowhere.
    NoChunk,
    /// In a chunk of its own at the end.
    TheLast,
    /// In every chunk, and in one of its own at the end.
    Every,
}

/// An answer that says what is wrong, in OpenAI's shape.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) status: StatusCode,
    pub(super) message: String,
    pub(super) param: Option<&'static str>,
    pub(super) code: Option<&'static str>,
}

impl Rejection {
    pub(super) fn bad(param: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), param, code: None }
    }

    pub(super) fn into_response(self) -> Response {
        let kind = if self.status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let error = json!({"message": self.message, "type": kind, "param": self.param, "code": self.code});
        answer_json(self.status, &json!({ "error": error }))
    }
}

/// A JSON answer.
pub(super) fn answer_json(status: StatusCode, body: &Value) -> Response {
    json_response(status, body.to_string())
}

/// A JSON answer, written already.
pub(super) fn json_response(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

#[derive(Deserialize)]
struct Form {
    model: String,
    messages: Vec<Message>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    ignore_eos: Option<bool>,
    n: Option<u64>,
    logprobs: Option<bool>,
    response_format: Option<ResponseFormat>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Deserialize)]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
}

/// Reads a request's body.
pub(super) fn parse(body: &[u8]) -> Result<Chat, Rejection> {
    let form: Form = serde_json::from_slice(body)
        .map_err(|error| Rejection::bad(None, format!("the body is not a chat completion request: {error}")))?;
    if form.messages.is_empty() {
        return Err(Rejection::bad(Some("messages"), "messages must not be empty"));
    }
    refuse_unsimulated(&form)?;
    Ok(Chat {
        input: input_tokens(&form.model, &form.messages),
        wish: wish(&form)?,
        delivery: delivery(&form)?,
        model: form.model,
    })
}

fn refuse_unsimulated(form: &Form) -> Result<(), Rejection> {
    if form.n.is_some_and(|n| n != 1) {
        return Err(Rejection::bad(
            Some("n"),
            "the simulated engine answers with one choice; leave out n or set it to 1",
        ));
    }
    if form.logprobs == Some(true) {
        return Err(Rejection::bad(
            Some("logprobs"),
            "the simulated engine samples nothing and has no log probabilities",
        ));
    }
    if let Some(format) = form.response_format.as_ref().filter(|format| format.kind != "text") {
        let message = format!("the simulated engine answers with text and cannot follow {:?}", format.kind);
        return Err(Rejection::bad(Some("response_format"), message));
    }
    Ok(())
}

fn wish(form: &Form) -> Result<Wish, Rejection> {
    let (cap, param) = match (form.max_completion_tokens, form.max_tokens) {
        (Some(cap), _) => (Some(cap), "max_completion_tokens"),
        (None, cap) => (cap, "max_tokens"),
    };
    if cap.is_some_and(|cap| !(1..=MOST_TOKENS).contains(&cap)) {
        return Err(Rejection::bad(Some(param), format!("{param} must be between 1 and {MOST_TOKENS}")));
    }
    match (form.ignore_eos == Some(true), cap) {
        (true, Some(cap)) => Ok(Wish::Exactly(Tokens::new(cap))),
        (true, None) => {
            Err(Rejection::bad(Some("ignore_eos"), "ignore_eos needs max_tokens, or the answer never ends"))
        }
        (false, cap) => Ok(Wish::UpTo(Limit::from(cap.map(Tokens::new)))),
    }
}

fn delivery(form: &Form) -> Result<Delivery, Rejection> {
    let Some(options) = &form.stream_options else {
        return Ok(if form.stream == Some(true) { Delivery::Streamed(UsageIn::NoChunk) } else { Delivery::Whole });
    };
    if form.stream != Some(true) {
        return Err(Rejection::bad(Some("stream_options"), "stream_options is only allowed when stream is true"));
    }
    Ok(Delivery::Streamed(match (options.include_usage, options.continuous_usage_stats) {
        (Some(true), Some(true)) => UsageIn::Every,
        (Some(true), _) => UsageIn::TheLast,
        _ => UsageIn::NoChunk,
    }))
}

/// Counted as the gateway counts, so that its estimate can be judged by what the engine reports.
fn input_tokens(model: &str, messages: &[Message]) -> Tokens {
    let mut prompt = Prompt { messages: u32::try_from(messages.len()).unwrap_or(u32::MAX), ..Prompt::default() };
    for message in messages {
        match &message.content {
            Some(Content::Text(text)) => prompt.text.push(text, COUNTED_TEXT),
            Some(Content::Parts(parts)) => {
                parts
                    .iter()
                    .filter_map(|part| part.text.as_ref())
                    .for_each(|text| prompt.text.push(text, COUNTED_TEXT));
            }
            None => {}
        }
    }
    InputCounter::of(model).count(&prompt).total()
}

#[cfg(test)]
mod tests {
    use super::{Delivery, UsageIn, Wish, parse};
    use crate::units::{Limit, Tokens};

    fn read(extra: &str) -> Result<super::Chat, super::Rejection> {
        parse(format!(r#"{{"model": "demo", "messages": [{{"role": "user", "content": "hello"}}]{extra}}}"#).as_bytes())
    }

    #[test]
    fn a_plain_request_is_read() {
        let chat = read("").expect("valid");
        assert_eq!((chat.delivery, chat.wish), (Delivery::Whole, Wish::UpTo(Limit::Unlimited)));
        let streamed =
            read(r#", "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}"#);
        assert_eq!(streamed.expect("valid").delivery, Delivery::Streamed(UsageIn::Every));
        let exact = read(r#", "max_tokens": 9, "max_completion_tokens": 7, "ignore_eos": true, "temperature": 0.5"#);
        assert_eq!(exact.expect("valid").wish, Wish::Exactly(Tokens::new(7)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (extra, param) in [
            (r#", "n": 2"#, "n"),
            (r#", "logprobs": true"#, "logprobs"),
            (r#", "response_format": {"type": "json_object"}"#, "response_format"),
            (r#", "max_tokens": 0"#, "max_tokens"),
            (r#", "ignore_eos": true"#, "ignore_eos"),
            (r#", "stream_options": {"include_usage": true}"#, "stream_options"),
        ] {
            assert_eq!(read(extra).expect_err(extra).param, Some(param));
        }
        let empty = parse(br#"{"model": "demo", "messages": []}"#).expect_err("no messages");
        assert_eq!(empty.param, Some("messages"));
        assert!(parse(b"[1").expect_err("not JSON").message.contains("column"));
    }
}
