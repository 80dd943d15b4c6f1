//! Gemini's `generateContent`, whole and streamed, as Google's APIs for developers and on Vertex speak it.
//!
//! The model stands in the path, so an alias changes the path. A stream comes as server-sent events where the path is
//! asked with `?alt=sse`, else as one JSON array, which is read when it is whole.

mod error;
mod path;
mod request;
mod response;

pub(super) use error::body as error_body;
pub(super) use path::{Called, is_spelling, renamed};
pub(super) use request::parse;
pub(super) use response::{observe, read};
