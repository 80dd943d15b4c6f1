//! Reads a request body. Google's JSON may be written in camel case or with underscores; both are read.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Call, Effort};
use crate::units::{self, Limit, Tokens};

use super::super::body::{AnswerForm, Parsed};
use super::super::content::{Kind, Reader};
use super::super::json::{Unreadable, given, kind, malformed, present, read, string, whole};
use super::super::{Dialect, fields};
use super::path::Called;

/// From how large a thinking budget on which effort is expected, as for the other API with budgets.
const EFFORT_OF_BUDGET: [(i128, Effort); 4] =
    [(16_000, Effort::High), (5_000, Effort::Medium), (1, Effort::Low), (0, Effort::None)];

#[derive(Deserialize)]
struct Form<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    contents: Option<&'a RawValue>,
    #[serde(borrow, rename = "systemInstruction", alias = "system_instruction", default, deserialize_with = "present")]
    system: Option<&'a RawValue>,
    #[serde(borrow, rename = "generationConfig", alias = "generation_config", default, deserialize_with = "present")]
    config: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    tools: Option<&'a RawValue>,
    #[serde(borrow, rename = "cachedContent", alias = "cached_content", default, deserialize_with = "present")]
    cached: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Config<'a> {
    #[serde(borrow, rename = "maxOutputTokens", alias = "max_output_tokens", default, deserialize_with = "present")]
    most: Option<&'a RawValue>,
    #[serde(borrow, rename = "candidateCount", alias = "candidate_count", default, deserialize_with = "present")]
    candidates: Option<&'a RawValue>,
    #[serde(borrow, rename = "thinkingConfig", alias = "thinking_config", default, deserialize_with = "present")]
    thinking: Option<&'a RawValue>,
    #[serde(borrow, rename = "responseSchema", alias = "response_schema", default, deserialize_with = "present")]
    schema: Option<&'a RawValue>,
    #[serde(
        borrow,
        rename = "responseJsonSchema",
        alias = "response_json_schema",
        default,
        deserialize_with = "present"
    )]
    json_schema: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    parts: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    text: Option<&'a RawValue>,
    #[serde(borrow, rename = "inlineData", alias = "inline_data", default, deserialize_with = "present")]
    inline: Option<&'a RawValue>,
    #[serde(borrow, rename = "fileData", alias = "file_data", default, deserialize_with = "present")]
    file: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Inline<'a> {
    #[serde(borrow, rename = "mimeType", alias = "mime_type", default, deserialize_with = "present")]
    mime: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
}

/// Reads what was posted to a path.
pub(in crate::wire::dialect) fn parse(path: &str, body: &Bytes) -> Result<Parsed, Unreadable> {
    let called = Called::read(path).ok_or_else(|| malformed("the path names no model".into()))?;
    let (_, form): (&str, Form<'_>) = fields::form(body)?;
    // Its parts have no `type`; what they are, they say by their members.
    let mut reader = Reader::new(|_| Kind::Unknown);
    if let Some(system) = given(form.system) {
        read_content(&mut reader, "systemInstruction", system)?;
    }
    let contents = given(form.contents).ok_or_else(|| malformed("contents is missing".into()))?;
    for (at, content) in fields::batch("contents", "contents", contents)?.iter().enumerate() {
        read_content(&mut reader, &format!("contents[{at}]"), content)?;
    }
    read_tools(&mut reader, form.tools);
    if given(form.cached).is_some() {
        reader.history_at_upstream();
    }
    let config: Config<'_> = match given(form.config) {
        Some(raw) => read("generationConfig", raw, "an object")?,
        None => Config::default(),
    };
    reader.structured(config.schema);
    reader.structured(config.json_schema);
    let cap = fields::cap(&[("generationConfig.maxOutputTokens", config.most)])?.unwrap_or(Limit::Unlimited);
    let call = Call {
        model: called.model.to_owned(),
        prompt: reader.finish(),
        cap,
        least: Tokens::ZERO,
        choices: fields::choices("generationConfig.candidateCount", config.candidates)?,
        effort: read_effort(config.thinking)?,
        streamed: called.streamed,
        bytes: units::Bytes::new(body.len() as u64),
    };
    Ok(Parsed { call, answer: AnswerForm::new(Dialect::Gemini, false), model_at: None, edits: Vec::new() })
}

