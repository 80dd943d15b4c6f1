//! The other APIs the simulated engine speaks: completions, embeddings, responses, messages.
//!
//! A request is read by the dialect's own reader, so the engine counts its input as the gateway does. What would
//! change the shape of an answer and is not simulated (several answers, echoes) is refused by name.

use std::fmt::Write as _;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use crate::costing::InputCounter;
use crate::units::{Limit, Tokens};
use crate::wire::dialect::Dialect;

use super::chat::{Chat, Delivery, Rejection, UsageIn};
use super::driver::Answered;
use super::length::{EndsBecause, Wish};
use super::stream::Header;
use super::words;

/// Numbers in an embedding.
const DIMENSIONS: u64 = 8;

/// Reads a request's body.
pub(super) fn parse(dialect: Dialect, body: &Bytes) -> Result<Chat, Rejection> {
    let call = dialect.parse(dialect.path(), body).map_err(|error| Rejection::bad(None, error.to_string()))?.call;
    let options: Value = serde_json::from_slice(body).unwrap_or_default();
    if call.choices.get() != 1 || options["echo"] == true {
        let what = "the simulated engine gives one answer to one prompt; leave out n, best_of and echo";
        return Err(Rejection::bad(None, what));
    }
    let wish = match call.cap {
        Limit::AtMost(cap) if cap == call.least && cap > Tokens::ZERO => Wish::Exactly(cap),
        cap => Wish::UpTo(cap),
    };
    let asked = |name: &str| options["stream_options"][name] == true;
    let delivery = match (call.streamed, asked("include_usage"), asked("continuous_usage_stats")) {
        (false, _, _) => Delivery::Whole,
        (true, true, true) => Delivery::Streamed(UsageIn::Every),
        (true, true, false) => Delivery::Streamed(UsageIn::TheLast),
        (true, false, _) => Delivery::Streamed(UsageIn::NoChunk),
    };
    let input = InputCounter::of(&call.model).count(&call.prompt).total();
    Ok(Chat { input, wish, delivery, model: call.model })
}

/// How many inputs are to be embedded.
pub(super) fn inputs(body: &Bytes) -> usize {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body["input"].as_array() {
        Some(inputs) if !inputs.iter().all(Value::is_number) => inputs.len(),
        _ => 1,
    }
}

