//! Reads what the model has to read: messages, their parts, tools.
//!
//! Text is kept to be counted; everything else is measured. Content of a kind not known here is the upstream's to
//! judge, and is measured as JSON.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Attachment, COUNTED_TEXT, Prompt};
use crate::units;

use crate::wire::dialect::json::{Unreadable, given, kind, malformed, present, read, string};

/// The most messages that are read. A longer conversation fits no known model.
const MAX_MESSAGES: usize = 65_536;

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

/// Reads the messages, and measures whatever JSON goes with them (tools, an answer's schema).
pub(super) fn read_prompt(
    messages: Option<&RawValue>,
    structured: [Option<&RawValue>; 3],
) -> Result<Prompt, Unreadable> {
    let raw = given(messages).ok_or_else(|| malformed("messages is missing".into()))?;
    let messages: Vec<&RawValue> = read("messages", raw, "an array")?;
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let count = messages.len();
        return Err(malformed(format!("messages must have 1 to {MAX_MESSAGES} messages, not {count}")));
    }
    let mut prompt = Prompt { messages: u32::try_from(messages.len()).unwrap_or(u32::MAX), ..Prompt::default() };
    for json in structured {
        add_structured(&mut prompt, json);
    }
    for (at, raw) in messages.iter().enumerate() {
        let path = format!("messages[{at}]");
        let message: Message<'_> = read(&path, raw, "an object")?;
        let role = given(message.role).ok_or_else(|| malformed(format!("{path}.role is missing")))?;
        string(&format!("{path}.role"), role)?;
        if let Some(name) = given(message.name) {
            prompt.names += 1;
            let name = string(&format!("{path}.name"), name)?;
            prompt.text.push(&name, COUNTED_TEXT);
        }
        if let Some(content) = given(message.content) {
            read_content(&mut prompt, &format!("{path}.content"), content)?;
        }
        add_structured(&mut prompt, message.tool_calls);
        add_structured(&mut prompt, message.function_call);
    }
    Ok(prompt)
}

fn add_structured(prompt: &mut Prompt, json: Option<&RawValue>) {
    if let Some(json) = given(json) {
        prompt.structured = prompt.structured + units::Bytes::new(json.get().len() as u64);
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
    image_url: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    input_audio: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    file: Option<&'a RawValue>,
}

fn read_part(prompt: &mut Prompt, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let part: Part<'_> = read(path, raw, "an object")?;
    let kind = given(part.kind).ok_or_else(|| malformed(format!("{path}.type is missing")))?;
    let length = |raw: Option<&RawValue>| units::Bytes::new(raw.map_or(0, |raw| raw.get().len() as u64));
    match &*string(&format!("{path}.type"), kind)? {
        "text" => text_part(prompt, &format!("{path}.text"), part.text),
        "refusal" => text_part(prompt, &format!("{path}.refusal"), part.refusal),
        "image_url" => {
            let image = given(part.image_url).ok_or_else(|| malformed(format!("{path}.image_url is missing")))?;
            prompt.attachments.push(read_image(&format!("{path}.image_url"), image)?);
            Ok(())
        }
        "input_audio" => {
            prompt.attachments.push(Attachment::Audio(length(part.input_audio)));
            Ok(())
        }
        "file" => {
            prompt.attachments.push(Attachment::File(length(part.file)));
            Ok(())
        }
        // A part of a kind not known here is the upstream's to judge; its JSON is counted as such.
        _ => {
            add_structured(prompt, Some(raw));
            Ok(())
        }
    }
}

fn text_part(prompt: &mut Prompt, path: &str, text: Option<&RawValue>) -> Result<(), Unreadable> {
    let text = given(text).ok_or_else(|| malformed(format!("{path} is missing")))?;
    prompt.text.push(&string(path, text)?, COUNTED_TEXT);
    Ok(())
}

fn read_image(path: &str, raw: &RawValue) -> Result<Attachment, Unreadable> {
    #[derive(Deserialize)]
    struct Image<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        detail: Option<&'a RawValue>,
    }
    if kind(raw) == "a string" {
        return Ok(Attachment::Image);
    }
    let image: Image<'_> = read(path, raw, "an object")?;
    let low = match given(image.detail) {
        Some(detail) => string(&format!("{path}.detail"), detail)? == "low",
        None => false,
    };
    Ok(if low { Attachment::ImageLow } else { Attachment::Image })
}
