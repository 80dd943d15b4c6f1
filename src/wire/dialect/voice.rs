//! How an answer of ours is written, so that the caller's SDK understands it.

use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::units::Span;

use super::{Dialect, anthropic, gemini, openai};

/// A family of APIs whose errors look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Voice {
    /// `{"error": {message, type, param, code}}`, request id in `x-request-id`.
    OpenAi,
    /// `{"type": "error", "error": {type, message}}`, request id in `request-id`.
    Anthropic,
    /// `{"error": {code, message, status, details}}`, request id in `x-request-id`.
    Gemini,
    /// gRPC's status and message in headers without a body, request id in `x-request-id`.
    Grpc,
}

/// What an error body says.
#[derive(Clone, Copy, Debug)]
pub struct ErrorBody<'a> {
    /// The answer's status.
    pub status: StatusCode,
    /// Our code, so that an operator can tell this gateway's limits from the provider's.
    pub code: &'a str,
    /// The member of the request that is at fault, where one is.
    pub param: Option<&'a str>,
    /// The words for a person.
    pub message: &'a str,
    /// The id of the decision.
    pub request_id: &'a str,
    /// After how long to come back, where that is told.
    pub retry_after: Option<Span>,
}

/// Every request of Anthropic's SDKs carries it.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Where Google's SDKs show their key.
const GOOG_API_KEY: HeaderName = HeaderName::from_static("x-goog-api-key");

impl Voice {
    /// The voice a caller understands, whatever it asks for.
    #[must_use]
    pub fn of(path: &str, headers: &HeaderMap) -> Self {
        let messages = path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if messages || headers.contains_key(ANTHROPIC_VERSION) {
            Self::Anthropic
        } else if Dialect::of(&Method::POST, path) == Some(Dialect::Gemini) || headers.contains_key(GOOG_API_KEY) {
            Self::Gemini
        } else {
            Self::OpenAi
        }
    }

    /// The body of an answer of ours.
    #[must_use]
    pub fn error_body(self, error: &ErrorBody<'_>) -> String {
        match self {
            Self::OpenAi => openai::error::body(error),
            Self::Anthropic => anthropic::error_body(error),
            Self::Gemini => gemini::error_body(error),
            Self::Grpc => String::new(),
        }
    }

    /// The header in which the SDKs look for the request's id.
    #[must_use]
    pub const fn request_id(self) -> HeaderName {
        match self {
            Self::OpenAi | Self::Gemini | Self::Grpc => HeaderName::from_static("x-request-id"),
            Self::Anthropic => HeaderName::from_static("request-id"),
        }
    }
}
