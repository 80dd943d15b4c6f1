//! Reads a request body.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Attachment, COUNTED_TEXT, Call, Effort, Prompt};
use crate::units::{self, Limit, Tokens};
use crate::wire::dialect::body::{AnswerForm, Parsed};
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
}

/// Reads a request body.
pub(in crate::wire::dialect) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let text = fields::object(body)?;
    let form: Form<'_> = serde_json::from_str(text).map_err(|error| malformed(format!("the body: {error}")))?;
    if flag("background", form.background)? {
        return Err(Unreadable::Unsupported(
            "background: true is not supported, since a request must be settled when its answer ends".into(),
        ));
    }
    let (model, model_at) = fields::model(text, form.model)?;
    let mut prompt = Prompt::default();
    if let Some(instructions) = given(form.instructions) {
        prompt.messages += 1;
        prompt.text.push(&string("instructions", instructions)?, COUNTED_TEXT);
    }
    // A conversation or a stored prompt may say it all.
    if let Some(input) = given(form.input) {
        read_input(&mut prompt, input)?;
    }
    for json in [form.tools, form.text] {
        measure(&mut prompt, json);
    }
    let call = Call {
        model,
        prompt,
        cap: fields::cap(&[("max_output_tokens", form.max_output_tokens)])?.unwrap_or(Limit::Unlimited),
        least: Tokens::ZERO,
        choices: std::num::NonZeroU32::MIN,
        effort: read_effort(form.reasoning)?,
        streamed: flag("stream", form.stream)?,
        bytes: units::Bytes::new(body.len() as u64),
    };
    Ok(Parsed { call, answer: AnswerForm::new(Dialect::OpenAiResponses, false), model_at, edits: Vec::new() })
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

fn measure(prompt: &mut Prompt, json: Option<&RawValue>) {
    if let Some(json) = given(json) {
        prompt.structured = prompt.structured + units::Bytes::new(json.get().len() as u64);
    }
}

fn read_input(prompt: &mut Prompt, raw: &RawValue) -> Result<(), Unreadable> {
    match kind(raw) {
        "a string" => {
            prompt.messages += 1;
            prompt.text.push(&string("input", raw)?, COUNTED_TEXT);
            Ok(())
        }
        "an array" => {
            let items = fields::batch("input", "items", raw)?;
            items.iter().enumerate().try_for_each(|(at, item)| read_item(prompt, &format!("input[{at}]"), item))
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
fn read_item(prompt: &mut Prompt, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let item: Item<'_> = read(path, raw, "an object")?;
    let kind = given(item.kind).map(|kind| string(&format!("{path}.type"), kind)).transpose()?;
    match kind.as_deref() {
        None | Some("message") => {
            let role = given(item.role).ok_or_else(|| malformed(format!("{path}.role is missing")))?;
            string(&format!("{path}.role"), role)?;
            prompt.messages += 1;
            given(item.content).map_or(Ok(()), |content| read_content(prompt, &format!("{path}.content"), content))
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            prompt.messages += 1;
            given(item.output).map_or(Ok(()), |output| read_content(prompt, &format!("{path}.output"), output))
        }
        // Reasoning comes back sealed; its length says more of the cipher than of the tokens, and it is charged when
        // usage reports it.
        Some(_) => {
            measure(prompt, Some(raw));
            let sealed = item.encrypted_content.map_or(0, |sealed| sealed.get().len() as u64);
            prompt.structured = units::Bytes::new(prompt.structured.get().saturating_sub(sealed));
            Ok(())
        }
    }
}

fn read_content(prompt: &mut Prompt, path: &str, content: &RawValue) -> Result<(), Unreadable> {
    match kind(content) {
        "a string" => {
            prompt.text.push(&string(path, content)?, COUNTED_TEXT);
            Ok(())
        }
        "an array" => {
            let parts: Vec<&RawValue> = read(path, content, "an array")?;
            parts.iter().enumerate().try_for_each(|(at, part)| read_part(prompt, &format!("{path}[{at}]"), part))
        }
        found => Err(malformed(format!("{path} must be a string or an array, not {found}"))),
    }
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, rename = "type", default, deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    text: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    refusal: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    detail: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    input_audio: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    file_data: Option<&'a RawValue>,
}

fn read_part(prompt: &mut Prompt, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let part: Part<'_> = read(path, raw, "an object")?;
    let kind = given(part.kind).ok_or_else(|| malformed(format!("{path}.type is missing")))?;
    let length = |raw: Option<&RawValue>| units::Bytes::new(raw.map_or(0, |raw| raw.get().len() as u64));
    let mut push = |name: &str, text: Option<&RawValue>| {
        let text = given(text).ok_or_else(|| malformed(format!("{path}.{name} is missing")))?;
        prompt.text.push(&string(&format!("{path}.{name}"), text)?, COUNTED_TEXT);
        Ok(())
    };
    match &*string(&format!("{path}.type"), kind)? {
        "input_text" | "output_text" | "text" => push("text", part.text)?,
        "refusal" => push("refusal", part.refusal)?,
        "input_image" => {
            let low = part.detail.is_some_and(|detail| detail.get() == "\"low\"");
            prompt.attachments.push(if low { Attachment::ImageLow } else { Attachment::Image });
        }
        "input_audio" => prompt.attachments.push(Attachment::Audio(length(part.input_audio))),
        "input_file" => prompt.attachments.push(Attachment::File(length(part.file_data))),
        // A part of a kind not known here is the upstream's to judge; its JSON is counted as such.
        _ => measure(prompt, Some(raw)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