fn read_effort(thinking: Option<&RawValue>) -> Result<Effort, Unreadable> {
    #[derive(Deserialize)]
    struct Thinking<'a> {
        #[serde(borrow, rename = "thinkingBudget", alias = "thinking_budget", default, deserialize_with = "present")]
        budget: Option<&'a RawValue>,
        #[serde(borrow, rename = "thinkingLevel", alias = "thinking_level", default, deserialize_with = "present")]
        level: Option<&'a RawValue>,
    }
    let Some(raw) = given(thinking) else { return Ok(Effort::Unstated) };
    let at = "generationConfig.thinkingConfig";
    let thinking: Thinking<'_> = read(at, raw, "an object")?;
    if let Some(level) = given(thinking.level) {
        let level = string(&format!("{at}.thinkingLevel"), level)?.to_ascii_lowercase();
        return Ok(Effort::named(&level).unwrap_or_default());
    }
    let Some(budget) = given(thinking.budget) else { return Ok(Effort::Unstated) };
    let budget = whole(&format!("{at}.thinkingBudget"), budget)?;
    // Below zero the model decides.
    Ok(EFFORT_OF_BUDGET.into_iter().find(|(from, _)| budget >= *from).map_or(Effort::Unstated, |(_, effort)| effort))
}

/// Functions run at the client; anything else a tool may be (search, code, maps) runs at the upstream, which then reads
/// more than was sent.
fn read_tools(reader: &mut Reader, tools: Option<&RawValue>) {
    reader.structured(tools);
    let Some(raw) = given(tools) else { return };
    let tools: Vec<serde_json::Map<String, serde_json::Value>> = serde_json::from_str(raw.get()).unwrap_or_default();
    let here = |name: &String| matches!(name.as_str(), "functionDeclarations" | "function_declarations");
    if tools.iter().any(|tool| !tool.keys().all(here)) {
        reader.history_at_upstream();
    }
}

fn read_content(reader: &mut Reader, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let content: Content<'_> = read(path, raw, "an object")?;
    reader.message();
    let Some(parts) = given(content.parts) else { return Ok(()) };
    let parts: Vec<&RawValue> = match kind(parts) {
        "an object" => vec![parts],
        _ => read(&format!("{path}.parts"), parts, "an array")?,
    };
    parts.iter().enumerate().try_for_each(|(at, part)| read_part(reader, &format!("{path}.parts[{at}]"), part))
}

