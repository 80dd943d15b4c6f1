//! Calls as they were recorded: what is asked, and what becomes of the calls that are open before it.
//!
//! The generator draws them from a seed: every dialect, streamed and not, sessions, classes, priorities, caps, tools,
//! images, effort; keys that are known and not, names that are forged, doubled or too long; bodies that are
//! compressed, broken, cut, large or of another model; paths that are not metered or only look as if they were not.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tallygate::wire::dialect::Dialect;

/// One recorded call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Call {
    /// What happens to the calls before it, first.
    pub(super) first: Vec<Turn>,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) text: String,
    pub(super) packing: Packing,
}

/// How a text is packed into a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Packing {
    Plain,
    Gzip,
    /// Compressed, and cut off.
    CutGzip,
    /// A byte that is not UTF-8 in the middle.
    Garbled,
}

/// Something that happens to one of the calls that are open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Turn {
    /// The upstream answers the one it has had for so many places.
    Answer(usize, Reply),
    /// The client of the so-manieth open call leaves.
    Leave(usize),
}

/// What an upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Well, and with this much usage.
    Usage { input: u64, output: u64 },
    /// Well, and says nothing of usage.
    Silent,
    /// A stream that ends in good order before its end; in one piece, nonsense.
    Cut,
    /// An error in the stream.
    Error,
    /// An error instead of an answer.
    Status(u16),
    /// Something compressed although nobody asked for it.
    Compressed,
}

impl Call {
    /// The dialect it would be metered in.
    pub(super) fn dialect(&self) -> Option<Dialect> {
        let path = self.path.split('?').next().unwrap_or_default();
        Dialect::of(&self.method.parse().expect("a method"), path)
    }

    /// Whether it asks for a stream.
    pub(super) fn streams(&self) -> bool {
        if self.dialect() == Some(Dialect::Gemini) {
            return self.path.contains("alt=sse");
        }
        serde_json::from_str::<Value>(&self.text).is_ok_and(|body| body["stream"] == true)
    }

    pub(super) fn body(&self) -> Vec<u8> {
        let plain = self.text.clone().into_bytes();
        let gzip = |plain: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, plain).expect("memory takes it");
            encoder.finish().expect("memory takes it")
        };
        match self.packing {
            Packing::Plain => plain,
            Packing::Gzip => gzip(&plain),
            Packing::CutGzip => {
                let whole = gzip(&plain);
                whole[..whole.len() / 2].to_vec()
            }
            Packing::Garbled => {
                let mut garbled = plain;
                let middle = garbled.len() / 2;
                garbled.insert(middle, 0xff);
                garbled
            }
        }
    }

    /// What an upstream sends for a reply: status, content type, and the pieces of the body.
    pub(super) fn answer(&self, reply: Reply) -> (u16, &'static str, Vec<String>) {
        const JSON: &str = "application/json";
        match (reply, self.dialect()) {
            (Reply::Status(status), _) => (status, JSON, vec![r#"{"error":{"message":"theirs"}}"#.into()]),
            (_, Some(dialect)) if self.streams() && dialect != Dialect::OpenAiEmbeddings => {
                (200, "text/event-stream", events(dialect, reply))
            }
            (Reply::Cut | Reply::Error, _) => (200, JSON, vec!["{\"choices\":".into()]),
            (_, dialect) => (200, JSON, vec![whole(dialect, reply).to_string()]),
        }
    }
}

/// An answer in one piece.
fn whole(dialect: Option<Dialect>, reply: Reply) -> Value {
    let mut answer = match dialect {
        None => json!({"data": []}),
        Some(Dialect::OpenAiEmbeddings) => json!({"data": [{"embedding": [0.5]}]}),
        Some(Dialect::OpenAiChat) => json!({"choices": [{"index": 0, "message": {"content": "one two three"}}]}),
        Some(Dialect::OpenAiCompletions) => json!({"choices": [{"index": 0, "text": "one two three"}]}),
        Some(Dialect::OpenAiResponses) => {
            json!({"output": [{"type": "message", "content": [{"type": "output_text", "text": "one two"}]}]})
        }
        Some(Dialect::AnthropicMessages) => json!({"content": [{"type": "text", "text": "one two three"}]}),
        Some(Dialect::Gemini) => json!({"candidates": [{"content": {"parts": [{"text": "one two three"}]}}]}),
    };
    if let (Reply::Usage { input, output }, Some(dialect)) = (reply, dialect) {
        answer[if dialect == Dialect::Gemini { "usageMetadata" } else { "usage" }] = usage(dialect, input, output);
    }
    answer
}

fn usage(dialect: Dialect, input: u64, output: u64) -> Value {
    match dialect {
        Dialect::OpenAiResponses | Dialect::AnthropicMessages => {
            json!({"input_tokens": input, "output_tokens": output})
        }
        Dialect::Gemini => json!({"promptTokenCount": input, "candidatesTokenCount": output}),
        _ => json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}),
    }
}

