//! OpenAI's APIs. What they share: the shape of errors, of usage, and of the completions' chunks.

pub(super) mod chat;
pub(super) mod chunk;
pub(super) mod completions;
pub(super) mod embeddings;
pub(super) mod error;
pub(super) mod reply;
pub(super) mod responses;
mod sampling;
mod usage;
