//! Reads a request body.
//!
//! Only what bears on cost is read. A member written twice is refused: the upstream might obey the other one.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::Call;
use crate::units::{self, Limit};
use crate::wire::dialect::body::{AnswerForm, Parsed};
use crate::wire::dialect::json::{Unreadable, flag, present};
use crate::wire::dialect::{Dialect, fields};

use super::super::sampling;
use super::prompt::read_prompt;

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
    best_of: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    min_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    ignore_eos: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream_options: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    reasoning_effort: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    chat_template_kwargs: Option<&'a RawValue>,
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
pub(in crate::wire::dialect) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let (text, form): (&str, Form<'_>) = fields::form(body)?;
    fields::in_foreground(form.background)?;
    let (model, model_at) = fields::model(text, form.model)?;
    let streamed = flag("stream", form.stream)?;
    let ask_usage = sampling::ask_usage(text, streamed, form.stream_options)?;
    let caps = [("max_tokens", form.max_tokens), ("max_completion_tokens", form.max_completion_tokens)];
    let cap = fields::cap(&caps)?.unwrap_or(Limit::Unlimited);
    let call = Call {
        model,
        prompt: read_prompt(form.messages, [form.tools, form.functions, form.response_format])?,
        cap,
        least: sampling::least(cap, form.min_tokens, form.ignore_eos)?,
        choices: sampling::choices(form.n, form.best_of)?,
        effort: sampling::effort(form.reasoning_effort, form.chat_template_kwargs)?,
        streamed,
        bytes: units::Bytes::new(body.len() as u64),
    };
    let answer = AnswerForm::new(Dialect::OpenAiChat, ask_usage.is_some());
    Ok(Parsed { call, answer, model_at: Some(model_at), edits: ask_usage.into_iter().collect() })
}

#[cfg(test)]
mod tests;
