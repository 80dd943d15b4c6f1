//! OpenAI Chat Completions: `POST /v1/chat/completions`.
//!
//! Also the language of vLLM, SGLang, llama.cpp and most gateways. Facts from OpenAI's published specification
//! (2026-08) and the engines' sources: the cap is the larger of `max_tokens` and `max_completion_tokens`; usage is
//! inside a non-streamed answer, and in a stream only where `stream_options.include_usage` asks for it, as a last
//! chunk without choices; `reasoning_tokens` lie inside `completion_tokens` and `cached_tokens` inside
//! `prompt_tokens`; a stream ends with `data: [DONE]`.

mod prompt;
mod request;

pub(in super::super) use request::parse;
