//! Reads a request body.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Attachment, COUNTED_TEXT, Call, Effort, Prompt};
use crate::units::{self, Limit, Tokens};

use super::super::body::{AnswerForm, Parsed};
use super::super::json::{Unreadable, flag, given, kind, malformed, present, read, string};
use super::super::{Dialect, fields};

/// From how large a thinking budget on which effort is expected. The API gives budgets no names; these are the sizes
/// at which common clients put theirs.
const EFFORT_OF_BUDGET: [(Tokens, Effort); 3] =
    [(Tokens::new(16_000), Effort::High), (Tokens::new(5_000), Effort::Medium), (Tokens::new(0), Effort::Low)];

#[derive(Deserialize)]
struct Form<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    model: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    messages: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    system: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    thinking: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    output_config: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    stream: Option<&'a RawValue>,
}

/// Reads a request body.
pub(in crate::wire::dialect) fn parse(body: &Bytes) -> Result<Parsed, Unreadable> {
    let text = fields::object(body)?;
    let form: Form<'_> = serde_json::from_str(text).map_err(|error| malformed(format!("the body: {error}")))?;
    let (model, model_at) = fields::model(text, form.model)?;
    let cap = given(form.max_tokens).ok_or_else(|| malformed("max_tokens is missing".into()))?;
    let mut prompt = Prompt::default();
    if let Some(system) = given(form.system) {
        prompt.messages += 1;
        read_content(&mut prompt, "system", system, Depth::Message)?;
    }
    let messages = given(form.messages).ok_or_else(|| malformed("messages is missing".into()))?;
    for (at, message) in fields::batch("messages", "messages", messages)?.iter().enumerate() {
        read_message(&mut prompt, &format!("messages[{at}]"), message)?;
    }
    for json in [form.tools, form.output_config] {
        measure(&mut prompt, json);
    }
    let call = Call {
        model,
        prompt,
        // Zero only warms the cache.
        cap: Limit::AtMost(fields::tokens("max_tokens", cap)?),
        least: Tokens::ZERO,
        choices: std::num::NonZeroU32::MIN,
        effort: read_effort(form.output_config, form.thinking)?,
        streamed: flag("stream", form.stream)?,
        bytes: units::Bytes::new(body.len() as u64),
    };
    Ok(Parsed { call, answer: AnswerForm::new(Dialect::AnthropicMessages, false), model_at, edits: Vec::new() })
}

/// The effort that is named, else the one a thinking budget stands for.
fn read_effort(config: Option<&RawValue>, thinking: Option<&RawValue>) -> Result<Effort, Unreadable> {
    #[derive(Deserialize)]
    struct Config<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        effort: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Thinking<'a> {
        #[serde(borrow, rename = "type", default, deserialize_with = "present")]
        kind: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        budget_tokens: Option<&'a RawValue>,
    }
    if let Some(raw) = given(config) {
        let config: Config<'_> = read("output_config", raw, "an object")?;
        let effort = fields::effort("output_config.effort", config.effort)?;
        if effort != Effort::Unstated {
            return Ok(effort);
        }
    }
    let Some(raw) = given(thinking) else { return Ok(Effort::Unstated) };
    let thinking: Thinking<'_> = read("thinking", raw, "an object")?;
    let kind = given(thinking.kind).ok_or_else(|| malformed("thinking.type is missing".into()))?;
    Ok(match &*string("thinking.type", kind)? {
        "disabled" => Effort::None,
        "enabled" => {
            let budget =
                given(thinking.budget_tokens).ok_or_else(|| malformed("thinking.budget_tokens is missing".into()))?;
            let budget = fields::tokens("thinking.budget_tokens", budget)?;
            EFFORT_OF_BUDGET.into_iter().find(|(from, _)| budget >= *from).map_or(Effort::Low, |(_, effort)| effort)
        }
        _ => Effort::Unstated,
    })
}

fn measure(prompt: &mut Prompt, json: Option<&RawValue>) {
    if let Some(json) = given(json) {
        prompt.structured = prompt.structured + units::Bytes::new(json.get().len() as u64);
    }
}

fn read_message(prompt: &mut Prompt, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        role: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        content: Option<&'a RawValue>,
    }
    let message: Message<'_> = read(path, raw, "an object")?;
    let role = given(message.role).ok_or_else(|| malformed(format!("{path}.role is missing")))?;
    string(&format!("{path}.role"), role)?;
    let content = given(message.content).ok_or_else(|| malformed(format!("{path}.content is missing")))?;
    prompt.messages += 1;
    read_content(prompt, &format!("{path}.content"), content, Depth::Message)
}

/// How deep a content lies. Tools' results hold blocks of their own, which hold no more results.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Message,
    ToolResult,
}

fn read_content(prompt: &mut Prompt, path: &str, content: &RawValue, depth: Depth) -> Result<(), Unreadable> {
    match kind(content) {
        "a string" => {
            prompt.text.push(&string(path, content)?, COUNTED_TEXT);
            Ok(())
        }
        "an array" => {
            let blocks: Vec<&RawValue> = read(path, content, "an array")?;
            let mut blocks = blocks.iter().enumerate();
            blocks.try_for_each(|(at, block)| read_block(prompt, &format!("{path}[{at}]"), block, depth))
        }
        found => Err(malformed(format!("{path} must be a string or an array, not {found}"))),
    }
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type", default, deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    text: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    thinking: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    source: Option<&'a RawValue>,
}

fn read_block(prompt: &mut Prompt, path: &str, raw: &RawValue, depth: Depth) -> Result<(), Unreadable> {
    let block: Block<'_> = read(path, raw, "an object")?;
    let kind = given(block.kind).ok_or_else(|| malformed(format!("{path}.type is missing")))?;
    let mut push = |name: &str, text: Option<&RawValue>| {
        let text = given(text).ok_or_else(|| malformed(format!("{path}.{name} is missing")))?;
        prompt.text.push(&string(&format!("{path}.{name}"), text)?, COUNTED_TEXT);
        Ok(())
    };
    match &*string(&format!("{path}.type"), kind)? {
        "text" => push("text", block.text),
        "thinking" => push("thinking", block.thinking),
        "image" => {
            prompt.attachments.push(Attachment::ImageClaude);
            Ok(())
        }
        "document" => read_document(prompt, path, block.source),
        "tool_result" if depth == Depth::Message => match given(block.content) {
            Some(content) => read_content(prompt, &format!("{path}.content"), content, Depth::ToolResult),
            None => Ok(()),
        },
        // Calls, and blocks of a kind not known here, are counted as the JSON they are.
        _ => {
            measure(prompt, Some(raw));
            Ok(())
        }
    }
}

/// Plain text is counted as such; anything else by the length of its base64.
fn read_document(prompt: &mut Prompt, path: &str, source: Option<&RawValue>) -> Result<(), Unreadable> {
    #[derive(Deserialize)]
    struct Source<'a> {
        #[serde(borrow, rename = "type", default, deserialize_with = "present")]
        kind: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        data: Option<&'a RawValue>,
    }
    let raw = given(source).ok_or_else(|| malformed(format!("{path}.source is missing")))?;
    let source: Source<'_> = read(&format!("{path}.source"), raw, "an object")?;
    match (source.kind.map(RawValue::get), given(source.data)) {
        (Some("\"text\""), Some(data)) => {
            prompt.text.push(&string(&format!("{path}.source.data"), data)?, COUNTED_TEXT);
        }
        (_, data) => {
            let length = data.map_or(0, |data| data.get().len() as u64);
            prompt.attachments.push(Attachment::File(units::Bytes::new(length)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
