//! The languages clients speak: how a request states its cost, how an answer reports it, what an error looks like.

pub mod openai_chat;
pub mod sse;
