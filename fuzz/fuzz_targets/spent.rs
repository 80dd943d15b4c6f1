//! Any bytes as Envoy's record of usage, and any figures of a report: nothing panics, and what is believed adds up to what
//! was told, within what an answer can have.
#![no_main]

use std::collections::HashMap;

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::ai::v3::TokenUsage;
use envoy_types::pb::google::protobuf::Any;
use libfuzzer_sys::fuzz_target;
use prost::{Message as _, Name as _};
use tallygate::wire::dialect::is_believable;
use tallygate::wire::spent::{Figures, RECORD, Spent};

fn record(value: Vec<u8>) -> Metadata {
    let any = Any { type_url: TokenUsage::type_url(), value };
    Metadata { typed_filter_metadata: HashMap::from([(RECORD.to_owned(), any)]), ..Metadata::default() }
}

fuzz_target!(|input: (&[u8], [u64; 5], u8)| {
    let (data, [input, cached, written, output, reasoning], bits) = input;
    if let Ok(metadata) = Metadata::decode(data) {
        let _told = Spent::recorded(&metadata);
    }
    let told = Spent::recorded(&record(data.to_vec()));
    if let (Ok(record), Spent::Whole(usage) | Spent::Part(usage)) = (TokenUsage::decode(data), told) {
        assert!(is_believable(&usage), "{usage:?}");
        assert_eq!(record.input_tokens.map(|count| count.value), Some(usage.input().get()));
        assert_eq!(record.output_tokens.map(|count| count.value), Some(usage.output().get()));
    }

    // Of the order of what can be, in most cases, or parts would hardly ever lie within their wholes.
    let [input, cached, written, output, reasoning] =
        [input, cached, written, output, reasoning].map(|n| if bits & 1 == 0 { n } else { n >> (n % 64) });
    let figures = Figures { input: (bits & 2 == 0).then_some(input), cached, written, output: Some(output), reasoning };
    match Spent::from(figures) {
        Spent::Whole(usage) => {
            assert!(is_believable(&usage), "{figures:?}");
            assert_eq!((figures.input, output), (Some(usage.input().get()), usage.output().get()), "{figures:?}");
        }
        Spent::Output { visible, reasoning } => {
            assert_eq!((figures.input, output), (None, (visible + reasoning).get()), "{figures:?}");
        }
        Spent::Disbelieved => {}
        told => panic!("{figures:?} is neither {told:?}"),
    }
});