/// A stream, in pieces that do not heed where its events begin.
fn events(dialect: Dialect, reply: Reply) -> Vec<String> {
    let told = match reply {
        Reply::Usage { input, output } => Some(usage(dialect, input, output)),
        _ => None,
    };
    let mut events: Vec<(&str, Value)> = Vec::new();
    match dialect {
        Dialect::AnthropicMessages => {
            let input = told.as_ref().map_or(json!(7), |told| told["input_tokens"].clone());
            let usage = json!({"input_tokens": input, "output_tokens": 1});
            events.push(("message_start", json!({"type": "message_start", "message": {"usage": usage}})));
            let delta = json!({"type": "text_delta", "text": "one two three"});
            events.push(("content_block_delta", json!({"type": "content_block_delta", "index": 0, "delta": delta})));
        }
        Dialect::OpenAiResponses => {
            events.push(("response.created", json!({"type": "response.created", "response": {}})));
            let delta = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "one two three"});
            events.push(("response.output_text.delta", delta));
        }
        Dialect::OpenAiChat => {
            for text in ["one", " two", " three"] {
                events.push(("", json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": null})));
            }
        }
        Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings => {
            events.push(("", json!({"choices": [{"index": 0, "text": "one two three"}]})));
        }
        Dialect::Gemini => {
            events.push(("", json!({"candidates": [{"content": {"parts": [{"text": "one two three"}]}}]})));
        }
    }
    let mut text: String = events.iter().map(|(name, data)| event(name, data)).collect();
    match reply {
        Reply::Cut => {}
        Reply::Error => text += &event("error", &json!({"type": "error", "error": {"message": "theirs"}})),
        _ => text += &ending(dialect, told),
    }
    let bytes: Vec<char> = text.chars().collect();
    bytes.chunks(47).map(|piece| piece.iter().collect()).collect()
}

fn ending(dialect: Dialect, told: Option<Value>) -> String {
    match dialect {
        Dialect::AnthropicMessages => {
            let mut delta = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}});
            delta["usage"] = told.unwrap_or(json!({}));
            event("message_delta", &delta) + &event("message_stop", &json!({"type": "message_stop"}))
        }
        Dialect::OpenAiResponses => {
            let response = told.map_or(json!({}), |told| json!({"usage": told}));
            event("response.completed", &json!({"type": "response.completed", "response": response}))
        }
        Dialect::Gemini => {
            let mut last = json!({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]});
            last["usageMetadata"] = told.unwrap_or(json!({}));
            event("", &last)
        }
        _ => {
            let usage = told.map(|told| event("", &json!({"choices": [], "usage": told})));
            usage.unwrap_or_default() + "data: [DONE]\n\n"
        }
    }
}

fn event(name: &str, data: &Value) -> String {
    let name = if name.is_empty() { String::new() } else { format!("event: {name}\n") };
    format!("{name}data: {data}\n\n")
}

/// Draws so many calls.
pub(super) fn draw(seed: u64, count: usize) -> Vec<Call> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..count).map(|_| call(&mut rng)).collect()
}

fn one<T: Clone>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())].clone()
}

