//! OpenAI's APIs. What they share: the shape of errors, of usage, and of the completions' chunks.

pub(super) mod chat;
pub(super) mod chunk;
pub(super) mod error;
pub(super) mod reply;
pub(super) mod usage;
