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
}

impl Dialect {
    /// Every dialect.
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
        Self::ALL.into_iter().find(|dialect| *method == Method::POST && path == dialect.path())
    }

    /// The path it is posted to.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenAiChat => "/v1/chat/completions",
            Self::OpenAiCompletions => "/v1/completions",
            Self::OpenAiEmbeddings => "/v1/embeddings",
            Self::OpenAiResponses => "/v1/responses",
            Self::AnthropicMessages => "/v1/messages",
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
        }
    }

    /// Reads a request body.
    ///
    /// # Errors
    /// When it is malformed, naming what and where, or asks for what does not exist here.
    pub fn parse(self, body: &Bytes) -> Result<Parsed, Unreadable> {
        match self {
            Self::OpenAiChat => openai::chat::parse(body),
            Self::OpenAiCompletions => openai::completions::parse(body),
            Self::OpenAiEmbeddings => openai::embeddings::parse(body),
            Self::OpenAiResponses => openai::responses::parse(body),
            Self::AnthropicMessages => anthropic::parse(body),
        }
    }
}
