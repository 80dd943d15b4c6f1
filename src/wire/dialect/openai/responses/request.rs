//! Reads a request body.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Call, Effort};
use crate::units::{self, Limit, Tokens};
use crate::wire::dialect::body::{AnswerForm, Parsed};
use crate::wire::dialect::content::{Kind, Reader, TextIn};
use crate::wire::dialect::json::{Unreadable, flag, given, kind, malformed, present, read, string};
use crate::wire::dialect::{Dialect, fields};

#[derive(Deserialize)]
struct Form<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    model: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    input: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    instructions: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_output_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    text: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    background: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    previous_response_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    conversation: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    prompt: Option<&'a RawValue>,
}

/// Reads a request body.
pub(in crate::wire::dialect) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let (text, form): (&str, Form<'_>) = fields::form(body)?;
    fields::in_foreground(form.background)?;
    let (model, model_at) = fields::model(text, form.model)?;
    let mut reader = Reader::new(kind_of);
    if let Some(instructions) = given(form.instructions) {
        reader.message();
        reader.text("instructions", instructions)?;
    }
    if [form.previous_response_id, form.conversation, form.prompt].into_iter().any(|member| given(member).is_some()) {
        reader.history_at_upstream();
    }
    // A conversation or a stored prompt may say it all.
    if let Some(input) = given(form.input) {
        read_input(&mut reader, input)?;
    }
    reader.tools(form.tools);
    reader.structured(form.text);
    let call = Call {
        model,
        prompt: reader.finish(),
        cap: fields::cap(&[("max_output_tokens", form.max_output_tokens)])?.unwrap_or(Limit::Unlimited),
        least: Tokens::ZERO,
        choices: std::num::NonZeroU32::MIN,
        effort: read_effort(form.reasoning)?,
        streamed: flag("stream", form.stream)?,
        bytes: units::Bytes::new(body.len() as u64),
    };
    Ok(Parsed {
        call,
        answer: AnswerForm::new(Dialect::OpenAiResponses, false),
        model_at: Some(model_at),
        edits: Vec::new(),
    })
}

fn read_effort(raw: Option<&RawValue>) -> Result<Effort, Unreadable> {
    #[derive(Deserialize)]
    struct Reasoning<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        effort: Option<&'a RawValue>,
    }
    let Some(raw) = given(raw) else { return Ok(Effort::Unstated) };
    let reasoning: Reasoning<'_> = read("reasoning", raw, "an object")?;
    fields::effort("reasoning.effort", reasoning.effort)
}

fn kind_of(name: &str) -> Kind {
    match name {
        "input_text" | "output_text" | "text" => Kind::Text(TextIn::Text),
        "refusal" => Kind::Text(TextIn::Refusal),
        "input_image" => Kind::InputImage,
        "input_audio" => Kind::Audio,
        "input_file" => Kind::FileData,
        _ => Kind::Unknown,
    }
}

fn read_input(reader: &mut Reader, raw: &RawValue) -> Result<(), Unreadable> {
    match kind(raw) {
        "a string" => {
            reader.message();
            reader.text("input", raw)
        }
        "an array" => {
            let items = fields::batch("input", "items", raw)?;
            items.iter().enumerate().try_for_each(|(at, item)| read_item(reader, &format!("input[{at}]"), item))
        }
        found => Err(malformed(format!("input must be a string or an array, not {found}"))),
    }
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, rename = "type", default, deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    role: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    output: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    encrypted_content: Option<&'a RawValue>,
}

/// A message, a tool's output, or an item that is measured as JSON: calls, reasoning, references.
fn read_item(reader: &mut Reader, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let item: Item<'_> = read(path, raw, "an object")?;
    let kind = given(item.kind).map(|kind| string(&format!("{path}.type"), kind)).transpose()?;
    match kind.as_deref() {
        None | Some("message") => {
            let role = given(item.role).ok_or_else(|| malformed(format!("{path}.role is missing")))?;
            string(&format!("{path}.role"), role)?;
            reader.message();
            given(item.content).map_or(Ok(()), |content| reader.content(&format!("{path}.content"), content))
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            reader.message();
            given(item.output).map_or(Ok(()), |output| reader.content(&format!("{path}.output"), output))
        }
        // Reasoning comes back sealed; its length says more of the cipher than of the tokens, and it is charged when
        // usage reports it.
        Some(_) => {
            reader.structured_without(raw, item.encrypted_content);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
