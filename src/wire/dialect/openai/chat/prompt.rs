//! Reads the messages of a chat, and measures the JSON that goes with them.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::Prompt;
use crate::wire::dialect::content::{Kind, Reader, TextIn};
use crate::wire::dialect::fields;
use crate::wire::dialect::json::{Unreadable, given, malformed, present, read, string};

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    role: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    function_call: Option<&'a RawValue>,
}

fn kind_of(name: &str) -> Kind {
    match name {
        "text" => Kind::Text(TextIn::Text),
        "refusal" => Kind::Text(TextIn::Refusal),
        "image_url" => Kind::ImageUrl,
        "input_audio" => Kind::Audio,
        "file" => Kind::File,
        _ => Kind::Unknown,
    }
}

/// Reads the messages, and measures whatever JSON goes with them (tools, an answer's schema).
pub(super) fn read_prompt(
    messages: Option<&RawValue>,
    structured: [Option<&RawValue>; 3],
) -> Result<Prompt, Unreadable> {
    let raw = given(messages).ok_or_else(|| malformed("messages is missing".into()))?;
    let messages = fields::batch("messages", "messages", raw)?;
    let mut reader = Reader::new(kind_of);
    structured.into_iter().for_each(|json| reader.structured(json));
    for (at, raw) in messages.iter().enumerate() {
        read_message(&mut reader, &format!("messages[{at}]"), raw)?;
    }
    Ok(reader.finish())
}

fn read_message(reader: &mut Reader, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let message: Message<'_> = read(path, raw, "an object")?;
    let role = given(message.role).ok_or_else(|| malformed(format!("{path}.role is missing")))?;
    string(&format!("{path}.role"), role)?;
    reader.message();
    if let Some(name) = given(message.name) {
        reader.name(&format!("{path}.name"), name)?;
    }
    if let Some(content) = given(message.content) {
        reader.content(&format!("{path}.content"), content)?;
    }
    reader.structured(message.tool_calls);
    reader.structured(message.function_call);
    Ok(())
}