/// A part is what its members say. Calls, their results and what is not known are counted as the JSON they are.
fn read_part(reader: &mut Reader, path: &str, raw: &RawValue) -> Result<(), Unreadable> {
    let part: Part<'_> = read(path, raw, "an object")?;
    if let Some(text) = given(part.text) {
        return reader.text(&format!("{path}.text"), text);
    }
    if let Some(inline) = given(part.inline) {
        let inline: Inline<'_> = read(&format!("{path}.inlineData"), inline, "an object")?;
        let mime = inline.mime.map_or("", RawValue::get).trim_matches('"').to_ascii_lowercase();
        reader.inline_data(&mime, given(inline.data));
        return Ok(());
    }
    if given(part.file).is_some() {
        // What is referred to by its address has a size that only the upstream knows.
        reader.history_at_upstream();
    }
    reader.structured(Some(raw));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::{Effort, Limit, Parsed, Tokens, Unreadable, parse};
    use crate::costing::InputCounter;

    const PATH: &str = "/v1beta/models/gemini-2.5-flash:generateContent";

    fn parsed(body: &Value) -> Result<Parsed, Unreadable> {
        parse(PATH, &Bytes::from(body.to_string()))
    }

    fn counted(parts: &Value) -> u64 {
        let parsed = parsed(&json!({"contents": [{"role": "user", "parts": parts}]})).expect("well formed");
        let counted = InputCounter::of(&parsed.call.model).count(&parsed.call.prompt);
        (counted.attachments + counted.text).get()
    }

    #[test]
    fn where_the_cost_hides() {
        let body = json!({
            "contents": [{"role": "user", "parts": [{"text": "hello world"}]}],
            "system_instruction": {"parts": [{"text": "hello"}]},
            "generationConfig": {"maxOutputTokens": 50, "candidateCount": 2, "thinkingConfig": {"thinkingBudget": 20000}},
        });
        let call = parsed(&body).expect("well formed").call;
        assert_eq!(
            (call.model.as_str(), call.cap, call.streamed),
            ("gemini-2.5-flash", Limit::AtMost(Tokens::new(50)), false)
        );
        assert_eq!((call.choices, call.effort), (NonZeroU32::new(2).expect("two"), Effort::High));
        assert_eq!(call.prompt.messages, 2);
        let plain = parsed(&json!({"contents": [{"parts": [{"text": "hi"}]}]})).expect("well formed").call;
        assert_eq!((plain.cap, plain.effort), (Limit::Unlimited, Effort::Unstated));
        for (config, effort) in [
            (json!({"thinkingBudget": 0}), Effort::None),
            (json!({"thinkingBudget": -1}), Effort::Unstated),
            (json!({"thinkingLevel": "MINIMAL"}), Effort::Minimal),
            (json!({"thinking_level": "HIGH"}), Effort::High),
        ] {
            let body = json!({"contents": [{"parts": []}], "generation_config": {"thinking_config": config}});
            assert_eq!(parsed(&body).expect("well formed").call.effort, effort, "{body}");
        }
    }

    #[test]
    fn pictures_sound_and_video_cost_what_is_published() {
        // A second of each, as it is commonly encoded.
        assert_eq!(counted(&json!([{"inlineData": {"mimeType": "audio/mp3", "data": "x".repeat(21_333)}}])), 32);
        assert_eq!(counted(&json!([{"inline_data": {"mime_type": "video/mp4", "data": "x".repeat(166_666)}}])), 263);
        assert_eq!(counted(&json!([{"inlineData": {"mimeType": "image/png", "data": "nonsense"}}])), 258 * 4);
        assert_eq!(counted(&json!({"text": "hello world"})), 2, "one part alone may stand without its array");
    }

    #[test]
    fn what_is_at_the_upstream_is_known_to_be_missing() {
        let partial = |body: &Value| {
            let call = parsed(body).expect("well formed").call;
            InputCounter::of(&call.model).count(&call.prompt).is_partial()
        };
        let parts = json!([{"parts": [{"text": "hi"}]}]);
        assert!(!partial(&json!({"contents": parts, "tools": [{"functionDeclarations": [{"name": "f"}]}]})));
        assert!(partial(&json!({"contents": parts, "tools": [{"googleSearch": {}}]})));
        assert!(partial(&json!({"contents": parts, "cachedContent": "cachedContents/1"})));
        assert!(partial(&json!({"contents": [{"parts": [{"fileData": {"fileUri": "gs://a/b"}}]}]})));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let wrong = |body: &Value| parsed(body).expect_err("not well formed").to_string();
        assert_eq!(wrong(&json!({})), "contents is missing");
        assert_eq!(wrong(&json!({"contents": "hi"})), "contents must be an array, not a string");
        assert_eq!(
            wrong(&json!({"contents": [{"parts": [{"text": 5}]}]})),
            "contents[0].parts[0].text must be a string, not a number"
        );
        let most = json!({"contents": [{"parts": []}], "generationConfig": {"maxOutputTokens": "x"}});
        assert_eq!(wrong(&most), "generationConfig.maxOutputTokens must be a whole number, not \"x\"");
    }
}
