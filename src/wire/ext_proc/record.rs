//! What Envoy's AI protocol manager read of a request, so that no body has to come here.
//!
//! Envoy 1.40 publishes two records as typed metadata: one of the request, which is there when its headers come, and one
//! of the usage the answer reports ([`Spent`](super::super::spent::Spent)), which is there with its trailers (made up by
//! Envoy where the answer has none). Both are marked unstable in Envoy; what is read here is what 1.40.0 was seen to send.
//! A field that is missing or cannot be read makes the record one that is not there, never one that is guessed at.
//! *Bound:* a record is decoded from a message whose size the gRPC server bounds, and nothing of it is kept but numbers
//! and the model's name.

use envoy_types::pb::envoy::config::core::v3::Metadata;
use prost::Message;

/// The namespace Envoy publishes under unless it is told otherwise.
const REQUEST: &str = "envoy.ai.request_info";

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

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::config::core::v3::Metadata;
    use envoy_types::pb::google::protobuf::Any;
    use prost::Message;

    use super::{REQUEST, RequestRecord};

    fn metadata(record: Vec<u8>) -> Metadata {
        let any = Any { type_url: String::new(), value: record };
        Metadata { typed_filter_metadata: HashMap::from([(REQUEST.to_owned(), any)]), ..Metadata::default() }
    }

    /// A request of this model, as Envoy records it.
    pub(in super::super) fn requested(model: &str, stream: Option<bool>, cap: Option<u64>, input: u64) -> Metadata {
        let record = RequestRecord {
            model: model.to_owned(),
            stream,
            max_output_tokens: cap,
            estimated_input_tokens: Some(input),
        };
        metadata(record.encode_to_vec())
    }

    #[test]
    fn what_envoy_1_40_0_sends_of_a_request_is_read() {
        // As it came from a real one: protocol 1, model m-1, streamed, 55 at most, one message, one tool, 57 in.
        let bytes =
            b"\x08\x01\x12\x03m-1\x1a\x02\x08\x01\x22\x02\x08\x37\x2a\x02\x08\x01\x32\x02\x08\x01\x3a\x02\x08\x39";
        let record = RequestRecord::of(&metadata(bytes.to_vec())).expect("one is there");
        assert_eq!(record.model, "m-1");
        assert_eq!((record.stream, record.max_output_tokens), (Some(true), Some(55)));
        assert_eq!(record.estimated_input_tokens, Some(57));
        assert_eq!(RequestRecord::of(&requested("", None, None, 7)), None, "one without a model says nothing");
        assert_eq!(RequestRecord::of(&Metadata::default()), None);
    }
}
