//! Whose answers Envoy's own records can be trusted to account for.
//!
//! A record of usage is there only where the answer reports usage, and of OpenAI's streams only those do whose client
//! asked for it. Envoy's record of the request does not say whether it did. So what is known is what was seen: for each
//! tenant, model, API and form of answer, whether the last answer left a record. Where it did not, the next request's
//! body is read, usage is asked for and the answer is read as it passes; and since a record may then come all the same,
//! trust comes back by itself. *Decides* nothing but how a request is read, never whether it goes. *Bound:* 4,096 keys;
//! beyond them all is forgotten, which costs one reading of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::units::TenantId;

use super::super::dialect::Dialect;

/// The most that is remembered.
const MOST: usize = 4_096;

/// What answers are alike in leaving a record, or not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) tenant: TenantId,
    /// As the client names it.
    pub(super) model: Box<str>,
    pub(super) dialect: Dialect,
    pub(super) streamed: bool,
}

impl Kind {
    /// What is taken for likely before anything was seen.
    fn usually_recorded(&self) -> bool {
        match self.dialect {
            // Only where the client asks for usage.
            Dialect::OpenAiChat => !self.streamed,
            Dialect::AnthropicMessages => true,
            // Their bodies are always read.
            Dialect::OpenAiResponses | Dialect::OpenAiCompletions | Dialect::OpenAiEmbeddings | Dialect::Gemini => {
                false
            }
        }
    }
}

/// What was seen of answers.
#[derive(Debug, Default)]
pub(super) struct Trust {
    seen: Mutex<HashMap<Kind, bool>>,
    /// Whether it was said that a picker stands where none may.
    warned: AtomicBool,
}

impl Trust {
    /// An endpoint picker stands behind us and answers do not come here: Envoy can then lose parts of them.
    pub(super) fn warn_of_picker(&self) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "an endpoint picker stands behind this filter, whose response_body_mode is NONE: streams can be cut short \
                 unseen; set it to STREAMED (docs/envoy.md)"
            );
        }
    }

    /// Whether an answer of this kind will leave a record, as far as is known.
    pub(super) fn expects(&self, kind: &Kind) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(kind).copied();
        seen.unwrap_or_else(|| kind.usually_recorded())
    }

    /// An answer of this kind left a record, or none.
    pub(super) fn saw(&self, kind: Kind, recorded: bool) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST && !seen.contains_key(&kind) {
            seen.clear();
        }
        seen.insert(kind, recorded);
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, MOST, Trust};
    use crate::units::TenantId;
    use crate::wire::dialect::Dialect;

    fn kind(model: &str, dialect: Dialect, streamed: bool) -> Kind {
        Kind { tenant: TenantId::from("acme"), model: model.into(), dialect, streamed }
    }

    #[test]
    fn what_was_seen_last_is_expected_next() {
        let trust = Trust::default();
        let chat = kind("m", Dialect::OpenAiChat, true);
        assert!(!trust.expects(&chat), "not every stream reports usage");
        assert!(trust.expects(&kind("m", Dialect::OpenAiChat, false)));
        assert!(trust.expects(&kind("m", Dialect::AnthropicMessages, true)));
        assert!(!trust.expects(&kind("m", Dialect::OpenAiCompletions, false)));
        for recorded in [true, false, true] {
            trust.saw(chat.clone(), recorded);
            assert_eq!(trust.expects(&chat), recorded);
        }
        assert!(!trust.expects(&kind("n", Dialect::OpenAiChat, true)), "another model's says nothing");
    }

    #[test]
    fn invented_models_take_no_more_than_a_fixed_room() {
        let trust = Trust::default();
        for number in 0..3 * MOST {
            trust.saw(kind(&number.to_string(), Dialect::OpenAiChat, true), true);
        }
        assert!(trust.seen.lock().expect("nobody panicked").len() <= MOST);
    }
}
