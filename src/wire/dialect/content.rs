//! Reads what the model has to read: texts, images, sound and files in the parts of a message, and the JSON beside
//! them.
//!
//! One reader for every dialect, so that an image or a tool is read in one place. A dialect says only what its parts
//! are called ([`Kind`]) and where they stand. Text is kept to be counted; everything else is measured. A part of a
//! kind that a dialect does not know is the upstream's to judge, and is counted as the JSON it is. Parts that hold
//! parts (tools' results) are read one level deep, which is as deep as any API has them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::costing::{Api, Attachment, COUNTED_TEXT, Detail, History, Image, PixelSize, Prompt};
use crate::units::{Bytes, Tokens};

use super::fields::Entry;
use super::json::{Unreadable, given, kind, malformed, present, read, string};
use super::picture;

/// What a part of a content is, and so which of its members is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text, in this member.
    Text(TextIn),
    /// An image: OpenAI's `image_url`, in Chat an object with a `detail` of its own, required.
    ImageUrl,
    /// An image: OpenAI's `input_image`, whose `detail` stands beside its address.
    InputImage,
    /// An image with a `source`, as Anthropic has it.
    SourcedImage,
    /// Sound, in `input_audio`.
    Audio,
    /// A file, in `file`.
    File,
    /// A file, in `file_data`.
    FileData,
    /// A document with a `source`, as Anthropic has it.
    Document,
    /// The result of a tool, whose `content` has parts of its own.
    ToolResult,
    /// A kind that is not known: counted as JSON.
    Unknown,
}

/// The member a part's text is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextIn {
    Text,
    Refusal,
    Thinking,
}

/// How deep a content lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Message,
    ToolResult,
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
    thinking: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    source: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    image_url: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    detail: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    input_audio: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    file: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    file_data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Source<'a> {
    #[serde(borrow, rename = "type", default, deserialize_with = "present")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
}

/// Gathers a prompt, part by part.
#[derive(Debug)]
pub(super) struct Reader {
    prompt: Prompt,
    kind_of: fn(&str) -> Kind,
}

impl Reader {
    /// One for a dialect that calls the kinds of its parts by these names.
    pub(super) fn new(kind_of: fn(&str) -> Kind) -> Self {
        Self { prompt: Prompt::default(), kind_of }
    }

    /// What was gathered.
    pub(super) fn finish(self) -> Prompt {
        self.prompt
    }

    /// What was said before is at the upstream.
    pub(super) fn history_at_upstream(&mut self) {
        self.prompt.history = History::Upstream;
    }

    /// A message begins.
    pub(super) fn message(&mut self) {
        self.prompt.messages = self.prompt.messages.saturating_add(1);
    }

    /// A message has a name.
    pub(super) fn name(&mut self, path: &str, name: &RawValue) -> Result<(), Unreadable> {
        self.prompt.names = self.prompt.names.saturating_add(1);
        self.text(path, name)
    }

    /// A text.
    pub(super) fn text(&mut self, path: &str, text: &RawValue) -> Result<(), Unreadable> {
        self.prompt.text.push(&string(path, text)?, COUNTED_TEXT);
        Ok(())
    }

    /// JSON that becomes prompt text by a formula nobody publishes: tools, calls, schemas.
    pub(super) fn structured(&mut self, json: Option<&RawValue>) {
        self.measure(given(json).map_or(0, length));
    }

