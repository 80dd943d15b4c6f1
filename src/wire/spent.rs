//! What somebody else read of what a request used: Envoy's reader of answers, tags of its access log, or whoever sent the
//! request itself.
//!
//! Every report comes as wholes and parts of them, and becomes disjoint amounts here, once for all doors. One that
//! contradicts itself (a part larger than its whole), or tells of more than any answer can have, is disbelieved: nobody
//! is charged by it, and it is not mended into one that could be.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::ai::v3::TokenUsage;
use envoy_types::pb::envoy::data::ai::v3::token_usage::ExtractionStatus;
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::{Message as _, Name as _};

use crate::units::{Tokens, Usage};

use super::dialect::is_believable;

/// Under which namespace Envoy's reader of answers tells what they used, unless it is told otherwise.
pub const RECORD: &str = "envoy.ai.token_usage";

/// What is told of the usage of one request, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spent {
    /// Nothing.
    #[default]
    Nothing,
    /// All of it.
    Whole(Usage),
    /// Some of it; it may have become more.
    Part(Usage),
    /// Its output, and not its input.
    Output {
        /// What the client sees of it.
        visible: Tokens,
        /// The rest.
        reasoning: Tokens,
    },
    /// What cannot be.
    Disbelieved,
}

/// The figures of a report, in tokens, as they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Of input, cached and written to a cache too; nothing where it is not told.
    pub input: Option<u64>,
    /// Of those, read from a cache.
    pub cached: u64,
    /// Of those, written to a cache.
    pub written: u64,
    /// Of output, reasoning too; nothing where it is not told.
    pub output: Option<u64>,
    /// Of those, reasoning.
    pub reasoning: u64,
}

impl From<Figures> for Spent {
    fn from(figures: Figures) -> Self {
        let Figures { input, cached, written, output, reasoning } = figures;
        let Some(output) = output else { return Self::Nothing };
        let uncached = input.map_or(Some(0), |input| input.checked_sub(cached)?.checked_sub(written));
        let (Some(uncached), Some(visible)) = (uncached, output.checked_sub(reasoning)) else {
            return Self::Disbelieved;
        };
        let (visible, reasoning) = (Tokens::new(visible), Tokens::new(reasoning));
        let of_output = Usage { visible_output: visible, reasoning_output: reasoning, ..Usage::default() };
        let usage = Usage {
            uncached_input: Tokens::new(uncached),
            cached_input: Tokens::new(cached),
            cache_write: Tokens::new(written),
            ..of_output
        };
        match input {
            Some(_) if is_believable(&usage) => Self::Whole(usage),
            None if is_believable(&of_output) => Self::Output { visible, reasoning },
            Some(_) | None => Self::Disbelieved,
        }
    }
}

