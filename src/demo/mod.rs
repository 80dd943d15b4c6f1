//! A simulated serving engine in real time, behind the API of a real one.
//!
//! `serve --demo` and the load test need an engine that streams tokens, batches, queues and slows down as a GPU
//! does, on a machine that has none. This is the simulator's engine model ([`SimEngine`](crate::sim::SimEngine)) on
//! the real clock, speaking OpenAI's and Anthropic's APIs, and chat completions as vLLM does: `stream_options` with `include_usage` and
//! `continuous_usage_stats`, `ignore_eos`, the names of vLLM's gauges on `/metrics`. Timing is the model's; text is
//! filler, one token a word; usage is exact.
//!
//! What it takes is bounded: bodies, answer lengths, jobs in the engine. A client that leaves frees its place at the
//! end of the running step. It listens where it is told and never opens a connection.

mod apis;
mod chat;
mod driver;
mod length;
mod metrics;
mod server;
mod stream;
mod words;

#[cfg(test)]
mod tests;

pub use driver::Load;
pub use server::{Demo, start};