fn call(rng: &mut StdRng) -> Call {
    let mut first = Vec::new();
    for _ in 0..rng.random_range(0..2) {
        let which = rng.random_range(0..8);
        first.push(if rng.random_bool(0.2) { Turn::Leave(which) } else { Turn::Answer(which, reply(rng)) });
    }
    let dialects = [&Dialect::ALL[..], &Dialect::ALL[..], &[Dialect::Gemini]].concat();
    let dialect = one(rng, &dialects);
    let mut headers = identity(rng);
    let (method, path) = address(rng, dialect);
    let mut packing = Packing::Plain;
    if method == "GET" {
        return Call { first, method, path, headers, text: String::new(), packing };
    }
    if rng.random_bool(0.12) {
        packing = one(rng, &[Packing::Gzip, Packing::Gzip, Packing::CutGzip]);
        headers.push(("content-encoding".into(), "gzip".into()));
    } else if rng.random_bool(0.02) {
        packing = Packing::Garbled;
    } else if rng.random_bool(0.02) {
        headers.push(("content-encoding".into(), one(rng, &["br", "gzip, gzip", "identity"]).into()));
    }
    let mut text = body(rng, dialect).to_string();
    match rng.random_range(0..40) {
        0 => text.truncate(text.floor_char_boundary(text.len() / 2)),
        1 => text = one(rng, &["", "[]", "null", "{}", "\"x\"", "{\"model\":7}"]).to_owned(),
        _ => {}
    }
    Call { first, method, path, headers, text, packing }
}

fn reply(rng: &mut StdRng) -> Reply {
    match rng.random_range(0..12) {
        0 => Reply::Silent,
        1 => Reply::Cut,
        2 => Reply::Error,
        3 => Reply::Status(one(rng, &[400, 429, 500, 503, 529])),
        4 => Reply::Compressed,
        5 => Reply::Usage { input: 0, output: 0 },
        6 => Reply::Usage { input: 5, output: 50_000_000 },
        _ => Reply::Usage { input: rng.random_range(1..3_000), output: rng.random_range(0..500) },
    }
}

/// Method and path: mostly the dialect's own.
fn address(rng: &mut StdRng, dialect: Dialect) -> (String, String) {
    // None that the policy renames: not every door can write a path anew. `doors/apis.rs` has those that can.
    let model = one(rng, &["m-1", "big-1", "unknown"]);
    let verb = one(rng, &["generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse"]);
    let own = match dialect {
        Dialect::Gemini => &*format!("/v1beta/models/{model}:{verb}"),
        other => other.path(),
    };
    let (method, path) = match rng.random_range(0..30) {
        0 => ("GET", one(rng, &["/v1/models", "/v1/models?limit=3", own, "/health"]).to_owned()),
        1 => ("POST", one(rng, &["/v1/messages/count_tokens", "/v1/responses/input_tokens"]).to_owned()),
        2 => ("POST", one(rng, &["/v1/files", "/v1/audio/speech", "/v1/threads/t/messages", "/"]).to_owned()),
        3 => ("POST", format!("{own}{}beta=true", if own.contains('?') { "&" } else { "?" })),
        4 => (
            "POST",
            one(rng, &["//v1/chat/completions", "/v1/messages/", "/v1/%63ompletions", "/x/v1/responses"]).to_owned(),
        ),
        5 => ("POST", one(rng, &["/v1/realtime", "/v1/realtime/sessions"]).to_owned()),
        6 => (one(rng, &["PUT", "DELETE"]), own.to_owned()),
        _ => ("POST", own.to_owned()),
    };
    (method.to_owned(), path)
}