impl Spent {
    /// What Envoy's reader of answers tells among what came with a message or a log entry. Nothing where it read none,
    /// failed, or lost so much that not even both wholes are there.
    #[must_use]
    pub fn recorded(metadata: &Metadata) -> Self {
        let record = metadata.typed_filter_metadata.get(RECORD).filter(|any| any.type_url == TokenUsage::type_url());
        let Some(Ok(usage)) = record.map(|any| TokenUsage::decode(any.value.as_slice())) else { return Self::Nothing };
        let tokens = |count: Option<UInt64Value>| count.map(|count| count.value);
        let of_input = usage.input_token_details.unwrap_or_default();
        let of_output = usage.output_token_details.unwrap_or_default();
        let spent = Self::from(Figures {
            input: tokens(usage.input_tokens),
            cached: tokens(of_input.cached_tokens).unwrap_or(0),
            written: tokens(of_input.cache_creation_tokens).unwrap_or(0),
            output: tokens(usage.output_tokens),
            reasoning: tokens(of_output.reasoning_tokens).unwrap_or(0),
        });
        match (ExtractionStatus::try_from(usage.extraction_status), spent) {
            (Ok(ExtractionStatus::Complete), spent) => spent,
            (Ok(ExtractionStatus::Partial), Self::Whole(usage)) => Self::Part(usage),
            (Ok(ExtractionStatus::Partial), Self::Disbelieved) => Self::Disbelieved,
            _ => Self::Nothing,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::config::core::v3::Metadata;
    use envoy_types::pb::envoy::data::ai::v3::{InputTokenDetails, OutputTokenDetails, TokenUsage};
    use envoy_types::pb::google::protobuf::{Any, UInt64Value};
    use proptest::prelude::*;
    use prost::{Message as _, Name as _};

    use super::{Figures, RECORD, Spent};
    use crate::units::{Tokens, Usage};
    use crate::wire::dialect::is_believable;

    const COMPLETE: i32 = 1;
    const PARTIAL: i32 = 2;
    const FAILED: i32 = 3;

    /// Figures as Envoy records them, with how well they could be read.
    pub(in crate::wire) fn record(figures: Figures, extraction_status: i32) -> Metadata {
        let count = |value| Some(UInt64Value { value });
        let usage = TokenUsage {
            input_tokens: figures.input.and_then(count),
            output_tokens: figures.output.and_then(count),
            input_token_details: Some(InputTokenDetails {
                cached_tokens: count(figures.cached),
                cache_creation_tokens: count(figures.written),
                ..Default::default()
            }),
            output_token_details: Some(OutputTokenDetails { reasoning_tokens: count(figures.reasoning) }),
            extraction_status,
            ..Default::default()
        };
        let any = Any { type_url: TokenUsage::type_url(), value: usage.encode_to_vec() };
        Metadata { typed_filter_metadata: HashMap::from([(RECORD.to_owned(), any)]), ..Metadata::default() }
    }

    /// A usage without parts, as Envoy records it.
    pub(in crate::wire) fn used(input: u64, output: u64) -> Metadata {
        record(Figures { input: Some(input), output: Some(output), ..Figures::default() }, COMPLETE)
    }

    fn usage([uncached, cached, written, visible, reasoning]: [u64; 5]) -> Usage {
        Usage {
            uncached_input: Tokens::new(uncached),
            cached_input: Tokens::new(cached),
            cache_write: Tokens::new(written),
            visible_output: Tokens::new(visible),
            reasoning_output: Tokens::new(reasoning),
        }
    }

    #[test]
    fn parts_of_wholes_become_disjoint_and_what_contradicts_itself_is_disbelieved() {
        let of = |input, output, [cached, written, reasoning]: [u64; 3], status| {
            Spent::recorded(&record(Figures { input, cached, written, output, reasoning }, status))
        };
        let (whole, more) = (usage([30, 60, 10, 20, 30]), 10_000_001);
        let output_alone = Spent::Output { visible: Tokens::new(20), reasoning: Tokens::new(30) };
        for (found, wanted, name) in [
            (of(Some(100), Some(50), [60, 10, 30], COMPLETE), Spent::Whole(whole), "parts overlap their wholes"),
            (of(Some(100), Some(50), [60, 10, 30], PARTIAL), Spent::Part(whole), "Envoy lost something"),
            (of(Some(100), Some(50), [60, 10, 30], FAILED), Spent::Nothing, "Envoy failed"),
            (of(Some(100), Some(50), [60, 10, 30], 0), Spent::Nothing, "Envoy does not say"),
            (of(Some(100), Some(50), [60, 10, 30], 99), Spent::Nothing, "Envoy says what is not known here"),
            (of(Some(0), Some(0), [0, 0, 0], COMPLETE), Spent::Whole(Usage::default()), "nothing was used"),
            (of(Some(5), Some(2), [6, 0, 0], COMPLETE), Spent::Disbelieved, "more cached than there is"),
            (of(Some(5), Some(2), [3, 3, 0], COMPLETE), Spent::Disbelieved, "cached and written more than there is"),
            (of(Some(5), Some(2), [u64::MAX, u64::MAX, 0], COMPLETE), Spent::Disbelieved, "beyond any sum"),
            (of(Some(5), Some(2), [0, 0, 3], COMPLETE), Spent::Disbelieved, "more reasoning than output"),
            (of(Some(5), Some(2), [9, 9, 9], PARTIAL), Spent::Disbelieved, "in part, and still too much"),
            (of(Some(more), Some(2), [0, 0, 0], COMPLETE), Spent::Disbelieved, "no context is that long"),
            (of(None, Some(more), [0, 0, 0], COMPLETE), Spent::Disbelieved, "no output is that long"),
            (of(None, Some(50), [0, 0, 30], COMPLETE), output_alone, "the input is not told"),
            (of(None, Some(2), [0, 0, 3], COMPLETE), Spent::Disbelieved, "nor is it, and the output cannot be"),
            (of(None, Some(50), [0, 0, 30], PARTIAL), Spent::Nothing, "nor is it, of what is a part"),
            (of(Some(5), None, [0, 0, 0], COMPLETE), Spent::Nothing, "the output is not told"),
        ] {
            assert_eq!(found, wanted, "{name}");
        }
    }

    #[test]
    fn what_is_no_record_of_usage_tells_nothing() {
        let with = |change: fn(&mut Any)| {
            let mut metadata = used(5, 2);
            change(metadata.typed_filter_metadata.get_mut(RECORD).expect("it is there"));
            Spent::recorded(&metadata)
        };
        assert_eq!(with(|_| {}), Spent::Whole(usage([5, 0, 0, 2, 0])));
        assert_eq!(
            with(|any| any.type_url = "type.googleapis.com/envoy.data.ai.v3.RequestInfo".into()),
            Spent::Nothing
        );
        assert_eq!(with(|any| any.value.truncate(3)), Spent::Nothing);
        assert_eq!(Spent::recorded(&Metadata::default()), Spent::Nothing);
    }

    proptest! {
        /// Figures in the order of what can be, where contradictions are frequent, and of anything.
        #[test]
        fn what_is_believed_adds_up_to_what_was_told_and_the_rest_contradicts_itself(
            small in any::<bool>(),
            drawn in prop::array::uniform5(any::<u64>()),
            with_input in prop::bool::weighted(0.8),
        ) {
            let [input, cached, written, output, reasoning] =
                drawn.map(|n| if small { (n % 30_000_000) >> (n % 25) } else { n });
            let figures = Figures { input: with_input.then_some(input), cached, written, output: Some(output), reasoning };
            match Spent::from(figures) {
                Spent::Whole(usage) => {
                    prop_assert!(with_input && is_believable(&usage));
                    prop_assert_eq!((usage.input().get(), usage.output().get()), (input, output));
                    prop_assert_eq!(usage.cached_input.get(), cached);
                    prop_assert_eq!(usage.cache_write.get(), written);
                    prop_assert_eq!(usage.reasoning_output.get(), reasoning);
                }
                Spent::Output { visible, reasoning: told } => {
                    prop_assert!(!with_input);
                    prop_assert_eq!(((visible + told).get(), told.get()), (output, reasoning));
                }
                Spent::Disbelieved => {
                    let parts = with_input && u128::from(cached) + u128::from(written) > u128::from(input);
                    let wholes = (with_input && input > 10_000_000) || output > 10_000_000;
                    prop_assert!(parts || reasoning > output || wholes, "{figures:?}");
                }
                told => prop_assert!(false, "{figures:?} is neither {told:?}"),
            }
        }
    }
}
