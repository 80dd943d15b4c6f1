//! Watches a streamed answer as it passes: what it has produced so far, what it reports, whether it ended well.
//!
//! Where we asked for the usage chunk and the client did not, the client must not see it: the last chunk, without
//! choices, is withheld, and the `"usage": null` that every other chunk then carries is cut out. Nothing else is
//! changed; where the client asked itself, the bytes pass as they are. A chunk is not a token: output is counted by
//! its text.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::costing::{Encoding, OutputCounter};
use crate::units::{Tokens, Usage};

use super::super::sse::{Piece, Splitter};
use super::json::{given, present, span};
use super::response::{Fragment, fragments, read_usage};

/// The most answers of one request that are counted apart; more are counted together with the last.
const MAX_COUNTERS: usize = 64;

/// Bytes to a token where an event is too large to be read.
const OPAQUE_BYTES_PER_TOKEN: u64 = 4;

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Not to its end.
    Open,
    /// To the final usage chunk or `[DONE]`: the whole answer was produced.
    Final,
    /// The upstream reported an error inside the stream.
    Failed,
}

/// Watches one stream.
#[derive(Debug)]
pub struct Observer {
    splitter: Splitter,
    encoding: Encoding,
    hide_usage: bool,
    visible: Vec<OutputCounter>,
    reasoning: Vec<OutputCounter>,
    opaque: u64,
    usage: Option<Usage>,
    end: StreamEnd,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    usage: Option<&'a RawValue>,
    #[serde(default)]
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: Option<usize>,
    #[serde(default)]
    delta: Value,
}

impl Observer {
    /// An observer that has seen nothing, and will withhold the usage if told to.
    #[must_use]
    pub fn new(encoding: Encoding, hide_usage: bool) -> Self {
        Self {
            splitter: Splitter::default(),
            encoding,
            hide_usage,
            visible: Vec::new(),
            reasoning: Vec::new(),
            opaque: 0,
            usage: None,
            end: StreamEnd::Open,
        }
    }

    /// Takes the next bytes and gives out what the client is to see of them; possibly nothing yet.
    pub fn push(&mut self, bytes: &Bytes) -> Bytes {
        let mut out = Vec::new();
        for piece in self.splitter.push(bytes) {
            let shown = self.observe(piece);
            if self.hide_usage {
                out.extend_from_slice(&shown);
            }
        }
        if self.hide_usage { out.into() } else { bytes.clone() }
    }

    /// Ends the stream and gives out what was still held back.
    pub fn finish(&mut self) -> Bytes {
        let shown = self.splitter.finish().map(|piece| self.observe(piece)).unwrap_or_default();
        if self.hide_usage { shown } else { Bytes::new() }
    }

    /// The output so far, all answers together; of the newest words only that there are some.
    #[must_use]
    pub fn output_so_far(&self) -> Tokens {
        let text: Tokens = self.visible.iter().chain(&self.reasoning).map(OutputCounter::so_far).sum();
        text + self.opaque_tokens()
    }

    /// The output counted exactly: what is visible, and reasoning.
    pub fn counted(&mut self) -> (Tokens, Tokens) {
        let visible: Tokens = self.visible.iter_mut().map(OutputCounter::exact).sum();
        let reasoning = self.reasoning.iter_mut().map(OutputCounter::exact).sum();
        (visible + self.opaque_tokens(), reasoning)
    }

    /// The usage the upstream reported, the latest where there were several.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// How far the stream has come.
    #[must_use]
    pub fn end(&self) -> StreamEnd {
        self.end
    }

    fn opaque_tokens(&self) -> Tokens {
        Tokens::new(self.opaque.div_ceil(OPAQUE_BYTES_PER_TOKEN))
    }

    /// Notes what a piece says and returns what is to be shown of it.
    fn observe(&mut self, piece: Piece) -> Bytes {
        match piece {
            Piece::Opaque(raw) => {
                self.opaque += raw.len() as u64;
                raw
            }
            Piece::Event { raw, data: None } => raw,
            Piece::Event { raw, data: Some(data) } if data.trim() == "[DONE]" => {
                self.end_as(StreamEnd::Final);
                raw
            }
            Piece::Event { raw, data: Some(data) } => self.observe_chunk(raw, &data),
        }
    }

    fn observe_chunk(&mut self, raw: Bytes, data: &str) -> Bytes {
        // What is not a chunk is not ours to judge; it passes.
        let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(data) else { return raw };
        if chunk.error.is_some() {
            self.end_as(StreamEnd::Failed);
            return raw;
        }
        let choices = chunk.choices.unwrap_or_default();
        for choice in &choices {
            self.count(choice);
        }
        let reported = given(chunk.usage).and_then(|usage| serde_json::from_str::<Value>(usage.get()).ok());
        if let Some(usage) = reported.as_ref().and_then(read_usage) {
            self.usage = Some(usage);
            if choices.is_empty() {
                self.end_as(StreamEnd::Final);
            }
        }
        match chunk.usage {
            Some(_) if reported.is_some() && choices.is_empty() => Bytes::new(),
            Some(usage) if usage.get() == "null" => without_member(&raw, data, usage),
            _ => raw,
        }
    }

    /// The first end stands: an error after the final event changes nothing, nor does `[DONE]` after an error.
    fn end_as(&mut self, end: StreamEnd) {
        if self.end == StreamEnd::Open {
            self.end = end;
        }
    }

    fn count(&mut self, choice: &Choice) {
        let index = choice.index.unwrap_or(0).min(MAX_COUNTERS - 1);
        for fragment in fragments(&choice.delta) {
            let (counters, text) = match fragment {
                Fragment::Visible(text) => (&mut self.visible, text),
                Fragment::Reasoning(text) => (&mut self.reasoning, text),
            };
            if counters.len() <= index {
                counters.resize_with(index + 1, || OutputCounter::new(self.encoding));
            }
            counters[index].push(text);
        }
    }
}

/// The event without its `usage` member. Only where the data stands in one piece in the event; else as it is, since
/// a `null` too many is better than a broken event.
fn without_member(raw: &Bytes, data: &str, usage: &RawValue) -> Bytes {
    let Some(at) = raw.windows(data.len().max(1)).position(|window| window == data.as_bytes()) else {
        return raw.clone();
    };
    let value = span(data, usage);
    let before = data[..value.start].trim_end();
    let Some(name_end) = before.strip_suffix(':').map(str::trim_end).and_then(|name| name.strip_suffix('"')) else {
        return raw.clone();
    };
    let Some(name_start) = name_end.rfind('"') else { return raw.clone() };
    let (head, tail) = (&data[..name_start], data[value.end..].trim_start());
    let (head, tail) = match tail.strip_prefix(',') {
        Some(tail) => (head, tail.trim_start()),
        None => (head.trim_end().strip_suffix(',').unwrap_or(head), tail),
    };
    let mut out = Vec::with_capacity(raw.len());
    out.extend_from_slice(&raw[..at]);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(tail.as_bytes());
    out.extend_from_slice(&raw[at + data.len()..]);
    out.into()
}

#[cfg(test)]
mod tests;
