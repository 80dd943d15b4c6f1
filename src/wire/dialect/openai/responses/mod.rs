//! OpenAI Responses: `POST /v1/responses`.
//!
//! The cap is `max_output_tokens`, reasoning included. What `previous_response_id`, `conversation` or a stored
//! `prompt` stand for is not in the body and cannot be counted; it is charged when usage reports it. Usage is always
//! reported, in the answer or in the stream's last event (`response.completed`, `response.incomplete`,
//! `response.failed`). `background: true` is refused: a request is settled when its answer ends.

mod request;
mod response;

pub(in crate::wire::dialect) use request::parse;
pub(in crate::wire::dialect) use response::{observe, read};
