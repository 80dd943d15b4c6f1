//! Watches a streamed answer as it passes: what it has produced so far, what it reports, whether it ended well.
//!
//! Where we asked for usage and the client did not, the client must not see it: what an API's reader says is to be
//! hidden is withheld or cut out. Nothing else is changed; where the client asked itself, the bytes pass as they are.
//! A chunk is not a token: output is counted by its text, unless the upstream tells with every chunk how much there
//! is.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::costing::{Encoding, OutputCounter};
use crate::units::{Tokens, Usage};

use super::body::{AnswerForm, Echo};
use super::reply::{Fragment, is_believable};
use super::sse::{Piece, Splitter};
use super::{Dialect, anthropic, gemini, openai};

/// The most answers of one request that are counted apart; more are counted together with the last.
const MAX_COUNTERS: usize = 64;

/// Bytes to a token where an event is too large to be read.
const OPAQUE_BYTES_PER_TOKEN: u64 = 4;

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// Not to its end.
    Open,
    /// The whole answer was produced and its usage told; the event that ends the stream is still to come.
    Whole,
    /// To its final event, which nothing follows.
    Final,
    /// The upstream reported an error inside the stream.
    Failed,
}

/// What the client is to see of an event, where usage is hidden from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// All of it.
    All,
    /// Nothing.
    Nothing,
    /// All but the member whose value stands here in the event's data.
    AllBut(Range<usize>),
}

/// Watches one stream.
#[derive(Debug)]
pub struct Observer {
    form: AnswerForm,
    splitter: Splitter,
    tally: Tally,
}

impl Observer {
    /// An observer that has seen nothing.
    pub(super) fn new(form: AnswerForm, encoding: Encoding) -> Self {
        let tally = Tally::new(encoding, form.echo.clone());
        Self { form, splitter: Splitter::default(), tally }
    }

    /// Takes the next bytes and gives out what the client is to see of them; possibly nothing yet.
    pub fn push(&mut self, bytes: &Bytes) -> Bytes {
        let mut out = Vec::new();
        for piece in self.splitter.push(bytes) {
            let shown = self.observe(piece);
            if self.form.hide_usage {
                out.extend_from_slice(&shown);
            }
        }
        if self.form.hide_usage { out.into() } else { bytes.clone() }
    }

    /// Ends the stream and gives out what was still held back.
    pub fn finish(&mut self) -> Bytes {
        let shown = self.splitter.finish().map(|piece| self.observe(piece)).unwrap_or_default();
        if self.form.hide_usage { shown } else { Bytes::new() }
    }

    /// The output so far, all answers together: as the upstream tells it, else counted, and then of the newest words
    /// only that there are some.
    #[must_use]
    pub fn output_so_far(&self) -> Tokens {
        self.tally.output_so_far()
    }

    /// The output counted exactly: what is visible, and reasoning.
    pub fn counted(&mut self) -> (Tokens, Tokens) {
        self.tally.counted()
    }

    /// The usage the upstream reported, the latest where there were several. A report that more output followed is
    /// none.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.tally.usage.filter(|_| !self.tally.outdated)
    }

    /// The usage the upstream reported last, whether or not more output followed.
    #[must_use]
    pub fn told(&self) -> Option<Usage> {
        self.tally.usage
    }

    /// The input the upstream reported, whether or not it came to reporting the output.
    #[must_use]
    pub fn input(&self) -> Option<Usage> {
        self.tally.input()
    }

    /// Whether the upstream reported a usage that cannot be, which was not taken note of.
    #[must_use]
    pub fn disbelieved(&self) -> bool {
        self.tally.disbelieved
    }

    /// How far the stream has come.
    #[must_use]
    pub fn end(&self) -> StreamEnd {
        self.tally.end
    }

    /// Notes what a piece says and returns what is to be shown of it.
    fn observe(&mut self, piece: Piece) -> Bytes {
        match piece {
            Piece::Opaque(raw) => {
                self.tally.opaque += raw.len() as u64;
                raw
            }
            Piece::Event { raw, data: None } => raw,
            Piece::Event { raw, data: Some(data) } if data.trim() == "[DONE]" => {
                self.tally.end_as(StreamEnd::Final);
                raw
            }
            Piece::Event { raw, data: Some(data) } => {
                let show = match self.form.dialect {
                    Dialect::OpenAiChat | Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings => {
                        openai::chunk::observe(&data, &mut self.tally)
                    }
                    Dialect::OpenAiResponses => openai::responses::observe(&data, &mut self.tally),
                    Dialect::AnthropicMessages => anthropic::observe(&data, &mut self.tally),
                    Dialect::Gemini => gemini::observe(&data, &mut self.tally),
                };
                match show {
                    Show::All => raw,
                    Show::Nothing => Bytes::new(),
                    Show::AllBut(value) => without_member(&raw, &data, value),
                }
            }
        }
    }
}

/// What a stream has said so far. The readers of the APIs fill it in.
#[derive(Debug)]
pub(super) struct Tally {
    encoding: Encoding,
    echo: Option<Echo>,
    /// How many bytes of each answer have been taken for an echo.
    echoed: BTreeMap<usize, usize>,
    visible: Vec<OutputCounter>,
    reasoning: Vec<OutputCounter>,
    opaque: u64,
    input: Option<Usage>,
    usage: Option<Usage>,
    /// Whether output followed the usage reported last.
    outdated: bool,
    /// Whether a usage was reported that cannot be.
    disbelieved: bool,
    /// The output so far as the upstream tells it, where it does.
    told: Option<Tokens>,
    end: StreamEnd,
}