/// Who calls, or says so, and what else is in the headers.
fn identity(rng: &mut StdRng) -> Vec<(String, String)> {
    let mut headers: Vec<(&str, String)> = Vec::new();
    match rng.random_range(0..20) {
        0 => headers.push(("authorization", "Bearer sk-wrong".into())),
        1 => headers.push(("authorization", "Basic abc".into())),
        2..=4 => headers.push(("authorization", "Bearer sk-acme".into())),
        5 => headers.push(("x-api-key", "sk-acme".into())),
        6 => headers.extend([("x-tenant-id", "acme".into()), ("x-tenant-id", "bob".into())]),
        7 => headers.push(("x-tenant-id", "x".repeat(300))),
        8..=15 => headers.push(("x-tenant-id", one(rng, &["acme", "bob", "carol", "dave"]).into())),
        _ => {}
    }
    if rng.random_bool(0.4) {
        let session = one(rng, &["x-claude-code-session-id", "session-id", "x-session-id"]);
        headers.push((session, format!("s{}", rng.random_range(0..4))));
        if rng.random_bool(0.3) {
            headers.push(("x-claude-code-agent-id", format!("a{}", rng.random_range(0..3))));
        }
    }
    if rng.random_bool(0.3) {
        headers.push(("x-priority", one(rng, &["fast", "standard", "batch", "nonsense"]).into()));
    }
    if rng.random_bool(0.2) {
        headers.push((one(rng, &["x-tallygate-tenant", "x-tallygate-decision", "x-tallygate-lease"]), "acme".into()));
    }
    if rng.random_bool(0.1) {
        let deadline = one(rng, &["0", "0", "0", "1", "60000", "soon", "-1", "99999999999999999999"]);
        headers.push(("x-tallygate-deadline-ms", deadline.into()));
    }
    if rng.random_bool(0.1) {
        headers.push(("x-stainless-read-timeout", one(rng, &["600", "0.5", "None"]).into()));
    }
    if rng.random_bool(0.1) {
        headers.push(("anthropic-version", "2023-06-01".into()));
    }
    if rng.random_bool(0.1) {
        headers.push(("accept-encoding", "gzip, br".into()));
    }
    headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

const TEXTS: [&str; 5] = [
    "hello",
    "Wie spät ist es? 几点了？",
    "fn main() { println!(\"{}\", 1 + 1); }",
    "{\"a\": [1, 2, 3], \"b\": null}",
    "The quick brown fox jumps over the lazy dog, and back again.",
];

fn body(rng: &mut StdRng, dialect: Dialect) -> Value {
    let mut text = one(rng, &TEXTS).repeat(rng.random_range(1..40));
    if rng.random_bool(0.015) {
        text = text.repeat(300_000 / text.len());
    }
    let mut body = match dialect {
        Dialect::OpenAiChat => {
            json!({"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": text}]})
        }
        Dialect::OpenAiCompletions => json!({"prompt": text}),
        Dialect::OpenAiEmbeddings | Dialect::OpenAiResponses => json!({"input": text}),
        Dialect::AnthropicMessages => json!({"max_tokens": 50, "messages": [{"role": "user", "content": text}]}),
        Dialect::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": text}]}]}),
    };
    body["model"] = one(rng, &["m-1", "m-2", "big-1", "gpt-9", "gpt-9-mini", "unknown"]).into();
    let mut maybe = |chance: f64, name: &str, value: Value| {
        if rng.random_bool(chance) {
            body[name] = value;
        }
    };
    maybe(0.5, "stream", json!(true));
    maybe(0.1, "stream", json!(false));
    maybe(0.1, "stream_options", json!({"include_usage": true}));
    maybe(0.1, "stream_options", json!({"include_usage": false, "continuous_usage_stats": true}));
    maybe(0.3, "max_tokens", json!(200));
    maybe(0.1, "max_completion_tokens", json!(700));
    maybe(0.1, "max_output_tokens", json!(64));
    maybe(0.03, "max_tokens", json!(9_000_000));
    maybe(0.02, "max_tokens", json!(-1));
    maybe(0.1, "n", json!(3));
    maybe(0.02, "n", json!(0));
    maybe(0.1, "priority", json!(-5));
    maybe(0.1, "ignore_eos", json!(true));
    maybe(0.1, "reasoning_effort", json!("high"));
    maybe(0.1, "reasoning", json!({"effort": "low"}));
    maybe(0.1, "thinking", json!({"type": "enabled", "budget_tokens": 1024}));
    maybe(0.1, "tools", json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]));
    maybe(0.02, "background", json!(true));
    maybe(0.05, "unknown_member", json!({"x": [1, 2.50, "é"]}));
    body
}
