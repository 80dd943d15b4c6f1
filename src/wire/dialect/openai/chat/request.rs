//! Reads a request body, and edits it for the upstream without touching anything else in it.
//!
//! Only what bears on cost is read; the rest passes through byte for byte. An edit replaces exactly the bytes of one
//! member, so number formats, key order and members we do not know survive. A member written twice is refused: the
//! upstream might obey the other one.

use std::borrow::Cow;
use std::num::NonZeroU32;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Call, Effort};
use crate::units::{self, Limit, Tokens};

use super::super::super::Dialect;
use super::super::super::body::{AnswerForm, Edit, Parsed};
use super::super::super::json::{Unreadable, flag, given, malformed, present, read, span, string, whole};
use super::prompt::read_prompt;

/// The longest model name that is looked at.
const MAX_MODEL_NAME: usize = 256;

/// The most answers that may be asked for at once; the largest bound any known engine has by default (vLLM).
const MAX_CHOICES: u32 = 16_384;

#[derive(Deserialize)]
struct Form<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    model: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    messages: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_completion_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    n: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream_options: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    reasoning_effort: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    functions: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    response_format: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    background: Option<&'a RawValue>,
}

/// Reads a request body.
///
/// # Errors
/// When it is malformed, naming what and where, or asks for what does not exist here.
pub(in super::super::super) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let text = std::str::from_utf8(body)
        .map_err(|error| malformed(format!("the body is not UTF-8 from byte {}", error.valid_up_to())))?;
    if !text.trim_start().starts_with('{') {
        return Err(malformed("the body must be a JSON object".into()));
    }
    let form: Form<'_> = serde_json::from_str(text).map_err(|error| malformed(format!("the body: {error}")))?;
    if flag("background", form.background)? {
        return Err(Unreadable::Unsupported(
            "background: true is not supported, since a request must be settled when its answer ends".into(),
        ));
    }
    let model_raw = given(form.model).ok_or_else(|| malformed("model is missing".into()))?;
    let streamed = flag("stream", form.stream)?;
    let usage_asked = usage_asked(form.stream_options)?;
    let ask_usage = (streamed && !usage_asked).then(|| ask_usage(text, form.stream_options)).transpose()?;
    let call = Call {
        model: model_name(model_raw)?,
        prompt: read_prompt(form.messages, [form.tools, form.functions, form.response_format])?,
        cap: read_cap(&form)?,
        choices: read_choices(form.n)?,
        effort: read_effort(form.reasoning_effort)?,
        streamed,
        bytes: units::Bytes::new(body.len() as u64),
    };
    let answer = AnswerForm { dialect: Dialect::OpenAiChat, hide_usage: ask_usage.is_some() };
    Ok(Parsed { call, answer, model_at: span(text, model_raw), edits: ask_usage.into_iter().collect() })
}

fn model_name(raw: &RawValue) -> Result<String, Unreadable> {
    let name = string("model", raw)?;
    if name.is_empty() || name.len() > MAX_MODEL_NAME {
        let length = name.len();
        return Err(malformed(format!("model must have 1 to {MAX_MODEL_NAME} bytes, not {length}")));
    }
    Ok(name.into_owned())
}

/// The larger of the two caps. `-1` is llama.cpp's word for no cap.
fn read_cap(form: &Form<'_>) -> Result<Limit<Tokens>, Unreadable> {
    let mut most = None;
    for (path, raw) in [("max_tokens", form.max_tokens), ("max_completion_tokens", form.max_completion_tokens)] {
        let Some(raw) = given(raw) else { continue };
        match whole(path, raw)? {
            -1 => return Ok(Limit::Unlimited),
            negative if negative < 0 => return Err(malformed(format!("{path} must not be negative: {negative}"))),
            cap => most = most.max(Some(Tokens::new(u64::try_from(cap).unwrap_or(u64::MAX)))),
        }
    }
    Ok(Limit::from(most))
}

fn read_choices(raw: Option<&RawValue>) -> Result<NonZeroU32, Unreadable> {
    let Some(raw) = given(raw) else { return Ok(NonZeroU32::MIN) };
    let n = whole("n", raw)?;
    u32::try_from(n)
        .ok()
        .filter(|n| *n <= MAX_CHOICES)
        .and_then(NonZeroU32::new)
        .ok_or_else(|| malformed(format!("n must be between 1 and {MAX_CHOICES}, not {n}")))
}

/// An effort this build does not know is left to the upstream, and says nothing here.
fn read_effort(raw: Option<&RawValue>) -> Result<Effort, Unreadable> {
    let Some(raw) = given(raw) else { return Ok(Effort::Unstated) };
    Ok(Effort::named(&string("reasoning_effort", raw)?).unwrap_or_default())
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    include_usage: Option<&'a RawValue>,
}

fn usage_asked(options: Option<&RawValue>) -> Result<bool, Unreadable> {
    let Some(options) = given(options) else { return Ok(false) };
    let options: StreamOptions<'_> = read("stream_options", options, "an object")?;
    flag("stream_options.include_usage", options.include_usage)
}

/// The edit that asks for the usage chunk, keeping whatever other options there are.
fn ask_usage(text: &str, options: Option<&RawValue>) -> Result<Edit, Unreadable> {
    const ASK: &str = "\"include_usage\":true";
    let Some(raw) = options else {
        let inside = text.find('{').map_or(0, |at| at + 1);
        return Ok(Edit { at: inside..inside, with: format!("\"stream_options\":{{{ASK}}},") });
    };
    let mut with = format!("{{{ASK}");
    if raw.get() != "null" {
        let others: std::collections::BTreeMap<Cow<'_, str>, &RawValue> = read("stream_options", raw, "an object")?;
        for (name, value) in others.iter().filter(|(name, _)| *name != "include_usage") {
            with.push(',');
            with.push_str(&serde_json::Value::from(name.as_ref()).to_string());
            with.push(':');
            with.push_str(value.get());
        }
    }
    with.push('}');
    Ok(Edit { at: span(text, raw), with })
}

#[cfg(test)]
mod tests;