/// The answer to an embedding request: numbers that follow from the answer's own. Always floats, which the SDKs take
/// where they asked for base64.
pub(super) fn embeddings(header: &Header, inputs: usize) -> Value {
    let number = |input: usize, at: u64| {
        let mixed = header.number.wrapping_mul(31).wrapping_add(input as u64).wrapping_mul(31).wrapping_add(at);
        let high = u16::try_from(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48).expect("16 bits are left");
        f64::from(high) / f64::from(u16::MAX) - 0.5
    };
    let data: Vec<Value> = (0..inputs)
        .map(|index| {
            let embedding: Vec<f64> = (0..DIMENSIONS).map(|at| number(index, at)).collect();
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let input = header.input.get();
    let usage = json!({"prompt_tokens": input, "total_tokens": input});
    json!({"object": "list", "model": header.model, "data": data, "usage": usage})
}

/// A whole answer.
pub(super) fn whole(header: &Header, answered: Answered) -> Value {
    let text = words::text(header.number, answered.output.get());
    match header.dialect {
        Dialect::OpenAiResponses => response(header, answered.output, Some(&text)),
        Dialect::AnthropicMessages => {
            let mut message = message(header, &json!([{"type": "text", "text": text}]), answered.output);
            message["stop_reason"] = stop_reason(header.ending).into();
            message
        }
        Dialect::OpenAiChat | Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings | Dialect::Gemini => {
            let mut completion = completion(header, &text, Some(header.ending.finish_reason()));
            completion["usage"] = header.usage(answered.output);
            completion
        }
    }
}

/// The events from `sent` tokens to where the answer stands now.
pub(super) fn events(header: &Header, usage: UsageIn, sent: Tokens, now: Answered) -> String {
    match header.dialect {
        Dialect::OpenAiResponses => response_events(header, sent, now),
        Dialect::AnthropicMessages => message_events(header, sent, now),
        Dialect::OpenAiChat | Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings | Dialect::Gemini => {
            completion_events(header, usage, sent, now)
        }
    }
}

fn completion(header: &Header, text: &str, finish: Option<&str>) -> Value {
    json!({
        "id": format!("cmpl-demo-{}", header.number), "object": "text_completion", "created": header.created,
        "model": header.model, "choices": [{"text": text, "index": 0, "logprobs": null, "finish_reason": finish}],
    })
}

fn completion_events(header: &Header, usage: UsageIn, sent: Tokens, now: Answered) -> String {
    let mut out = String::new();
    let mut push = |mut chunk: Value, output: u64| {
        match usage {
            UsageIn::NoChunk => {}
            UsageIn::TheLast => chunk["usage"] = Value::Null,
            UsageIn::Every => chunk["usage"] = header.usage(Tokens::new(output)),
        }
        write!(out, "data: {chunk}\n\n").expect("a string takes all");
    };
    for position in sent.get()..now.output.get() {
        push(completion(header, &words::token(header.number, position), None), position + 1);
    }
    if now.finished {
        push(completion(header, "", Some(header.ending.finish_reason())), now.output.get());
        if usage != UsageIn::NoChunk {
            let mut last = completion(header, "", None);
            last["choices"] = json!([]);
            last["usage"] = header.usage(now.output);
            write!(out, "data: {last}\n\n").expect("a string takes all");
        }
        out.push_str("data: [DONE]\n\n");
    }
    out
}

/// An event with its name, as both other APIs write it.
fn named(out: &mut String, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    write!(out, "event: {name}\ndata: {event}\n\n").expect("a string takes all");
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn item(header: &Header, status: &str, content: &Value) -> Value {
    let id = format!("msg_demo_{}", header.number);
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

/// A response object: finished, with its text, or just begun.
fn response(header: &Header, output: Tokens, text: Option<&str>) -> Value {
    let status = match (text, header.ending) {
        (None, _) => "in_progress",
        (Some(_), EndsBecause::Stop) => "completed",
        (Some(_), EndsBecause::Length) => "incomplete",
    };
    let cut = json!({"reason": "max_output_tokens"});
    let usage = json!({
        "input_tokens": header.input.get(), "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output.get(), "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": (header.input + output).get(),
    });
    let items: Vec<Value> = text.map(|text| item(header, status, &json!([part(text)]))).into_iter().collect();
    json!({
        "id": format!("resp_demo_{}", header.number), "object": "response", "created_at": header.created,
        "status": status, "error": null, "model": header.model, "output": items, "parallel_tool_calls": true,
        "incomplete_details": if status == "incomplete" { cut } else { Value::Null },
        "tool_choice": "auto", "tools": [], "usage": if text.is_some() { usage } else { Value::Null },
    })
}

fn response_events(header: &Header, sent: Tokens, now: Answered) -> String {
    let mut out = String::new();
    let place = json!({"item_id": format!("msg_demo_{}", header.number), "output_index": 0, "content_index": 0});
    let mut push = |kind: &str, number: u64, members: Value| {
        let mut event = json!({"type": kind, "sequence_number": number});
        for members in [&place, &members] {
            event.as_object_mut().expect("an object").extend(members.as_object().expect("an object").clone());
        }
        named(&mut out, &event);
    };
    if sent == Tokens::ZERO {
        push("response.created", 0, json!({"response": response(header, Tokens::ZERO, None)}));
        push("response.output_item.added", 1, json!({"item": item(header, "in_progress", &json!([]))}));
        push("response.content_part.added", 2, json!({"part": part("")}));
    }
    for position in sent.get()..now.output.get() {
        let delta = words::token(header.number, position);
        push("response.output_text.delta", 3 + position, json!({"delta": delta, "logprobs": []}));
    }
    if now.finished {
        let text = words::text(header.number, now.output.get());
        let whole = response(header, now.output, Some(&text));
        let number = 3 + now.output.get();
        push("response.output_text.done", number, json!({"text": text, "logprobs": []}));
        push("response.content_part.done", number + 1, json!({"part": part(&text)}));
        push("response.output_item.done", number + 2, json!({"item": whole["output"][0]}));
        let kind = format!("response.{}", whole["status"].as_str().unwrap_or_default());
        push(&kind, number + 3, json!({"response": whole}));
    }
    out
}

fn message(header: &Header, content: &Value, output: Tokens) -> Value {
    json!({
        "id": format!("msg_demo_{}", header.number), "type": "message", "role": "assistant", "model": header.model,
        "content": content, "stop_reason": null, "stop_sequence": null,
        "usage": {
            "input_tokens": header.input.get(), "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": output.get(),
        },
    })
}

const fn stop_reason(ending: EndsBecause) -> &'static str {
    match ending {
        EndsBecause::Stop => "end_turn",
        EndsBecause::Length => "max_tokens",
    }
}

fn message_events(header: &Header, sent: Tokens, now: Answered) -> String {
    let mut out = String::new();
    if sent == Tokens::ZERO {
        // The output here is a placeholder, as Anthropic's is.
        named(&mut out, &json!({"type": "message_start", "message": message(header, &json!([]), Tokens::new(1))}));
        let block = json!({"type": "text", "text": ""});
        named(&mut out, &json!({"type": "content_block_start", "index": 0, "content_block": block}));
        named(&mut out, &json!({"type": "ping"}));
    }
    for position in sent.get()..now.output.get() {
        let delta = json!({"type": "text_delta", "text": words::token(header.number, position)});
        named(&mut out, &json!({"type": "content_block_delta", "index": 0, "delta": delta}));
    }
    if now.finished {
        named(&mut out, &json!({"type": "content_block_stop", "index": 0}));
        let delta = json!({"stop_reason": stop_reason(header.ending), "stop_sequence": null});
        let usage = json!({"output_tokens": now.output.get()});
        named(&mut out, &json!({"type": "message_delta", "delta": delta, "usage": usage}));
        named(&mut out, &json!({"type": "message_stop"}));
    }
    out
}

/// An answer that says what is wrong, in the dialect's own voice.
pub(super) fn rejected(dialect: Dialect, rejection: &Rejection) -> (StatusCode, String) {
    let error = crate::wire::dialect::ErrorBody {
        status: rejection.status,
        code: rejection.code.unwrap_or("invalid_request"),
        param: rejection.param,
        message: &rejection.message,
        request_id: "demo",
        retry_after: None,
    };
    (rejection.status, dialect.voice().error_body(&error))
}
