//! Reads a request body.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Call, Effort};
use crate::units::{self, Limit, Tokens};

use super::super::body::{AnswerForm, Parsed};
use super::super::content::{Kind, Reader, TextIn};
use super::super::json::{Unreadable, flag, given, malformed, present, read, string};
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
    let (text, form): (&str, Form<'_>) = fields::form(body)?;
    let (model, model_at) = fields::model(text, form.model)?;
    let cap = given(form.max_tokens).ok_or_else(|| malformed("max_tokens is missing".into()))?;
    let mut reader = Reader::new(kind_of);
    if let Some(system) = given(form.system) {
        reader.message();
        reader.content("system", system)?;
    }
    let messages = given(form.messages).ok_or_else(|| malformed("messages is missing".into()))?;
    for (at, message) in fields::batch("messages", "messages", messages)?.iter().enumerate() {
        read_message(&mut reader, &format!("messages[{at}]"), message)?;
    }
    reader.tools(form.tools);
    reader.structured(form.output_config);
    let call = Call {
        model,
        prompt: reader.finish(),
        // Zero only warms the cache.
        cap: Limit::AtMost(fields::tokens("max_tokens", cap)?),
        least: Tokens::ZERO,
        choices: std::num::NonZeroU32::MIN,
        effort: read_effort(form.output_config, form.thinking)?,
        streamed: flag("stream", form.stream)?,
        bytes: units::Bytes::new(body.len() as u64),
    };
    Ok(Parsed {
        call,
        answer: AnswerForm::new(Dialect::AnthropicMessages, false),
        model_at: Some(model_at),
        edits: Vec::new(),
    })
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

/// Calls, and blocks of a kind not known here, are counted as the JSON they are.
fn kind_of(name: &str) -> Kind {
    match name {
        "text" => Kind::Text(TextIn::Text),
        "thinking" => Kind::Text(TextIn::Thinking),
        "image" => Kind::SourcedImage,
        "document" => Kind::Document,
        "tool_result" => Kind::ToolResult,
        _ => Kind::Unknown,
    }
}

fn read_message(reader: &mut Reader, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
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
    reader.message();
    reader.content(&format!("{path}.content"), content)
}

#[cfg(test)]
mod tests;
