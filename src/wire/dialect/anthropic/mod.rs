//! Anthropic Messages: `POST /v1/messages`.
//!
//! The cap is `max_tokens`, which is required; thinking lies within it. `input_tokens` leaves out both cache buckets,
//! so the input is the sum of the three. A stream tells its input in `message_start`, together with a placeholder for
//! the output, and the output in `message_delta`, cumulative and sometimes with the input again; it ends with
//! `message_stop`.

mod error;
mod request;
mod response;

pub(super) use error::body as error_body;
pub(super) use request::parse;
pub(super) use response::{observe, read};