    /// Tools, of which some may run at the upstream, which then reads more than was sent.
    pub(super) fn tools(&mut self, tools: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Tool<'a> {
            #[serde(borrow, rename = "type", default)]
            kind: Option<Cow<'a, str>>,
        }
        self.structured(tools);
        let Some(raw) = given(tools) else { return };
        // Tools that look like nothing known are the upstream's to judge.
        let tools: Vec<Tool<'_>> = serde_json::from_str(raw.get()).unwrap_or_default();
        let here = |kind: &str| matches!(kind, "function" | "custom");
        if tools.iter().any(|tool| tool.kind.as_deref().is_some_and(|kind| !here(kind))) {
            self.history_at_upstream();
        }
    }

    /// JSON of an item, but for a member of it that is no prompt text.
    pub(super) fn structured_without(&mut self, item: &RawValue, member: Option<&RawValue>) {
        self.measure(length(item).saturating_sub(member.map_or(0, length)));
    }

    /// One of a batch of prompts or inputs.
    pub(super) fn entry(&mut self, entry: &Entry<'_>) {
        match entry {
            Entry::Text(text) => self.prompt.text.push(text, COUNTED_TEXT),
            Entry::Tokens(tokens) => self.tokens(*tokens),
            Entry::Json(raw) => self.structured(Some(raw)),
        }
    }

    fn tokens(&mut self, tokens: Tokens) {
        self.prompt.tokens += tokens;
    }

    fn measure(&mut self, bytes: u64) {
        self.prompt.structured = self.prompt.structured + Bytes::new(bytes);
    }

    /// What a message says: a text, or parts.
    pub(super) fn content(&mut self, path: &str, content: &RawValue) -> Result<(), Unreadable> {
        self.content_at(path, content, Depth::Message)
    }

    fn content_at(&mut self, path: &str, content: &RawValue, depth: Depth) -> Result<(), Unreadable> {
        match kind(content) {
            "a string" => self.text(path, content),
            "an array" => {
                let parts: Vec<&RawValue> = read(path, content, "an array")?;
                let mut parts = parts.iter().enumerate();
                parts.try_for_each(|(at, part)| self.part(&format!("{path}[{at}]"), part, depth))
            }
            found => Err(malformed(format!("{path} must be a string or an array, not {found}"))),
        }
    }

    fn part(&mut self, path: &str, raw: &RawValue, depth: Depth) -> Result<(), Unreadable> {
        let part: Part<'_> = read(path, raw, "an object")?;
        let kind = given(part.kind).ok_or_else(|| malformed(format!("{path}.type is missing")))?;
        let measured = |member: Option<&RawValue>| Bytes::new(member.map_or(0, length));
        let attachment = match (self.kind_of)(&string(&format!("{path}.type"), kind)?) {
            Kind::Text(TextIn::Text) => return self.required_text(&format!("{path}.text"), part.text),
            Kind::Text(TextIn::Refusal) => return self.required_text(&format!("{path}.refusal"), part.refusal),
            Kind::Text(TextIn::Thinking) => return self.required_text(&format!("{path}.thinking"), part.thinking),
            Kind::ToolResult if depth == Depth::Message => {
                return match given(part.content) {
                    Some(content) => self.content_at(&format!("{path}.content"), content, Depth::ToolResult),
                    None => Ok(()),
                };
            }
            Kind::ToolResult | Kind::Unknown => {
                self.structured(Some(raw));
                return Ok(());
            }
            Kind::Document => return self.document(&format!("{path}.source"), part.source),
            Kind::ImageUrl => image_url(&format!("{path}.image_url"), part.image_url)?,
            Kind::InputImage => input_image(part.image_url, part.detail),
            Kind::SourcedImage => sourced_image(part.source),
            Kind::Audio => Attachment::Audio(measured(part.input_audio)),
            Kind::File => Attachment::File(measured(part.file)),
            Kind::FileData => Attachment::File(measured(part.file_data)),
        };
        self.prompt.attachments.push(attachment);
        Ok(())
    }

    /// Data that says by its MIME type what it is, as Gemini has it.
    pub(super) fn inline_data(&mut self, mime: &str, base64: Option<&RawValue>) {
        // Without its quotes.
        let size = Bytes::new(base64.map_or(0, length).saturating_sub(2));
        self.prompt.attachments.push(match mime.split('/').next() {
            Some("image") => {
                let size = base64.and_then(|raw| picture::size_of_base64(raw.get()));
                Attachment::Image(Image { size, detail: Detail::Full, api: Api::Gemini })
            }
            Some("audio") => Attachment::FineAudio(size),
            Some("video") => Attachment::Video(size),
            _ => Attachment::File(size),
        });
    }

    fn required_text(&mut self, path: &str, text: Option<&RawValue>) -> Result<(), Unreadable> {
        self.text(path, given(text).ok_or_else(|| malformed(format!("{path} is missing")))?)
    }

    /// Plain text is counted as such; anything else by the length of its base64.
    fn document(&mut self, path: &str, source: Option<&RawValue>) -> Result<(), Unreadable> {
        let raw = given(source).ok_or_else(|| malformed(format!("{path} is missing")))?;
        let source: Source<'_> = read(path, raw, "an object")?;
        match (source.kind.map(RawValue::get), given(source.data)) {
            (Some("\"text\""), Some(data)) => self.text(&format!("{path}.data"), data)?,
            (_, data) => {
                let base64 = Bytes::new(data.map_or(0, length));
                self.prompt.attachments.push(Attachment::File(base64));
            }
        }
        Ok(())
    }
}

fn length(raw: &RawValue) -> u64 {
    raw.get().len() as u64
}

fn image(size: Option<PixelSize>, low: bool) -> Attachment {
    let detail = if low { Detail::Low } else { Detail::Full };
    Attachment::Image(Image { size, detail, api: Api::OpenAi })
}

fn image_url(path: &str, raw: Option<&RawValue>) -> Result<Attachment, Unreadable> {
    #[derive(Deserialize)]
    struct Form<'a> {
        #[serde(borrow, default, deserialize_with = "present")]
        url: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        detail: Option<&'a RawValue>,
    }
    let raw = given(raw).ok_or_else(|| malformed(format!("{path} is missing")))?;
    if kind(raw) == "a string" {
        return Ok(image(picture::size_of_url(raw.get()), false));
    }
    let form: Form<'_> = read(path, raw, "an object")?;
    let low = match given(form.detail) {
        Some(detail) => string(&format!("{path}.detail"), detail)? == "low",
        None => false,
    };
    Ok(image(form.url.and_then(|url| picture::size_of_url(url.get())), low))
}

fn input_image(url: Option<&RawValue>, detail: Option<&RawValue>) -> Attachment {
    let low = detail.is_some_and(|detail| detail.get() == "\"low\"");
    image(url.and_then(|url| picture::size_of_url(url.get())), low)
}

/// Whatever its source looks like: that is the upstream's to judge.
fn sourced_image(source: Option<&RawValue>) -> Attachment {
    let source = source.and_then(|raw| serde_json::from_str::<Source<'_>>(raw.get()).ok());
    let size = source.and_then(|source| picture::size_of_base64(source.data?.get()));
    Attachment::Image(Image { size, detail: Detail::Full, api: Api::Anthropic })
}
