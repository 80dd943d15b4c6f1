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
    /// Not an answer of this API.
    Unreadable,
}

impl Reply {
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
