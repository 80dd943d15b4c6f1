//! What a whole, non-streamed answer says of its cost.

use crate::costing::{Encoding, count_text};
use crate::units::{Tokens, Usage};

/// What a whole, non-streamed answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The usage the upstream reports.
    Reported(Usage),
    /// No usage; the output was counted. Holds output only.
    Counted {
        /// Text the caller sees, tool calls included.
        visible: Tokens,
        /// Reasoning.
        reasoning: Tokens,
    },
    /// A usage that cannot be, with the output as it was counted where there is something to count: visible, then
    /// reasoning.
    Disbelieved(Option<(Tokens, Tokens)>),
    /// Not an answer of this API.
    Unreadable,
}

/// The most tokens that are believed in one bucket of one answer: ten times the longest context there is.
const MOST_BELIEVED: Tokens = Tokens::new(10_000_000);

/// Whether a reported usage can be. One that cannot is a fault of the upstream's, and is treated as missing.
#[must_use]
pub fn is_believable(usage: &Usage) -> bool {
    let Usage { uncached_input, cached_input, cache_write, visible_output, reasoning_output } = *usage;
    [uncached_input, cached_input, cache_write, visible_output, reasoning_output]
        .into_iter()
        .all(|tokens| tokens <= MOST_BELIEVED)
}

impl Reply {
    /// The usage reported, where it can be believed; else what `count` finds.
    pub(super) fn reported_or(usage: Option<Usage>, count: impl FnOnce() -> Self) -> Self {
        match usage {
            Some(usage) if is_believable(&usage) => Self::Reported(usage),
            Some(_) => match count() {
                Self::Counted { visible, reasoning } => Self::Disbelieved(Some((visible, reasoning))),
                Self::Reported(_) | Self::Disbelieved(_) | Self::Unreadable => Self::Disbelieved(None),
            },
            None => count(),
        }
    }

    /// Counts the texts of an answer that reports no usage.
    pub(super) fn count<'a>(fragments: impl IntoIterator<Item = Fragment<'a>>, encoding: Encoding) -> Self {
        let (mut visible, mut reasoning) = (Tokens::ZERO, Tokens::ZERO);
        for fragment in fragments {
            match fragment {
                Fragment::Visible(text) => visible += count_text(encoding, text),
                Fragment::Reasoning(text) => reasoning += count_text(encoding, text),
            }
        }
        Self::Counted { visible, reasoning }
    }
}

/// A text the model produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fragment<'a> {
    /// Part of the answer.
    Visible(&'a str),
    /// Part of the reasoning.
    Reasoning(&'a str),
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::super::{AnswerForm, Dialect};
    use super::Reply;
    use crate::costing::Encoding;
    use crate::units::{Tokens, Usage};

    const BELIEVED: u64 = 10_000_000;

    fn usage(output: u64) -> serde_json::Value {
        json!({"prompt_tokens": 5, "completion_tokens": output, "input_tokens": 5, "output_tokens": output})
    }

    #[test]
    fn a_usage_that_cannot_be_is_missing_in_every_dialect() {
        let texts = json!({
            "choices": [{"message": {"content": "hello"}}],
            "output": [{"content": [{"text": "hello"}]}], "content": [{"type": "text", "text": "hello"}],
        });
        for dialect in Dialect::ALL.into_iter().filter(|dialect| *dialect != Dialect::OpenAiEmbeddings) {
            let read = |output: u64| {
                let mut body = texts.clone();
                body["usage"] = usage(output);
                AnswerForm::new(dialect, false).read(body.to_string().as_bytes(), Encoding::O200k)
            };
            let believed = Usage::plain(Tokens::new(5), Tokens::new(BELIEVED));
            assert_eq!(read(BELIEVED), Reply::Reported(believed), "{dialect:?}");
            let counted = Reply::Disbelieved(Some((Tokens::new(1), Tokens::ZERO)));
            assert_eq!(read(BELIEVED + 1), counted, "{dialect:?}");
            assert_eq!(read(u64::MAX), counted, "{dialect:?}");
        }
        let embeddings = AnswerForm::new(Dialect::OpenAiEmbeddings, false);
        let body = json!({"data": [], "usage": {"prompt_tokens": BELIEVED + 1}}).to_string();
        let counted = Reply::Disbelieved(Some((Tokens::ZERO, Tokens::ZERO)));
        assert_eq!(embeddings.read(body.as_bytes(), Encoding::O200k), counted);
    }

    #[test]
    fn a_usage_that_cannot_be_is_missing_in_every_stream() {
        let streams = [
            (Dialect::OpenAiChat, json!({"choices": [], "usage": usage(u64::MAX)})),
            (Dialect::OpenAiCompletions, json!({"choices": [{"text": ""}], "usage": usage(u64::MAX)})),
            (Dialect::OpenAiResponses, json!({"type": "response.completed", "response": {"usage": usage(u64::MAX)}})),
            (Dialect::AnthropicMessages, json!({"type": "message_delta", "usage": usage(u64::MAX)})),
            (
                Dialect::AnthropicMessages,
                json!({"type": "message_start", "message": {"usage": {"input_tokens": BELIEVED + 1}}}),
            ),
        ];
        for (dialect, event) in streams {
            let mut observer = AnswerForm::new(dialect, false).observer(Encoding::O200k);
            observer.push(&Bytes::from(format!("data: {event}\n\n")));
            assert!(observer.disbelieved(), "{event}");
            assert_eq!((observer.usage(), observer.output_so_far()), (None, Tokens::ZERO), "{event}");
        }
    }
}