impl Tally {
    fn new(encoding: Encoding, echo: Option<Echo>) -> Self {
        Self {
            encoding,
            echo,
            echoed: BTreeMap::new(),
            visible: Vec::new(),
            reasoning: Vec::new(),
            opaque: 0,
            input: None,
            usage: None,
            outdated: false,
            disbelieved: false,
            told: None,
            end: StreamEnd::Open,
        }
    }

    /// Adds a text to one of the answers.
    pub(super) fn add(&mut self, index: usize, fragment: Fragment<'_>) {
        let index = index.min(MAX_COUNTERS - 1);
        let (counters, text) = match fragment {
            Fragment::Visible(text) => (&mut self.visible, text),
            Fragment::Reasoning(text) => (&mut self.reasoning, text),
        };
        self.outdated |= !text.is_empty();
        if counters.len() <= index {
            counters.resize_with(index + 1, || OutputCounter::new(self.encoding));
        }
        counters[index].push(text);
    }

    /// Adds a text to an answer that may begin with its prompt.
    pub(super) fn add_echoed(&mut self, index: usize, text: &str) {
        let mut from = 0;
        if let Some(echo) = &self.echo {
            let length = echo.length(index);
            // An answer that is none of those asked for has no echo, and leaves no entry.
            if length > 0 {
                let echoed = self.echoed.entry(index).or_default();
                from = text.floor_char_boundary(length.saturating_sub(*echoed));
                *echoed += from;
            }
        }
        self.add(index, Fragment::Visible(&text[from..]));
    }

    /// Takes note of the input, where it is told ahead of the output.
    pub(super) fn learn_input(&mut self, input: Option<Usage>) {
        let believed = input.filter(is_believable);
        self.disbelieved |= believed != input;
        self.input = believed.or(self.input);
    }

    /// The input as it was told.
    pub(super) fn input(&self) -> Option<Usage> {
        self.usage.or(self.input).map(|usage| usage.input_only())
    }

    /// Takes note of a reported usage. A later one replaces it: reports are cumulative. One that cannot be is as good
    /// as none.
    pub(super) fn report(&mut self, usage: Usage) {
        if !is_believable(&usage) {
            self.disbelieved = true;
            return;
        }
        self.usage = Some(usage);
        self.outdated = false;
    }

    /// Takes note of how much output there is so far, as the upstream tells it.
    pub(super) fn tell(&mut self, output: Tokens) {
        self.told = Some(output);
    }

    /// The first end stands: an error after the final event changes nothing, nor does `[DONE]` after an error. But what
    /// was whole comes to its final event.
    pub(super) fn end_as(&mut self, end: StreamEnd) {
        if self.end == StreamEnd::Open || (self.end, end) == (StreamEnd::Whole, StreamEnd::Final) {
            self.end = end;
        }
    }

    fn output_so_far(&self) -> Tokens {
        self.told.unwrap_or_else(|| {
            let text: Tokens = self.visible.iter().chain(&self.reasoning).map(OutputCounter::so_far).sum();
            text + self.opaque_tokens()
        })
    }

    fn counted(&mut self) -> (Tokens, Tokens) {
        let visible: Tokens = self.visible.iter_mut().map(OutputCounter::exact).sum();
        let reasoning = self.reasoning.iter_mut().map(OutputCounter::exact).sum();
        (visible + self.opaque_tokens(), reasoning)
    }

    fn opaque_tokens(&self) -> Tokens {
        Tokens::new(self.opaque.div_ceil(OPAQUE_BYTES_PER_TOKEN))
    }
}

/// The event without one member of its data. Where the data stands in one piece in the event, nothing else of it
/// changes; where it is spread over lines, it is written anew behind the event's other lines.
fn without_member(raw: &Bytes, data: &str, value: Range<usize>) -> Bytes {
    let Some(cleaned) = cut_member(data, value) else { return raw.clone() };
    let Some(at) = raw.windows(data.len().max(1)).position(|window| window == data.as_bytes()) else {
        return rewritten(raw, &cleaned).into();
    };
    [&raw[..at], cleaned.as_bytes(), &raw[at + data.len()..]].concat().into()
}

/// A JSON object's text without the member whose value stands there.
fn cut_member(data: &str, value: Range<usize>) -> Option<String> {
    let name_end = data[..value.start].trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    let name_start = name_end.rfind('"')?;
    let (head, tail) = (&data[..name_start], data[value.end..].trim_start());
    Some(match tail.strip_prefix(',') {
        Some(tail) => head.to_owned() + tail.trim_start(),
        None => head.trim_end().strip_suffix(',').unwrap_or(head).to_owned() + tail,
    })
}

fn rewritten(raw: &Bytes, data: &str) -> String {
    let text = String::from_utf8_lossy(raw);
    let end = ["\r\n", "\r"].into_iter().find(|end| text.contains(end)).unwrap_or("\n");
    let others = text.split(['\n', '\r']).filter(|line| !line.is_empty() && line.split(':').next() != Some("data"));
    let data = data.split('\n').map(|line| format!("data: {line}{end}"));
    others.map(|line| format!("{line}{end}")).chain(data).chain([end.to_owned()]).collect()
}

#[cfg(test)]
mod tests;
