//! What Envoy's AI protocol manager read of a request and of its answer, so that no body has to come here.
//!
//! Envoy 1.40 publishes two records as typed metadata: one of the request, which is there when its headers come, and one
//! of the usage the answer reports, which is there with its trailers (made up by Envoy where the answer has none). Both
//! are marked unstable in Envoy; what is read here is what 1.40.0 was seen to send. A field that is missing or cannot be
//! read makes the record one that is not there, never one that is guessed at. *Bound:* a record is decoded from a message
//! whose size the gRPC server bounds, and nothing of it is kept but numbers and the model's name.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use prost::Message;

use crate::units::{Tokens, Usage};

use super::super::exchange::Reading;

/// The namespaces Envoy publishes under unless it is told otherwise.
const REQUEST: &str = "envoy.ai.request_info";
const USAGE: &str = "envoy.ai.token_usage";

/// What was read of a request.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct RequestRecord {
    /// The model, as the client named it.
    #[prost(string, tag = "2")]
    pub(super) model: String,
    /// Whether the answer is to be streamed.
    #[prost(message, optional, tag = "3")]
    pub(super) stream: Option<bool>,
    /// The most output one answer may have.
    #[prost(message, optional, tag = "4")]
    pub(super) max_output_tokens: Option<u64>,
    /// The input as Envoy estimates it: a token for so many bytes of the whole body. Since 1.40.0.
    #[prost(message, optional, tag = "7")]
    pub(super) estimated_input_tokens: Option<u64>,
}

impl RequestRecord {
    /// The record among what came with a message.
    pub(super) fn of(metadata: &Metadata) -> Option<Self> {
        let any = metadata.typed_filter_metadata.get(REQUEST)?;
        Self::decode(any.value.as_slice()).ok().filter(|record| !record.model.is_empty())
    }
}

/// What was read of an answer. Parts lie inside their wholes.
#[derive(Clone, PartialEq, Eq, Message)]
struct UsageRecord {
    #[prost(message, optional, tag = "3")]
    input: Option<u64>,
    #[prost(message, optional, tag = "4")]
    output: Option<u64>,
    #[prost(message, optional, tag = "6")]
    of_input: Option<OfInput>,
    #[prost(message, optional, tag = "7")]
    of_output: Option<OfOutput>,
    #[prost(int32, tag = "9")]
    status: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct OfInput {
    #[prost(message, optional, tag = "1")]
    cached: Option<u64>,
    #[prost(message, optional, tag = "2")]
    written: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct OfOutput {
    #[prost(message, optional, tag = "1")]
    reasoning: Option<u64>,
}

/// Everything that reported usage was read.
const COMPLETE: i32 = 1;
/// Something was lost, and the counts may be old.
const PARTIAL: i32 = 2;

/// The usage among what came with a message; nothing where Envoy read none.
pub(super) fn usage(metadata: &Metadata) -> Option<Reading> {
    let any = metadata.typed_filter_metadata.get(USAGE)?;
    let record = UsageRecord::decode(any.value.as_slice()).ok()?;
    let of_input = record.of_input.unwrap_or_default();
    let reasoning = record.of_output.and_then(|part| part.reasoning).unwrap_or(0);
    let (input, output) = (record.input?, record.output?);
    let cached = of_input.cached.unwrap_or(0).min(input);
    let written = of_input.written.unwrap_or(0).min(input - cached);
    let reasoning = reasoning.min(output);
    let usage = Usage {
        uncached_input: Tokens::new(input - cached - written),
        cached_input: Tokens::new(cached),
        cache_write: Tokens::new(written),
        visible_output: Tokens::new(output - reasoning),
        reasoning_output: Tokens::new(reasoning),
    };
    match record.status {
        COMPLETE => Some(Reading::Whole(usage)),
        PARTIAL => Some(Reading::Part(usage)),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::config::core::v3::Metadata;
    use envoy_types::pb::google::protobuf::Any;
    use prost::Message;

    use super::{OfInput, OfOutput, Reading, RequestRecord, UsageRecord, usage};
    use crate::units::{Tokens, Usage};

    fn metadata(namespace: &str, record: &impl Message) -> Metadata {
        let any = Any { type_url: String::new(), value: record.encode_to_vec() };
        Metadata { typed_filter_metadata: HashMap::from([(namespace.to_owned(), any)]), ..Metadata::default() }
    }

    /// A request of this model, as Envoy records it.
    pub(in super::super) fn requested(model: &str, stream: Option<bool>, cap: Option<u64>, input: u64) -> Metadata {
        let record = RequestRecord {
            model: model.to_owned(),
            stream,
            max_output_tokens: cap,
            estimated_input_tokens: Some(input),
        };
        metadata(super::REQUEST, &record)
    }

    /// A usage, as Envoy records it.
    pub(in super::super) fn used(input: u64, output: u64) -> Metadata {
        let record = UsageRecord { input: Some(input), output: Some(output), status: 1, ..UsageRecord::default() };
        metadata(super::USAGE, &record)
    }

    #[test]
    fn what_envoy_1_40_0_sends_of_a_request_is_read() {
        // As it came from a real one: protocol 1, model m-1, streamed, 55 at most, one message, one tool, 57 in.
        let bytes =
            b"\x08\x01\x12\x03m-1\x1a\x02\x08\x01\x22\x02\x08\x37\x2a\x02\x08\x01\x32\x02\x08\x01\x3a\x02\x08\x39";
        let any = Any { type_url: String::new(), value: bytes.to_vec() };
        let from = Metadata {
            typed_filter_metadata: HashMap::from([(super::REQUEST.to_owned(), any)]),
            ..Metadata::default()
        };
        let record = RequestRecord::of(&from).expect("one is there");
        assert_eq!(record.model, "m-1");
        assert_eq!((record.stream, record.max_output_tokens), (Some(true), Some(55)));
        assert_eq!(record.estimated_input_tokens, Some(57));
        assert_eq!(RequestRecord::of(&requested("", None, None, 7)), None, "one without a model says nothing");
        assert_eq!(RequestRecord::of(&Metadata::default()), None);
    }

    #[test]
    fn overlapping_parts_become_disjoint_and_no_part_exceeds_its_whole() {
        let of = |input, output, cached, written, reasoning, status| {
            let record = UsageRecord {
                input,
                output,
                of_input: Some(OfInput { cached, written }),
                of_output: Some(OfOutput { reasoning }),
                status,
            };
            usage(&metadata(super::USAGE, &record))
        };
        let buckets = |[uncached_input, cached_input, cache_write, visible_output, reasoning_output]: [u64; 5]| Usage {
            uncached_input: Tokens::new(uncached_input),
            cached_input: Tokens::new(cached_input),
            cache_write: Tokens::new(cache_write),
            visible_output: Tokens::new(visible_output),
            reasoning_output: Tokens::new(reasoning_output),
        };
        let whole = Some(Reading::Whole(buckets([30, 60, 10, 20, 30])));
        assert_eq!(of(Some(100), Some(50), Some(60), Some(10), Some(30), 1), whole);
        let cut = Some(Reading::Part(buckets([0, 5, 0, 0, 2])));
        assert_eq!(of(Some(5), Some(2), Some(9), Some(9), Some(9), 2), cut);
        assert_eq!(of(Some(5), Some(2), None, None, None, 3), None, "Envoy says that it failed");
        assert_eq!(of(Some(5), None, None, None, None, 1), None, "half a usage is none");
    }
}
