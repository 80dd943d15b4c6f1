//! Hostile streams, cut anywhere: every byte comes out once and in order, and where the cuts fall changes nothing.

#![no_main]

use arbitrary::Arbitrary;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tallygate::costing::Encoding;
use tallygate::wire::dialect::sse::{Piece, Splitter};
use tallygate::wire::dialect::{AnswerForm, Dialect};

#[derive(Arbitrary, Debug)]
struct Input {
    stream: Vec<u8>,
    /// Lengths of the chunks it arrives in, over and over.
    cuts: Vec<u8>,
    hide_usage: bool,
    /// Which of the dialects.
    dialect: u8,
}

fuzz_target!(|input: Input| {
    let chunks = chunks(&input.stream, &input.cuts);
    let split = split(&chunks);
    let whole = split_whole(&input.stream);
    assert_eq!(bytes_of(&split), input.stream, "bytes were lost, added or moved");
    assert_eq!(split, whole, "where the network cut the stream changed what was read");
    let dialect = Dialect::ALL[usize::from(input.dialect) % Dialect::ALL.len()];
    let mut observer = AnswerForm::new(dialect, input.hide_usage).observer(Encoding::O200k);
    let mut shown = Vec::new();
    for chunk in &chunks {
        shown.extend_from_slice(&observer.push(&Bytes::copy_from_slice(chunk)));
    }
    shown.extend_from_slice(&observer.finish());
    if !input.hide_usage {
        assert_eq!(shown, input.stream, "a stream that hides nothing is passed on as it is");
    }
    let _counted = observer.counted();
});

fn chunks<'a>(stream: &'a [u8], cuts: &[u8]) -> Vec<&'a [u8]> {
    let mut rest = stream;
    let mut chunks = Vec::new();
    for length in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at(usize::from(*length).clamp(1, rest.len()));
        chunks.push(chunk);
        rest = after;
    }
    if !rest.is_empty() {
        chunks.push(rest);
    }
    chunks
}

fn split(chunks: &[&[u8]]) -> Vec<Piece> {
    let mut splitter = Splitter::default();
    let mut pieces: Vec<Piece> = chunks.iter().flat_map(|chunk| splitter.push(chunk)).collect();
    pieces.extend(splitter.finish());
    pieces
}

fn split_whole(stream: &[u8]) -> Vec<Piece> {
    split(&[stream])
}

fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|piece| match piece {
            Piece::Event { raw, .. } => raw.to_vec(),
            Piece::Opaque(bytes) => bytes.to_vec(),
        })
        .collect()
}
