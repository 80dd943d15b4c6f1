//! A request as a dialect read it: what may cost something, and nothing else.
//!
//! Every dialect fills in the same facts, so counting, prediction and quoting know no dialect. The texts are kept
//! only as far as they will be counted ([`Text`]); of the rest the length is enough.

use std::num::NonZeroU32;

use crate::units::{Bytes, Limit, Tokens};

use super::predict::Effort;

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
}

/// Something in a prompt that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// An image at low detail.
    ImageLow,
    /// An image at any other detail. Its size is not known before it is fetched.
    Image,
    /// An image for one of Anthropic's models.
    ImageClaude,
    /// Sound, by the length of its base64.
    Audio(Bytes),
    /// A document, by the length of its base64; nothing when it is only named.
    File(Bytes),
}

/// Texts to be counted, kept up to a bound; beyond it only their length is remembered.
///
/// Each text is a piece of its own: tokens never span two messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    pieces: Vec<String>,
    kept: usize,
    beyond: u64,
}

impl Text {
    /// Adds a text, keeping what still fits below `bound` bytes in all.
    pub fn push(&mut self, text: &str, bound: usize) {
        let room = bound.saturating_sub(self.kept);
        let keep = text.floor_char_boundary(room);
        if keep > 0 {
            self.pieces.push(text[..keep].to_owned());
            self.kept += keep;
        }
        self.beyond = self.beyond.saturating_add((text.len() - keep) as u64);
    }

    /// The pieces kept.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().map(String::as_str)
    }

    /// How much is kept.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        Bytes::new(self.kept as u64)
    }

    /// How much was not kept.
    #[must_use]
    pub fn beyond(&self) -> Bytes {
        Bytes::new(self.beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::Text;
    use crate::units::Bytes;

    #[test]
    fn a_text_is_kept_up_to_the_bound_and_measured_beyond_it() {
        let mut text = Text::default();
        text.push("abcd", 6);
        text.push("é€x", 6);
        assert_eq!(text.pieces().collect::<Vec<_>>(), ["abcd", "é"]);
        assert_eq!((text.kept(), text.beyond()), (Bytes::new(6), Bytes::new(4)));
        text.push("more", 6);
        assert_eq!(text.beyond(), Bytes::new(8));
    }
}
