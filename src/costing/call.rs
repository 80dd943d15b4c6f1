//! A request as a dialect read it: what may cost something, and nothing else.
//!
//! Every dialect fills in the same facts, so counting, prediction and quoting know no dialect. The texts are kept
//! only as far as they will be counted ([`Text`]); of the rest the length is enough.

use std::num::NonZeroU32;

use crate::units::{Bytes, Limit, Tokens};

use super::image::Image;
use super::predict::Effort;
use super::text::Text;

/// What one request asks for, as far as its cost goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The model as the client named it, before aliases.
    pub model: String,
    /// What the model has to read.
    pub prompt: Prompt,
    /// The most output one choice may produce, reasoning included, where the client states a cap.
    pub cap: Limit<Tokens>,
    /// The least output one choice will have, where the client or the engine insists on some.
    pub least: Tokens,
    /// How many answers are asked for, over all prompts of a batch.
    pub choices: NonZeroU32,
    /// How hard the model is asked to think.
    pub effort: Effort,
    /// Whether the answer is to be streamed.
    pub streamed: bool,
    /// The size of the body, which is what waiting costs in memory.
    pub bytes: Bytes,
}

/// What the model has to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Chat messages, each of which costs a few tokens of markup.
    pub messages: u32,
    /// Messages that carry a name, which costs a token more.
    pub names: u32,
    /// Tokens the client encoded itself.
    pub tokens: Tokens,
    /// The texts to be counted.
    pub text: Text,
    /// JSON the provider turns into prompt text by a formula it does not publish: tool definitions, tool calls,
    /// answer schemas.
    pub structured: Bytes,
    /// Images, audio and files.
    pub attachments: Vec<Attachment>,
    /// Whether all of it is here.
    pub history: History,
}

/// Where what was said before is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum History {
    /// In the request, if anything was said before.
    #[default]
    Stated,
    /// At the upstream, or the upstream adds to it by running tools of its own; it only reports how long it was.
    Upstream,
}

/// Something in a prompt that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// An image.
    Image(Image),
    /// Sound, by the length of its base64.
    Audio(Bytes),
    /// Sound where 32 tokens a second are reckoned (Gemini), by the length of its base64.
    FineAudio(Bytes),
    /// A film, by the length of its base64.
    Video(Bytes),
    /// A document, by the length of its base64; nothing when it is only named.
    File(Bytes),
}
