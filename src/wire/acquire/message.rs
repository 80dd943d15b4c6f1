//! What callers of our gRPC API say, in our terms.
//!
//! What cannot be is refused with its name, and nothing is guessed.

use std::num::NonZeroU32;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use tonic::Status;

use crate::admission::Outcome;
use crate::shell::{LeaseId, NotLive, Patience};
use crate::units::{Limit, Span, Tokens};

use super::super::answer::Refused;
use super::super::exchange::{Reach, Size, Unwatched};
use super::super::spent::{Figures, Spent};
use super::v1;

/// How long the caller waits for an answer to its call.
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Where a request is entered of which only the size is known.
const AS_CHAT: &str = "/v1/chat/completions";
/// The most answers that may be asked for at once, as at every other door.
const MOST_CHOICES: u32 = 128;

/// What is asked for.
#[derive(Debug)]
pub(super) enum Asked {
    /// A request as it would be sent over HTTP.
    Whole { method: Method, path: String, body: Bytes },
    /// A request of this size.
    Size(Size),
}

impl Asked {
    /// Reads it.
    ///
    /// # Errors
    /// When nothing is asked for, or what cannot be.
    pub(super) fn read(asked: v1::AcquireRequest) -> Result<Self, Refused> {
        let malformed = |what: &str| Err(Refused::Malformed(what.into()));
        match asked.what {
            None => malformed("nothing is asked for: set http or estimate"),
            Some(v1::acquire_request::What::Http(v1::HttpRequest { method, path, body })) => {
                let method = if method.is_empty() { "POST" } else { &method };
                let Ok(method) = Method::from_bytes(method.as_bytes()) else {
                    return malformed("http.method is no method");
                };
                if !path.starts_with('/') {
                    return malformed("http.path must begin with a slash, as in /v1/chat/completions");
                }
                Ok(Self::Whole { method, path, body: body.into() })
            }
            Some(v1::acquire_request::What::Estimate(estimate)) => {
                let v1::Estimate { model, input_tokens, max_output_tokens, choices, streamed } = estimate;
                if model.is_empty() {
                    return malformed("estimate.model is missing");
                }
                if choices > MOST_CHOICES {
                    return malformed(&format!("estimate.choices must be at most {MOST_CHOICES}"));
                }
                let cap = if max_output_tokens == 0 {
                    Limit::Unlimited
                } else {
                    Limit::AtMost(Tokens::new(max_output_tokens))
                };
                let (input, choices) = (Tokens::new(input_tokens), NonZeroU32::new(choices).unwrap_or(NonZeroU32::MIN));
                Ok(Self::Size(Size { model, input, cap, choices, streamed }))
            }
        }
    }

    pub(super) fn method(&self) -> Method {
        match self {
            Self::Whole { method, .. } => method.clone(),
            Self::Size(_) => Method::POST,
        }
    }

    pub(super) fn path(&self) -> &str {
        match self {
            Self::Whole { path, .. } => path,
            Self::Size(_) => AS_CHAT,
        }
    }

    pub(super) fn is_bodiless(&self) -> bool {
        matches!(self, Self::Whole { body, .. } if body.is_empty())
    }
}

/// How long it waits for its turn: as it says, and not so long that the refusal would come too late for its call.
pub(super) fn patient(patience: Patience, headers: &HeaderMap) -> Patience {
    /// What is left for the answer to arrive in: a tenth of the time, and at most this.
    const TO_ARRIVE: Span = Span::from_millis(100);
    let timeout = headers.get(TIMEOUT).and_then(|value| timeout(value.to_str().ok()?));
    let within = timeout.map(|span| span.saturating_sub(Span::from_nanos(span.as_nanos() / 10).min(TO_ARRIVE)));
    Patience { dispatch: patience.dispatch.into_iter().chain(within).min(), ..patience }
}

/// A timeout as gRPC writes it: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Span> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Span::from_secs(number * 3_600),
        "M" => Span::from_secs(number * 60),
        "S" => Span::from_secs(number),
        "m" => Span::from_millis(number),
        "u" => Span::from_nanos(number * 1_000),
        "n" => Span::from_nanos(number),
        _ => return None,
    })
}

/// The name of a lease.
pub(super) fn lease_of(text: &str) -> Result<LeaseId, Status> {
    text.parse().map_err(|error| Status::invalid_argument(format!("lease: {error}")))
}

/// How a lease was found.
pub(super) fn state(found: Result<(), NotLive>) -> v1::LeaseState {
    match found {
        Ok(()) => v1::LeaseState::Running,
        Err(NotLive::Settled) => v1::LeaseState::Settled,
        Err(NotLive::Expired) => v1::LeaseState::Expired,
        Err(NotLive::Unknown) => v1::LeaseState::Unknown,
    }
}

/// How a request ended, and whose lease it was.
pub(super) fn end(told: &v1::SettleRequest) -> Result<(LeaseId, Unwatched), Status> {
    let lease = lease_of(&told.lease)?;
    let (outcome, reach) = match v1::Outcome::try_from(told.outcome) {
        Ok(v1::Outcome::Completed) => (Outcome::Completed, Reach::Sent),
        Ok(v1::Outcome::Aborted) => (Outcome::ClientAborted, Reach::Sent),
        Ok(v1::Outcome::UpstreamFailed) => (Outcome::UpstreamFailed, Reach::Sent),
        Ok(v1::Outcome::TimedOut) => (Outcome::TimedOut, Reach::Sent),
        Ok(v1::Outcome::NotSent) => (Outcome::ClientAborted, Reach::Unsent),
        Ok(v1::Outcome::Unspecified) | Err(_) => {
            return Err(Status::invalid_argument("outcome: say how the request ended, such as OUTCOME_COMPLETED"));
        }
    };
    let head = match told.upstream_status {
        0 => None,
        code => {
            let status = u16::try_from(code).ok().and_then(|code| StatusCode::from_u16(code).ok());
            let Some(status) = status else {
                return Err(Status::invalid_argument(format!("upstream_status: {code} is no status of HTTP's")));
            };
            let mut headers = HeaderMap::new();
            if told.upstream_retry_after_ms > 0 {
                headers.insert("retry-after-ms", HeaderValue::from(told.upstream_retry_after_ms));
            }
            Some((status, headers))
        }
    };
    let figures = told.usage.map(|usage| Figures {
        input: Some(usage.input_tokens),
        cached: usage.cached_input_tokens,
        written: usage.cache_write_tokens,
        output: Some(usage.output_tokens),
        reasoning: usage.reasoning_tokens,
    });
    let usage = figures.map(Spent::from).unwrap_or_default();
    Ok((lease, Unwatched { outcome, reach, head, further_attempts: 0, usage }))
}
