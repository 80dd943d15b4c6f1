//! The languages clients speak: how a request states its cost, how an answer reports it, what an error looks like.
//!
//! A door knows one [`Dialect`] and never which. In the order of a request's life: [`Dialect::of`] says whether a
//! method and path are metered, [`Dialect::parse`] reads the body, [`Parsed::forward`] makes the body for the
//! upstream, and the [`AnswerForm`] that came with it reads the answer, whole or event by event
//! ([`AnswerForm::observer`]). A refusal is written in the caller's [`Voice`]. What each dialect reads, asks for and
//! hides is in `docs/dialects.md`.

mod anthropic;
mod body;
mod content;
mod fields;
mod gemini;
pub(in crate::wire) mod grpc;
mod json;
mod observer;
mod openai;
mod picture;
mod reply;
pub mod sse;
mod voice;

use bytes::Bytes;
use http::Method;

pub use body::{AnswerForm, Named, Parsed};
pub use json::Unreadable;
pub use observer::{Observer, StreamEnd};
pub use reply::{Reply, is_believable};
pub use voice::{ErrorBody, Voice};

/// An API whose requests are metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI Chat Completions, also spoken by vLLM, SGLang, llama.cpp and most gateways.
    OpenAiChat,
    /// OpenAI Completions, and the engines that speak it.
    OpenAiCompletions,
    /// OpenAI Embeddings.
    OpenAiEmbeddings,
    /// OpenAI Responses.
    OpenAiResponses,
    /// Anthropic Messages.
    AnthropicMessages,
    /// Gemini's `generateContent`, whose model stands in its path.
    Gemini,
}

impl Dialect {
    /// Every dialect that is posted to one path of its own.
    pub const ALL: [Self; 5] = [
        Self::OpenAiChat,
        Self::OpenAiCompletions,
        Self::OpenAiEmbeddings,
        Self::OpenAiResponses,
        Self::AnthropicMessages,
    ];

    /// The dialect a request is written in, where it is one that is metered.
    #[must_use]
    pub fn of(method: &Method, path: &str) -> Option<Self> {
        if *method != Method::POST {
            return None;
        }
        let by_path = Self::ALL.into_iter().find(|dialect| path == dialect.path());
        by_path.or_else(|| gemini::Called::read(path).map(|_| Self::Gemini))
    }

    /// The path it is posted to; of Gemini's, what the model's name stands in.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenAiChat => "/v1/chat/completions",
            Self::OpenAiCompletions => "/v1/completions",
            Self::OpenAiEmbeddings => "/v1/embeddings",
            Self::OpenAiResponses => "/v1/responses",
            Self::AnthropicMessages => "/v1/messages",
            Self::Gemini => "/v1beta/models/{model}:generateContent",
        }
    }

    /// Its name in the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAiChat => "openai_chat",
            Self::OpenAiCompletions => "openai_completions",
            Self::OpenAiEmbeddings => "openai_embeddings",
            Self::OpenAiResponses => "openai_responses",
            Self::AnthropicMessages => "anthropic_messages",
            Self::Gemini => "gemini",
        }
    }

    /// How its errors are written.
    #[must_use]
    pub const fn voice(self) -> Voice {
        match self {
            Self::OpenAiChat | Self::OpenAiCompletions | Self::OpenAiEmbeddings | Self::OpenAiResponses => {
                Voice::OpenAi
            }
            Self::AnthropicMessages => Voice::Anthropic,
            Self::Gemini => Voice::Gemini,
        }
    }

    /// Whether a path that is written otherwise could be taken for one whose model stands in it. `plain` is what servers
    /// commonly see of it.
    #[must_use]
    pub fn is_spelling(plain: &str) -> bool {
        gemini::is_spelling(plain)
    }

    /// The path with another model's name in it, for a dialect whose model stands there; nothing where it need not change.
    #[must_use]
    pub fn renamed(self, path: &str, model: &str) -> Option<String> {
        (self == Self::Gemini).then(|| gemini::renamed(path, model)).flatten()
    }

    /// Reads a request body that was posted to a path.
    ///
    /// # Errors
    /// When it is malformed, naming what and where, or asks for what does not exist here.
    pub fn parse(self, path: &str, body: &Bytes) -> Result<Parsed, Unreadable> {
        match self {
            Self::OpenAiChat => openai::chat::parse(body),
            Self::OpenAiCompletions => openai::completions::parse(body),
            Self::OpenAiEmbeddings => openai::embeddings::parse(body),
            Self::OpenAiResponses => openai::responses::parse(body),
            Self::AnthropicMessages => anthropic::parse(body),
            Self::Gemini => gemini::parse(path, body),
        }
    }
}
